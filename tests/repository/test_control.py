"""Model control: modes, versions, readiness, texts (L2 to L21)."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import shutil
import signal
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.common.errors import (
    InternalError,
    InvalidArgumentError,
    LoadError,
    NotFoundError,
    TritonError,
    UnavailableError,
)
from nbtriton.serving.clients.http import HttpClient
from tests.children import run_python
from tests.forked import in_child
from tests.repository.models import BROKEN, MODEL, UNKNOWN, add, ensemble, times
from tests.until import until

ECHO = """max_batch_size: 4
input { name: "IN" data_type: TYPE_FP32 dims: 4 } output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
"""
PYTHON = '{"backend": "python"}'


@pytest.fixture
def server():
    with nt.Server(gpus=()) as server:
        yield server


@pytest.fixture
def root(tmp_path):
    return tmp_path / "models"


@pytest.fixture
def explicit(server, root):
    """The control of an empty repository to which a test adds models."""
    root.mkdir()
    return server.load_repository(root, control_mode="explicit")


def touch(path, seconds: int) -> None:
    """Make a file newer: modification times of two writes may be equal."""
    stamp = path.stat().st_mtime_ns + seconds * 10**9
    os.utime(path, ns=(stamp, stamp))


def states(control) -> dict[str, str]:
    """``name:version`` to state and reason; the name alone for a model that was never loaded."""
    return {
        f"{e['name']}:{e['version']}" if "version" in e else e["name"]: " ".join(
            [e["state"], *([e["reason"]] if "reason" in e else [])]
        )
        if "state" in e
        else ""
        for e in control.index()
    }


def answer(server, name: str, version: int = -1) -> float:
    return float(
        server.infer(name, {"IN": np.ones((1, 4), np.float32)}, version=version)["OUT"][0, 0]
    )


def refused(control, name: str, parameters=None) -> TritonError:
    with pytest.raises(TritonError) as caught:
        control.load(name, parameters or {})
    return caught.value


# -- versions ------------------------------------------------------------------------------------


@pytest.mark.medium
@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        ("", {3}),
        ("version_policy { latest { num_versions: 2 } }", {2, 3}),
        ("version_policy { all {} }", {1, 2, 3}),
        ("version_policy { specific { versions: [ 1, 3, 9 ] } }", {1, 3}),
    ],
)
def test_L2_versions_of_the_policy_serve_at_once(server, root, policy, wanted):
    add(root, "m", config=policy, versions=("1", "2", "3", "04", "x", "warmup"))
    control = server.load_repository(root)
    assert states(control) == {f"m:{version}": "READY" for version in wanted}
    assert {version: answer(server, "m", version) for version in wanted} == {
        version: float(version) for version in wanted
    }
    assert answer(server, "m") == max(wanted)


@pytest.mark.parametrize(
    "policy", ["version_policy { latest {} }", "version_policy { specific { versions: 9 } }"]
)
def test_L2_no_version_is_left(explicit, root, policy):
    add(root, "m", config=policy)
    error = refused(explicit, "m")
    assert (error.status, error.message) == (
        "INVALID_ARG",
        (
            "load failed for model 'm': at least one version must be available under the version "
            "policy of model 'm'\n"
        ),
    )
    assert explicit.index() == []  # begun to load, and without a version to list
    assert not explicit.is_server_ready()


def test_L3_all_versions_or_none(server, explicit, root):
    folder = add(root, "m", config="version_policy { all {} }", versions=("1", "2"))
    (folder / "2" / "model.py").write_text(BROKEN)
    error = refused(explicit, "m")
    reason = f"Internal: ValueError: no luck\n\nAt:\n  {folder}/2/model.py(13): initialize\n"
    assert error.message == (
        f"load failed for model 'm': version 2 is at UNAVAILABLE state: {reason};\n"
    )
    assert states(explicit) == {"m:1": "UNAVAILABLE unloaded", "m:2": f"UNAVAILABLE {reason}"}
    assert not server.is_ready("m", 1)


@pytest.mark.medium
def test_L17_version_folders_added_and_removed(server, explicit, root):
    folder = add(root, "m", config="version_policy { all {} }", versions=("1", "3"))
    explicit.load("m")
    shutil.rmtree(folder / "1")
    add(root, "m", versions=("4",))
    touch(folder, 10)
    explicit.load("m")
    assert not server.is_ready("m", 1)
    assert answer(server, "m", 3) == 3.0
    assert answer(server, "m") == 4.0
    found = states(explicit)
    assert (found["m:3"], found["m:4"]) == ("READY", "READY")
    assert found["m:1"] in ("UNLOADING", "UNAVAILABLE unloaded")


@pytest.mark.medium
def test_L16_versions_with_unchanged_files_go_on(server, explicit, root):
    folder = add(root, "m", config="version_policy { all {} }", versions=("1", "2"))
    explicit.load("m")
    for version in (1, 1, 2):
        answer(server, "m", version)
    touch(add(root, "m", source=times(5), versions=("2",)) / "2" / "model.py", 10)
    add(root, "m", versions=("3",))
    touch(folder, 10)
    explicit.load("m")
    assert counts(server) == {"1": 2, "2": 0, "3": 0}
    assert answer(server, "m", 2) == 10.0
    (folder / "config.pbtxt").write_text("version_policy { latest { num_versions: 2 } }")
    touch(folder / "config.pbtxt", 20)
    explicit.load("m")
    assert counts(server) == {"2": 1, "3": 0}
    assert server.config("m").version_policy.latest.num_versions == 2
    (folder / "config.pbtxt").write_text("max_batch_size: 8")  # another configuration: all anew
    touch(folder / "config.pbtxt", 30)
    explicit.load("m")
    assert counts(server) == {"3": 0}


def group(count: int, rest: str = "") -> str:
    return f"instance_group {{ count: {count} kind: KIND_CPU {rest} }}"


def grouped(count: int, **more: object) -> dict[str, str]:
    """The parameters of a load that changes only the instances."""
    config = {"backend": "python", "instance_group": [{"count": count, "kind": "KIND_CPU"}]}
    return {"config": json.dumps(config | more)}


def number_of_instances(server) -> dict[int, int]:
    return {model.version: len(model.instances) for model in server.models()}


@pytest.mark.medium
def test_L16_instances_of_an_override_are_added_and_removed(server, explicit, root):
    add(root, "m")
    explicit.load("m", grouped(1))
    answer(server, "m")
    for count in (3, 1, 2):
        explicit.load("m", grouped(count))
        assert number_of_instances(server) == {1: count}
    assert counts(server) == {"1": 1}
    explicit.load("m", grouped(2, max_batch_size=8))
    assert counts(server) == {"1": 0}


@pytest.mark.medium
def test_L16_every_version_follows_its_configuration(server, explicit, root):
    all_of_them = "version_policy { all {} }"
    folder = add(root, "m", config=group(1) + all_of_them, versions=("1", "2"))
    explicit.load("m")
    for version in (1, 1, 2):
        answer(server, "m", version)
    touch(add(root, "m", source=times(5), versions=("2",)) / "2" / "model.py", 10)
    (folder / "config.pbtxt").write_text(group(3) + all_of_them)
    touch(folder / "config.pbtxt", 20)
    explicit.load("m")
    assert number_of_instances(server) == {1: 3, 2: 3}
    assert counts(server) == {"1": 2, "2": 0}
    assert answer(server, "m", 2) == 10.0


@pytest.mark.medium
def test_L16_polling(server, root):
    folder = add(root, "m", config=group(1))
    control = server.load_repository(root, control_mode="poll", poll_s=3600)
    answer(server, "m")
    (folder / "config.pbtxt").write_text(group(4))
    touch(folder / "config.pbtxt", 10)
    control.poll_now()
    assert (number_of_instances(server), counts(server)) == ({1: 4}, {"1": 1})


@pytest.mark.medium
def test_L16_an_update_that_fails_leaves_every_version_unchanged(server, explicit, root):
    source = MODEL.replace(
        "def initialize(self, args):",
        "def initialize(self, args):\n"
        "        if args['model_instance_name'] == 'm_0_1' and args['model_version'] == '2':\n"
        "            raise ValueError('no room')",
    )
    assert source != MODEL
    add(root, "m", source=source, versions=("1", "2"))
    both = {"version_policy": {"all": {}}}
    explicit.load("m", grouped(1, **both))
    for version in (1, 2):
        answer(server, "m", version)
    error = refused(explicit, "m", grouped(2, **both))
    reason = states(explicit)["m:2"].removeprefix("READY ")
    assert error.message == (f"load failed for model 'm': version 2 is at READY state: {reason};\n")
    assert reason.startswith("Internal: ValueError: no room\n\nAt:\n  ")
    assert states(explicit)["m:1"] == "READY"
    assert (number_of_instances(server), counts(server)) == ({1: 1, 2: 1}, {"1": 1, "2": 1})
    assert explicit.is_server_ready()
    explicit.load("m", grouped(1, **both))
    assert states(explicit) == {"m:1": "READY", "m:2": "READY"}
    assert counts(server) == {"1": 1, "2": 1}


def test_L16_a_reason_is_removed_with_its_version(server, explicit, root):
    add(root, "m")
    explicit.load("m", grouped(1))
    gpu = {"instance_group": [{"kind": "KIND_GPU"}]}
    error = refused(explicit, "m", grouped(1, **gpu))
    assert error.message == (
        "load failed for model 'm': version 1 is at READY state: Invalid argument: instance group "
        "m_0 of model m has kind KIND_GPU but no GPUs are available;\n"
    )
    server.unload("m", timeout_s=30)
    assert states(explicit) == {"m:1": "UNAVAILABLE unloaded"}


@pytest.mark.medium
def test_L16_a_version_that_the_notebook_replaced_is_loaded_again(server, explicit, root):
    add(root, "m")
    explicit.load("m", grouped(1))
    server.load("max_batch_size: 2", name="m")
    answer(server, "m")
    explicit.load("m", grouped(2))
    assert (number_of_instances(server), counts(server)) == ({1: 2}, {"1": 0})


def counts(server) -> dict[str, int]:
    return {m["version"]: m["inference_count"] for m in server.statistics("m")["model_stats"]}


# -- modes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["none", "poll"])
def test_L4_load_and_unload_only_where_control_is_explicit(server, root, mode):
    add(root, "m")
    control = server.load_repository(root, control_mode=mode, poll_s=3600)
    for ask in (control.load, control.unload):
        with pytest.raises(UnavailableError) as caught:
            ask("m", {})
        assert caught.value.message == (
            "explicit model load / unload is not allowed if polling is enabled"
        )


def test_L4_other_models_load_beside_a_bad_one(server, root):
    add(root, "good")
    add(root, "bad", source=BROKEN)
    add(root, "syntax", config="max_batch_sise: 8")
    add(root, "plan", config=UNKNOWN, source=None)
    add(root, "on_bad", config=ensemble("bad"), source=None)
    control = server.load_repository(root)
    assert answer(server, "good") == 1.0
    found = states(control)
    assert found["good:1"] == "READY"
    assert found["bad:1"].startswith("UNAVAILABLE Internal: ValueError: no luck\n")
    assert found["plan:1"] == (
        "UNAVAILABLE Invalid argument: unable to find backend library for backend 'tensorrt', "
        "try specifying runtime on the model configuration."
    )
    assert found["syntax"] == found["on_bad"] == ""
    assert set(control.errors) == {"bad", "syntax", "plan", "on_bad"}
    assert not control.is_server_ready()
    assert "max_batch_sise" in control.errors["syntax"].hint


@pytest.mark.parametrize("name", [b"caf\xe9", b"digits"])
def test_L4_other_models_load_beside_one_that_cannot_even_be_read(server, root, name, caplog):
    # pytest-xdist cannot send a report with a log that has such a name.
    caplog.set_level(logging.CRITICAL + 1, "nbtriton")
    add(root, "good")
    folder = root / os.fsdecode(name)
    add(root, folder.name, config=f"max_batch_size: {'1' * 5000}" if name == b"digits" else None)
    control = server.load_repository(root, control_mode="poll", poll_s=3600)
    assert answer(server, "good") == 1.0
    assert list(control.errors) == [folder.name]
    add(root, "new", source=times(5))
    control.poll_now()
    assert answer(server, "new") == 5.0


def test_L4_exit_on_error(server, root):
    add(root, "bad", source=BROKEN)
    with pytest.raises(InternalError, match="failed to load all models"):
        server.load_repository(root, exit_on_error=True)


def test_L5_explicit_control_loads_the_named_models(server, root):
    for name in "abc":
        add(root, name)
    control = server.load_repository(root, control_mode="explicit", load_models=["a", "c"])
    assert states(control) == {"a:1": "READY", "b": "", "c:1": "READY"}


def test_L5_the_wildcard_stands_alone(server, root):
    for name in "ab":
        add(root, name)
    control = server.load_repository(root, control_mode="explicit", load_models=["*"])
    assert states(control) == {"a:1": "READY", "b:1": "READY"}
    with pytest.raises(InvalidArgumentError) as caught:
        server.load_repository(root, control_mode="explicit", load_models=["*", "a"])
    assert caught.value.message == (
        "Wildcard model name '*' must be the ONLY startup model if specified at all."
    )


def test_unknown_mode_and_repository(server, root):
    with pytest.raises(NotFoundError):
        server.load_repository(root)
    with pytest.raises(InvalidArgumentError, match="unknown control mode 'pol'") as caught:
        server.load_repository(root, control_mode="pol")
    assert caught.value.hint == "did you mean 'poll'?"
    for directories in ("", [""]):
        with pytest.raises(NotFoundError, match="repository '': no such directory"):
            server.load_repository(directories)


def test_models_to_load_are_named_in_the_explicit_mode_alone(server, root):
    add(root, "a")
    with pytest.raises(InvalidArgumentError, match="in mode 'none' all are loaded"):
        server.load_repository(root, load_models=["a"])
    with pytest.raises(InvalidArgumentError, match="poll_s must be a number"):
        server.load_repository(root, control_mode="poll", poll_s=float("nan"))
    control = server.load_repository(root, control_mode="explicit", load_models=["a", "absent"])
    text = repr(control)
    assert "absent" in text
    assert "not loaded" in text


@pytest.mark.medium
def test_L6_polling(server, root):
    add(root, "changed", source=times(1))
    add(root, "removed")
    add(root, "failing", source=BROKEN)
    add(root, "kept")
    control = server.load_repository(root, control_mode="poll", poll_s=3600)
    before = server.statistics("kept")
    shutil.rmtree(root / "removed")
    add(root, "new", source=times(5))
    touch(add(root, "changed", source=times(2)) / "1" / "model.py", 10)
    (root / "kept" / "config.pbtxt").write_text("max_batch_sise: 3")
    add(root, "failing", source=times(7))  # as old as it was, and still tried again
    control.poll_now()
    assert [answer(server, name) for name in ("changed", "new", "failing")] == [2.0, 5.0, 7.0]
    assert not server.is_ready("removed")
    # Unparsable now: the loaded versions go on.
    assert answer(server, "kept") == 1.0
    assert before["model_stats"][0]["version"] == "1"
    assert "max_batch_sise" in control.errors["kept"].hint


def test_L6_the_polling_thread_ends_with_its_control(server, root):
    add(root, "m")
    with server.load_repository(root, control_mode="poll", poll_s=3600):
        assert [t for t in threading.enumerate() if t.name == "nbtriton-poll"]
    assert not [t for t in threading.enumerate() if t.name == "nbtriton-poll"]
    assert answer(server, "m") == 1.0  # what is loaded stays


def test_L6_a_server_that_is_closed_polls_no_more(root):
    add(root, "m")
    with nt.Server(gpus=()) as server:
        control = server.load_repository(root, control_mode="poll", poll_s=0.01)
    assert not [t for t in threading.enumerate() if t.name == "nbtriton-poll"]
    assert control.mode == "poll"


def test_independent_models_load_side_by_side(server, root):
    """Each waits until the other has begun: one after the other they would wait forever."""
    for index in range(2):
        source = MODEL.replace("self.factor =", "gate.both.wait(60)\n        self.factor =")
        add(root, f"m{index}", source="from tests.repository import gate\n" + source)
    assert not server.load_repository(root).errors


@pytest.mark.medium
def test_closing_does_not_wait_for_a_model_that_never_loads(root):
    from tests.repository import gate

    add(root, "m")
    with nt.Server(gpus=()) as server:
        control = server.load_repository(root, control_mode="poll", poll_s=0.01)
        source = MODEL.replace(
            "self.factor =", "gate.polled.set(); gate.end.wait(60)\n        self.factor ="
        )
        file = add(root, "m", source="from tests.repository import gate\n" + source)
        touch(file / "1" / "model.py", 10)
        assert gate.polled.wait(60)
        server.close(timeout_s=0.1)
        assert not server.is_ready("m")
        gate.end.set()
        control.close()  # now it can end


# -- readiness -----------------------------------------------------------------------------------


@pytest.mark.medium
def test_L7_ready_if_every_version_is_ready_or_unloaded_on_purpose(explicit, root):
    add(root, "good")
    add(root, "bad", source=BROKEN)
    add(root, "syntax", config="max_batch_sise: 8")
    add(root, "e", config=ensemble("good"), source=None)
    assert explicit.is_server_ready()
    explicit.load("e")
    refused(explicit, "syntax")
    assert explicit.is_server_ready()  # a poll failure has no version
    explicit.unload("good")
    assert until(explicit.is_server_ready)  # not before it has left
    refused(explicit, "bad")
    assert not explicit.is_server_ready()
    add(root, "bad")
    explicit.load("bad")
    assert explicit.is_server_ready()


def test_L7_readiness_that_is_not_strict(server, root):
    add(root, "bad", source=BROKEN)
    assert server.load_repository(root, strict_readiness=False).is_server_ready()


def test_a_model_is_LOADING_until_it_is_ready(server, root, gate):
    add(root, "slow", source=GATED)
    control = server.load_repository(root, control_mode="explicit")
    loading = threading.Thread(target=control.load, args=("slow",))
    loading.start()
    assert gate.entered.wait(60)
    assert states(control) == {"slow:1": "LOADING"}
    assert not control.is_server_ready()
    gate.opened.set()
    loading.join()
    assert states(control) == {"slow:1": "READY"}


# -- loading -------------------------------------------------------------------------------------


def test_L8_only_newer_files_are_a_change(server, explicit, root):
    file = add(root, "m", source=times(1)) / "1" / "model.py"
    explicit.load("m")
    old = file.stat().st_mtime_ns
    file.write_text(times(2))
    os.utime(file, ns=(old, old))
    answer(server, "m")
    explicit.load("m")
    assert answer(server, "m") == 1.0
    assert server.statistics("m")["model_stats"][0]["inference_count"] == 2  # not reloaded
    touch(file, 10)
    explicit.load("m")
    assert answer(server, "m") == 2.0
    assert server.statistics("m")["model_stats"][0]["inference_count"] == 1  # T6


@pytest.mark.parametrize(
    ("config", "source", "detail"),
    [
        ("max_batch_sise: 8", MODEL, "failed to read text proto from "),
        ("max_batch_size: -1", MODEL, "'max_batch_size' must be non-negative value for m"),
        ('name: "other"', MODEL, "unexpected directory name 'm' for model 'other'"),
        (None, None, "Invalid model name: Could not determine backend for model 'm'"),
    ],
)
def test_L9_errors_of_the_configuration_are_poll_failures(explicit, root, config, source, detail):
    add(root, "m", config=config, source=source)
    error = refused(explicit, "m")
    assert isinstance(error, InternalError)
    assert error.message == "failed to load 'm', failed to poll from model repository"
    assert error.hint.startswith(detail)


@pytest.mark.parametrize(
    "name", ["absent", "", ".", "..", "../models/m", "m/1", "m\\1", "m\0", "m" * 300]
)
def test_L10_an_unknown_model_and_a_path_out_of_the_repository_are_refused(explicit, root, name):
    add(root, "m")
    assert refused(explicit, name).message == (
        f"failed to load '{name}', failed to poll from model repository"
    )


def test_L9_errors_of_the_model_have_their_version_and_code(explicit, root):
    add(root, "dims", config='backend: "python" input { name: "IN" data_type: TYPE_FP32 dims: 0 }')
    add(root, "plan", config=UNKNOWN, source=None)
    assert refused(explicit, "plan").message == (
        "load failed for model 'plan': version 1 is at UNAVAILABLE state: Invalid argument: unable "
        "to find backend library for backend 'tensorrt', try specifying runtime on the model "
        "configuration.;\n"
    )
    error = refused(explicit, "dims")
    assert isinstance(error, LoadError)
    assert error.message.startswith(
        "load failed for model 'dims': version 1 is at UNAVAILABLE state: "
    )
    assert error.message.endswith(";\n")


def test_L11_an_ensemble_loads_its_models(server, explicit, root):
    add(root, "m", source=times(3))
    add(root, "inner", config=ensemble("m"), source=None)
    add(root, "outer", config=ensemble("inner"), source=None)
    explicit.load("outer")
    assert answer(server, "outer") == 3.0
    assert set(states(explicit).values()) == {"READY"}


def test_L11_a_changed_model_renews_the_ensembles_over_it(server, explicit, root):
    file = add(root, "m", source=times(3)) / "1" / "model.py"
    add(root, "e", config=ensemble("m"), source=None)
    explicit.load("e")
    answer(server, "e")
    file.write_text(times(4))
    touch(file, 10)
    explicit.load("m")
    assert server.statistics("e")["model_stats"][0]["inference_count"] == 0
    assert answer(server, "e") == 4.0


@pytest.mark.parametrize(
    ("member", "version", "text"),
    [
        ("absent", -1, "ensemble e contains models that are not available or ambiguous: absent"),
        ("syntax", -1, "ensemble e contains models that are not available or ambiguous: syntax"),
        ("good", 7, "ensemble 'e' depends on 'good' whose required version 7 is not loaded."),
        (
            "on_absent",
            -1,
            ("ensemble 'e' depends on 'on_absent' which is not valid. Model 'on_absent' failed with "
            "error: ensemble on_absent contains models that are not available or ambiguous: absent"),
        ),
        (
            "bad",
            -1,
            ("ensemble 'e' depends on 'bad' which has no loaded version. Model 'bad' loading failed "
            "with error: version 1 is at UNAVAILABLE state: Internal: ValueError: no luck\n\nAt:\n"
            "  ROOT/bad/1/model.py(13): initialize\n;"),
        ),
        ("e", -1, "circular dependency between ensembles: e -> ... -> e -> e"),
    ],
)  # fmt: skip
def test_V112_V113_V114_V115_V116_ensembles_without_their_composing_models(
    explicit, root, member, version, text
):
    add(root, "good")
    add(root, "bad", source=BROKEN)
    add(root, "syntax", config="max_batch_sise: 8")
    add(root, "on_absent", config=ensemble("absent"), source=None)
    add(root, "e", config=ensemble(member, version=version), source=None)
    error = refused(explicit, "e")
    assert isinstance(error, LoadError)
    assert error.message == f"load failed for model 'e': {text}\n".replace("ROOT", str(root))
    assert "e" in states(explicit)  # by name only: it never had a version


@pytest.mark.medium
def test_a_failed_ensemble_loads_once_its_composing_models_do(server, explicit, root):
    add(root, "m", source=BROKEN)
    add(root, "on_m", config=ensemble("m"), source=None)
    add(root, "on_absent", config=ensemble("absent"), source=None)
    add(root, "on_both", config=ensemble("on_m"), source=None)
    add(root, "unwanted", config=ensemble("m"), source=None)
    for name in ("on_m", "on_absent", "on_both", "unwanted"):
        refused(explicit, name)
    explicit.unload("unwanted")
    add(root, "m")
    explicit.load("m")
    assert answer(server, "on_both") == answer(server, "on_m") == 1.0
    add(root, "absent", source=times(2))
    explicit.load("absent")
    assert answer(server, "on_absent") == 2.0
    assert not server.is_ready("unwanted")
    assert set(explicit.errors) <= {"unwanted"}


def test_L14_a_failing_reload_keeps_the_old_version(server, explicit, root):
    file = add(root, "m") / "1" / "model.py"
    explicit.load("m")
    file.write_text(BROKEN)
    touch(file, 10)
    assert "no luck" in refused(explicit, "m").message
    assert answer(server, "m") == 1.0
    assert states(explicit) == {"m:1": "READY"}
    assert explicit.is_server_ready()
    assert "no luck" in explicit.errors["m"].message


BREAKS = {
    "code": ("1/model.py", "def", "invalid syntax"),
    "configuration": ("config.pbtxt", "input { data_type: TYPE_FLOAT }", "TYPE_FLOAT"),
}


@pytest.mark.medium
@pytest.mark.parametrize("before", ["repository", "notebook"])
@pytest.mark.parametrize("what", BREAKS)
def test_L14_what_serves_on_is_not_shown_as_loaded(server, root, what, before):
    """By a control for each load, as `%triton_load` makes one."""
    file, text, reason = BREAKS[what]
    folder = add(root, "m")
    add(root, "good")
    if before == "repository":
        server.load_repository(root)
    else:
        server.load(ECHO, lambda IN: {"OUT": IN}, name="m")  # noqa: N803
    good = (folder / file).read_text() if (folder / file).exists() else ""
    (folder / file).write_text(text)
    with pytest.warns(nt.errors.LoadWarning, match=f"'m': what was loaded before serves.*{reason}"):
        control = server.load_repository(root)
    assert answer(server, "m") == 1.0
    assert states(control) == {"good:1": "READY", "m:1": "READY"}  # as Triton has it
    (row,) = [row for row in control._table()[1] if row[3]]
    assert row[0] == "m"
    assert row[3].startswith("what was loaded before serves, as this load failed: ")
    assert reason in row[3]
    assert set(control.kept) == {"m"}
    # The table is about what serves now.
    server.load(ECHO, lambda IN: {"OUT": IN}, name="m")  # noqa: N803
    assert not control.kept
    assert not any(row[3] for row in control._table()[1])
    (folder / file).write_text(good)
    mended = server.load_repository(root)  # and no warning, which would be an error
    assert not mended.kept
    assert not any(row[3] for row in mended._table()[1])


def test_L14_a_poll_that_fails_shows_what_serves_on(server, root):
    file = add(root, "m") / "1" / "model.py"
    control = server.load_repository(root, control_mode="poll", poll_s=0)
    file.write_text(BROKEN)
    touch(file, 10)
    control.poll_now()
    (row,) = control._table()[1]
    why = "version 1 is at UNAVAILABLE state: Internal: ValueError: no luck"
    assert row[2:] == ("READY", f"what was loaded before serves, as this load failed: {why}")
    server.set_options(gpus=[])  # the same code, loaded again
    assert set(control.kept) == {"m"}


def test_L15_a_reload_loses_no_request(server, explicit, root):
    file = add(root, "m", config="dynamic_batching {}", source=times(1)) / "1" / "model.py"
    explicit.load("m")
    one = {"IN": np.ones((1, 4), np.float32)}
    futures = [server.submit("m", one) for _ in range(50)]
    file.write_text(times(2))
    touch(file, 10)
    explicit.load("m")
    futures += [server.submit("m", one) for _ in range(10)]
    said = [float(future.result(30)["OUT"][0, 0]) for future in futures]
    assert said == [1.0] * 50 + [2.0] * 10


def test_folders_that_are_no_version_are_logged(explicit, root, caplog):
    folder = add(root, "m")
    for name in ("003", "abc", "warmup"):
        (folder / name).mkdir()
    with caplog.at_level(logging.WARNING, "nbtriton.serving.repository"):
        explicit.load("m")
    assert caplog.messages == [
        "ignore version directory '003' which contains leading zeros in its directory name",
        "ignore version directory 'abc' which fails to convert to integral number",
    ]


@pytest.mark.medium
def test_a_version_that_fails_is_tried_again(server, root, caplog):
    caplog.set_level(logging.INFO, "nbtriton.serving.repository")
    counted = """
