"""`import nbtriton` loads few modules, and heavy libraries load when they are first used."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.children import run_python

# What a notebook, a script or a server without a GPU may never need.
HEAVY = [
    "IPython", "anywidget", "cupy", "grpc", "ipywidgets", "matplotlib", "pandas", "torch",
    "tritonclient.grpc",
]  # fmt: skip
# Modules that an import loads, NumPy's 140 included; `make bench-import` has the times. 30 and 350 where this was
# written, with Python 3.11; another Python loads some 20 others.
MOST = {"import nbtriton": 60, "from nbtriton import Server": 400}


def run(code: str, **options) -> Any:
    program = f"import json, sys\n{code}\nprint(json.dumps(answer))"
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


@pytest.mark.medium
@pytest.mark.parametrize(
    "code",
    [
        "import nbtriton",
        "import nbtriton; dir(nbtriton); nbtriton.__version__",
        "from nbtriton import TritonError",
        "import nbtriton.model.config, nbtriton.model.tensors, nbtriton.scheduling, nbtriton.drawing.watch, nbtriton.drawing.dag",
        "from nbtriton import Server",
        "import nbtriton.lab.perf.api",
        SERVE,
    ],
    ids=["package", "names", "errors", "pure folders", "server", "perf", "serving"],
)
def test_heavy_libraries_load_on_first_use(code: str) -> None:
    answer = run(f"{code}\nanswer = [m for m in {HEAVY!r} if m in sys.modules]")
    assert answer == []


@pytest.mark.medium
@pytest.mark.parametrize("code", MOST)
def test_an_import_loads_few_modules(code: str) -> None:
    count = run(f"before = {{*sys.modules}}\n{code}\nanswer = len({{*sys.modules}} - before)")
    assert 0 < count < MOST[code]
