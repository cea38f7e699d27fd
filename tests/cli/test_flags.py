"""tritonserver's flags: errors and their texts, and settings from several flags."""

from __future__ import annotations

import contextlib
import logging
import re
from pathlib import Path

import pytest

from nbtriton.common.errors import InvalidArgumentError, UnavailableError
from nbtriton.magics.cli import main
from nbtriton.serving.frontends.flags import (
    cache_bytes,
    check_ports,
    flags_by_name,
    metrics_settings,
    parse_flags,
    server_options,
    trace_settings,
)
from nbtriton.serving.settings import ENDPOINTS
from tests.children import run_python

RESTRICTED_TWICE = (
    "--http-restricted-api=inference,health:k=v", "--http-restricted-api=health:a=b",
)  # fmt: skip
# Flags, and the last line of what tritonserver says before it ends with status 1.
REFUSED = [
    (["stray"], "Unexpected argument: stray"),
    (["--allow-http=perhaps"], "invalid value for bool option: perhaps"),
    (["--allow-http=yes"], "invalid value for bool option: yes"),
    (["--http-port=x"], "Invalid option value. Got x"),
    (["--http-port=99999999999"], "Provided option value is out of bound. Got 99999999999"),
    (["--model-control-mode=sometimes"], "invalid argument for --model-control-mode"),
    (["--log-format=iso8601"], "invalid argument for --log-format"),
    (["--rate-limit=on"], "invalid argument for --rate-limit"),
    (["--rate-limit-resource=R:x"], "Invalid option value. Got x"),
    (["--grpc-infer-response-compression-level=x"],
     "invalid argument for --grpc_infer_response_compression_level"),
    (["--load-model=x"],
     "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well."),
    (["--cache-config=local,size=1048576", "--response-cache-byte-size=1048576"],
     ("Error: Incompatible flags --response-cache-byte-size and --cache-config both provided. Please "
     "provide one or the other.")),
    (["--cache-config=local"],
     "No cache specified. --cache-config option format is <cache name>,<setting>=<value>. Got local"),
    (["--cache-config=local,size"],
     "--cache-config option format is '<cache name>,<setting>=<value>'. Got local,size"),
    (["--http-restricted-api=infer:k=v"], "unknown restricted api 'infer'"),
    (["--http-restricted-api=inference:k"],
     "--http-restricted-api option format is '<config name>:<setting>=<value>'. Got inference:k"),
    (list(RESTRICTED_TWICE),
     "restricted api 'health' can not be specified in multiple config groups"),
    (["--grpc-restricted-protocol=foo:k=v"], "unknown restricted protocol 'foo'"),
    (["--grpc-restricted-protocol=trace:k=v", "--grpc-restricted-protocol=trace:k=v"],
     "restricted protocol 'trace' can not be specified in multiple config groups"),
    (["--metrics-config=a,foo=bar"],
     "--metrics-config option format is <setting>=<value>. Got a,foo=bar"),
    (["--metrics-interval-ms=abc"], "Invalid option value. Got abc"),
    (["--trace-config=level=foo"], "invalid value for trace level option: foo"),
    (["--trace-config=rate=x"], "Invalid option value. Got x"),
    (["--trace-config=level"],
     "--trace-config option format is '<trace mode>,<setting>=<value>'. Got level"),
    (["--backend-config=python,a"],
     "--backend-config option format is '<backend name>,<setting>=<value>'. Got python,a"),
    (["--backend-config=,a=b"],
     ("No backend specified. --backend-config option format is <backend name>,<setting>=<value> or "
     "<setting>=<value>. Got ,a=b")),
    (["--host-policy=a"],
     "--host-policy option format is '<policy name>,<setting>=<value>'. Got a"),
    (["--min-supported-compute-capability=x"], "Invalid option value. Got x"),
]  # fmt: skip


def _last_line(text: str) -> str:
    return [line for line in text.splitlines() if line.strip()][-1]


