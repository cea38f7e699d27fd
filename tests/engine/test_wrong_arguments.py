"""What a caller gives that is no server, no model, no inputs or no directory: one clear error."""

import asyncio

import numpy as np
import pandas as pd
import pytest

import nbtriton as nt
from nbtriton.common.errors import InvalidArgumentError, NotFoundError

INPUTS = {"IN": np.ones((1, 4), np.float32)}
CALLS = {
    "batches": lambda server, name: server.batches(name),
    "config": lambda server, name: server.config(name),
    "events": nt.events,
    "export": lambda server, name: server.export("never written", [name]),
    "ignored": lambda server, name: server.ignored(name),
    "infer": lambda server, name: server.infer(name, INPUTS),
    "infer_async": lambda server, name: asyncio.run(server.infer_async(name, INPUTS)),
    "metadata": lambda server, name: server.metadata(name),
    "requests": lambda server, name: server.requests(name),
    "statistics": lambda server, name: server.statistics(name),
    "status": nt.status,
    "stream": lambda server, name: list(server.stream(name, INPUTS)),
    "submit": lambda server, name: server.submit(name, INPUTS).result(),
}
VERBS = sorted(CALLS)


def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:  # noqa: F821, N803
    return {"OUT": IN * 2}


@pytest.fixture(scope="module")
def server():
    with nt.Server(gpus=()) as server:
        server.load("max_batch_size: 8", model=double, name="double")
        yield server


@pytest.mark.parametrize("verb", VERBS)
def test_the_name_of_no_model_is_refused_with_the_nearest_one(server, verb):
    with pytest.raises(NotFoundError, match="unknown model: 'duble' is not found") as caught:
        CALLS[verb](server, "duble")
    assert caught.value.hint == "did you mean 'double'?"


@pytest.mark.parametrize("call", [nt.copies, nt.events, nt.status])
def test_what_is_no_server_is_refused_in_a_sentence(call):
    with pytest.raises(InvalidArgumentError, match=r"server must be a server.*found 'double'"):
        call("double")


@pytest.mark.parametrize("wrong", ["", "double", 5, None])
def test_inputs_are_a_mapping(server, wrong):
    with pytest.raises(InvalidArgumentError, match=r"a mapping of arrays|expected 1 inputs"):
        server.infer("double", wrong)


@pytest.mark.parametrize("wrong", [5, None, b"x", [5], []])
def test_a_repository_is_a_directory_or_a_list_of_them(server, wrong):
    with pytest.raises(InvalidArgumentError, match="directories must be a directory or a list"):
        server.load_repository(wrong)
    if wrong != []:
        with pytest.raises(InvalidArgumentError, match="directory must be a directory; found"):
            server.export(wrong)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cache_bytes": "1 GB"}, "cache_bytes must be a number of bytes; found '1 GB'"),
        ({"cache_bytes": 10**400, "summaries": 5}, "summaries must be True or False; found 5"),
        ({"gpus": b"0"}, "gpus=b'0' is not a list of GPU ids"),
        ({"worker_timeout_s": "5"}, "worker_timeout_s must be a number above 0; found '5'"),
        ({"rate_limit": 5}, "unknown rate limit '5'"),
        ({"backend_config": ["python"]}, "backend_config must be a mapping by name"),
    ],
)
def test_what_is_no_option_of_a_server_is_refused(options, said):
    with pytest.raises(InvalidArgumentError) as caught:
        nt.Server(**options)
    assert caught.value.message.startswith(said)


@pytest.mark.parametrize("wrong", [{"carry": 5}, {"files": ["a"]}, {"models": 5}])
def test_what_is_no_option_of_an_export_is_refused(server, wrong):
    with pytest.raises(InvalidArgumentError, match=f"^{next(iter(wrong))} must be "):
        server.export("never written", **wrong)


@pytest.mark.medium
@pytest.mark.parametrize(
    "models",
    ["double", {"double": 1}.keys(), np.array(["double"]), pd.Series(["double"]), iter(["double"])],
    ids=lambda models: type(models).__name__,
)
def test_models_to_export_are_a_name_or_names_in_any_container(server, tmp_path, models):
    exported = server.export(tmp_path, models)
    assert [model.name for model in exported.models] == ["double"]
    with nt.Server(gpus=()) as other, other.load_repository(tmp_path.glob("..")) as control:
        assert control.server is other


def test_switches_may_be_of_numpy():
    with nt.Server(gpus=(), summaries=np.bool_(True)) as server:
        assert server.options.summaries


@pytest.mark.parametrize(
    "outputs",
    [np.array(["OUT", "OUT"]), {"OUT": 1}.keys(), iter(["OUT"]), [], None],
    ids=lambda outputs: type(outputs).__name__,
)
def test_names_of_outputs_in_any_container(server, outputs):
    assert server.infer("double", INPUTS, outputs=outputs)["OUT"].tolist() == [[2] * 4]


@pytest.mark.parametrize("container", [list, iter, np.array], ids=lambda each: each.__name__)
def test_a_wrong_output_is_named_in_any_container(server, container):
    with pytest.raises(InvalidArgumentError, match="unexpected inference output 'OUTT'"):
        server.infer("double", INPUTS, outputs=container(["OUTT", "OUT"]))


def test_events_by_what_is_no_text_names_what_there_is(server):
    with pytest.raises(InvalidArgumentError, match="events by '5' do not exist") as caught:
        nt.events(server, by=5)
    assert caught.value.hint == "known names: batch, event, request"
