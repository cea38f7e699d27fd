"""What works here and not in Triton 2.51 is said where a model is checked, loaded and written."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

import nbtriton as nt
from nbtriton.magics.cli import main
from nbtriton.model.config import as_config, differences
from nbtriton.model.config.ignored import _TABLE
from nbtriton.serving.repository.export.writer import ExportWarning
from nbtriton.serving.server import Server
from tests.repository.models import add

IO = """max_batch_size: 4 input { name: "IN" data_type: TYPE_FP32 dims: 4 }
output { name: "OUT" data_type: TYPE_FP32 dims: 4 } """
PYTHON = f'name: "m" backend: "python" {IO}'
CACHE = "response_cache { enable: true } "
FREE = "input { name: 'S' data_type: TYPE_FP32 dims: -1 }"
STATE = """sequence_batching { state { input_name: "IS" output_name: "OS" data_type: TYPE_FP32 dims: 1 } }"""
CORRID = """sequence_batching { control_input { name: "ID"
  control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_%s } } }"""
# A configuration, and the differences that it is about.
CASES = {
    "nothing": (PYTHON, []),
    "a delay": (PYTHON + "dynamic_batching { preserve_ordering: true }", []),
    "a later field": ("ensemble_scheduling { max_inflight_requests: 2 }", ["newer-fields"]),
    "metrics": ("model_metrics { metric_control { metric_identifier { family: 'f' } } }", ["newer-fields"]),
    "a space": (PYTHON.replace('"m"', '"a b"'), ["names-of-python-models"]),
    "a space in a group": (PYTHON + 'instance_group { name: "a b" }', ["names-of-python-models"]),
    "a space elsewhere": ('name: "a b" backend: "onnxruntime"', []),
    "a state": (PYTHON + STATE, ["state-from-python"]),
    "a state elsewhere": ('backend: "onnxruntime"' + STATE, []),
    "text ids": (PYTHON + CORRID % "STRING", ["string-correlation-ids"]),
    "numbers": (PYTHON + CORRID % "UINT64", []),
    "a datatype": ("backend: 'pytorch' input { name: 'X' data_type: TYPE_BF16 }", ["pytorch-datatypes"]),
    "an output": ("backend: 'pytorch' output { name: 'X' data_type: TYPE_UINT16 }", ["pytorch-datatypes"]),
    "a datatype elsewhere": ("backend: 'python' input { name: 'X' data_type: TYPE_BF16 }", []),
    "a cache": (PYTHON + CACHE, ["cache-errors"]),
    "a cache in order": (PYTHON + CACHE + "dynamic_batching { preserve_ordering: true }", ["cache-with-order"]),
    "a free dimension": (PYTHON + CACHE + FREE, ["cache-key", "cache-errors"]),
    "one free dimension": (CACHE + FREE, ["cache-errors"]),
    "two outputs": (
        PYTHON + CACHE + "output { name: 'B' data_type: TYPE_FP32 }", ["cache-key", "cache-errors"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_configuration_has_the_differences(case):
    text, wanted = CASES[case]
    assert [one.name for one in differences(as_config(text))] == wanted


def test_a_server_without_a_cache_has_none_of_its_differences():
    assert not differences(as_config(CASES["a cache"][0]), cache=False)


def test_every_difference_has_a_case_and_a_section_of_the_page():
    page = (Path(__file__).parents[2] / "docs" / "differences.md").read_text()
    names = {difference.name for _, difference in _TABLE}
    assert names == {name for _, wanted in CASES.values() for name in wanted}
    assert names <= set(re.findall(r"^### `([\w-]+)`", page, re.MULTILINE))


REPOSITORY = {
    "a b": (IO, "names-of-python-models"),
    "strid": (IO + CORRID % "STRING", "string-correlation-ids"),
    "state": (IO + STATE, "state-from-python"),
    "cached": (IO + CACHE + "dynamic_batching { preserve_ordering: true }", "cache-with-order"),
}


@pytest.fixture
def root(tmp_path):
    for name, (config, _) in REPOSITORY.items():
        add(tmp_path / "models", name, config=config)
    return tmp_path / "models"


def named(texts) -> list[str]:
    return [name for text in texts for name in re.findall(r"differences\.md: ([\w-]+)\)", text)]


@pytest.mark.medium
def test_it_is_said_by_validate_and_doctor(root, capsys):
    assert main(["validate", str(root)]) == 0
    wanted = sorted(name for _, name in REPOSITORY.values())
    assert sorted(named([capsys.readouterr().out])) == wanted
    assert {one.subject for one in nt.doctor(root).findings} >= set(wanted)


@pytest.mark.medium
def test_it_is_said_once_at_load_and_at_each_export(root, tmp_path, caplog):
    wanted = sorted(name for _, name in REPOSITORY.values())
    with Server(gpus=(), cache_bytes=100_000) as server:
        server.load_repository(root)
        assert sorted(named(caplog.messages)) == wanted
        caplog.clear()
        server.load_repository(root)
        assert named(caplog.messages) == []
        with pytest.warns(ExportWarning) as said:
            server.export(tmp_path / "out")
        assert sorted(named(str(one.message) for one in said)) == wanted
        text = IO + CACHE
        with pytest.warns(nt.errors.ConfigWarning) as said:
            server.load(text, lambda IN: {"OUT": IN}, name="m")  # noqa: N803
        assert named(str(one.message) for one in said) == ["cache-errors"]
        with warnings.catch_warnings(record=True) as again:
            warnings.simplefilter("always")
            server.load(text, lambda IN: {"OUT": IN + 1}, name="m")  # noqa: N803
            server.load(text + "instance_group { count: 2 }", name="m")
        assert named(str(one.message) for one in again) == []
