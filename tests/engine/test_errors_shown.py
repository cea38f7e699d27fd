"""Tracebacks of errors: the line of the caller and the line of the model, none of nbtriton's."""

# ruff: noqa: N803 - a model function names its tensors
from __future__ import annotations

import threading
import traceback

import pytest

import nbtriton
from nbtriton.common.errors import InternalError, ModelError, TritonError
from nbtriton.runtime.engine import Server
from tests.engine.support import WAIT_S, Gate, echo, ensemble_text, gated, ones, row

OURS = nbtriton.__path__[0]


def helper(value):
    return value.no_such_attribute  # the model's line


def failing(IN):
    return {"OUT": helper(IN)}


def caught(action) -> TritonError:
    try:
        action()  # the caller's line
    except TritonError as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("way", ["infer", "submit", "stream", "ensemble", "batch"])
def test_a_models_error_has_both_lines(server: Server, way: str, gate: Gate):
    server.load(echo("dynamic_batching {}"), failing, name="m")
    server.load(
        ensemble_text(
            ("m", {"IN": "X"}, {"OUT": "Y"}), inputs={"X": "FP32[4]"}, outputs={"Y": "FP32[4]"}
        ),
        name="e",
    )
    ask = {
        "infer": lambda: server.infer("m", {"IN": ones()}),
        "submit": lambda: server.submit("m", {"IN": ones()}).result(WAIT_S),
        "stream": lambda: list(server.stream("m", {"IN": ones()})),
        "ensemble": lambda: server.infer("e", {"X": ones()}),
        "batch": lambda: [
            future.result(WAIT_S) for future in [server.submit("m", {"IN": ones()})] * 3
        ],
    }[way]
    error = caught(ask)
    assert isinstance(error, ModelError)
    plain = traceback.format_exception(error)
    models, callers = "".join(plain).split("The above exception was the direct cause")
    assert "the model's line" in models
    assert OURS not in models
    assert "the caller's line" in callers
    # A notebook shows the same, with none of our frames.
    shown = "\n".join(error._render_traceback_())
    assert "the model's line" in shown
    assert "the caller's line" in shown
    assert OURS not in shown
    assert shown.count("no_such_attribute") == 3  # the line, Python's error, and Triton's message


def test_a_refused_request_has_the_callers_line(server: Server):
    server.load(echo(), lambda IN: {"OUT": IN}, name="m")
    error = caught(lambda: server.infer("m", {"INN": ones()}))
    shown = "\n".join(error._render_traceback_())
    assert "the caller's line" in shown
    assert OURS not in shown
    assert shown.endswith("did you mean 'IN'?")
    assert "did you mean 'IN'?" in traceback.format_exception(error)[-1]


def test_each_request_of_a_batch_has_an_error_of_its_own(server: Server):
    """Raised in several threads, one would show the lines of all of them."""
    gate = Gate()

    def no(value):
        raise ValueError("no")

    server.load(echo("dynamic_batching {}"), gated(gate, no), name="m")
    futures = [server.submit("m", {"IN": ones()}) for _ in range(5)]
    gate.open()
    errors = [future.exception(WAIT_S) for future in futures]
    assert len({id(error) for error in errors}) == 5
    assert all(isinstance(error.__cause__, ValueError) for error in errors)
    for _ in range(2):  # nor does one grow
        error = caught(futures[0].result)
        assert len(traceback.extract_tb(error.__traceback__)) == 2


@pytest.mark.parametrize("kind", [GeneratorExit, SystemExit, KeyboardInterrupt])
def test_an_exception_of_a_model_is_an_error_for_every_caller(
    server: Server, kind: type[BaseException]
):
    """Ctrl-C is raised in the main thread only."""

    def model(IN):
        raise kind

    server.load(echo(), model, name="m")
    errors: list[BaseException | None] = []

    def ask() -> None:
        try:
            server.infer("m", {"IN": ones()})
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join(WAIT_S)
    errors.append(server.submit("m", {"IN": ones()}).exception(WAIT_S))
    if kind is not KeyboardInterrupt:
        ask()
    assert {type(error) for error in errors} == {
        InternalError if kind is KeyboardInterrupt else ModelError
    }
    assert len({str(error) for error in errors}) == 1


@pytest.mark.medium
def test_a_long_chain_of_models_is_no_recursion(server: Server):
    """Each calls the next one; Python's limit is 1,000 nested calls."""
    last = 120

    def calling(number: int):
        def model(IN):
            return {"OUT": server.infer(f"m{number + 1}", {"IN": IN + 1})["OUT"]}

        return model

    for number in range(last):
        server.load(echo(), calling(number), name=f"m{number}")
    server.load(echo(), lambda IN: {"OUT": IN}, name=f"m{last}")
    assert server.infer("m0", {"IN": row(0)})["OUT"][0, 0] == last
