"""Write constraints-lowest.txt: the lowest version of every package that pyproject.toml allows.

usage: scripts/lowest.py

`make test-lowest` tests these lower bounds.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "constraints-lowest.txt"
# Extras for users; the others are for development.
EXTRAS = ("fil", "grpc", "lab", "onnx", "openvino", "plot", "torch")
HEAD = """\
# The lowest versions that pyproject.toml allows: `make test-lowest`. scripts/lowest.py writes this file.
"""


def lowest() -> str:
    """Return the text of the file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(text for extra in EXTRAS for text in extras[extra])]
    pins = set()
    for text in wanted:
        found = re.match(r"([\w.-]+)>=([\d.]+)", text)
        if found is None:
            raise ValueError(f"{text} has no lowest version")
        marker = text.partition(";")[2].strip()
        pins.add(f"{found[1]}=={found[2]}" + (f"; {marker}" if marker else ""))
    return HEAD + "".join(f"{pin}\n" for pin in sorted(pins, key=str.lower))


if __name__ == "__main__":
    TARGET.write_text(lowest())
