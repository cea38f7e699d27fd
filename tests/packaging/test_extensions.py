"""A package outside adds one entry of each kind, and the core works without nbtriton's own extensions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import get_args

import pytest

from nbtriton.common import entries
from tests.children import run_python

pytestmark = pytest.mark.slow

OUTSIDE = """
from types import SimpleNamespace

from IPython.core.magic import Magics, line_magic, magics_class
from nbtriton.backends import Backend, BackendInstance, Response
from nbtriton.runtime.workers.backend import WorkerBackend
from nbtriton.serving.frontends import HttpEndpoint
from nbtriton.serving.frontends.http1.response import HttpResponse


class PlusBackend(WorkerBackend):
    isolation = "plus"


class Plus(Backend, BackendInstance):
    name, needs_source = "plus", False

    def create_instance(self, context):
        return self

    def execute(self, requests, timer):
        return [Response({"OUT": request.inputs["IN"] + 1}) for request in requests]

    @classmethod
    def files_beside(cls, path):
        return ["plus.txt"]


class Hello(HttpEndpoint):
    title = "Hello"

    def __init__(self, service, options, join_batch=None):
        self.server = service.server

    def handle(self, cycles):
        for cycle in cycles:
            cycle.respond(HttpResponse(parts=[b"hello"]))


@magics_class
class PlusMagics(Magics):
    @line_magic
    def triton_plus(self, line):
        return float(line) + 1


def add_plus(parser):
    parser.add_argument("number", type=float)
    parser.set_defaults(run=lambda arguments: print(arguments.number + 1) or 0)


class Gpu:
    def __init__(self, index, settings, ledger):
        self.name = f"outside {index}: {settings}"

    def close(self):
        pass


class Spans:
    closed = 0

    def __init__(self, options):
        self.url = options.url

    def close(self):
        Spans.closed += 1


def plus(number):
    return number + 1


def written(repository, models, on):
    return {"plus.yaml": " ".join(models)}


def idle_for(backend, platform, reason):
    return type("Idle", (Plus,), {"name": backend, "platform": platform, "stand_in": reason})


def verifier(reference):
    return lambda repository, **options: SimpleNamespace(ok=True, repository=repository)


def increment(IN: "FP32[1]") -> {"OUT": "FP32[1]"}:
    return {"OUT": IN + 1}


MODELS = {"increment": increment}
"""
PLACES = {
    "backends": ("plus", "Plus"),
    "commands": ("plus", "add_plus"),
    "devices": ("simulated", "Gpu"),
    "endpoints": ("hello", "Hello"),
    "isolations": ("plus", "PlusBackend"),
    "magics": ("plus", "PlusMagics"),
    "models": ("plus", "MODELS"),
    "platforms": ("ray_serve", "written"),
    "stand_ins": ("zeros", "idle_for"),
    "tracers": ("opentelemetry", "Spans"),
    "verifiers": ("tritonserver", "verifier"),
    "views": ("plus", "plus"),
}
# Nothing can import nbtriton.extensions.
ALONE = """
import sys
sys.modules["nbtriton.extensions"] = None
"""
PROGRAM = '''
import os, subprocess, urllib.request
from pathlib import Path

import numpy as np
from IPython.core.interactiveshell import InteractiveShell

import nbtriton as nt

shell = InteractiveShell.instance()


def run(cell):
    found = shell.run_cell(cell)
    found.raise_error()
    return found.result


run("%load_ext nbtriton")
run("""%%triton_model double --max-batch-size 8 --dynamic-batching
def double(IN: "FP32[1]") -> {"OUT": "FP32[1]"}:
    return {"OUT": IN * 2}
