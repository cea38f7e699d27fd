"""Rows 24 and 28 to 30: image classification, driven by the metadata of the model."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc as grpc_core
import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http
from PIL import Image
from tritonclient.grpc import model_config_pb2, service_pb2_grpc
from tritonclient.grpc import service_pb2 as pb

from tests.examples.repository import labels, weights
from tests.examples.site import Site

NHWC = model_config_pb2.ModelInput.FORMAT_NHWC
NCHW = model_config_pb2.ModelInput.FORMAT_NCHW
SCALINGS = ("NONE", "INCEPTION", "VGG")
CLASSES = 3


@dataclass(frozen=True, slots=True)
class Network:
    """The metadata and configuration of an image network."""

    model: str
    input: str
    output: str
    classes: int
    batch: int
    layout: int
    height: int
    width: int

    def scores(self, images: np.ndarray) -> np.ndarray:
        """Return what the stand-in makes of a batch, as its models do: FP32 [batch, classes]."""
        width, height = (2, 1) if self.layout == NHWC else (3, 2)
        # One after the other: a sum of all pixels at once is too long for FP32.
        found = images.mean(axis=width).mean(axis=height) @ weights(self.classes)
        if "Softmax" not in self.output:
            return found
        raised = np.exp(found - found.max(axis=1, keepdims=True))
        return raised / raised.sum(axis=1, keepdims=True)

    def prepare(self, path: Path, scaling: str) -> np.ndarray:
        """Return a picture as the network wants it, FP32 without a batch dimension."""
        image = Image.open(path).convert("RGB").resize((self.width, self.height), Image.BILINEAR)
        array = np.asarray(image).astype(np.float32)
        if scaling == "INCEPTION":
            array = array / np.float32(127.5) - 1
        elif scaling == "VGG":
            array = array - np.array((123, 117, 104), np.float32)
        return array if self.layout == NHWC else np.ascontiguousarray(array.transpose(2, 0, 1))


def http_image_client(site: Site, model: str) -> None:
    with http.InferenceServerClient(site.http, concurrency=4) as client:
        network = _network(client.get_model_metadata(model), client.get_model_config(model))
        for name, array in _requests(network, site, SCALINGS):
            result = client.infer(**_arguments(http, network, array, name))
            assert result.get_response()["id"] == name
            _check(network, array, result.as_numpy(network.output))
        sent = _requests(network, site, ("NONE",))
        asked = [client.async_infer(**_arguments(http, network, each, n)) for n, each in sent]
        for (_, array), each in zip(sent, asked, strict=True):
            _check(network, array, each.get_result().as_numpy(network.output))


def grpc_image_client(site: Site, model: str) -> None:
    with grpc.InferenceServerClient(site.grpc) as client:
        network = _network(
            client.get_model_metadata(model, as_json=True),
            client.get_model_config(model, as_json=True)["config"],
        )
        for name, array in _requests(network, site, SCALINGS):
            result = client.infer(**_arguments(grpc, network, array, name))
            _check(network, array, result.as_numpy(network.output))
        answers: queue.Queue[tuple[Any, Any]] = queue.Queue()

        def on_answer(result: Any, error: Any) -> None:
            answers.put((result, error))

        sent = dict(_requests(network, site, ("NONE",)))
        for name, array in sent.items():
            client.async_infer(**_arguments(grpc, network, array, name), callback=on_answer)
        _check_all(network, sent, answers)
        client.start_stream(on_answer)
        for name, array in sent.items():
            client.async_stream_infer(**_arguments(grpc, network, array, name))
        _check_all(network, sent, answers)


def raw_image_client(site: Site, model: str) -> None:
    """As `grpc_image_client`, with nothing but the generated stubs."""
    with grpc_core.insecure_channel(site.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        network = _network_of_stubs(
            stub.ModelMetadata(pb.ModelMetadataRequest(name=model)),
            stub.ModelConfig(pb.ModelConfigRequest(name=model)).config,
        )
        sent = dict(_requests(network, site, ("NONE",)))
        requests = [_raw_request(network, array, name) for name, array in sent.items()]
        waiting = [stub.ModelInfer.future(request) for request in requests]
        answers = [
            [stub.ModelInfer(request) for request in requests],
            [each.result() for each in waiting],
        ]
        stream = list(stub.ModelStreamInfer(iter(requests)))
        assert [each.error_message for each in stream] == [""] * len(requests)
        for responses in (*answers, [each.infer_response for each in stream]):
            # In any order: the model may have several instances.
            assert sorted(response.id for response in responses) == sorted(sent)
            for response in responses:
                array = sent[response.id]
                (output,) = response.outputs
                assert output.datatype == "BYTES"
                found = _strings(response.raw_output_contents[0])
                _check(network, array, np.array(found, np.object_).reshape(list(output.shape)))


def raw_client(site: Site) -> None:
    """Row 24: every simple call with the generated stubs, and one inference."""
    with grpc_core.insecure_channel(site.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert stub.ServerLive(pb.ServerLiveRequest()).live
        assert stub.ServerReady(pb.ServerReadyRequest()).ready
        assert stub.ModelReady(pb.ModelReadyRequest(name="densenet_onnx", version="")).ready
        assert stub.ServerMetadata(pb.ServerMetadataRequest()).name == "triton"
        metadata = stub.ModelMetadata(pb.ModelMetadataRequest(name="densenet_onnx"))
        assert [list(tensor.shape) for tensor in metadata.inputs] == [[3, 224, 224]]
        config = stub.ModelConfig(pb.ModelConfigRequest(name="densenet_onnx")).config
        network = _network_of_stubs(metadata, config)
        assert network.layout == NCHW
        image = np.frombuffer(b"a" * 602112, np.float32).reshape(3, 224, 224)
        request = pb.ModelInferRequest(model_name="densenet_onnx", id="my request id")
        request.inputs.add(name="data_0", datatype="FP32", shape=[3, 224, 224])
        request.outputs.add(name="fc6_1")
        request.raw_input_contents.append(image.tobytes())
        response = stub.ModelInfer(request)
        assert response.id == "my request id"
        assert list(response.outputs[0].shape) == [1000]
        found = np.frombuffer(response.raw_output_contents[0], np.float32)
        np.testing.assert_allclose(found, network.scores(image[np.newaxis])[0], rtol=1e-3)


def http_ensemble(site: Site) -> None:
    with http.InferenceServerClient(site.http) as client:
        config = client.get_model_config("preprocess_inception_ensemble")
        _ensemble(site, client, http, config["max_batch_size"])


def grpc_ensemble(site: Site) -> None:
    with grpc.InferenceServerClient(site.grpc) as client:
        config = client.get_model_config("preprocess_inception_ensemble").config
        _ensemble(site, client, grpc, config.max_batch_size)


def _ensemble(site: Site, client: Any, module: ModuleType, max_batch_size: int) -> None:
    """Whole files as BYTES go in, classes with the labels of the last step come out."""
    paths = sorted(site.images.iterdir())
    network = Network("", "", "Softmax", 1001, max_batch_size, NHWC, 299, 299)
    for batch in (paths[:1], paths):
        files = np.array([[path.read_bytes()] for path in batch], np.object_)
        tensor = module.InferInput("INPUT", files.shape, "BYTES")
        tensor.set_data_from_numpy(files)
        output = module.InferRequestedOutput("OUTPUT", class_count=CLASSES)
        result = client.infer("preprocess_inception_ensemble", [tensor], outputs=[output])
        images = np.stack([network.prepare(path, "INCEPTION") for path in batch])
        _check(network, images, result.as_numpy("OUTPUT"))


def _network(metadata: dict[str, Any], config: dict[str, Any]) -> Network:
    """Read what the server says; over gRPC numbers of 64 bits are texts in JSON."""
    (described,), (output,) = metadata["inputs"], metadata["outputs"]
    (configured,) = config["input"]
    assert described["datatype"] == output["datatype"] == "FP32"
    batch = int(config.get("max_batch_size", 0))
    shape = [int(size) for size in described["shape"]][1 if batch else 0 :]
    layout = model_config_pb2.ModelInput.Format.Value(configured["format"])
    height, width = shape[:2] if layout == NHWC else shape[1:]
    classes = int(output["shape"][-1])
    return Network(
        metadata["name"], described["name"], output["name"], classes, batch, layout, height, width
    )


def _network_of_stubs(metadata: Any, config: Any) -> Network:
    from google.protobuf.json_format import MessageToDict

    return _network(
        MessageToDict(metadata, preserving_proto_field_name=True),
        MessageToDict(config, preserving_proto_field_name=True),
    )


def _requests(
    network: Network, site: Site, scalings: Sequence[str]
) -> list[tuple[str, np.ndarray]]:
    """Return ids and images: one at a time, or batches of two that begin anew at the end."""
    paths = sorted(site.images.iterdir())
    size = min(2, network.batch)
    made = []
    for scaling in scalings:
        images = [network.prepare(path, scaling) for path in paths]
        if not size:
            made += images
            continue
        around = itertools.cycle(images)
        made += [np.stack([next(around) for _ in range(size)]) for _ in range(len(images))]
    return [(str(number), array) for number, array in enumerate(made, 1)]


def _arguments(
    module: ModuleType, network: Network, array: np.ndarray, name: str
) -> dict[str, Any]:
    tensor = module.InferInput(network.input, array.shape, "FP32")
    tensor.set_data_from_numpy(array)
    output = module.InferRequestedOutput(network.output, class_count=CLASSES)
    return {
        "model_name": network.model,
        "inputs": [tensor],
        "outputs": [output],
        "request_id": name,
    }


def _raw_request(network: Network, array: np.ndarray, name: str) -> Any:
    request = pb.ModelInferRequest(model_name=network.model, id=name)
    request.inputs.add(name=network.input, datatype="FP32", shape=array.shape)
    output = request.outputs.add(name=network.output)
    output.parameters["classification"].int64_param = CLASSES
    request.raw_input_contents.append(array.tobytes())
    return request


def _check_all(
    network: Network, sent: dict[str, np.ndarray], answers: queue.Queue[tuple[Any, Any]]
) -> None:
    left = dict(sent)
    while left:
        result, error = answers.get(timeout=60)
        assert error is None, error
        array = left.pop(result.get_response().id)
        _check(network, array, result.as_numpy(network.output))


def _check(network: Network, images: np.ndarray, found: np.ndarray) -> None:
    """Assert that ``value:index:label`` names the highest classes, highest first."""
    batches = network.batch > 0
    scores = network.scores(images if batches else images[np.newaxis])
    assert found.shape == ((len(scores), CLASSES) if batches else (CLASSES,))
    names = labels(network.classes)
    for row, entries in zip(scores, found.reshape(len(scores), CLASSES), strict=True):
        best = np.argsort(-row, kind="stable")[:CLASSES]
        for index, entry in zip(best.tolist(), entries, strict=True):
            value, number, label = entry.decode().split(":")
            assert (int(number), label) == (index, names[index])
            # It is written with six digits after the point.
            np.testing.assert_allclose(float(value), row[index], rtol=1e-3, atol=1e-6)


def _strings(raw: bytes) -> list[bytes]:
    found = []
    while raw:
        size = int.from_bytes(raw[:4], "little")
        found.append(raw[4 : 4 + size])
        raw = raw[4 + size :]
    return found
