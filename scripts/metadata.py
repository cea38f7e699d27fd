"""Build hook: the README and the URLs of a release, if the repository's URL is known.

``NBTRITON_REPOSITORY`` (``https://github.com/OWNER/nbtriton``) is set by the workflow that builds a release. The
README's relative links then become absolute, for package indexes, and badges of Binder and Colab are added below
its title.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

__all__ = ["FIRST_NOTEBOOK", "Metadata", "absolute", "addresses", "badges"]

VARIABLE = "NBTRITON_REPOSITORY"
# What the badges open.
FIRST_NOTEBOOK = "notebooks/01_five_cells.ipynb"


class Metadata(MetadataHookInterface):
    """Metadata hook for ``readme`` and ``urls``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add both fields to those of pyproject.toml."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        repository = os.environ.get(VARIABLE, "").rstrip("/")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": with_badges(absolute(text, repository), repository) if repository else text,
        }
        metadata["urls"] = addresses(repository) if repository else {}


def absolute(text: str, repository: str) -> str:
    """Return Markdown with absolute links into the repository."""

    def replaced(match: re.Match[str]) -> str:
        shown, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        kind = "raw" if shown.startswith("!") else "blob"
        return f"{shown}({repository}/{kind}/main/{target})"

    return re.sub(r"(!?\[[^\]]*\])\(([^)\s]+)\)", replaced, text)


def badges(repository: str) -> list[str]:
    """Return the badges of Binder and Colab as Markdown; none for a repository outside GitHub."""
    found = re.fullmatch(r"https://github\.com/([^/]+/[^/]+)", repository)
    if found is None:
        return []
    binder, colab = "https://mybinder.org", "https://colab.research.google.com"
    opened = f"{binder}/v2/gh/{found[1]}/HEAD?urlpath=lab/tree/{FIRST_NOTEBOOK}"
    return [
        f"[![Binder]({binder}/badge_logo.svg)]({opened})",
        f"[![Colab]({colab}/assets/colab-badge.svg)]({colab}/github/{found[1]}/blob/main/{FIRST_NOTEBOOK})",
    ]


def with_badges(text: str, repository: str) -> str:
    """Return a README with the badges below its title."""
    title, newline, rest = text.partition("\n")
    return "\n".join([title, "", *badges(repository)]).rstrip() + newline + rest


def addresses(repository: str) -> dict[str, str]:
    """Return the project's URLs for a package index."""
    return {
        "Source": repository,
        "Issues": f"{repository}/issues",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Documentation": f"{repository}/tree/main/docs",
    }
