"""Ready steps in ensembles: on a simulated GPU, and exported to the real server."""

from __future__ import annotations

import io

import numpy as np
import pytest

import nbtriton as nt

Image = pytest.importorskip("PIL.Image", reason="the image steps wrap Pillow")

CHAIN = ("decode_image", "letterbox", "normalize", "to_chw", "softmax", "top_k")
CLASSIFIER = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IMAGE", "data_type": "TYPE_FP32", "dims": [3, -1, -1]})
        config.add_output({"name": "SCORES", "data_type": "TYPE_FP32", "dims": [-1]})
        config.set_max_batch_size(64)
        return config

    def execute(self, requests):
        images = [pb_utils.get_input_tensor_by_name(r, "IMAGE").as_numpy() for r in requests]
        columns = [image.mean(axis=(1, 2))[:, ::7] * np.float32(10) for image in images]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("SCORES", c)]) for c in columns]
"""


def step(model, inputs, outputs):
    return {
        "model_name": model, "model_version": -1, "input_map": inputs, "output_map": outputs,
    }  # fmt: skip


def classify(server, tmp_path):
    """Load five ready steps and more around a classifier, and the ensemble."""
    labels = tmp_path / "labels.txt"
    labels.write_text("".join(f"column {at}\n" for at in range(10)))
    given = {
        "letterbox": {"size": (48, 64)},
        "softmax": {"temperature": 2},
        "top_k": {"k": 3, "labels": labels},
    }
    for name in CHAIN:
        server.load(None, nt.step(name, **given.get(name, {})), name=name)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "model.py").write_text(CLASSIFIER)
    server.load(None, tmp_path / "code" / "model.py", name="classifier")
    server.load(
        {
            "name": "classify",
            "platform": "ensemble",
            "max_batch_size": 64,
            "input": [{"name": "DATA", "data_type": "TYPE_STRING", "dims": [1]}],
            "output": [
                {"name": "LABELS", "data_type": "TYPE_STRING", "dims": [-1]},
                {"name": "PROBABILITIES", "data_type": "TYPE_FP32", "dims": [-1]},
            ],
            "ensemble_scheduling": {
                "step": [
                    step("decode_image", {"DATA": "DATA"}, {"IMAGE": "image"}),
                    step("letterbox", {"IMAGE": "image"}, {"IMAGE": "fitted"}),
                    step("normalize", {"IMAGE": "fitted"}, {"IMAGE": "numbers"}),
                    step("to_chw", {"IMAGE": "numbers"}, {"IMAGE": "planes"}),
                    step("classifier", {"IMAGE": "planes"}, {"SCORES": "scores"}),
                    step("softmax", {"SCORES": "scores"}, {"PROBABILITIES": "shares"}),
                    step(
                        "top_k",
                        {"SCORES": "shares"},
                        {"SCORES": "PROBABILITIES", "LABELS": "LABELS"},
                    ),
                ]
            },
        }
    )


def pictures():
    """A JPEG, a PNG and a WebP of different sizes."""
    rng = np.random.default_rng(3)
    for form, shape in (("JPEG", (60, 80, 3)), ("PNG", (33, 90, 3)), ("WEBP", (90, 40, 3))):
        found = io.BytesIO()
        coarse = Image.fromarray(rng.integers(0, 255, (6, 8, 3), dtype=np.uint8))
        coarse.resize(shape[1::-1], Image.Resampling.BICUBIC).save(found, form)
        yield np.array([[found.getvalue()]], object)


@pytest.mark.medium
def test_a_picture_becomes_labels(server, tmp_path):
    pytest.importorskip("scipy", reason="softmax wraps it")
    classify(server, tmp_path)
    for data in pictures():
        found = server.infer("classify", {"DATA": data})
        assert found["LABELS"].shape == (1, 3)
        assert all(label.startswith(b"column ") for label in found["LABELS"][0])
        assert (np.diff(found["PROBABILITIES"][0]) <= 0).all()


def test_on_a_gpu_nothing_visits_the_host_between_steps():
    with nt.Server(gpus="simulated:1") as server:
        names = ("letterbox", "normalize", "to_chw")
        for name in names:
            server.load("instance_group [ { kind: KIND_GPU } ]", nt.step(name), name=name)
        server.load(
            {
                "name": "planes",
                "platform": "ensemble",
                "max_batch_size": 64,
                "input": [{"name": "FRAME", "data_type": "TYPE_UINT8", "dims": [-1, -1, 3]}],
                "output": [{"name": "PLANES", "data_type": "TYPE_FP32", "dims": [3, -1, -1]}],
                "ensemble_scheduling": {
                    "step": [
                        step("letterbox", {"IMAGE": "FRAME"}, {"IMAGE": "fitted"}),
                        step("normalize", {"IMAGE": "fitted"}, {"IMAGE": "numbers"}),
                        step("to_chw", {"IMAGE": "numbers"}, {"IMAGE": "PLANES"}),
                    ]
                },
            }
        )
        found = server.infer("planes", {"FRAME": np.zeros((1, 20, 30, 3), np.uint8)})
        assert found["PLANES"].shape == (1, 3, 640, 640)
        copies = nt.copies(server)[["writer", "reader"]]
    assert copies.to_numpy().tolist() == [["host", "letterbox.IMAGE"], ["to_chw.IMAGE", "host"]]


@pytest.mark.reference
@pytest.mark.slow
def test_a_pipeline_of_ready_steps_is_the_real_servers_bit_for_bit(reference, server, tmp_path):
    pytest.importorskip("scipy", reason="softmax wraps it")
    classify(server, tmp_path)
    sent = [{"DATA": data} for data in pictures()]
    found = server.export(
        tmp_path / "out", verify=True, reference=reference,
        requests={"classify": sent, "decode_image": sent},
    )  # fmt: skip
    assert {model.name: model.verdict for model in found.models} == dict.fromkeys(
        (*CHAIN, "classifier", "classify"), "equal"
    ), found
    assert (tmp_path / "out" / "top_k" / "1" / "labels.txt").exists()


@pytest.mark.reference
@pytest.mark.slow
def test_the_other_steps_are_the_real_servers(reference, server, tmp_path):
    pytest.importorskip("scipy", reason="the sound steps wrap it")
    tokenizers = pytest.importorskip("tokenizers", reason="tokenize wraps it")
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]")
    )
    made.save(str(tmp_path / "words.json"))
    rng = np.random.default_rng(5)
    image = rng.integers(0, 255, (2, 30, 40, 3), dtype=np.uint8)
    sound = rng.normal(0, 0.3, (2, 8000)).astype(np.float32)
    boxes = np.sort(rng.uniform(0, 90, (2, 50, 2, 2)), axis=2).reshape(2, 50, 4).astype(np.float32)
    scores = rng.uniform(0, 1, (2, 50)).astype(np.float32)
    sent = {
        "resize": ({"IMAGE": image}, {"size": (17, 55)}),
        "crop": ({"IMAGE": image}, {"size": (20, 20)}),
        "letterbox": ({"IMAGE": image}, {"size": (64, 48)}),
        "nms": ({"BOXES": boxes, "SCORES": scores}, {}),
        "tokenize": ({"TEXT": np.array([["a"], ["b"]], object)}, {"tokenizer": tmp_path / "words.json"}),
        "mel_spectrogram": ({"AUDIO": sound}, {}),
        "resample": ({"AUDIO": sound}, {"rate_in": 8000}),
    }  # fmt: skip
    for name, (_, given) in sent.items():
        server.load(None, nt.step(name, **given), name=name)
    found = server.export(
        tmp_path / "out", verify=True, reference=reference,
        requests={name: [inputs] for name, (inputs, _) in sent.items()},
    )  # fmt: skip
    # SciPy's transforms run beside another NumPy in the real server.
    assert {model.verdict for model in found.models} <= {"equal", "close"}, found
    assert len(found.models) == len(sent)
