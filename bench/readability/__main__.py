"""Write the repository of the readability pipeline, check it, or measure it in three placements.

``python -m bench.readability write DIR`` and then ``nbtriton serve --model-repository DIR``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.figures import Missing
from bench.readability.build import Pipeline, build
from bench.readability.check import check
from bench.readability.table import figure, measure, table

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command."""
    parser = argparse.ArgumentParser(prog="python -m bench.readability", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("write", help="write the repository into an empty or new folder")
    write.add_argument("folder", type=Path)
    _pipeline_options(write)
    columns = commands.add_parser("table", help="measure three placements by batch size")
    _pipeline_options(columns)
    columns.add_argument("--batch-sizes", type=_sizes, default=_sizes("1:512"), metavar="LIST",
                         help="1:512 (doubling) or 1,64,512")  # fmt: skip
    columns.add_argument(
        "--gpus", metavar="simulated:N,…", help="simulated ones instead of real ones"
    )
    columns.add_argument(
        "-c", "--concurrency", type=int, default=1, help="requests outstanding (1)"
    )
    columns.add_argument("--requests", type=int, default=5, help="of a point (5)")
    columns.add_argument(
        "--figure", type=Path, metavar="FILE", help="draw it: a .svg, .png or .pdf"
    )
    beside = commands.add_parser("check", help="compare a request with the frameworks themselves")
    _pipeline_options(beside)
    beside.add_argument("--rows", type=int, default=1, metavar="N", help="excerpts of it (1)")
    arguments = parser.parse_args(argv)
    run = {"write": _write, "table": _table, "check": _check}[arguments.command]
    try:
        return run(arguments)
    except Missing as error:
        parser.exit(1, f"{error}\n")


def _pipeline_options(parser: argparse.ArgumentParser) -> None:
    default = Pipeline()
    parser.add_argument("--bert", choices=("tiny", "mini", "base", "large"), default=default.bert)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default=default.dtype)
    parser.add_argument(
        "--tokens", type=int, default=default.tokens, metavar="S", help="of an excerpt"
    )
    parser.add_argument("--trees", type=int, default=default.trees)


def _pipeline(arguments: argparse.Namespace) -> Pipeline:
    return Pipeline(
        bert=arguments.bert, dtype=arguments.dtype, tokens=arguments.tokens, trees=arguments.trees
    )


def _sizes(text: str) -> list[int]:
    """Read ``1,64,512``, or ``1:512`` for the powers of two in between."""
    try:
        if ":" not in text:
            return [int(part) for part in text.split(",")]
        first, last = (int(part) for part in text.split(":"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is neither 1:512 nor 1,64,512") from None
    return [first * 2**exponent for exponent in range(max(0, last // first).bit_length())]


def _table(arguments: argparse.Namespace) -> int:
    found = measure(
        _pipeline(arguments), arguments.batch_sizes, gpus=arguments.gpus, concurrency=arguments.concurrency,
        count=arguments.requests, say=lambda text: print(text, file=sys.stderr, flush=True),
    )  # fmt: skip
    print(table(found))
    if arguments.figure is not None:
        figure(found, arguments.figure)
        print(f"Written: {arguments.figure}")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    print(
        check(
            _pipeline(arguments),
            arguments.rows,
            lambda text: print(text, file=sys.stderr, flush=True),
        )
    )
    return 0


def _write(arguments: argparse.Namespace) -> int:
    if arguments.folder.exists() and any(arguments.folder.iterdir()):
        sys.exit(f"{arguments.folder} is not empty")
    pipeline = _pipeline(arguments)
    build(arguments.folder, pipeline, lambda text: print(text, flush=True))
    print(f"{arguments.folder}: {pipeline}")
    print(f"nbtriton serve --model-repository {arguments.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
