"""The reference: it starts, answers, reports why it does not, and leaves nothing behind."""

from __future__ import annotations

import os
import socket
import sys
import urllib.request
from pathlib import Path

import pytest

from nbtriton.common.errors import AlreadyExistsError, UnavailableError
from nbtriton.extensions.verify import install
from nbtriton.extensions.verify.reference import default_directory, launch, reserved_ports
from tests.until import until

ROOT = Path(__file__).parents[2]
# A server that is healthy, and then cannot start its metrics: what tritonserver does without their port.
WITHOUT_METRICS = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Healthy(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

(port,) = (int(one.partition("=")[2]) for one in sys.argv if one.startswith("--http-port="))
HTTPServer(("127.0.0.1", port), Healthy).handle_request()
sys.exit("Error: no port for metrics")
"""
# A server that a signal ends, as often as its first argument says, before it is healthy.
ABORTS = """
import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

class Healthy(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

starts = Path(sys.argv[2])
starts.write_text(starts.read_text() + ".")
if len(starts.read_text()) <= int(sys.argv[1]):
    os.abort()
http, metrics = (
    int(one.partition("=")[2]) for one in sys.argv if one.startswith(("--http-port=", "--metrics-port="))
)
metrics = HTTPServer(("127.0.0.1", metrics), Healthy)
HTTPServer(("127.0.0.1", http), Healthy).serve_forever()
"""


def a_model(repository: Path, config: str = 'backend: "python"', code: str = "") -> Path:
    folder = repository / "m" / "1"
    folder.mkdir(parents=True)
    (folder.parent / "config.pbtxt").write_text(config)
    (folder / "model.py").write_text(
        code or "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
    )
    return repository


def test_the_directory_is_where_the_environment_says(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("NBTRITON_REFERENCE", str(tmp_path / "here"))
    assert default_directory() == tmp_path / "here"
    monkeypatch.delenv("NBTRITON_REFERENCE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_directory() == tmp_path / "nbtriton" / "reference-2.51"


@pytest.mark.medium
def test_a_failed_download_is_reported_and_leaves_no_complete_installation(
    monkeypatch, tmp_path
) -> None:
    if install.why_unavailable():
        pytest.skip(install.why_unavailable())
    monkeypatch.setattr(install, "SERVER_WHEEL", "nvidia-pytriton==0.0.0.dev0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(UnavailableError, match=r"nvidia-pytriton==0\.0\.0\.dev0"):
        install.ensure_reference(tmp_path / "reference")
    assert not (tmp_path / "reference" / "ready.json").exists()


def test_a_missing_library_is_named() -> None:
    assert install._missing_libraries(Path(sys.executable), []) == []


def test_a_reserved_port_is_for_a_server_alone() -> None:
    with reserved_ports(2) as ports, socket.socket() as other, socket.socket() as server:
        assert len(set(ports)) == 2
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", ports[0]))
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", ports[0]))
        server.listen()
        with socket.create_connection(("127.0.0.1", ports[0])):
            server.accept()[0].close()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", ports[0])) != 0


def test_a_server_is_not_ready_before_its_last_endpoint(tmp_path) -> None:
    with (
        pytest.raises(UnavailableError, match="ended with status 1:\nError: no port for metrics"),
        launch([sys.executable, "-c", WITHOUT_METRICS], tmp_path, os.environ),
    ):
        pytest.fail("it must not be ready")


@pytest.mark.medium
def test_a_server_that_a_signal_ends_is_started_again(tmp_path) -> None:
    starts = tmp_path / "starts"
    starts.touch()
    command = [sys.executable, "-c", ABORTS, "2", str(starts)]
    with launch(command, tmp_path, os.environ, starts=3) as server:
        assert server.process.poll() is None
    assert starts.read_text() == "..."
    starts.write_text("")
    with (
        pytest.raises(UnavailableError, match="ended with status -6"),
        launch(command, tmp_path, os.environ, starts=2),
    ):
        pytest.fail("it must not be ready")


@pytest.mark.reference
def test_it_starts_answers_and_stops(reference, tmp_path) -> None:
    with reference.server(a_model(tmp_path)) as server:
        with urllib.request.urlopen(f"http://{server.http_url}/v2/models/m/ready") as reply:
            assert reply.status == 200
        ports = [server.http_port, server.grpc_port, server.metrics_port]
        assert len(set(ports)) == 3
    assert server.process.returncode is not None
    assert not server.log.exists()
    with pytest.raises(ProcessLookupError):  # once the processes of its models have ended, too
        until(lambda: os.killpg(server.process.pid, 0))
    for port in ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.reference
def test_a_server_that_ends_reports_its_logged_errors(reference, tmp_path) -> None:
    log = tmp_path / "log"
    broken = a_model(tmp_path / "models", 'backend: "python" max_batch_size: -1')
    with (
        pytest.raises(UnavailableError, match="'max_batch_size' must be non-negative"),
        reference.server(broken, log=log),
    ):
        pytest.fail("it must not be ready")
    assert "failed to load all models" in log.read_text()


@pytest.mark.reference
def test_perf_analyzer_runs(reference) -> None:
    done = reference.perf_analyzer("--version", timeout_s=30)
    assert done.returncode == 0
    assert done.stderr.startswith("Perf Analyzer Version")


def test_a_foreign_folder_is_left_alone(tmp_path):
    place = tmp_path / "precious"
    place.mkdir()
    (place / "thesis.tex").write_text("years of work")
    if install.why_unavailable():
        pytest.skip(install.why_unavailable())
    with pytest.raises(AlreadyExistsError) as error:
        install.ensure_reference(place)
    assert str(place) in error.value.message
    assert (place / "thesis.tex").read_text() == "years of work"


def test_the_program_shows_its_help_and_installs_nothing(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        install.main(["install", "--help"])
    assert ended.value.code == 0
    assert "directory" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
