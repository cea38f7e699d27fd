"""The clients of the python backend's examples; those of the decoupled ones are elsewhere."""

from __future__ import annotations

import io
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from PIL import Image
from tritonclient.utils import InferenceServerException

from tests.examples.site import Site, Skipped

FAMILY = "requests_process_latency_ns"


def add_sub(site: Site, model: str) -> None:
    """Any model of this signature: sums and differences of four numbers."""
    with http.InferenceServerClient(site.http) as client:
        _ask(client, model)


def jax(site: Site) -> None:
    if not (site.repository / "jax").is_dir():
        raise Skipped("needs the package 'jax'")
    add_sub(site, "jax")


def auto_complete(site: Site) -> None:
    """Both models have no configuration file; they say themselves what they take."""
    tensors = [{"data_type": "TYPE_FP32", "dims": [4]}] * 2
    with http.InferenceServerClient(site.http) as client:
        for model, max_batch_size in (("nobatch_auto_complete", 0), ("batch_auto_complete", 4)):
            config = client.get_model_config(model)
            assert config["max_batch_size"] == max_batch_size
            assert ("dynamic_batching" in config) == bool(max_batch_size)
            for direction in ("input", "output"):
                found = {tensor["name"]: tensor for tensor in config[direction]}
                assert set(found) == {f"{direction.upper()}{index}" for index in (0, 1)}
                for tensor, expected in zip(found.values(), tensors, strict=True):
                    assert expected.items() <= tensor.items()
            _ask(client, model, batch=max_batch_size > 0)


def bls_sync(site: Site) -> None:
    """The request names the model to call; an unknown one is an error."""
    with http.InferenceServerClient(site.http) as client:
        for model in ("add_sub", "pytorch"):
            _ask(client, "bls_sync", called=model)
        with pytest.raises(InferenceServerException) as refused:
            _ask(client, "bls_sync", called="undefined_model")
        assert "Model 'undefined_model' is not ready" in refused.value.message()


def bls_decoupled(site: Site, model: str, times: int) -> None:
    """The sum of all responses of the model that is called, asked `times` times at once."""
    with http.InferenceServerClient(site.http) as client:
        for value in (4, 2, 0, 1):
            tensor = http.InferInput("IN", [1], "INT32")
            tensor.set_data_from_numpy(np.array([value], np.int32))
            result = client.infer(model, [tensor])
            assert result.as_numpy("SUM").tolist() == [times * value * value]


def custom_metrics(site: Site) -> None:
    """The model's own counter is among the server's metrics, and grows."""
    with http.InferenceServerClient(site.http) as client:
        values = []
        for _ in range(2):
            _ask(client, "custom_metrics")
            text = urllib.request.urlopen(f"http://{site.metrics}/metrics").read().decode()
            assert f"# HELP {FAMILY} Cumulative time spent processing requests\n" in text
            assert f"# TYPE {FAMILY} counter\n" in text
            sample = f'{FAMILY}{{model="custom_metrics",version="1"}} '
            (line,) = (line for line in text.splitlines() if line.startswith(sample))
            values.append(float(line.removeprefix(sample)))
        assert 0 < values[0] < values[1]


def instance_kind(site: Site) -> None:
    """A network on the device of its instance; the configuration says which."""
    with http.InferenceServerClient(site.http) as client:
        config = client.get_model_config("resnet50")
        (group,) = config["instance_group"]
        assert (group["name"], group["kind"], group["count"]) == ("resnet50_0", "KIND_CPU", 1)
        image = np.random.default_rng(1).random((2, 3, 224, 224), np.float32)
        tensor = http.InferInput("INPUT", image.shape, "FP32")
        tensor.set_data_from_numpy(image)
        output = http.InferRequestedOutput("OUTPUT")
        both = client.infer("resnet50", [tensor], outputs=[output]).as_numpy("OUTPUT")
        assert both.shape == (2, 1000)
        assert both.dtype == np.float32
        tensor = http.InferInput("INPUT", [1, 3, 224, 224], "FP32")
        tensor.set_data_from_numpy(image[1:])
        alone = client.infer("resnet50", [tensor], outputs=[output]).as_numpy("OUTPUT")
        np.testing.assert_allclose(alone[0], both[1], rtol=1e-3, atol=1e-5)


def preprocessing(site: Site) -> None:
    """The bytes of a picture go in as they are, through a Python step and a network."""
    with grpc.InferenceServerClient(site.grpc) as client:
        seen = []
        for path in sorted(site.images.iterdir()):
            file = np.fromfile(path, np.uint8)[np.newaxis]
            tensor = grpc.InferInput("INPUT", file.shape, "UINT8")
            tensor.set_data_from_numpy(file)
            output = grpc.InferRequestedOutput("OUTPUT")
            result = client.infer("ensemble_python_resnet50", [tensor], outputs=[output])
            found = result.as_numpy("OUTPUT")
            assert found.shape == (1, 1000)
            seen.append(int(found.argmax()))
            colour = np.asarray(Image.open(io.BytesIO(file.tobytes())).convert("RGB")).mean((0, 1))
            # The stand-in for the network counts: class 0, 1 or 2 for what is mostly R, G or B.
            assert seen[-1] == int(colour.argmax())
        assert sorted(seen) == [0, 1, 2]


def _ask(
    client: http.InferenceServerClient, model: str, *, called: str = "", batch: bool = False
) -> None:
    shape = [1, 4] if batch else [4]
    arrays = [np.random.default_rng(seed).random(shape, np.float32) for seed in (1, 2)]
    inputs = []
    for index, array in enumerate(arrays):
        inputs.append(http.InferInput(f"INPUT{index}", shape, "FP32"))
        inputs[-1].set_data_from_numpy(array)
    if called:
        inputs.append(http.InferInput("MODEL_NAME", [1], "BYTES"))
        inputs[-1].set_data_from_numpy(np.array([called], np.object_))
    outputs = [http.InferRequestedOutput(f"OUTPUT{index}") for index in (0, 1)]
    result = client.infer(model, inputs, request_id="1", outputs=outputs)
    assert result.get_response()["id"] == "1"
    np.testing.assert_allclose(result.as_numpy("OUTPUT0"), arrays[0] + arrays[1], rtol=1e-6)
    np.testing.assert_allclose(result.as_numpy("OUTPUT1"), arrays[0] - arrays[1], rtol=1e-5)
