"""A Ray Serve application that serves a repository with nbtriton."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from nbtriton.common import __version__
from nbtriton.extensions.platforms.needs import needs_of

_TEMPLATE = Path(__file__).parent / "ray_serve.py.txt"


def files(repository: Path, models: Sequence[str], _on: bool) -> Mapping[str, str]:
    """Return ``ray_serve.py`` for a repository."""
    needs = needs_of(repository, models)
    replicas = (
        "    num_replicas=1,  # a model has sequences, whose state is in one replica\n"
        if needs.stateful
        else ""
    )
    text = _TEMPLATE.read_text(encoding="utf-8")
    given = {"VERSION": __version__, "CPUS": str(needs.cpus), "GPUS": str(needs.gpus)}
    for name, value in given.items():
        text = text.replace(f"<{name}>", value)
    return {"ray_serve.py": text.replace("    <REPLICAS>\n", replicas)}
