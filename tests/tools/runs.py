"""What each tool does with nbtriton: it runs unmodified, and its own files say what it saw."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

import nbtriton as nt
from bench.processes import free_ports
from nbtriton.extensions.verify.install import ensure_reference
from nbtriton.extensions.verify.reference import environment_with
from tests.frontends.models import WORDS_CONFIG
from tests.page.conftest import FLAGS
from tests.tools.environments import Environment
from tests.tools.newer_glibc import command_of
from tests.tools.perf_analyzer import ON_TRITON, OPENAI, Addresses, Analyzer, write_models
from tests.until import until

__all__ = ["RUNS"]

PROGRAMS = Path(__file__).parent / "programs"
# Of one tool, on a busy machine.
TIMEOUT_S = 600

DOUBLE_CONFIG = """
name: "double" backend: "python" max_batch_size: 8
input [{ name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }]
"""
DOUBLE = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        given = [pb_utils.get_input_tensor_by_name(one, "IN").as_numpy() for one in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", one * 2)]) for one in given]
"""
# Says the prompt's words again, one in five milliseconds.
WORDS = """
import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        for request in requests:
            given = {tensor.name(): tensor.as_numpy().reshape(-1)[0] for tensor in request.inputs()}
            sender = request.get_response_sender()
            said = given["text_input"].decode().split() or ["nothing"]
            limit = int(given.get("max_tokens", 16))
            parts = [f"{word} " for word in (said * limit)[:limit]]
            for part in parts if given["stream"] else ["".join(parts)]:
                await asyncio.sleep(0.005)
                numbers = {"num_input_tokens": len(said), "num_output_tokens": len(part.split())}
                tensors = [pb_utils.Tensor(n, np.array([v], np.int32)) for n, v in numbers.items()]
                text = pb_utils.Tensor("text_output", np.array([part.encode()], np.object_))
                sender.send(pb_utils.InferenceResponse([text, *tensors]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
# aiperf counts tokens itself: one token a byte, made here, as nothing is downloaded.
TOKENIZER = """
import json, pathlib, sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

found = Tokenizer(models.BPE())
found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
found.decoder = decoders.ByteLevel()
found.train_from_iterator(["once upon a time"], trainers.BpeTrainer(
    vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    special_tokens=["<s>", "</s>"]))
