"""READ_ONLY_INPUTS: the owner of a model says that it only reads, and nothing is copied for it."""

# ruff: noqa: N803, N806 - a model function names its tensors
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nbtriton.backends.python import install_pb_utils
from nbtriton.common.errors import ConfigError, ModelError
from nbtriton.model.config import parse_pbtxt
from nbtriton.runtime.engine import Server
from nbtriton.serving.repository.export.writer import export_repository
from tests.engine.support import echo, ensemble_text, ones

install_pb_utils()
import triton_python_backend_utils as pb_utils  # noqa: E402

torch = pytest.importorskip("torch")

YES = 'parameters { key: "READ_ONLY_INPUTS" value { string_value: "yes" } }'


class Where:
    """Answers with the address of its input."""

    def execute(self, requests):
        return [self.answer(request.inputs()[0].as_numpy()) for request in requests]

    def answer(self, x):
        assert not x.flags.writeable
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", where(x)["OUT"])])


def address(x: Any) -> int:
    return x.data_ptr() if isinstance(x, torch.Tensor) else x.__array_interface__["data"][0]


def where(IN):
    assert not IN.flags.writeable
    return {"OUT": np.full((1, 4), address(IN), np.int64)}


def where_in_torch(IN: torch.Tensor):
    return {"OUT": torch.full((1, 4), address(IN), dtype=torch.int64)}


class WhereModule(torch.nn.Module):
    def forward(self, IN):
        return torch.full((1, 4), IN.data_ptr(), dtype=torch.int64)


READERS = {
    "model": Where,
    "function": where,
    "torch function": where_in_torch,
    "module": WhereModule,
}
CALLERS = {"numpy": ones, "torch": lambda: torch.ones(1, 4)}


def load_where(server: Server, kind: str) -> None:
    text = echo(YES, backend="pytorch" if kind == "module" else "python")
    into = text.replace('"OUT" data_type: TYPE_FP32', '"OUT" data_type: TYPE_INT64')
    server.load(into, READERS[kind], name="m")


@pytest.mark.parametrize("ask", ["infer", "submit"])
@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("kind", READERS)
def test_the_model_reads_the_callers_memory(server: Server, kind: str, caller: str, ask: str):
    load_where(server, kind)
    mine = CALLERS[caller]()
    found = server.infer("m", {"IN": mine}) if ask == "infer" else None
    found = found or server.submit("m", {"IN": mine}).result()
    assert found["OUT"][0, 0] == address(mine)


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("kind", READERS)
def test_readers_side_by_side_read_one_piece_of_memory(server: Server, kind: str, caller: str):
    load_where(server, kind)
    server.load(echo(), lambda IN: IN + 1, name="before")
    steps = [("before", {"IN": "X"}, {"OUT": "T"})]
    steps += [("m", {"IN": "T"}, {"OUT": f"Y{at}"}) for at in range(3)]
    outputs = {f"Y{at}": "INT64[4]" for at in range(3)}
    server.load(ensemble_text(*steps, inputs={"X": "FP32[4]"}, outputs=outputs), name="e")
    found = server.infer("e", {"X": CALLERS[caller]()})
    assert len({int(found[name][0, 0]) for name in outputs}) == 1


@pytest.mark.parametrize("extra", ["", YES])
def test_an_ensemble_says_for_itself_that_submit_need_not_copy(server: Server, extra: str):
    load_where(server, "model")
    steps = [("m", {"IN": "X"}, {"OUT": "Y"})]
    text = ensemble_text(*steps, inputs={"X": "FP32[4]"}, outputs={"Y": "INT64[4]"})
    server.load(text + extra, name="e")
    mine = ones()
    found = server.submit("e", {"X": mine}).result()["Y"]
    assert bool(found[0, 0] == address(mine)) is bool(extra)
    assert server.infer("e", {"X": mine})["Y"][0, 0] == address(mine)


def test_outputs_of_a_read_only_model_are_copies(server: Server):
    server.load(echo(YES), lambda IN: IN, name="m")
    mine = ones()
    out = server.infer("m", {"IN": mine})["OUT"]
    out[:] = 7
    assert mine.tolist() == [[1] * 4]


