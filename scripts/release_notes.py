"""Print the changelog's section of a version: the notes of its release.

usage: scripts/release_notes.py [VERSION]

By default nbtriton's version. Fails if the changelog has no such section, or it is unreleased.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def notes(version: str, changelog: str) -> str:
    """Return the text below the heading of a version.

    Raises
    ------
    ValueError
        There is no such section, or the version is unreleased.
    """
    sections = re.split(r"^## (.+)$", changelog, flags=re.MULTILINE)
    for heading, text in zip(sections[1::2], sections[2::2], strict=True):
        if heading.split()[0] == version:
            if "unreleased" in heading:
                raise ValueError(f"CHANGELOG.md calls {version} unreleased: write the day instead")
            return text.strip() + "\n"
    raise ValueError(f"CHANGELOG.md has no section '## {version}'")


def own_version() -> str:
    """Return the version in the sources."""
    text = (ROOT / "src" / "nbtriton" / "common" / "__init__.py").read_text(encoding="utf-8")
    (found,) = re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    return str(found)


if __name__ == "__main__":
    wanted = sys.argv[1].removeprefix("v") if len(sys.argv) > 1 else own_version()
    if wanted != own_version():
        sys.exit(f"the sources are of version {own_version()}, not {wanted}")
    try:
        print(notes(wanted, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")), end="")
    except ValueError as error:
        sys.exit(str(error))
