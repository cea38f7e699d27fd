"""Both servers as processes over repositories of their own, and calls to them over HTTP."""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request
from contextlib import AbstractContextManager
from pathlib import Path

from nbtriton.repository.verify.running import RunningServer, launch

__all__ = ["ECHO", "ISOLATION", "call", "chain", "launch_ours"]

# Where the instances of our side's models live; `--isolation` of the suite.
ISOLATION = os.environ.get("NBTRITON_ISOLATION", "thread")

TIMEOUT_S = 60.0
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
    return launch(command, repository, os.environ, log=log)


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
