"""Version, errors, optional packages, checks of arguments: what every folder may use."""

from pathlib import Path

__version__ = "0.1.0"

# The folder of the package `nbtriton`.
PACKAGE = Path(__file__).parents[1]
