"""What a `TritonPythonModel` needs in the environment of its own: Python 3.10, NumPy and these sources."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import nbtriton
from tests.children import run_python

# The oldest Python of an environment: that of Triton 2.51's own image.
OLDEST = (3, 10)

LISTS = """
import json, sys
sys.path[:] = [entry for entry in sys.path if "site-packages" not in entry] + [sys.argv[1]]
before = set(sys.modules)
import nbtriton.runtime.workers.fork_server
import nbtriton.runtime.workers.worker.server
files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
print(json.dumps({name: file for name, file in files.items() if name not in before}))
"""


@pytest.mark.medium
def test_an_instance_needs_numpy_alone(tmp_path):
    for package in (np, nbtriton):
        folder = Path(package.__file__).parent
        (tmp_path / folder.name).symlink_to(folder)
        for beside in folder.parent.glob(f"{folder.name}*.libs"):
            (tmp_path / beside.name).symlink_to(beside)
        for compiled in folder.parent.glob("*__mypyc*.so"):
            if not (tmp_path / compiled.name).exists():
                (tmp_path / compiled.name).symlink_to(compiled)
    done = run_python("-I", "-S", "-c", LISTS, tmp_path, check=True)
    files = json.loads(done.stdout)
    tops = {name.partition(".")[0] for name in files} - set(sys.stdlib_module_names)
    assert {name for name in tops if "mypyc" not in name} == {"numpy", "nbtriton"}
    assert not {"asyncio", "ssl", "tempfile"} & {*files}  # 30 ms of the first load, for few models
    for name, file in files.items():
        if name.partition(".")[0] == "nbtriton" and file.endswith(".py"):
            ast.parse(Path(file).read_text(), file, feature_version=OLDEST)
