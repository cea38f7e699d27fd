"""The command line: ``nbtriton serve``, ``validate``, ``perf`` and ``export``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from nbtriton import __version__
from nbtriton.errors import TritonError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    given = sys.argv[1:] if argv is None else list(argv)
    try:
        if given[:1] == ["serve"]:  # tritonserver's own grammar
            return _serve(given[1:])
        arguments = _parser().parse_args(given)
        return int(arguments.run(arguments))
    except TritonError as error:
        print(f"nbtriton: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"  hint: {error.hint}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nbtriton", description="Triton Inference Server's runtime, without the server."
    )
    parser.add_argument("--version", action="version", version=f"nbtriton {__version__}")
    commands = parser.add_subparsers(title="commands", required=True)
    commands.add_parser(
        "serve", help="serve a model repository, with tritonserver's flags", add_help=False
    )
    validate = commands.add_parser(
        "validate",
        help="check every model of a repository without serving it",
        description="Complete and check every model of a repository and print one line a model: "
        "'NAME: OK', or 'NAME: ' and the text of Triton's error. Exit status 1 if any failed.",
    )
    validate.add_argument("directory", metavar="DIR", help="the model repository")
    validate.add_argument(
        "--print", action="store_true", dest="show", help="also print the completed configurations"
    )
    validate.add_argument(
        "--disable-auto-complete-config",
        action="store_true",
        help="take the configurations as they are, as tritonserver does with this flag",
    )
    validate.add_argument(
        "--model-config-name",
        default="",
        metavar="NAME",
        help="prefer configs/NAME.pbtxt to config.pbtxt",
    )
    validate.set_defaults(run=_validate)
    return parser


def _serve(argv: Sequence[str]) -> int:
    from nbtriton.frontends.command import serve_command
    from nbtriton.frontends.flags import add_flags

    parser = argparse.ArgumentParser(
        prog="nbtriton serve",
        usage="%(prog)s --model-repository DIR [options]",
        description="Serve a model repository over HTTP and gRPC, as tritonserver does and with "
        "its flags, until SIGTERM or SIGINT.",
        allow_abbrev=False,
    )
    add_flags(parser)
    return serve_command(parser, argv)


def _validate(arguments: argparse.Namespace) -> int:
    from nbtriton.config import format_pbtxt
    from nbtriton.repository.validation import validate_repository

    failed = False
    for finding in validate_repository(
        arguments.directory,
        auto_complete=not arguments.disable_auto_complete_config,
        config_name=arguments.model_config_name,
    ):
        failed = failed or finding.error is not None
        print(finding, flush=True)
        if finding.error is not None and finding.error.hint:
            print(f"  hint: {finding.error.hint}")
        if arguments.show and finding.config is not None:
            print("".join(f"  {line}\n" for line in format_pbtxt(finding.config).splitlines()))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