import pathlib
tried = pathlib.Path(__file__).parent / "tried"
tried.write_text(tried.read_text() + "x" if tried.exists() else "x")
if len(tried.read_text()) < 3:
    raise ValueError("not yet")
"""
    for name in ("late", "bad"):
        add(root, name, source=counted + MODEL if name == "late" else BROKEN)
    control = server.load_repository(root, load_retries=2)
    assert states(control)["late:1"] == "READY"
    failed = [text for text in caplog.messages if text.startswith("failed to load")]
    assert (
        len([text for text in failed if "'late' version 1: Internal: ValueError: not" in text]) == 2
    )
    assert len([text for text in failed if "'bad' version 1" in text]) == 3


# -- overrides -----------------------------------------------------------------------------------


def test_L12_F4_a_configuration_replaces_the_file(server, explicit, root):
    add(root, "m", config="max_batch_size: 8 dynamic_batching {}")
    explicit.load("m")
    assert server.config("m").HasField("dynamic_batching")
    explicit.load("m", {"config": '{"max_batch_size": "8"}'})
    assert not server.config("m").HasField("dynamic_batching")


def test_L13_an_override_stays_until_a_file_is_touched(server, explicit, root):
    folder = add(root, "m", config="max_batch_size: 8 dynamic_batching {}")
    explicit.load("m", {"config": '{"max_batch_size": 8}'})
    explicit.load("m")
    assert not server.config("m").HasField("dynamic_batching")
    touch(folder / "config.pbtxt", 3600)
    explicit.load("m")
    assert server.config("m").HasField("dynamic_batching")


@pytest.mark.medium
def test_a_plain_load_undoes_files_that_came_with_a_request(server, explicit, root):
    add(root, "m", source=times(1))
    files = {"config": PYTHON, "file:1/model.py": times(7).encode()}
    for first in (files, None):
        explicit.load("m", first)
        explicit.load("m", files)
        assert answer(server, "m") == 7.0
        explicit.load("m")
        assert answer(server, "m") == 1.0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.medium
def test_a_child_that_exits_leaves_the_files_that_came_with_a_request(server, explicit, root):
    add(root, "m", source=times(1))
    explicit.load("m", {"config": PYTHON, "file:1/model.py": times(7).encode()})
    source = server.engine.inspection.source("m")
    in_child(weakref.finalize._exitfunc)  # what Python runs at its exit
    assert source.exists()
    server.close()
    assert not source.exists()


def test_files_that_come_with_the_same_configuration_count(server, explicit, root):
    add(root, "m", config=PYTHON, source=times(1))
    for factor in (2, 3):
        content = times(factor).encode()
        explicit.load("m", {"config": PYTHON, "file:1/model.py": content})
        assert answer(server, "m") == factor


@pytest.mark.parametrize(
    ("parameters", "text", "detail"),
    [
        ({"config": ""}, "failed to load 'm', failed to poll from model repository", "Invalid config override: "),
        ({"config": "max_batch_size: 8"}, "failed to load 'm', failed to poll from model repository", "Invalid config override: "),
        ({"config": "{bad"}, "failed to load 'm', failed to poll from model repository", "Invalid config override: "),
        ({"config": '{"nope": 1}'}, "failed to load 'm', failed to poll from model repository", "Invalid config override: "),
        ({"config": 5}, "attempt to access JSON non-string as string", ""),
        ({"foo": "x"}, "unexpected error on creating Triton parameter", "unrecognized load parameter 'foo'."),
        ({"file:1/model.py": MODEL.encode()}, "failed to load 'm', failed to poll from model repository", "Load parameter 'config' must be specified for model file override"),
    ],
)  # fmt: skip
def test_L12_parameters_that_are_refused(explicit, root, parameters, text, detail):
    add(root, "m")
    error = refused(explicit, "m", parameters)
    assert (error.status, error.message) == ("INTERNAL", text)
    assert error.hint.startswith(detail)


@pytest.mark.parametrize("encode", [lambda b: b, lambda b: base64.b64encode(b).decode()])
def test_L12_files_make_a_model_that_no_repository_has(server, explicit, encode):
    content = encode(times(6).encode())
    explicit.load("fresh", {"config": PYTHON, "file:1/model.py": content})
    assert answer(server, "fresh") == 6.0
    assert explicit.index() == []  # KS61
    assert "failed to poll" in refused(explicit, "fresh").message
    explicit.unload("fresh")
    assert not server.is_ready("fresh")


@pytest.mark.parametrize("path", ["/1/model.py", "//1/model.py", "./1//model.py"])
def test_L12_a_slash_before_a_file_means_its_directory(server, explicit, path):
    explicit.load("fresh", {"config": PYTHON, f"file:{path}": times(3).encode()})
    assert answer(server, "fresh") == 3.0


def test_L12_files_replace_the_whole_directory(server, explicit, root):
    add(root, "m", source=times(1), versions=("1", "2"))
    explicit.load("m")
    explicit.load("m", {"config": PYTHON, "file:1/model.py": times(9).encode()})
    assert answer(server, "m") == 9.0
    assert not server.is_ready("m", 2)


@pytest.mark.parametrize(
    "path", ["../1/model.py", "1/../../x.py", "/../x.py", "..", "", "/", "1/\0", "1/../model.py"]
)
def test_L12_no_file_leaves_the_directory(explicit, root, tmp_path, path):
    before = sorted(tmp_path.rglob("*"))
    error = refused(explicit, "m", {"config": PYTHON, f"file:{path}": b"x"})
    assert error.message == "failed to load 'm', failed to poll from model repository"
    assert "must stay within model directory" in error.hint
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "config",
    [
        {"default_model_filename": "../../secret.py"},
        {"default_model_filename": "/etc/secret.py"},
        {"cc_model_filenames": {"7.5": "../secret.pt"}},
        {"output": [{"name": "OUT", "label_filename": "a/../../labels.txt"}]},
        {"model_warmup": [{"name": "w", "inputs": {"IN": {"input_data_file": "../../data"}}}]},
        {
            "sequence_batching": {
                "state": [{"initial_state": [{"name": "s", "data_file": "/etc/passwd"}]}]
            }
        },
    ],
    ids=lambda config: next(iter(config)),
)
def test_no_configuration_of_a_client_names_files_elsewhere(explicit, root, config):
    add(root, "m")
    error = refused(explicit, "m", {"config": json.dumps({"backend": "python", **config})})
    assert error.message == "failed to load 'm', failed to poll from model repository"
    assert "must stay within model directory" in error.hint
    explicit.load("m")


def test_L12_a_name_that_no_file_system_takes_is_refused(server, explicit, root):
    add(root, "m", source=times(2))
    explicit.load("m")
    error = refused(explicit, "m", {"config": PYTHON, "file:" + "A" * 256: b"x"})
    assert error.message == "failed to load 'm', failed to poll from model repository"
    assert "File name too long" in error.hint
    assert answer(server, "m") == 2.0


def test_files_of_overrides_are_removed_with_the_server(root, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    root.mkdir()
    with nt.Server(gpus=()) as server:
        control = server.load_repository(root, control_mode="explicit")
        control.load("m", {"config": PYTHON, "file:1/model.py": MODEL.encode()})
        (folder,) = tmp_path.glob("nbtriton-model-*")
        kept = len([*folder.iterdir()])
        with pytest.raises(TritonError):
            control.load("m", {"config": PYTHON, "file:" + "A" * 256: b"x"})
        assert len([*folder.iterdir()]) == kept  # a refused load leaves nothing
    assert not list(tmp_path.glob("nbtriton-model-*"))


@pytest.mark.medium
def test_files_of_overrides_are_removed_with_the_last_request_to_their_model(
    server, explicit, root, tmp_path, monkeypatch, gate
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def left() -> list[Path]:
        return [path for path in tmp_path.glob("nbtriton-model-*/*") if path.is_dir()]

    def load(source: str) -> Path:
        explicit.load("m", {"config": PYTHON, "file:1/model.py": source.encode()})
        return server.engine.inspection.source("m").parent.parent

    waits = "from tests.repository import gate\n" + MODEL.replace(
        "values =", "gate.entered.set(); gate.opened.wait(60)\n        values ="
    )
    held = load(waits)
    answered = server.submit("m", {"IN": np.ones((1, 4), np.float32)})
    assert gate.entered.wait(60)
    second = load(times(2))
    third = load(times(3))
    assert until(lambda: sorted(left()) == sorted([held, third]))
    gate.opened.set()
    answered.result(60)
    assert until(lambda: left() == [third])
    assert not second.exists()
    with pytest.raises(TritonError):
        load("x = 1")
    server.set_options(cache_bytes=1000)
    assert answer(server, "m") == 3.0
    assert until(lambda: left() == [third])
    explicit.unload("m")
    assert until(lambda: not left())


@pytest.mark.medium
def test_files_of_a_killed_server_are_removed_by_the_next(root, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    root.mkdir()
    program = f"""
