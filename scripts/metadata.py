"""A build hook: the README and the addresses of a release, where the address of the repository is known.

``NBTRITON_REPOSITORY`` (``https://github.com/OWNER/nbtriton``) is set by the workflow that builds a release. Links
of the README that lead into the repository then lead there from everywhere, as a package index shows it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

__all__ = ["Metadata", "absolute", "addresses"]

VARIABLE = "NBTRITON_REPOSITORY"


class Metadata(MetadataHookInterface):
    """Fills ``readme`` and ``urls``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the fields to those of pyproject.toml."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        repository = os.environ.get(VARIABLE, "").rstrip("/")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": absolute(text, repository) if repository else text,
        }
        metadata["urls"] = addresses(repository) if repository else {}


def absolute(text: str, repository: str) -> str:
    """Return Markdown whose links into the repository are absolute."""

    def replaced(match: re.Match[str]) -> str:
        shown, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        kind = "raw" if shown.startswith("!") else "blob"
        return f"{shown}({repository}/{kind}/main/{target})"

    return re.sub(r"(!?\[[^\]]*\])\(([^)\s]+)\)", replaced, text)


def addresses(repository: str) -> dict[str, str]:
    """Return the project's addresses, as a package index lists them."""
    return {
        "Source": repository,
        "Issues": f"{repository}/issues",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Documentation": f"{repository}/tree/main/docs",
    }
