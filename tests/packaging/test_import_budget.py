"""`import nbtriton` is quick, and heavy libraries load when they are first used."""

from __future__ import annotations

import json
import os

import pytest

from tests.children import run_python

# What a notebook, a script or a server without a GPU may never need.
HEAVY = [
    "IPython", "anywidget", "cupy", "grpc", "ipywidgets", "matplotlib", "pandas", "torch",
    "tritonclient.grpc",
]  # fmt: skip
# Of processor time, best of several: the machine may be busy with other things.
BUDGET_S = 0.3


def run(code: str, **options) -> dict:
    program = f"import json, sys, time\n{code}\nprint(json.dumps(answer))"
    done = run_python("-c", program, **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


SERVE = """
import numpy as np, nbtriton
from nbtriton import Server

def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
    return {"OUT": IN * 2}

with Server(gpus=()) as server:
    server.load(None, double, name="double")
    out = server.infer("double", {"IN": np.ones(4, np.float32)})["OUT"]
    assert out.tolist() == [2, 2, 2, 2]
"""


@pytest.mark.parametrize(
    "code",
    [
        "import nbtriton",
        "import nbtriton; dir(nbtriton); nbtriton.__version__",
        "from nbtriton import TritonError",
        "import nbtriton.config, nbtriton.tensors, nbtriton.scheduling, nbtriton.drawing",
        "from nbtriton import Server",
        "import nbtriton.perf",
        SERVE,
    ],
    ids=["package", "names", "errors", "pure folders", "server", "perf", "serving"],
)
def test_heavy_libraries_load_on_first_use(code: str) -> None:
    answer = run(f"{code}\nanswer = [m for m in {HEAVY!r} if m in sys.modules]")
    assert answer == []


@pytest.mark.slow
@pytest.mark.parametrize("code", ["import nbtriton", "from nbtriton import Server"])
def test_import_is_quick(code: str, tmp_path) -> None:
    timed = f"start = time.process_time()\n{code}\nanswer = time.process_time() - start"
    # With bytecode, as pip installs it: the first run writes it.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(tmp_path)
    times = [run(timed, env=env) for _ in range(5)]
    assert min(times) < BUDGET_S, times
