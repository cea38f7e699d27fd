"""``%triton_server`` and ``nt.server(…)``: the options of the server that the magics use."""

from __future__ import annotations

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.common.errors import InvalidArgumentError
from nbtriton.magics.extension import NBTriton
from nbtriton.options.server import SERVER
from nbtriton.serving import server as api
from nbtriton.serving.server import server
from tests.magics.cells import DOUBLE

CACHED = f"""\
%%triton_model double --max-batch-size 8 --config "response_cache {{ enable: true }}"
{DOUBLE}"""
LIMITED = f"""\
%%triton_model double --config 'instance_group {{ rate_limiter {{ resources {{ name: "R" count: 9 }} }} }}'
{DOUBLE}"""


def hits() -> int:
    (entry,) = server().statistics("double")["model_stats"]
    return entry["inference_stats"]["cache_hit"]["count"]


def ask(times: int = 2) -> None:
    for _ in range(times):
        server().infer("double", {"IN": np.ones((1, 4), np.float32)})


def test_options_hold_for_models_that_come_later(notebook):
    notebook.ok("%triton_server --cache-bytes 1000000 --rate-limit execution_count")
    notebook.ok(CACHED)
    ask(3)
    assert hits() == 2
    assert server().engine.lifecycle.builder.limiter is not None


def test_other_options_load_the_models_anew_and_the_server_stays(notebook):
    before = server()
    notebook.ok(CACHED)
    notebook.ok("%%triton_ensemble twice\nhalf = double(IN=IN)\nOUT = double(IN=half)\n")
    ran = notebook.ok("%triton_server --cache-config local,size=1000000")
    assert "loaded anew with these options: double, twice" in ran.out
    assert server() is before
    ask(2)
    assert hits() == 1
    assert server().infer("twice", {"IN": np.ones((1, 4), np.float32)})["OUT"][0, 0] == 4


def test_instances_that_came_later_come_again(doubled):
    doubled.ok("%%triton_config double\ninstance_group { count: 3 }\n")
    doubled.ok("%triton_server --cache-bytes 1000")
    (model,) = server().models()
    assert len(model.instances) == 3


def test_the_same_options_again_change_nothing(doubled):
    line = "%triton_server --cache-bytes 1000000 --backend-config python,key=value --gpus none"
    assert "double" in doubled.ok(line).out
    ask(1)
    assert "anew" not in doubled.ok(line).out
    assert "anew" not in doubled.ok("%triton_server").out
    (entry,) = server().statistics("double")["model_stats"]
    assert entry["inference_count"] == 1


def test_what_is_not_named_stays(notebook):
    notebook.ok("%triton_server --cache-bytes 1000 --backend-config default-max-batch-size=8")
    notebook.ok("%triton_server --rate-limit execution_count --rate-limit-resource R:4")
    options = server().options
    assert (options.cache_bytes, options.rate_limit) == (1000, "execution_count")
    assert options.rate_limit_resources == ("R:4",)
    assert options.backend_config == {"": {"default-max-batch-size": "8"}}
    shown = notebook.forms(notebook.ok("%triton_server").value)
    for form in ("text/plain", "text/html"):
        for word in ("execution_count", "R:4", "1\u202f000 bytes", "default-max-batch-size=8"):
            assert word in shown[form]
    notebook.ok("%triton_server --cache-bytes none --backend-config none --rate-limit off")
    assert server().options.cache_bytes is None
    assert server().options.backend_config == {}


def test_options_of_worker_processes_are_set_and_shown(notebook):
    notebook.ok(
        "%triton_server --isolation auto --worker-timeout 2.5 "
        "--host-policy near,cpu-cores=0-0 --host-policy near,numa-node=0"
    )
    options = server().options
    assert (options.isolation, options.worker_timeout_s) == ("auto", 2.5)
    assert options.host_policies == {"near": {"cpu-cores": "0-0", "numa-node": "0"}}
    shown = notebook.forms(notebook.ok("%triton_server").value)["text/plain"]
    for words in ("isolation", "auto", "2.50", "near: cpu-cores=0-0, near: numa-node=0"):
        assert words in shown
    notebook.ok("%triton_server --worker-timeout none --host-policy none --isolation thread")
    assert (server().options.worker_timeout_s, server().options.host_policies) == (None, {})


