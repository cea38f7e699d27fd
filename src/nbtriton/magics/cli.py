"""The command line: ``nbtriton serve``, ``perf``, and what extensions add."""

from __future__ import annotations

import argparse
import contextlib
import platform
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nbtriton.common import __version__, entries
from nbtriton.common.errors import InvalidArgumentError, TritonError, nearest
from nbtriton.common.packages import core_is_compiled
from nbtriton.lab.perf.settings import DATA, PERF
from nbtriton.options.reading import float_list
from nbtriton.options.server import SERVER
from nbtriton.options.table import given_options, only

# Everything that a command line can express: `inputs` are arrays.
_MEASUREMENT = (*(PERF[name] for name in PERF if name != "inputs"), *only(DATA, "-z"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    if argv is None:
        # As in Triton, `sys.argv` has no arguments for models and their libraries (unittest).
        argv, sys.argv[1:] = sys.argv[1:], []
    command_line = list(argv)
    try:
        if command_line[:1] == ["serve"]:  # tritonserver's syntax
            return _serve(command_line[1:])
        arguments = _parse(command_line)
        return int(arguments.run(arguments))
    except TritonError as error:
        print(f"nbtriton: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"  hint: {error.hint}", file=sys.stderr)
        return 1 if command_line[:1] == ["serve"] else 2  # 1 as tritonserver
    except OSError as error:
        print(f"nbtriton: {error}", file=sys.stderr)
        return 1 if command_line[:1] == ["serve"] else 2
    except KeyboardInterrupt:
        return 130


def _parse(command_line: list[str]) -> argparse.Namespace:
    """Parse the command line; report an unknown option with the nearest one."""
    parser = _parser()
    arguments, unknown = parser.parse_known_args(command_line)
    if unknown:
        commands = next(a.choices for a in parser._actions if isinstance(a.choices, dict))  # noqa: SLF001
        actions = commands[command_line[0]]._actions if command_line[0] in commands else []  # noqa: SLF001
        known = [option for action in actions for option in action.option_strings]
        hint = nearest(unknown[0].partition("=")[0], known)
        is_typo = unknown[0].startswith("-") and hint.startswith("did you mean")
        suggestion = f" ({hint})" if is_typo else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{suggestion}")
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nbtriton", description="Triton Inference Server's runtime, without the server."
    )
    core = "compiled" if core_is_compiled() else "pure Python"
    python = f"{platform.python_implementation()} {platform.python_version()}"
    parser.add_argument(
        "--version",
        action="version",
        version=f"nbtriton {__version__} ({core} core, {python}, {platform.system()} {platform.machine()})",
    )
    commands = parser.add_subparsers(title="commands", required=True)
    commands.add_parser(
        "serve", help="serve a model repository, with tritonserver's flags", add_help=False
    )
    _add_perf(commands.add_parser("perf", help="measure a model of a repository under load"))
    for name, add in entries.working("commands"):
        add(commands.add_parser(name, help=add.__doc__))
    return parser


def _add_perf(perf: argparse.ArgumentParser) -> None:
    perf.description = (
        "Load one model and measure its throughput and latency in this process, or those of a "
        "server at a URL, with perf_analyzer's rules; %triton_perf takes the same options."
    )
    add = perf.add_argument
    add("model", metavar="MODEL", help="a model or an ensemble")
    place = perf.add_mutually_exclusive_group(required=True)
    place.add_argument("--model-repository", metavar="DIR", action="append")
    for option in _MEASUREMENT:
        option.add(place.add_argument if option.parameter == "url" else add)
    add("-f", "--csv", metavar="FILE", help="also write perf_analyzer's table there")
    replace(SERVER["stand_in"], action="store_true").add(add)
    perf.set_defaults(run=_perf)


def _serve(argv: Sequence[str]) -> int:
    from nbtriton.serving.frontends.command import serve_command
    from nbtriton.serving.server import Server

    return serve_command(Server, argv)


def _perf(arguments: argparse.Namespace) -> int:
    from nbtriton.lab.perf.api import perf
    from nbtriton.lab.perf.progress import TerminalLine
    from nbtriton.serving.server import Server

    if arguments.stand_in and arguments.url is not None:
        raise InvalidArgumentError(
            "--stand-in is an option of models in this process, not of a server at a URL",
            hint="nbtriton serve --stand-in there",
        )
    with contextlib.ExitStack() as stack:
        server = None
        if arguments.url is None:
            server = stack.enter_context(Server(stand_in=arguments.stand_in))
            control = server.load_repository(
                arguments.model_repository, control_mode="explicit", load_models=[arguments.model]
            )
            if arguments.model in control.errors:
                raise control.errors[arguments.model]
        line = TerminalLine(sys.stderr)
        stack.callback(line.clear)
        report = perf(server, arguments.model, **_perf_options(arguments), observer=line)
    print(report._repr_mimebundle_()["text/plain"])
    if arguments.csv:
        report.to_csv(arguments.csv)
    failed = bool(report.failure) or any(point.error_count for point in report.points)
    return 130 if report.interrupted else int(failed)


def _perf_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `nbtriton.perf`, which have the same names in the parser."""
    options = given_options(arguments, {one.parameter: one for one in _MEASUREMENT})
    if options["intervals"] is not None:
        options["intervals"] = float_list(options["intervals"])
    return options


if __name__ == "__main__":
    sys.exit(main())
