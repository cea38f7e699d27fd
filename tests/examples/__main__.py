"""Run Triton's client and python backend examples against a server and print a line for each.

    python -m tests.examples [NAME …]

Asks ``nbtriton serve`` with our own programs, which check what Triton's check. With
``--client-source DIR`` and ``--python-backend-source DIR`` Triton's own programs are run unmodified
from checkouts of its repositories ``client`` and ``python_backend``; their ports are 8000 to 8002.
``--client-programs DIR`` adds its C++ programs, where you have built them; ``--server-source DIR`` takes
the models of its repository ``server`` instead of ours of the same names. With ``--real`` our programs ask
the real tritonserver. The status is 1 if any program failed.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from nbtriton.common.errors import TritonError
from tests.examples import upstream
from tests.examples.checklist import (
    BACKEND_PROGRAMS,
    BUILT_PROGRAMS,
    CLIENT_PROGRAMS,
    COUNTED,
    Program,
)
from tests.examples.repository import (
    MODELS,
    has_onnx,
    write_backend_models,
    write_images,
    write_models,
)
from tests.examples.serving import serve_nbtriton, serve_real
from tests.examples.site import Site, Skipped

# What Triton's own programs have as their default, or in their code.
PORTS = (8000, 8001, 8002)
# Those of the python backend's examples that clients ask too.
CLIENT_MODELS = ("repeat_int32",)


@dataclass(frozen=True, slots=True)
class Line:
    """One thing to run and to print; with the models that the server must have, if they count."""

    row: str
    name: str
    run: Callable[[Site], None]
    models: tuple[str, ...] = ()


def lines_of(
    programs: Sequence[Program], examples: Path | None, names: Sequence[str], *, real: bool
) -> list[Line]:
    """Return what to run: our programs, or Triton's own of a folder of examples."""
    lines: list[Line] = []
    for program in programs:
        if names and not any(name in program.name for name in names):
            continue
        if examples is not None:
            lines += [
                Line(
                    program.row,
                    command,
                    partial(upstream.run_program, command, examples, package=program.package),
                    program.models,
                )
                for command in program.upstream
            ]
        elif real and program.real:
            lines.append(Line(program.row, program.name, partial(_skip, program.real)))
        else:
            lines.append(Line(program.row, program.name, program.run))
    return lines


def built_lines(folder: Path, names: Sequence[str]) -> list[Line]:
    """Return Triton's C++ programs of a folder to run."""
    return [
        Line(
            row,
            f"C++ {command}",
            partial(upstream.run_program, command, folder),
            COUNTED.get(command.split()[0], ()),
        )
        for row, command in BUILT_PROGRAMS
        if not names or any(name in command for name in names)
    ]


def _skip(reason: str, site: Site) -> None:
    raise Skipped(reason)


def run_line(line: Line, site: Site) -> str:
    """Run a program and print its line; returns PASS, FAIL or SKIP."""
    start = time.monotonic()
    reason, story = "", ""
    try:
        line.run(site)
        status = "PASS"
    except Skipped as skipped:
        status, reason = "SKIP", f"  {skipped}"
    except (Exception, pytest.fail.Exception) as error:  # the latter: pytest.raises saw nothing
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}: {last.line}"
        status, story = "FAIL", f"{where}\n{type(error).__name__}: {error}"
    row = f"{line.row:>2} " if line.row else "   "
    print(f"{status} {row} {line.name:66} {time.monotonic() - start:6.1f} s{reason}", flush=True)
    for text in story.splitlines():
        print(f"         {text}", flush=True)
    return status


def main(arguments: Sequence[str]) -> int:
    """Run the examples; 0 if none failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.examples", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="only programs with this in theirs"
    )
    parser.add_argument("--client-source", type=Path, metavar="DIR")
    parser.add_argument("--python-backend-source", type=Path, metavar="DIR")
    parser.add_argument("--client-programs", type=Path, metavar="DIR")
    parser.add_argument("--server-source", type=Path, metavar="DIR")
    parser.add_argument("--real", action="store_true", help="ask the real tritonserver")
    parser.add_argument(
        "--fresh-clients", type=int, default=2000, metavar="N",
        help="how many clients shall leave no trace (2000)",
    )  # fmt: skip
    parser.add_argument(
        "--isolation", choices=("thread", "process", "ray"), default="thread",
        help="where the instances of nbtriton's models live (thread); ray: in the cluster of RAY_ADDRESS",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    clients, backend = options.client_source, options.python_backend_source
    if options.real and (clients or backend or options.client_programs or options.server_source):
        parser.error("--real runs our own programs and models")
    try:
        clients = clients and upstream.examples_of(clients.resolve(), "src/python/examples")
        backend = backend and upstream.examples_of(backend.resolve(), "examples")
        models_of = options.server_source and upstream.examples_of(
            options.server_source.resolve(), "docs/examples/model_repository"
        )
    except FileNotFoundError as error:
        parser.error(str(error))
    lines = [
        *lines_of(CLIENT_PROGRAMS, clients, options.names, real=options.real),
        *lines_of(BACKEND_PROGRAMS, backend, options.names, real=options.real),
    ]
    if options.client_programs:
        lines += built_lines(options.client_programs.resolve(), options.names)
    if not lines:
        parser.error(f"no program has {' or '.join(options.names)} in its name")
    start = time.monotonic()
    seen: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_images(folder / "images")
        for number, models in enumerate(dict.fromkeys(line.models for line in lines)):
            chosen = [line for line in lines if line.models == models]
            repository = folder / f"models{number}"
            if any(line.row for line in chosen):
                write_models(repository, models or MODELS, python=options.real or not has_onnx())
            if models_of:
                upstream.write_example_models(repository, models_of)
            if not models:
                _write_backend_models(repository, chosen, backend)
            ports = PORTS if clients or backend else (0, 0, 0)
            with _serve(options, repository, folder, ports) as site:
                seen.update(run_line(line, site) for line in chosen)
    server = "tritonserver" if options.real else "nbtriton serve"
    print(
        f"{seen['PASS']} passed, {seen['FAIL']} failed, {seen['SKIP']} skipped "
        f"against {server} in {time.monotonic() - start:.0f} s"
    )
    return int(seen["FAIL"] > 0)


def _write_backend_models(repository: Path, chosen: Sequence[Line], backend: Path | None) -> None:
    """Write the python backend's models, of its checkout or ours; for its clients only if asked."""
    if backend:
        upstream.write_backend_models(repository, backend)
    elif any(not line.row for line in chosen):
        write_backend_models(repository)
    else:
        write_backend_models(repository, CLIENT_MODELS)


@contextlib.contextmanager
def _serve(
    options: argparse.Namespace, repository: Path, folder: Path, ports: tuple[int, int, int]
) -> Iterator[Site]:
    """Run the server that is asked for; one that does not start ends the program."""
    images, count = folder / "images", options.fresh_clients
    try:
        with contextlib.ExitStack() as stack:
            if options.real:
                server = serve_real(repository, images, folder / "python", fresh_clients=count)
            else:
                server = serve_nbtriton(
                    repository, images, fresh_clients=count, ports=ports,
                    isolation=options.isolation,
                )  # fmt: skip
            yield stack.enter_context(server)
    except (RuntimeError, TritonError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