""")
run("""%%triton_ensemble twice
once = double(IN=IN)
OUT = double(IN=once)
""")
x = np.ones((1, 1), np.float32)
shell.user_ns["x"] = x
assert run("%triton_infer twice IN=x")["OUT"].tolist() == [[4]]
assert len(run("%triton_perf twice --concurrency 1 --request-count 20").points) == 1
predicted = nt.whatif(nt.types.Profile.declared({"m": 10}), concurrency=1, request_count=100)
assert predicted.frame["infer_per_s"].tolist() == [100.0]
server = nt.server()
server.export("alone")
assert {"double", "twice"} <= set(os.listdir("alone"))
with server.serve(http_port=0, metrics_port=None) as endpoints:
    url = f"http://127.0.0.1:{endpoints.http_port}/v2/models/twice/ready"
    assert urllib.request.urlopen(url).status == 200
'''
NO_GPUS = """
with nt.Server(gpus="simulated:2") as other:
    try:
        other.devices[1]
    except nt.TritonError as error:
        assert "no simulated GPUs in this installation" in str(error)
    else:
        raise AssertionError("a simulated GPU without the extension")
"""
WITHOUT_GRPC = """
try:
    server.serve(http_port=0, grpc_port=0, metrics_port=0)
except nt.errors.UnsupportedError as error:
    assert "nothing that is installed answers gRPC" in str(error)
else:
    raise AssertionError("a port for gRPC was opened")
assert server.serve(http_port=0, metrics_port=0).grpc_port is None
assert not [name for name in sys.modules if name.startswith("nbtriton.extensions.")]
"""
OUTSIDE_PROGRAM = '''
from nbtriton.magics.cli import main
from outside import increment

assert run("%triton_plus 2") == 3 == nt.plus(2)
assert main(["plus", "2"]) == 0
tensors = 'input {{ name: "IN" data_type: TYPE_FP32 dims: 1 }} output {{ name: "OUT" data_type: TYPE_FP32 dims: 1 }}'
server.load(f'backend: "plus" max_batch_size: 8 {tensors}'.format(), name="plus")
assert server.infer("plus", {"IN": x})["OUT"].tolist() == [[2]]
place = 'parameters { key: "INSTANCE_ISOLATION" value { string_value: "plus" } }'
server.load(place, increment, name="placed")
assert server.infer("placed", {"IN": x[0]})["OUT"].tolist() == [2]
assert {one.isolation for one in server.snapshot().models if one.name == "placed"} == {"plus"}
run("""%%triton_ensemble added
OUT = increment(IN=IN)
""")
assert server.infer("added", {"IN": x[0]})["OUT"].tolist() == [2]
with server.serve(http_port=None, grpc_port=None, metrics_port=None, hello_port=0) as endpoints:
    assert urllib.request.urlopen(f"http://127.0.0.1:{endpoints.hello_port}/").read() == b"hello"
with nt.Server(stand_in=True) as other:
    other.load(f'backend: "tensorrt" max_batch_size: 8 {tensors}'.format(), name="idle")
    assert other.infer("idle", {"IN": x})["OUT"].tolist() == [[2]]
with nt.Server(gpus="simulated:2") as other:
    assert other.devices[1].name == "outside 1: simulated:2"
import outside
from nbtriton.serving.frontends import OpenTelemetry

with server.serve(http_port=0, grpc_port=None, metrics_port=None, opentelemetry=OpenTelemetry()):
    assert outside.Spans.closed == 0
assert outside.Spans.closed == 1
Path("plus.txt").write_text("1")
assert server.export("exported", "double", verify=True, ray_serve=True).ok
assert Path("exported/plus.yaml").read_text() == "double"
'''


def run(folder: Path, program: str) -> None:
    sources = [str(folder), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sources))}
    run_python("-c", program, check=True, env=env, cwd=folder)


def test_the_core_works_alone(tmp_path: Path) -> None:
    run(tmp_path, ALONE + PROGRAM + NO_GPUS + WITHOUT_GRPC)


def test_a_package_outside_adds_one_of_each_kind(tmp_path: Path) -> None:
    """Also where nbtriton's own are absent, so that the kind with one name is the package's."""
    assert PLACES.keys() == set(get_args(entries.Kind))
    (tmp_path / "outside.py").write_text(OUTSIDE)
    info = tmp_path / "outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    groups = (
        f"[nbtriton.{kind}]\n{name} = outside:{what}\n" for kind, (name, what) in PLACES.items()
    )
    (info / "entry_points.txt").write_text("\n".join(groups))
    run(tmp_path, ALONE + PROGRAM + OUTSIDE_PROGRAM)
