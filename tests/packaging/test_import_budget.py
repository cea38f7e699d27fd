"""`import nbtriton` is quick, and heavy libraries load when they are first used."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.children import run_python

# What a notebook, a script or a server without a GPU may never need.
HEAVY = [
    "IPython", "anywidget", "cupy", "grpc", "ipywidgets", "matplotlib", "pandas", "torch",
    "tritonclient.grpc",
]  # fmt: skip
# Of the processor time that importing NumPy takes in the same minute: a busy machine slows both down.
# It is 0.1 s where this was written, and all of `Server` took twice as long.
MOST = {"import nbtriton": 0.5, "from nbtriton import Server": 3.0}


def run(code: str, **options) -> Any:
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
def test_import_is_quick(tmp_path) -> None:
    # With bytecode, as pip installs it: the first run writes it.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(tmp_path)

    def processor_s(code: str) -> float:
        return run(
            f"start = time.process_time()\n{code}\nanswer = time.process_time() - start", env=env
        )

    rounds = [{code: processor_s(code) for code in ("import numpy", *MOST)} for _ in range(4)]
    least = {code: min(each[code] for each in rounds) for code in rounds[0]}
    found = {code: least[code] / least["import numpy"] for code in MOST}
    assert all(found[code] < MOST[code] for code in MOST), found
