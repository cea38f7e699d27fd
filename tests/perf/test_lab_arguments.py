"""Whatever is given to a call of the lab that it cannot take gets one sentence, before anything happens."""

from __future__ import annotations

import inspect

import pytest

import nbtriton as nt
from nbtriton.common.errors import TritonError
from nbtriton.lab.simulate.model_profile import Profile
from tests.simulate.profiles import config, model_profile, profile

NAN = float("nan")
# What no parameter of any call takes.
JUNK = (object(), NAN, -1, [NAN], b"2")
# Options whose meaning another one decides: without it they are not looked at.
UNREAD = {"inputs"}
SIMULATED = Profile("double", {"double": model_profile(config("double"), {(1, 1): 1.0})})


@pytest.fixture(scope="module")
def recording(server, tmp_path_factory):
    path = tmp_path_factory.mktemp("lab") / "traffic.jsonl"
    with nt.record(server, path):
        server.infer("double", {"IN": [[1.0, 2.0, 3.0, 4.0]]})
    return path


def calls(server, recording):
    """Each call with arguments that it takes, of which one is replaced."""
    return {
        nt.perf: {"server": server, "model": "double", "request_count": 1},
        nt.whatif: {"profile": profile(), "model": "m", "request_count": 1},
        nt.profile: {"server": server, "model": "double"},
        nt.tune: {"server": server, "model": "double", "profile": SIMULATED, "concurrency": 1},
        nt.why: {"server": server, "model": "double"},
        nt.timeline: {"server": server, "model": "double"},
        nt.doctor: {"target": server, "model": "double"},
        nt.chaos: {"server": server, "model": "double"},
        nt.record: {
            "server": server,
            "path": recording.with_name("other.jsonl"),
            "request_count": 1,
        },
        nt.replay: {"recording": recording, "target": server},
    }


NAMES = (
    "perf", "whatif", "profile", "tune", "why", "timeline", "doctor", "chaos", "record", "replay",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_what_no_parameter_takes_gets_one_sentence(server, recording, name):
    call = getattr(nt, name)
    given = calls(server, recording)[call]
    before = server.statistics("double")
    for option, parameter in inspect.signature(call).parameters.items():
        if option in UNREAD or option == "live" or parameter.kind is parameter.VAR_KEYWORD:
            continue
        for junk in JUNK:
            with pytest.raises(TritonError) as caught:
                call(**given | {option: junk})
                pytest.fail(f"{name}({option}={junk!r}) was taken")
            assert caught.value.message.count("\n") == 0, (option, junk)
            assert "object has no attribute" not in caught.value.message
    assert server.statistics("double") == before


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"concurrency": 10**30}, "At most 100000 requests can be outstanding"),
        ({"concurrency": "1:1000000000:1000000"}, "At most 100000 requests"),
        ({"request_rate": "1:1000000000"}, "10000 levels or more"),
        ({"instances": True}, "instances must be a whole number"),
        ({"streaming": 1}, "streaming must be True or False; found 1"),
        ({"batch_size": 0}, "The value must be > 0; found 0"),
        ({"sweep_models": None}, "sweep_models must be a list of names; found None"),
        ({"percentile": "99"}, r"in range \(0, 100\)"),
        ({"model": None}, "model must be a name; found None"),
    ],
)
def test_impossible_ranges_and_wrong_types(server, given, text):
    with pytest.raises(TritonError, match=text):
        nt.perf(**{"server": server, "model": "double", **given})


def test_variants_that_are_none(server):
    for variants, options, text in (
        (({"instances": 1}, 3), {}, "a variant is a mapping of options"),
        (({"instances": 1},), {}, "not 2 or more"),
        (({"instances": 1}, {"instanses": 2}), {}, "no option 'instanses'"),
        (({"instances": 1}, {"instances": 2}), {"rounds": NAN}, "rounds must be a whole number"),
    ):
        with pytest.raises(TritonError, match=text):
            nt.compare(*variants, server=server, model="double", **options)


def test_a_profile_that_is_not_there(tmp_path):
    with pytest.raises(TritonError, match="there is no profile"):
        Profile.load(tmp_path / "none.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    with pytest.raises(TritonError, match="is not a profile"):
        Profile.load(tmp_path / "bytes.json")
