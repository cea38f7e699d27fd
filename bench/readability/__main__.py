"""Write the repository of the readability pipeline, or measure it in three placements.

``python -m bench.readability write DIR`` and then ``nbtriton serve --model-repository DIR``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.figures import Missing
from bench.readability.build import Pipeline, build

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Do what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench.readability", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("write", help="write the repository into an empty or new folder")
    write.add_argument("folder", type=Path)
    _pipeline_options(write)
    asked = parser.parse_args(argv)
    try:
        return _write(asked)
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


def _pipeline(asked: argparse.Namespace) -> Pipeline:
    return Pipeline(bert=asked.bert, dtype=asked.dtype, tokens=asked.tokens, trees=asked.trees)


def _write(asked: argparse.Namespace) -> int:
    if asked.folder.exists() and any(asked.folder.iterdir()):
        sys.exit(f"{asked.folder} is not empty")
    pipeline = _pipeline(asked)
    build(asked.folder, pipeline, lambda text: print(text, flush=True))
    print(f"{asked.folder}: {pipeline}")
    print(f"nbtriton serve --model-repository {asked.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