@pytest.mark.parametrize(("flags", "line"), REFUSED)
def test_wrong_flags_are_refused(
    flags: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", f"--model-repository={tmp_path}", *flags]) == 1
    written = capsys.readouterr().err.partition("\n  hint: ")[0]
    assert _last_line(written).removeprefix("nbtriton: ") == line


@pytest.mark.reference
@pytest.mark.slow
@pytest.mark.parametrize(("flags", "line"), REFUSED)
def test_the_real_server_refuses_them_with_the_same_line(
    flags: list[str], line: str, reference, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with (
        pytest.raises(UnavailableError, match="ended with status 1"),
        reference.server(tmp_path, *flags, log=log),
    ):
        pass
    assert _last_line(log.read_text()).strip() == line


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--model-repositry=x"], "unrecognized option '--model-repositry'; did you mean '--model-repository'?"),
        (["--grpc-prt", "1"], "unrecognized option '--grpc-prt'; did you mean '--grpc-port'?"),
        (["--frobnicate"], "unrecognized option '--frobnicate'; see nbtriton serve --help"),
        (["-x"], "invalid option -- 'x'"),
        (["--http-port"], "option '--http-port' requires an argument"),
        (["--disable-auto-complete-config=true"],
         "option '--disable-auto-complete-config' doesn't allow an argument"),
        (["--model-conf=x", "--trace-l=1"], ("option '--trace-l' is ambiguous; possibilities: "
         "'--trace-level' '--trace-log-frequency'")),
        (["--http-port=70000"], "70000 is no port"),
        (["--http-port=12x"], "Invalid option value. Got 12x"),
        (["--model-config-name="], "Error: empty argument"),
        (["--host-policy=a,b=c"], "Unsupported host policy setting 'b' is specified"),
        (["--isolation=proces"], "did you mean 'process'?"),
        (["--worker-timeout=0"], "Invalid option value. Got 0; seconds, above 0"),
        (["--http-restricted-api=infer:k=v"], "did you mean 'inference'?"),
    ],
)  # fmt: skip
def test_the_error_names_the_nearest_flag_or_value(flags: list[str], text: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        parse_flags(flags)
    assert text in f"{refused.value.message}; {refused.value.hint}"


def test_help_ends_with_1_as_tritonservers_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == 1
    written = capsys.readouterr().out
    assert set(re.findall(r"^  --([a-z0-9-]+)", written, re.MULTILINE)) == set(flags_by_name())


@pytest.mark.reference
def test_every_flag_of_the_real_server_is_accepted(reference, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        contextlib.suppress(UnavailableError),
        reference.server(tmp_path, "--help", log=log),
    ):
        pass
    theirs = set(re.findall(r"^  --([a-z0-9-]+)", log.read_text(), re.MULTILINE))
    assert len(theirs) > 80
    assert theirs - flags_by_name().keys() == set()
    assert {
        name for name, flag in flags_by_name().items() if flag.ours
    } == flags_by_name().keys() - theirs


def test_values_in_any_case_and_unique_beginnings_of_names() -> None:
    found = parse_flags(
        ["--model-control=EXPLICIT", "--rate-limit", "Execution_Count", "--allow-http=ON",
         "--grpc-infer-response-compression-level=HIGH", "--log-verbose=TRUE", "--exit-timeout-secs",
         "-1", "--trace-level=Tensors"],
    )  # fmt: skip
    assert found.control_mode == "explicit"
    assert found.rate_limit == "execution_count"
    assert found.allow_http is True
    assert found.grpc_infer_response_compression_level == "high"
    assert found.log_verbose == 1
    assert found.exit_timeout_secs == -1
    assert found.trace_level == [frozenset({"TENSORS"})]
    assert "grpc-port" not in found.given


def test_the_last_of_two_counts_where_there_is_one() -> None:
    assert parse_flags(["--id=a", "--id=b"]).name == "b"
    assert parse_flags(["--load-model=a", "--load-model=b"]).load_models == ["a", "b"]


@pytest.mark.parametrize(
    ("flags", "size"),
    [
        ([], None),
        (["--cache-config=local,size=192"], 192),
        (["--cache-config=local,size=500", "--cache-config=local,other=1"], 500),
        (["--response-cache-byte-size=700"], 700),
    ],
)
def test_the_size_of_the_cache(flags: list[str], size: int | None) -> None:
    assert cache_bytes(parse_flags(flags)) == size


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--cache-config=local,sze=5"],
         "Failed to initialize LocalCache: config didn't contain a valid 'size' field."),
        (["--cache-config=local,size=much"], "'much' is not a number of bytes from 192 on"),
        (["--response-cache-byte-size=-5"], "'-5' is not a number of bytes from 192 on"),
        (["--response-cache-byte-size=191"], "'191' is not a number of bytes from 192 on"),
        (["--cache-config=local,size=5", "--cache-config=redis,host=x"],
         "found multiple cache configurations, but only a single cache is currently supported"),
        (["--cache-config=redis,host=x"], "unable to find 'libtritoncache_redis.so' for cache"),
    ],
)  # fmt: skip
def test_wrong_settings_of_the_cache_are_refused(flags: list[str], text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(text)):
        cache_bytes(parse_flags(flags))


