"""The server that the programs ask: `nbtriton serve`, or the real tritonserver."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.examples.site import Site

__all__ = ["FLAGS", "serve_nbtriton", "serve_real"]

# Clients may load and unload; all models are loaded at the start.
FLAGS = ("--model-control-mode=explicit", "--load-model=*")
_NAMES = {"HTTPService": "http", "GRPCInferenceService": "grpc", "Metrics": "metrics"}


@contextlib.contextmanager
def serve_nbtriton(
    repository: Path,
    images: Path,
    *,
    fresh_clients: int,
    ports: tuple[int, int, int] = (0, 0, 0),
    environment: Mapping[str, str] | None = None,
    isolation: str = "thread",
) -> Iterator[Site]:
    """Run ``nbtriton serve`` over a repository until the block ends.

    Parameters
    ----------
    isolation : {"thread", "process", "ray"}
        Where the instances of its models live.
    ports : tuple of int
        For HTTP, gRPC and metrics; 0 for any that is free.

    Raises
    ------
    RuntimeError
        It did not start; with what it wrote.
    """
    process = subprocess.Popen(
        [
            sys.executable, "-m", "nbtriton", "serve", f"--model-repository={repository}", *FLAGS,
            f"--http-port={ports[0]}", f"--grpc-port={ports[1]}", f"--metrics-port={ports[2]}",
            f"--isolation={isolation}",
        ],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "PYTHONFAULTHANDLER": "1", **(environment or {})},
    )  # fmt: skip
    lines: list[str] = []
    addresses: dict[str, str] = {}
    started = threading.Event()

    def read() -> None:
        # To the end: a full pipe without a reader would stop the server.
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if found := re.search(r"Started (\w+).* at (\S+:\d+)", line):
                addresses[_NAMES[found[1]]] = found[2]
                if len(addresses) == len(_NAMES):
                    started.set()
        started.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        if not started.wait(600 if isolation == "ray" else 120) or len(addresses) < len(_NAMES):
            raise RuntimeError("nbtriton serve did not start:\n" + "".join(lines))
        yield Site(
            **addresses, pid=process.pid, repository=repository, images=images,
            fresh_clients=fresh_clients,
        )  # fmt: skip
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # it writes its stacks
            process.wait()
            reader.join()
            raise RuntimeError("nbtriton serve did not end:\n" + "".join(lines)) from None
        reader.join()


@contextlib.contextmanager
def serve_real(
    repository: Path, images: Path, directory: Path, *, fresh_clients: int
) -> Iterator[Site]:
    """Run the reference's tritonserver over a repository until the block ends.

    Parameters
    ----------
    directory : Path
        Where an environment for its Python models may be made: they get this one's packages.

    Raises
    ------
    TritonError
        It cannot be had here, or did not start.
    """
    from nbtriton.extensions.verify.install import ensure_reference

    reference = ensure_reference(on_progress=lambda line: print(line, file=sys.stderr))
    python = reference.shared_python(directory)
    with reference.server(repository, *FLAGS, python=python, timeout_s=300) as server:
        yield Site(
            http=server.http_url, grpc=server.grpc_url,
            metrics=f"127.0.0.1:{server.metrics_port}", pid=server.process.pid,
            repository=repository, images=images, fresh_clients=fresh_clients,
        )  # fmt: skip