class Subtracting:
    def execute(self, requests):
        x = requests[0].inputs()[0].as_numpy()
        x -= 1
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x)])]


class Partitioning:
    def execute(self, requests):
        requests[0].inputs()[0].as_numpy().partition(1, axis=1)


class Buffering:
    def execute(self, requests):
        memoryview(requests[0].inputs()[0].as_numpy())[0, 0] = 1


def subtracting(IN):
    IN -= 1
    return IN


def subtracting_in_torch(IN: torch.Tensor):
    return IN.sub_(1)


class Adding(torch.nn.Module):
    def forward(self, IN):
        return IN.add_(1)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize(
    ("source", "caller"),
    [
        *[(source, c) for source in (Subtracting, Partitioning, Buffering) for c in CALLERS],
        *[(source, c) for source in (subtracting, subtracting_in_torch, Adding) for c in CALLERS],
        (torch.nn.Sequential(torch.nn.Threshold(5, 0, inplace=True)), "numpy"),
    ],
)
def test_the_error_of_a_write_names_the_parameter(
    server: Server, source: Any, caller: str, rows: int
):
    of_torch = source is Adding or isinstance(source, torch.nn.Module)
    batch = "dynamic_batching { preferred_batch_size: 5 max_queue_delay_microseconds: 60000000 }"
    text = echo(YES + (batch if rows > 1 else ""), backend="pytorch" if of_torch else "python")
    server.load(text, source, name="m")
    mine = [CALLERS[caller]() for _ in range(rows)]
    futures = [server.submit("m", {"IN": each}) for each in mine]
    for future in futures:
        error = future.exception()
        assert isinstance(error, ModelError)
        assert "has the parameter READ_ONLY_INPUTS" in str(error)
        assert "remove the parameter, or copy the input before writing to it" in str(error)
    if not of_torch and source is not subtracting_in_torch:
        assert all(each.tolist() == [[1] * 4] for each in mine)


def test_other_errors_do_not_mention_it(server: Server):
    def failing(IN):
        raise ValueError("no such thing")

    server.load(echo(YES), failing, name="m")
    with pytest.raises(ModelError) as caught:
        server.infer("m", {"IN": ones()})
    assert "READ_ONLY_INPUTS" not in str(caught.value)


def test_a_capsule_cannot_say_read_only_so_it_is_of_a_copy(server: Server):
    class Capsule:
        def execute(self, requests):
            found = []
            for request in requests:
                tensor = request.inputs()[0]
                mine = torch.utils.dlpack.from_dlpack(tensor.to_dlpack()).sub_(1)
                assert not tensor.as_numpy().flags.writeable
                found.append(pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", mine)]))
            return found

    server.load(echo(YES), Capsule, name="m")
    for caller in CALLERS.values():
        mine = caller()
        assert server.infer("m", {"IN": mine})["OUT"].tolist() == [[0] * 4]
        assert mine.tolist() == [[1] * 4]


def test_no_means_no_and_anything_else_is_refused(server: Server):
    server.load(echo(YES.replace("yes", "no")), subtracting, name="m")
    assert server.infer("m", {"IN": ones()})["OUT"].tolist() == [[0] * 4]
    for wrong in ("Yes", "true", ""):
        with pytest.raises(
            ConfigError, match=f"READ_ONLY_INPUTS of model 'm': '{wrong}'"
        ) as caught:
            server.load(echo(YES.replace("yes", wrong)), subtracting, name="m")
        assert "yes" in caught.value.hint
    assert server.infer("m", {"IN": ones()})["OUT"].tolist() == [[0] * 4]


def test_an_exported_model_keeps_it(server: Server, tmp_path):
    server.load(echo(YES), Where, name="m")
    export_repository(server, tmp_path / "out", ["m"])
    written = parse_pbtxt((tmp_path / "out" / "m" / "config.pbtxt").read_text())
    assert written.parameters["READ_ONLY_INPUTS"].string_value == "yes"