def test_settings_of_backends() -> None:
    flags = ["--backend-config=a,x=1", "--backend-config=y=2", "--backend-config=a,z=b=c"]
    assert server_options(parse_flags(flags))["backend_config"] == {
        "a": {"x": "1", "z": "b=c"},
        "": {"y": "2"},
    }


def test_restricted_apis() -> None:
    flags = ["--http-restricted-api=health,trace:k=a=b", "--http-restricted-api=logging:x=y"]
    given = parse_flags(flags).restricted
    assert ENDPOINTS["restricted"].of_parsed(given) == {
        "health": ("k", "a=b"),
        "trace": ("k", "a=b"),
        "logging": ("x", "y"),
    }


def test_settings_of_traces() -> None:
    flags = [
        "--trace-config=triton,file=/tmp/t", "--trace-config=level=TIMESTAMPS",
        "--trace-config=level=TENSORS", "--trace-rate=3", "--trace-config=rate=2",
        "--trace-config=count=-1", "--trace-config=triton,log-frequency=4",
    ]  # fmt: skip
    file, values, _ = trace_settings(parse_flags(flags))
    assert file == "/tmp/t"
    assert values.level == {"TIMESTAMPS", "TENSORS"}
    assert (values.rate, values.count, values.log_frequency) == (2, -1, 4)
    _, off, _ = trace_settings(parse_flags([*flags, "--trace-level=off"]))
    assert off.level == frozenset()


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--trace-config=level=TENSORS"], "trace file name is not given; nothing is traced"),
        (["--trace-config=level=TENSORS", "--trace-file=f", "--trace-config=rate=0"],
         "sample rate must be non-zero; nothing is traced"),
    ],
)  # fmt: skip
def test_trace_settings_without_effect_are_logged(
    flags: list[str], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "nbtriton"):
        _, values, _ = trace_settings(parse_flags(flags))
    assert values.level == frozenset()
    assert text in caplog.text


@pytest.mark.parametrize(
    ("flags", "summaries", "counters", "quantiles", "text"),
    [
        ([], False, True, (0.5, 0.9, 0.95, 0.99, 0.999), ""),
        (["summary_latencies=true", "counter_latencies=false"], True, False, None, ""),
        (["summary_latencies=TRUE"], False, True, None, "summary_latencies=TRUE has no effect"),
        (["histogram_latencies=true"], False, True, None, "histogram_latencies has no effect"),
        (["foo=bar"], False, True, None, "foo has no effect"),
        (["summary_quantiles=0.5:0.05, 0.75 :0.1:3"], False, True, (0.5, 0.75), ""),
        (["summary_quantiles=x:y,0.25"], False, True, None, "Invalid option: [0.25]. No ':'"),
        (["summary_quantiles=2:0.1,0.5:x"], False, True, (2.0,), "Invalid option: [0.5:x]"),
        (["summary_quantiles=0.5:0", "summary_quantiles=0.9:0"], False, True, (0.9,), ""),
    ],
)  # fmt: skip
def test_settings_of_metrics_are_read_as_triton_reads_them(
    flags: list[str],
    summaries: bool,
    counters: bool,
    quantiles: tuple[float, ...] | None,
    text: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "nbtriton"):
        kept, config = metrics_settings(parse_flags([f"--metrics-config={f}" for f in flags]))
    assert (kept, config.counter_latencies) == (summaries, counters)
    assert config.quantiles == (quantiles or (0.5, 0.9, 0.95, 0.99, 0.999))
    assert text in caplog.text
    assert bool(text) == bool(caplog.text)


def test_two_services_need_two_ports() -> None:
    text = "cannot listen to HTTP requests and metrics requests at the same address and port a:1"
    with pytest.raises(InvalidArgumentError, match=text):
        check_ports(("HTTP", "a", 1), ("GRPC", "a", 2), ("metrics", "a", 1))
    check_ports(("HTTP", "a", 0), ("GRPC", "a", 0), ("metrics", "b", None))


@pytest.mark.medium
def test_flags_without_effect_are_logged(tmp_path: Path) -> None:
    done = run_python(
        "-m",
        "nbtriton",
        "serve",
        f"--model-repository={tmp_path}",
        "--reuse-http-port=true",
        "--model-control-mode=explicit",
        "--load-model=nope",
        "--allow-sagemaker=true",
        "--log-info=false",
        "--http-port=0",
        "--allow-metrics=0",
        "--allow-grpc=0",
    )
    assert done.returncode == 1
    assert "--reuse-http-port has no effect here: a port belongs to one server" in done.stderr
    assert "--allow-sagemaker has no effect here" in done.stderr
    assert "Traceback" not in done.stderr
