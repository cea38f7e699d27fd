"""Triton's own example programs, run unmodified from a checkout that the user has."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.examples.clients.shared_memory import has_gpu
from tests.examples.site import Site, Skipped

__all__ = [
    "BACKEND_MODELS",
    "examples_of",
    "run_program",
    "write_backend_models",
    "write_example_models",
]

# The python backend's models: their files in its examples. Those without a configuration complete
# it themselves.
BACKEND_MODELS: dict[str, tuple[str, str]] = {
    "add_sub": ("add_sub/model.py", "add_sub/config.pbtxt"),
    "nobatch_auto_complete": ("auto_complete/nobatch_model.py", ""),
    "batch_auto_complete": ("auto_complete/batch_model.py", ""),
    "bls_sync": ("bls/sync_model.py", "bls/sync_config.pbtxt"),
    "bls_async": ("bls/async_model.py", "bls/async_config.pbtxt"),
    "bls_decoupled_sync": ("bls_decoupled/sync_model.py", "bls_decoupled/sync_config.pbtxt"),
    "bls_decoupled_async": ("bls_decoupled/async_model.py", "bls_decoupled/async_config.pbtxt"),
    "custom_metrics": ("custom_metrics/model.py", "custom_metrics/config.pbtxt"),
    "repeat_int32": ("decoupled/repeat_model.py", "decoupled/repeat_config.pbtxt"),
    "square_int32": ("decoupled/square_model.py", "decoupled/square_config.pbtxt"),
    "pytorch": ("pytorch/model.py", "pytorch/config.pbtxt"),
    "jax": ("jax/model.py", "jax/config.pbtxt"),
}
# What the others need cannot be had without a download or a GPU.
NOT_HERE = {
    "instance_kind": "needs a download: the weights of ResNet-50 and NVIDIA's torch hub",
    "preprocessing": "needs a GPU: its network is a TensorRT engine",
}


def examples_of(checkout: Path, folder: str) -> Path:
    """Return the folder of examples in a checkout; the checkout itself if it is that folder.

    Raises
    ------
    FileNotFoundError
        Neither exists.
    """
    for found in (checkout / folder, checkout):
        if any(found.glob("*_client.py")) or any(
            (found / n).is_dir() for n in ("add_sub", "simple")
        ):
            return found
    raise FileNotFoundError(f"no examples in '{checkout}' or '{checkout / folder}'")


def write_example_models(repository: Path, examples: Path) -> None:
    """Put the server's own example models in the place of ours; not those that are to be downloaded.

    Parameters
    ----------
    repository : Path
        Its other models stay.
    examples : Path
        ``docs/examples/model_repository`` of the server's repository.
    """
    for folder in examples.iterdir():
        written = repository / folder.name
        if written.is_dir() and any((folder / "1").glob("model.*")):
            shutil.rmtree(written)
            shutil.copytree(folder, written)


def write_backend_models(repository: Path, examples: Path) -> None:
    """Write the python backend's example models as a repository; not those that cannot load."""
    for name, (model, config) in BACKEND_MODELS.items():
        if name == "jax" and importlib.util.find_spec("jax") is None:
            continue
        folder = repository / name
        (folder / "1").mkdir(parents=True)
        shutil.copyfile(examples / model, folder / "1" / "model.py")
        if config:
            shutil.copyfile(examples / config, folder / "config.pbtxt")


def run_program(
    command: str, examples: Path, site: Site, *, package: str = "", timeout_s: float = 120.0
) -> None:
    """Run one of Triton's programs as it is.

    Parameters
    ----------
    command : str
        Its file within `examples`, a Python or a built program, and its arguments.
    package : str
        A package that it needs beyond Triton's clients.

    Raises
    ------
    Skipped
        What it needs is not here.
    AssertionError
        It failed; with the end of what it wrote.
    """
    file, *arguments = shlex.split(command)
    if reason := NOT_HERE.get(file.partition("/")[0]):
        raise Skipped(reason)
    if "cudashm" in file and not has_gpu():
        raise Skipped("needs a GPU")
    if package and importlib.util.find_spec(package) is None:
        raise Skipped(f"needs the package '{package}'")
    program = examples / file
    if not program.exists():
        raise Skipped("not built")
    in_python = program.suffix == ".py"
    values: Mapping[str, str] = {"grpc": site.grpc, "http": site.http, "images": str(site.images)}
    done = subprocess.run(
        [
            *([sys.executable] if in_python else []), str(program),
            *(text.format(**values) for text in arguments),
        ],
        cwd=program.parent, env={**os.environ, "PYTHONUNBUFFERED": "1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout_s, check=False,
    )  # fmt: skip
    # Some end with 0 also where they found something wrong, but all of those that say PASS do so
    # only at their good end.
    says_pass = in_python and "PASS" in program.read_text()
    end = "\n".join(done.stdout.splitlines()[-12:])
    assert done.returncode == 0, f"exit status {done.returncode}\n{end}"
    assert "PASS" in done.stdout or not says_pass, f"it did not say PASS\n{end}"
