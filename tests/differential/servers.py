"""Both servers as processes over repositories of their own, and calls to them over HTTP."""

from __future__ import annotations

import os
import re
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from nbtriton.extensions.verify.reference import RunningServer, launch

__all__ = [
    "COMPLETE", "ECHO", "ISOLATION", "call", "chain", "kill", "launch_ours", "noted", "state_of",
]  # fmt: skip

# Where the instances of our side's models live; `--isolation` of the suite.
ISOLATION = os.environ.get("NBTRITON_ISOLATION", "thread")

# Where all configurations are complete: tritonserver starts a process less for each load of a model, which it would ask
# for what is missing.
COMPLETE = "--disable-auto-complete-config"
TIMEOUT_S = 60.0
# Of a server's log, in a failure.
LINES = 30
# OUT is IN, for any shape and datatype.
ECHO = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy())]
            )
            for r in requests
        ]
"""


def chain(tensors: str, *members: str) -> str:
    """Return the configuration of an ensemble that runs models one after the other."""
    steps, tensor = "", "IN"
    for number, name in enumerate(members):
        out = "OUT" if number == len(members) - 1 else f"t{number}"
        steps += (
            f'step {{ model_name: "{name}" model_version: -1 input_map {{ key: "IN" value: "{tensor}" '
            f'}} output_map {{ key: "OUT" value: "{out}" }} }}\n'
        )
        tensor = out
    return f'platform: "ensemble"{tensors}ensemble_scheduling {{ {steps} }}'


def launch_ours(
    repository: Path, *flags: str, log: Path | None = None
) -> AbstractContextManager[RunningServer]:
    """Run ``nbtriton serve`` in a process of its own."""
    command = [sys.executable, "-m", "nbtriton", "serve", f"--isolation={ISOLATION}", *flags]
    # An actor for each instance takes seconds of a processor to start.
    timeout_s = 900 if ISOLATION == "ray" else 90
    return launch(command, repository, os.environ, log=log, timeout_s=timeout_s)


def kill(server: RunningServer) -> None:
    """End a tritonserver without its models' ends: each process clears its interpreter, a fifth of all that it runs."""
    maps = Path(f"/proc/{server.process.pid}/maps").read_text()
    shared = set(re.findall(r"/dev/shm/\S+", maps))
    os.killpg(server.process.pid, signal.SIGKILL)
    server.process.wait()
    for memory in shared:
        Path(memory).unlink(missing_ok=True)


def state_of(server: RunningServer) -> str:
    """Say where a server listens, whether its process lives, and the end of what it logged."""
    status = server.process.poll()
    lives = "is alive" if status is None else f"ended with status {status}"
    log = server.log.read_text(errors="replace").splitlines() if server.log.exists() else []
    ports = f"HTTP {server.http_port}, gRPC {server.grpc_port}, metrics {server.metrics_port}"
    return "\n".join(
        [f"process {server.process.pid} {lives}; {ports}; its log ends:", *log[-LINES:]]
    )


@contextmanager
def noted(side: str, server: RunningServer) -> Iterator[None]:
    """Let an error of the block say what became of this side's server."""
    try:
        yield
    except Exception as error:
        error.add_note(f"{side}: {state_of(server)}")
        raise


def call(
    url: str, path: str, body: bytes | None = None, *, method: str | None = None
) -> tuple[int, str]:
    """Return the status and the text of a response, also of an error."""
    request = urllib.request.Request(f"http://{url}/v2/{path}", body, method=method)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        error.add_note(request.full_url)
        raise
