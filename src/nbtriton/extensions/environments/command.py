"""The command ``nbtriton env``."""

from __future__ import annotations

import argparse
import sys

from nbtriton.extensions.environments.making import environment


def add_env(env: argparse.ArgumentParser) -> None:
    """Make an environment for models."""
    env.description = (
        "Make an environment with these packages and NumPy, by uv if it is on the PATH, else by pip, and "
        "print its folder, which is a value of EXECUTION_ENV_PATH. What was made once is kept, by its content."
    )
    add = env.add_argument
    add("packages", metavar="PACKAGE", nargs="*", help="as for pip, such as 'scikit-learn<1.6'")
    add("-r", "--requirements", metavar="FILE", help="a requirements file")
    add(
        "--python",
        metavar="VERSION|PATH",
        help="its Python, such as 3.12; by default this one's version",
    )
    add("--anew", action="store_true", help="make it again, with the versions of today")
    env.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    made = environment(
        "environment",
        arguments.packages,
        requirements=arguments.requirements,
        python=arguments.python,
        anew=arguments.anew,
        on_progress=lambda line: print(line, file=sys.stderr),
    )
    print(made.folder)
    return 0