def test_options_that_a_model_cannot_be_loaded_with_change_nothing(notebook):
    notebook.ok(f"%%triton_model plain\n{DOUBLE}")
    notebook.ok(LIMITED)
    ran = notebook("%triton_server --rate-limit execution_count --rate-limit-resource R:4")
    assert isinstance(ran.error, nt.TritonError)
    assert server().options.rate_limit == "off"
    assert server().engine.lifecycle.builder.limiter is None
    assert server().engine.inspection.model_names() == ("double", "plain")
    assert server().infer("double", {"IN": np.ones(4, np.float32)})["OUT"][0] == 2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"cash_bytes": 1}, "a server has no option 'cash_bytes'"),
        ({"rate_limit": "on"}, "unknown rate limit 'on'"),
        ({"isolation": "proces"}, "unknown isolation 'proces'"),
        ({"worker_timeout_s": -1}, "worker_timeout_s must be a number above 0; found -1"),
        (
            {"rate_limit_resources": "R:1"},
            "rate_limit_resources must be a list of texts such as 'R1:4'; found 'R:1'",
        ),
        (
            {"backend_config": {"python": 5}},
            "backend_config must be a mapping by name, each a mapping of settings",
        ),
        (
            {"host_policies": 5},
            "host_policies must be a mapping by name, each a mapping of settings",
        ),
        ({"summaries": "no"}, "summaries must be True or False; found 'no'"),
        (
            {"host_policies": {"p": {"cpu-core": "0-1"}}},
            "Unsupported host policy setting 'cpu-core'",
        ),
        ({"gpus": "0,1"}, "is not a list of GPU ids"),
        ({"rate_limit_resources": ["R"]}, "rate-limit-resource"),
    ],
)
@pytest.mark.usefixtures("notebook")
def test_options_that_cannot_be(options, text):
    with pytest.raises(InvalidArgumentError, match=text):
        nt.server(**options)
    assert nt.server(cache_bytes=1000) is server()


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--cache-bytes much", "'much' is neither N nor 'none'"),
        ("--backend-config python", "'python' is neither [BACKEND,]SETTING=VALUE nor 'none'"),
        ("--worker-timeout long", "'long' is neither SECONDS nor 'none'"),
        ("--host-policy near", "'near' is neither POLICY,SETTING=VALUE nor 'none'"),
        ("--ratelimit off", "did you mean '--rate-limit'?"),
    ],
)
def test_a_wrong_option_is_one_line(notebook, line, text):
    ran = notebook(f"%triton_server {line}")
    assert text in ran.err
    assert len(ran.text.strip().splitlines()) == 1


def test_a_repositorys_models_keep_what_they_were_loaded_with(notebook, tmp_path):
    models = tmp_path / "models"  # the shell has its own files beside it
    (models / "m" / "1").mkdir(parents=True)
    (models / "m" / "config.pbtxt").write_text(
        'name: "m" backend: "identity" input { name: "INPUT0" data_type: TYPE_FP32 dims: 4 } '
        'output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 4 }'
    )
    notebook.ok(f"control = %triton_load {models} --disable-auto-complete-config")
    before = server().config("m")
    assert "anew with these options: m" in notebook.ok("%triton_server --cache-bytes 1000").out
    assert server().config("m") == before
    assert notebook.names["control"].index()[0]["state"] == "READY"


# -- a profile's configuration -----------------------------------------------------------------------


def test_a_profile_has_the_options_of_the_server(plain_shell):
    plain_shell.config.NBTriton.isolation = "process"
    plain_shell.config.NBTriton.cache_bytes = 1_000_000
    plain_shell.extension_manager.load_extension("nbtriton")
    try:
        options = server().options
        assert (options.isolation, options.cache_bytes) == ("process", 1_000_000)
        server().set_options(isolation="thread")
        plain_shell.extension_manager.reload_extension("nbtriton")
        assert server().options.isolation == "thread"  # the profile's are those of the start
    finally:
        plain_shell.extension_manager.unload_extension("nbtriton")
    assert not [one for one in plain_shell.configurables if type(one).__name__ == "NBTriton"]


def test_config_shows_and_sets_the_options_of_the_server(notebook, caplog):
    assert "NBTriton" in notebook.ok("%config").out
    notebook.ok("%config NBTriton.cache_bytes = 1_000_000")
    assert server().options.cache_bytes == 1_000_000
    notebook.ok("%triton_server --cache-bytes none")
    assert notebook.ok("%config NBTriton.cache_bytes").value is None
    described = notebook.ok("%config NBTriton").out
    for name in SERVER:
        assert f"NBTriton.{name}" in described
    notebook("%config NBTriton.rate_limit = 'some'")
    assert "unknown rate limit 'some'" in caplog.text
    assert server().options.rate_limit == "off"


def test_loading_the_extension_without_options_makes_no_server(plain_shell):
    plain_shell.extension_manager.load_extension("nbtriton")
    try:
        assert api._server is None
    finally:
        plain_shell.extension_manager.unload_extension("nbtriton")


@pytest.mark.parametrize(
    ("typed", "value"), [("1000", 1000), ("process", "process"), ("True", True)]
)
def test_a_command_line_gives_values(typed, value):
    assert NBTriton.class_traits()["isolation"].from_string(typed) == value


@pytest.mark.medium
@pytest.mark.parametrize(
    ("typed", "option"),
    [("nt.Server(isol", "isolation="), ("nt.server(cach", "cache_bytes="), ("nt.perf(server, 'm', conc", "concurrency=")],
)  # fmt: skip
def test_options_of_python_are_completed(notebook, typed, option):
    notebook.ok("import nbtriton as nt")
    assert option in notebook.complete(typed)
