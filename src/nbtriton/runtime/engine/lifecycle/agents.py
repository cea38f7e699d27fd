"""Repository agents, which check a model's directory before the model is loaded from it.

The one that Triton comes with checks files against their checksums (its checksum_repository_agent).
"""

from __future__ import annotations

import os
from pathlib import Path

from nbtriton.common.errors import InvalidArgumentError, UnsupportedError, nearest
from nbtriton.model.config import ModelConfig

__all__ = ["run_agents"]

_KNOWN = ("checksum",)


def run_agents(config: ModelConfig, directory: Path) -> None:
    """Run the agents that a configuration names on the model's directory.

    Parameters
    ----------
    config : ModelConfig
        As written.
    directory : Path
        The model's own.

    Raises
    ------
    InvalidArgumentError
        No such agent exists, or a file does not match its checksum, with Triton's text.
    UnsupportedError
        A checksum that Triton's agent does not know.
    """
    for agent in config.model_repository_agents.agents:
        if agent.name not in _KNOWN:
            raise InvalidArgumentError(
                f"unable to find 'libtritonrepoagent_{agent.name}.so' for repo agent "
                f"'{agent.name}', searched: /opt/tritonserver/repoagents",
                hint=nearest(agent.name, _KNOWN),
            )
        for key, expected in sorted(agent.parameters.items()):
            _check(directory, key, expected)


def _check(directory: Path, key: str, expected: str) -> None:
    algorithm, colon, file = key.partition(":")
    if not colon:
        raise InvalidArgumentError(
            f"failed to parse key: {key}", hint='write key: "MD5:<file of the model\'s directory>"'
        )
    if algorithm.lower() != "md5":
        raise UnsupportedError(f"Unsupported checksum algorithm: {algorithm}", hint="MD5 is known")
    try:
        # Joined as text: a leading slash does not leave the directory.
        content = Path(f"{directory}/{file}").read_bytes()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise InvalidArgumentError(f"failed to open text file for read {file}: {reason}") from None
    from hashlib import md5  # loads OpenSSL

    found = md5(content, usedforsecurity=False).hexdigest()
    if found != expected:
        raise InvalidArgumentError(
            f"Mismatched MD5 hash for file {file}, expect: {expected}, got: {found}"
        )