import os, signal, tempfile
tempfile.tempdir = {str(tmp_path)!r}
import nbtriton as nt
control = nt.Server(gpus=()).load_repository({str(root)!r}, control_mode="explicit")
control.load("m", {{"config": {PYTHON!r}, "file:1/model.py": {MODEL.encode()!r}}})
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run_python("-c", program).returncode == -signal.SIGKILL
    (left,) = tmp_path.glob("nbtriton-model-*")
    with nt.Server(gpus=()) as one, nt.Server(gpus=()) as other:
        for server in (one, other):
            control = server.load_repository(root, control_mode="explicit")
            control.load("m", {"config": PYTHON, "file:1/model.py": MODEL.encode()})
        assert not left.exists()
        assert len([*tmp_path.glob("nbtriton-model-*")]) == 2  # those that live keep theirs


def test_a_deleted_working_directory_is_named(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with nt.Server(gpus=()) as server:
        for call in (server.load_repository, server.export):
            with pytest.raises(NotFoundError, match="the working directory was deleted"):
                call("models")


# -- unloading -----------------------------------------------------------------------------------


def test_L18_CL2_unload(server, explicit, root):
    add(root, "m")
    explicit.load("m")
    explicit.unload("m")
    with pytest.raises(NotFoundError):
        answer(server, "m")
    explicit.unload("m")
    explicit.unload("unknown")
    assert states(explicit)["m:1"] in ("UNLOADING", "UNAVAILABLE unloaded")
    explicit.load("m")
    assert states(explicit) == {"m:1": "READY"}


def test_L18_a_failed_version_keeps_its_reason_through_an_unload(explicit, root):
    add(root, "bad", source=BROKEN)
    refused(explicit, "bad")
    before = states(explicit)
    explicit.unload("bad")
    assert states(explicit) == before


GATED = "from tests.repository import gate\n" + MODEL.replace(
    "self.factor =", "gate.entered.set(); gate.opened.wait(60)\n        self.factor ="
)


@pytest.fixture
def gate():
    from tests.repository import gate

    for event in (gate.entered, gate.opened, gate.end):
        event.clear()
    yield gate
    gate.opened.set()


@pytest.mark.parametrize(
    ("loaded", "unloaded", "left"),
    [
        ("m", "m", set()),
        ("e", "e", {"m"}),
        ("e", "m", set()),
    ],
)
@pytest.mark.parametrize("again", [False, True], ids=["first", "again"])
def test_L18_an_unload_comes_after_the_loads_that_have_begun(
    server, explicit, root, gate, loaded, unloaded, left, again
):
    file = add(root, "m") / "1" / "model.py"
    add(root, "e", config=ensemble("m"), source=None)
    if again:
        explicit.load(loaded)
    file.write_text(GATED)
    touch(file, 10)
    load = threading.Thread(target=explicit.load, args=(loaded,))
    load.start()
    assert gate.entered.wait(60)
    unload = threading.Thread(target=explicit.unload, args=(unloaded,))
    unload.start()
    assert until(lambda: explicit._loader._unloading[unloaded])
    assert server.is_ready(unloaded) is again  # what served before goes on meanwhile
    gate.opened.set()
    for thread in (load, unload):
        thread.join(60)
    assert not explicit.errors
    assert {model.name for model in server.models() if model.state == "READY"} == left
    assert until(lambda: states(explicit)[f"{unloaded}:1"] == "UNAVAILABLE unloaded")


@pytest.mark.medium
@pytest.mark.parametrize(
    ("scheduler", "waits"),
    [("", True), ("dynamic_batching {}", True), ("sequence_batching { direct {} }", False)],
)
def test_L16_a_load_waits_for_the_instances_that_it_takes_away(
    server, explicit, root, gate, scheduler, waits
):
    """But for those of a sequence batcher, as in Triton; `Server.load` waits for none."""
    ending = "    def finalize(self):\n        gate.entered.set(); gate.opened.wait(60); gate.end.set()\n"
    source = "from tests.repository import gate\n" + MODEL.replace("\nFACTOR", ending + "\nFACTOR")
    folder = add(root, "m", source=source, config=f"{scheduler} instance_group {{ count: 2 }}")
    explicit.load("m")
    (folder / "config.pbtxt").write_text(f"{scheduler} instance_group {{ count: 1 }}")
    touch(folder / "config.pbtxt", 10)
    seen = []

    def load():
        explicit.load("m")
        seen.append(gate.end.is_set())

    thread = threading.Thread(target=load)
    thread.start()
    assert gate.entered.wait(60)
    if not waits:
        thread.join(60)
    gate.opened.set()
    thread.join(60)
    assert seen == [waits]
    assert [len(model.instances) for model in server.models()] == [1]


@pytest.mark.medium
def test_L18_a_load_comes_after_the_unloads_that_wait(server, explicit, root, gate):
    add(root, "m", source=GATED)
    threads = [
        threading.Thread(target=call, args=("m",))
        for call in (explicit.load, explicit.unload, explicit.load)
    ]
    threads[0].start()
    assert gate.entered.wait(60)
    threads[1].start()
    assert until(lambda: explicit._loader._unloading["m"])
    threads[2].start()
    gate.opened.set()
    for thread in threads:
        thread.join(60)
    assert server.is_ready("m")


@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize("names", ["a", "ab"])
def test_models_cannot_load_each_other_while_they_are_loaded(
    server, explicit, root, isolation, names
):
    """tritonserver never comes back."""
    group = f'parameters {{ key: "INSTANCE_ISOLATION" value {{ string_value: "{isolation}" }} }}'
    for name, other in zip(names, names[1:] + names[0], strict=True):
        call = f'pb_utils.load_model("{other}")\n        self.factor ='
        add(root, name, source=MODEL.replace("self.factor =", call), config=group)
    assert "model 'a' is being loaded, by this very call" in refused(explicit, "a").message
    assert not any(map(server.is_ready, names))


@pytest.mark.medium
def test_of_models_that_load_each_other_for_two_clients_none_waits_for_ever(
    server, explicit, root, gate
):
    for name, other, source in (("a", "b", GATED), ("b", "a", MODEL)):
        call = f'pb_utils.load_model("{other}")\n        self.factor ='
        add(root, name, source=source.replace("self.factor =", call))
    errors = {}

    def load(name):
        errors[name] = refused(explicit, name).message

    threads = [threading.Thread(target=load, args=name) for name in "ab"]
    threads[0].start()
    assert gate.entered.wait(60)
    threads[1].start()
    assert until(lambda: server.engine.lifecycle._asked["b", "a"])
    gate.opened.set()
    for thread in threads:
        thread.join(60)
    assert sorted(errors) == ["a", "b"]
    for error in errors.values():
        assert "model 'b' is being loaded, by this very call" in error


@pytest.mark.parametrize(
    ("explicitly", "dependents", "ready"),
    [(False, False, True), (False, True, False), (True, True, True)],
)
def test_L19_unload_dependents(server, explicit, root, explicitly, dependents, ready):
    add(root, "m")
    add(root, "e", config=ensemble("m"), source=None)
    if explicitly:
        explicit.load("m")
    explicit.load("e")
    explicit.unload("e", {"unload_dependents": dependents})
    assert not server.is_ready("e")
    assert server.is_ready("m") is ready


def test_L19_a_model_that_another_ensemble_uses_stays(server, explicit, root):
    add(root, "m")
    for name in ("e", "f"):
        add(root, name, config=ensemble("m"), source=None)
        explicit.load(name)
    explicit.unload("e", {"unload_dependents": True})
    assert answer(server, "f") == 1.0
    explicit.unload("f", {"unload_dependents": True})
    assert not server.is_ready("m")


def test_L20_ensembles_go_with_their_models_and_come_back(server, explicit, root):
    add(root, "m")
    add(root, "e", config=ensemble("m"), source=None)
    explicit.load("e")
    explicit.unload("m")
    assert states(explicit)["e:1"] == "UNAVAILABLE unloaded"
    assert not server.is_ready("e")
    explicit.load("m")
    assert states(explicit) == {"e:1": "READY", "m:1": "READY"}


def test_an_unload_by_the_notebook_shows_in_the_control(server, explicit, root):
    add(root, "m")
    explicit.load("m")
    server.unload("m", timeout_s=30)
    assert states(explicit) == {"m:1": "UNAVAILABLE unloaded"}
    explicit.load("m")
    assert states(explicit) == {"m:1": "READY"}


@pytest.mark.medium
def test_concurrent_calls(server, explicit, root):
    names = [add(root, f"m{i}").name for i in range(3)]
    add(root, "e", config=ensemble("m0"), source=None)
    failed = []

    def ask(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(15):
            name = str(random.choice([*names, "e"]))
            try:
                if random.random() < 0.6:
                    explicit.load(name)
                else:
                    explicit.unload(name, {"unload_dependents": bool(random.random() < 0.5)})
                explicit.index()
                explicit.is_server_ready()
            except LoadError as error:
                # Its model was unloaded between the two.
                if name != "e":
                    failed.append(error)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
    for name in (*names, "e"):
        explicit.load(name)
        assert answer(server, name) == 1.0
    assert explicit.is_server_ready()
    assert set(states(explicit).values()) == {"READY"}


# -- the index -----------------------------------------------------------------------------------


@pytest.mark.medium
def test_L21_the_index(explicit, root):
    add(root, "loaded", config="version_policy { all {} }", versions=("1", "10", "2"))
    add(root, "never")
    explicit.load("loaded")
    ready = [{"name": "loaded", "version": v, "state": "READY"} for v in ("1", "2", "10")]
    assert explicit.index() == [*ready, {"name": "never"}]
    assert explicit.index(ready=True) == ready


def test_a_model_of_two_repositories_is_none(server, tmp_path):
    for root in ("one", "two"):
        add(tmp_path / root, "m")
    add(tmp_path / "two", "n")
    control = server.load_repository([tmp_path / "one", tmp_path / "two"])
    assert control.index() == [
        {
            "name": "m",
            "state": "UNAVAILABLE",
            "reason": "model appears in two or more repositories",
        },
        {"name": "n", "version": "1", "state": "READY"},
    ]


def test_models_of_the_notebook_are_in_the_index_too(server, explicit):
    server.load(ECHO, lambda IN: {"OUT": IN}, name="double")  # noqa: N803
    assert explicit.index() == [{"name": "double", "version": "1", "state": "READY"}]


@pytest.mark.medium
def test_a_control_shows_itself(explicit, root):
    add(root, "m")
    add(root, "bad", source=BROKEN)
    explicit.load("m")
    refused(explicit, "bad")
    text = explicit._repr_mimebundle_()["text/plain"]
    assert "READY" in text
    assert "Internal: ValueError: no luck" in text
    assert "<table" in explicit._repr_mimebundle_()["text/html"]


# -- configurations ------------------------------------------------------------------------------


def test_F2_F3_named_configurations_and_auto_complete_off(server, root):
    folder = add(root, "m", config="max_batch_size: 8")
    (folder / "configs").mkdir()
    (folder / "configs" / "b.pbtxt").write_text("max_batch_size: 8 dynamic_batching {}")
    server.load_repository(root, config_name="b")
    assert server.config("m").HasField("dynamic_batching")
    (folder / "config.pbtxt").unlink()
    control = server.load_repository(root, auto_complete=False)
    assert control.errors["m"].hint == (
        f"failed to open text file for read {folder}/config.pbtxt: No such file or directory"
    )


@pytest.mark.medium
def test_models_load_others_by_name(server, explicit, root):
    """BLS: pb_utils.load_model and unload_model go to the repository."""
    add(root, "other", source=times(8))
    add(root, "unloaded")
    loader = MODEL.replace(
        "self.factor =",
        'pb_utils.load_model("other"); pb_utils.unload_model("unloaded")\n        self.factor =',
    )
    add(root, "loader", source=loader)
    explicit.load("unloaded")
    explicit.load("loader")
    assert answer(server, "other") == 8.0
    assert not server.is_ready("unloaded")


@pytest.mark.medium
@pytest.mark.parametrize(
    ("given", "loaded"),
    [
        ("config=CONFIG, files={'file:1/model.py': b'x = 1'}", "no attribute 'TritonPythonModel'"),
        ("config=CONFIG, files={'1/model.py': b'x = 1'}", ""),
        (
            "files={'1/model.py': b'x = 1'}",
            "failed to load 'm', failed to poll from model repository",
        ),
    ],
)
def test_PB70_a_file_counts_if_its_path_begins_with_file(
    server, explicit, root, caplog, given, loaded
):
    """As seen on the server, where the log does not say so."""
    add(root, "m")
    config = json.dumps({"backend": "python"})
    call = f"CONFIG = {config!r}\n        pb_utils.load_model('m', {given})\n        self.factor ="
    add(root, "loader", source=MODEL.replace("self.factor =", call))
    with pytest.raises(TritonError, match=loaded) if loaded else contextlib.nullcontext():
        explicit.load("loader")
    if not loaded:
        assert answer(server, "m") == 1.0
        assert "write 'file:1/model.py'" in caplog.text


LABELLED = 'output { name: "OUT" data_type: TYPE_FP32 dims: 4 label_filename: "labels.txt" }'
ANEW = {
    "without a file": None,
    "instances": "instance_group { count: 2 }",
    "versions": "version_policy { specific { versions: [ 1, 3 ] } }",
    "labels": f'max_batch_size: 8 input {{ name: "IN" data_type: TYPE_FP32 dims: 4 }} {LABELLED}',
}


@pytest.mark.medium
@pytest.mark.parametrize("case", ANEW)
def test_models_are_loaded_anew_as_their_repository_has_them(server, explicit, root, case):
    """A configuration in a repository needs neither a name nor a backend."""
    folder = add(root, "m", config=ANEW[case], versions=("1", "3"))
    on_m = ensemble("m").replace(
        'output { name: "OUT" data_type: TYPE_FP32 dims: 4 }', LABELLED
    )  # fmt: skip
    for where in (folder, add(root, "e", config=on_m, source=None)):
        (where / "labels.txt").write_text("cat\ndog\n")
    explicit.load("e")
    explicit.load("m")
    shapes = [(m.name, m.version, len(m.instances)) for m in server.models()]
    configs = {name: server.config(name) for name in ("m", "e")}
    assert set(server.set_options(cache_bytes=1000)) == {"m", "e"}
    for name in ("m", "e"):
        server.load(name=name)  # and no warning, which would be an error
        assert server.engine.registry.resolve(name).directory == root / name
    assert [(m.name, m.version, len(m.instances)) for m in server.models()] == shapes
    assert {name: server.config(name) for name in ("m", "e")} == configs
    assert answer(server, "e") == 3.0


@pytest.mark.medium
def test_instances_of_an_override_come_again_with_other_options(server, explicit, root):
    add(root, "m")
    explicit.load("m")
    explicit.load("m", {"config": '{"instance_group": [{"count": 3}]}'})
    server.set_options(cache_bytes=1000)
    assert [len(model.instances) for model in server.models()] == [3]


def test_the_given_configuration_is_kept_as_written(server, root):
    add(root, "m", config="max_batch_size: 8")
    server.load_repository(root)
    assert json.loads(nt_json(server.engine.inspection.user_config("m"))) == {"max_batch_size": 8}


def nt_json(config) -> str:
    from nbtriton.model.config import to_json

    return to_json(config)


def test_fields_without_effect_are_logged_when_a_model_loads(explicit, root, caplog):
    caplog.set_level(logging.INFO, "nbtriton.serving.repository")
    add(root, "m", config=ECHO + "instance_group { kind: KIND_CPU host_policy: 'p' }")
    explicit.load("m")
    (printed,) = [text for text in caplog.messages if "no effect" in text]
    assert printed.startswith("model 'm': instance_group[0].host_policy has no effect here: ")


def test_a_model_whose_files_are_not_what_they_should_be_is_not_loaded(explicit, root):
    agent = """model_repository_agents { agents [
        { name: "checksum" parameters { key: "MD5:1/model.py" value: "abc" } } ] }"""
    add(root, "m", config=ECHO + agent)
    with pytest.raises(InternalError, match="failed to poll from model repository") as caught:
        explicit.load("m")
    assert caught.value.hint.startswith(
        "Mismatched MD5 hash for file 1/model.py, expect: abc, got:"
    )


def test_polling_goes_on_behind_a_poll_that_failed(server, root, monkeypatch, caplog):
    """Reading a folder may fail in any way; the next poll finds it as it should be."""
    add(root, "m")
    server.load_repository(root, control_mode="poll", poll_s=0.01)
    listed = Path.iterdir
    failed = threading.Event()

    def iterdir(folder):
        if folder == root and not failed.is_set():
            failed.set()
            raise MemoryError
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    assert failed.wait(60)
    add(root, "new", source=times(5))
    assert until(lambda: server.is_ready("new"))
    assert "a poll of" in caplog.text


@pytest.mark.medium
def test_open_ports_follow_the_repository_that_was_loaded_last(server, root):
    add(root, "a")
    with (
        server.serve(http_port=0, metrics_port=None) as endpoints,
        HttpClient(f"127.0.0.1:{endpoints.http_port}", 60) as client,
    ):
        with pytest.raises(UnavailableError, match="not allowed"):
            client.load("a")
        server.load_repository(root, control_mode="explicit")
        client.load("a")
        assert answer(server, "a") == 1.0
        add(root, "bad", source=BROKEN)
        server.load_repository(root)
        (found,) = [entry for entry in client.index() if entry["name"] == "bad"]
        assert "no luck" in found["reason"]
        with pytest.raises(UnavailableError, match="not allowed"):
            client.load("a")