folder = pathlib.Path(sys.argv[1])
folder.mkdir()
found.save(str(folder / "tokenizer.json"))
(folder / "tokenizer_config.json").write_text(json.dumps({
    "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}))
"""


def _run(*command: object, where: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
        cwd=where, env=None if env is None else {**os.environ, **env},
    )  # fmt: skip
    assert done.returncode == 0, f"{command[0]}: {done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def _write(repository: Path, name: str, config: str, code: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    (repository / name / "1" / "model.py").write_text(code)


@contextlib.contextmanager
def _served(repository: Path, *, load: tuple[str, ...] = ("*",), **options: Any) -> Iterator[Any]:
    with nt.Server(gpus=()) as server:
        server.load_repository(repository, control_mode="explicit", load_models=load)
        yield server.serve(http_port=0, grpc_port=0, metrics_port=0, **options)


def model_analyzer(environment: Environment, folder: Path) -> str:
    """Profile a model in remote mode: five configurations, which it loads and unloads itself."""
    reference = ensure_reference()
    repository = folder / "models"
    _write(repository, "double", DOUBLE_CONFIG, DOUBLE)
    (folder / "checkpoints").mkdir()
    with _served(repository, load=()) as endpoints:
        settings = {
            "model_repository": str(repository),
            "profile_models": {
                "double": {
                    "cpu_only": True,
                    "parameters": {"batch_sizes": [1], "concurrency": [1]},
                    "perf_analyzer_flags": {
                        "measurement-interval": 200,
                        "stability-percentage": 100,
                        "measurement-mode": "time_windows",
                    },
                }
            },
            "triton_launch_mode": "remote",
            "triton_http_endpoint": f"127.0.0.1:{endpoints.http_port}",
            "triton_grpc_endpoint": f"127.0.0.1:{endpoints.grpc_port}",
            "triton_metrics_url": f"http://127.0.0.1:{endpoints.metrics_port}/metrics",
            "client_protocol": "grpc",
            "perf_analyzer_path": str(reference.directory / "perf_analyzer"),
            "output_model_repository_path": str(folder / "variants"),
            "override_output_model_repository": True,
            "export_path": str(folder),
            "checkpoint_directory": str(folder / "checkpoints"),
            "run_config_search_mode": "brute",
            "run_config_search_max_instance_count": 2,
            "run_config_search_max_model_batch_size": 2,
            "monitoring_interval": 0.2,
            "skip_detailed_reports": True,
        }
        (folder / "settings.yaml").write_text(json.dumps(settings))  # JSON is YAML
        libraries = environment_with(str(reference.directory / "lib"))
        _run(
            environment.program("model-analyzer"), "profile", "-f", folder / "settings.yaml",
            where=folder, env=libraries,
        )  # fmt: skip
    rows = [*csv.DictReader((folder / "results" / "metrics-model-inference.csv").open())]
    found = {row["Model Config Path"]: float(row["Throughput (infer/sec)"]) for row in rows}
    assert len(found) == 5, rows
    assert min(found.values()) > 0, rows
    groups = {(row["Instance Group"], row["Max Batch Size"]) for row in rows}
    assert {("2:CPU", "1"), ("2:CPU", "2")} <= groups, rows
    return f"{len(found)} configurations over gRPC, loaded and unloaded by it"


def perf_analyzer(environment: Environment, folder: Path) -> str:
    """Drive a server in all its ways, with the newest program."""
    repository = folder / "models"
    write_models(repository)
    _write(repository, "words", WORDS_CONFIG, WORDS)
    command = command_of(environment.program("perf_analyzer"), environment.directory / "debian-13")
    analyzer = Analyzer(command, environment.program("python"))
    with _served(repository, openai_port=0) as endpoints:
        ports = (endpoints.http_port, endpoints.grpc_port, endpoints.metrics_port)
        at = Addresses(*(f"127.0.0.1:{port}" for port in (*ports, endpoints.openai_port)))
        seen = analyzer.run([*ON_TRITON.items(), *OPENAI.items()], at, folder)
    return f"{len(seen)} ways over HTTP, gRPC and OpenAI's interface, without a failure"


def aiperf(environment: Environment, folder: Path) -> str:
    """Measure the OpenAI endpoint: chats that stream, and completions."""
    repository = folder / "models"
    _write(repository, "words", WORDS_CONFIG, WORDS)
    _run(environment.program("python"), "-c", TOKENIZER, folder / "tokenizer")
    with _served(repository, openai_port=0) as endpoints:
        for kind, flags in (("chat", ("--streaming",)), ("completions", ())):
            _run(
                environment.program("aiperf"), "profile", "--model", "words",
                "--url", f"http://127.0.0.1:{endpoints.openai_port}", "--endpoint-type", kind,
                *flags, "--tokenizer", folder / "tokenizer", "--concurrency", "4",
                "--request-count", "40", "--synthetic-input-tokens-mean", "20",
                "--output-tokens-mean", "8", "--ui", "none", "--workers-max", "1",
                "--no-gpu-telemetry", "--artifact-dir", folder / kind,
                where=folder,
            )  # fmt: skip
            report = json.loads((folder / kind / "profile_export_aiperf.json").read_text())
            assert report["request_count"]["avg"] == 40, report
            assert not report["error_summary"], report
            if kind == "chat":
                # The model waits 5 ms before each of its eight words.
                first, last = (
                    report[name]["avg"] for name in ("time_to_first_token", "request_latency")
                )
                assert last - first > 7 * 5, (first, last)
    return "chats that stream and completions, 40 each, without errors"


def _calls(program: str) -> Callable[[Environment, Path], str]:
    """Return the run of a program that gets the addresses of a server, and prints what it did."""

    def run(environment: Environment, folder: Path) -> str:
        repository = folder / "models"
        _write(repository, "double", DOUBLE_CONFIG, DOUBLE)
        with _served(repository) as endpoints:
            said = _run(
                environment.program("python"), PROGRAMS / program,
                f"127.0.0.1:{endpoints.http_port}", f"127.0.0.1:{endpoints.grpc_port}",
            )  # fmt: skip
        return said.strip()

    return run


def marimo(environment: Environment, folder: Path) -> str:
    """Execute a notebook of marimo's, and look for what its cells show."""
    page = folder / "notebook.html"
    # Its status is 1 where a cell fails.
    _run(
        environment.program("marimo"), "-q", "export", "html", PROGRAMS / "marimo_notebook.py",
        "-o", page, where=folder, env={"PYTHONPATH": str(Path(nt.__file__).parents[1])},
    )  # fmt: skip
    text = page.read_text()
    shown = {"nbt-model": "a model", "nbt-result": "a result", "nbt-perf": "a report",
             "nbt-timeline": "a timeline", "nbt-why": "an explanation", "nbt-dag": "a graph"}  # fmt: skip
    missing = [name for mark, name in shown.items() if mark not in text]
    assert not missing, missing
    return (
        f"{', '.join(shown.values())}, each in its HTML form; {_marimo_in_a_browser(environment)}"
    )


# What a picture is written with, and the card below it.
_COLOURS = """svg => [svg.querySelector("text"), svg.querySelector(":scope > rect")].map((shape) =>
    getComputedStyle(shape).fill.match(/[\\d.]+/g).slice(0, 3).map(Number))"""


def _marimo_in_a_browser(environment: Environment) -> str:
    """Run a notebook of live views as an app, and look at it on a light and on a dark system."""
    browser_path = os.environ.get("NBTRITON_CHROMIUM") or shutil.which("chromium")
    if not browser_path:
        return "its live views were not looked at: no Chromium"
    (port,) = free_ports(1)
    app = subprocess.Popen(
        [environment.program("marimo"), "-q", "run", PROGRAMS / "marimo_live.py", "--headless",
         "--no-token", "--host", "127.0.0.1", "--port", str(port)],
        env={**os.environ, "PYTHONPATH": str(Path(nt.__file__).parents[1])}, start_new_session=True,
    )  # fmt: skip
    try:
        assert until(lambda: _answers(port), TIMEOUT_S / 5), "marimo did not answer"
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=browser_path, args=FLAGS)
            for scheme in ("light", "dark"):
                _look_at_marimo(browser, port, scheme)
            browser.close()
    finally:
        app.terminate()
        app.wait(TIMEOUT_S)
    return "live in a browser, with crosshair, legend and one selection, its white page on a light and on a dark system"


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
        return True
    return False


def _look_at_marimo(browser: Any, port: int, scheme: str) -> None:
    page = browser.new_page(color_scheme=scheme)
    page.set_default_timeout(TIMEOUT_S / 5 * 1000)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"http://127.0.0.1:{port}/")
    for part in (".nbt-model", ".nbt-result", ".nbt-perf", ".nbt-dag", ".nbt-watch", "img"):
        page.locator(part).first.wait_for()
    watch = page.locator(".nbt-watch").first
    texts = set()

    def moves() -> bool:
        texts.add(watch.inner_text())
        return len(texts) > 3

    assert until(moves, TIMEOUT_S / 5), "the watch stands still"
    chart = page.locator(".nbt-chart.nbt-on")
    point = chart.locator(".nbt-point[tabindex='0']").filter(visible=True)
    point.focus()
    point.press("ArrowRight")
    assert chart.locator(".nbt-tip strong").inner_text() == "concurrency 2"
    legend = chart.locator(".nbt-legend").filter(visible=True).first
    legend.click()
    assert "nbt-off" in legend.get_attribute("class")
    # What is selected in the timeline is selected in the watch.
    page.locator("canvas.nbt-timeline-lanes").press("s")
    watch.get_by_text("selected: ").wait_for()
    # marimo's page is white whatever the system is.
    for figure in (".nbt-perf", ".nbt-dag", ".nbt-watch", ".nbt-chart"):
        ink, paper = page.locator(f"{figure} svg:visible").first.evaluate(_COLOURS)
        assert max(ink) < 100, (scheme, figure, ink)
        assert min(paper) > 200, (scheme, figure, paper)
    # What says where the time went: each square is on the line of its words.
    phases = page.locator(".nbt-result span", has=page.locator("svg")).all()
    assert phases
    assert all(one.bounding_box()["height"] < 30 for one in phases)
    assert not errors, errors
    page.close()


RUNS: Mapping[str, Callable[[Environment, Path], str]] = {
    "model-analyzer": model_analyzer,
    "perf-analyzer": perf_analyzer,
    "aiperf": aiperf,
    "tritonclient": _calls("tritonclient_calls.py"),
    "tritonclient-2.50": _calls("tritonclient_calls.py"),
    "kserve": _calls("kserve_calls.py"),
    "marimo": marimo,
}
