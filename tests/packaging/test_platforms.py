"""What other systems lack is taken away from this one: every module imports, and a model is served.

``sitecustomize`` does it, so that worker processes lack it too. Only names that the standard library
itself does without once it is imported; `sys.platform` is macOS's for macOS alone, as Python's own
modules for Windows do not import here.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.children import run_python

pytestmark = pytest.mark.slow

LINUX_ONLY = """
import os, select, signal, socket, subprocess, sys, tempfile
for name in ("sched_getaffinity", "sched_setaffinity", "memfd_create", "MFD_CLOEXEC", "waitid",
             "P_ALL", "P_PID", "posix_fallocate", "posix_fadvise", "pidfd_open", "sched_getparam"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("epoll",):
    if hasattr(select, name):
        delattr(select, name)
for name in ("pthread_getcpuclockid", "CLOCK_BOOTTIME"):
    if hasattr(__import__("time"), name):
        delattr(__import__("time"), name)
for name in ("MSG_CMSG_CLOEXEC", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "TCP_QUICKACK", "TCP_CORK", "SO_PEERCRED"):
    if hasattr(socket, name):
        delattr(socket, name)
# Linux's folders.
import pathlib
for method in ("is_dir", "exists", "read_text", "read_bytes", "iterdir"):
    def hidden(self, *args, _asked=getattr(pathlib.Path, method), _method=method, **kwargs):
        if self.is_absolute() and self.parts[1:2] in (("proc",), ("sys",)) or str(self) == "/dev/shm":
            if _method in ("is_dir", "exists"):
                return False
            raise FileNotFoundError(str(self))
        return _asked(self, *args, **kwargs)
    setattr(pathlib.Path, method, hidden)
"""
# What is Python's own is imported before: it has other modules there.
MACOS = (
    LINUX_ONLY
    + """
import asyncio, ctypes.util, multiprocessing.connection, platform, sysconfig, urllib.request
sysconfig.get_config_vars()
sys.platform = "darwin"
"""
)
WINDOWS = (
    LINUX_ONLY
    + """
import asyncio, concurrent.futures, ctypes.util, logging.handlers, multiprocessing.connection
import importlib.util, IPython, numpy, pandas, platform, threading, urllib.request, uuid, zipfile
for name in ("fork", "forkpty", "register_at_fork", "getuid", "geteuid", "getgid", "getpgid", "killpg",
             "setsid", "setpgid", "sysconf", "WNOHANG", "waitstatus_to_exitcode", "getloadavg",
             "O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "mkfifo", "set_blocking", "uname", "fchmod"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("send_fds", "recv_fds", "SCM_RIGHTS", "SO_REUSEPORT"):
    if hasattr(socket, name):
        delattr(socket, name)
for name in ("SIGKILL", "SIGCHLD", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGALRM", "pthread_kill",
             "pthread_sigmask", "setitimer"):
    if hasattr(signal, name):
        delattr(signal, name)
for name in ("poll", "kqueue"):
    if hasattr(select, name):
        delattr(select, name)
for name in ("fcntl", "pwd", "grp", "resource", "termios", "uvloop"):
    sys.modules[name] = None
"""
)
IMPORTS = """
import importlib, pathlib, pkgutil, sys
import nbtriton
optional = []
for found in pkgutil.walk_packages(nbtriton.__path__, "nbtriton."):
    if found.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(found.name)
    except ModuleNotFoundError as error:
        assert error.name.partition(".")[0] not in ("nbtriton", "fcntl", "resource"), found.name
        optional.append(found.name)
print(len([name for name in sys.modules if name.startswith("nbtriton.")]), optional)
"""
SERVES = """
import json, sys, urllib.request
import numpy as np
import nbtriton as nt
from nbtriton.common.errors import TritonError, UnsupportedError

def double(IN: "FP32[2]") -> {"OUT": "FP32[2]"}:
    return {"OUT": IN * 2}

class Process:
    def execute(self, requests):
        import os
        import numpy as np
        import triton_python_backend_utils as pb_utils
        assert not hasattr(os, "waitid"), "this process is as it was"
        number = np.array([os.getpid()], np.int64)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("PID", number)]) for _ in requests]

IN_PROCESS = (
    'backend: "python" input { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } '
    'output { name: "PID" data_type: TYPE_INT64 dims: [ 1 ] } '
    'parameters { key: "INSTANCE_ISOLATION" value { string_value: "process" } }'
)

def read(port, path, data=None):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", data)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()

with nt.Server(gpus=()) as server:
    server.load("max_batch_size: 8  instance_group { count: 2 }", double, name="double")
    assert server.infer("double", {"IN": np.ones((1, 2), np.float32)})["OUT"].tolist() == [[2, 2]]
    with server.serve(http_port=0, grpc_port=0, metrics_port=0) as endpoints:
        body = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
        status, text = read(endpoints.http_port, "v2/models/double/infer", json.dumps(body).encode())
        assert (status, json.loads(text)["outputs"][0]["data"]) == (200, [2, 4]), text
        assert read(endpoints.metrics_port, "metrics")[0] == 200
        try:
            server.serve(http_port=endpoints.http_port, metrics_port=None)
        except TritonError as error:
            assert "already in use" in error.message
        else:
            raise AssertionError("two servers at one port")
        region = json.dumps({"key": "/no", "offset": 0, "byte_size": 4}).encode()
        status, text = read(endpoints.http_port, "v2/systemsharedmemory/region/r/register", region)
        assert status >= 400 and "Unable to open shared memory region" in text, text
    try:
        server.load(IN_PROCESS, Process, name="process")
        import os
        pid = int(server.infer("process", {"IN": np.ones(1, np.float32)})["PID"][0])
        assert pid != os.getpid()
        server.unload("process", timeout_s=None)
        print("forked")
    except UnsupportedError as error:
        print(error.message)
        try:
            nt.environment("own", ["numpy"])
        except UnsupportedError as error:
            assert "needs a system that forks processes" in error.message
        else:
            raise AssertionError("an environment without its process")
"""


def run(folder: Path, lacks: str, program: str) -> str:
    (folder / "sitecustomize.py").write_text(lacks)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *_path()])}
    return run_python("-c", program, env=env, check=True).stdout


def _path() -> list[str]:
    return [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]


@pytest.mark.parametrize(
    ("lacks", "said"),
    [(MACOS, "forked"), (WINDOWS, "needs a system that forks processes")],
    ids=["macos", "windows"],
)
def test_a_model_is_served_and_every_module_imports(lacks: str, said: str, tmp_path: Path) -> None:
    served, modules = run(tmp_path, lacks, SERVES + IMPORTS).splitlines()
    assert said in served
    assert int(modules.split()[0]) > 200
