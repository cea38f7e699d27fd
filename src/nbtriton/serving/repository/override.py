"""Override of a load request: a configuration and files in place of the repository's (L12)."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from nbtriton.common.errors import ConfigError, InternalError, InvalidArgumentError, TritonError
from nbtriton.model.config import ModelConfig, as_config

_FILE = "file:"


@dataclass(frozen=True, slots=True)
class Override:
    """Parameters of a load request.

    Attributes
    ----------
    config : str or None
        A configuration as JSON.
    files : mapping of str to bytes
        All files of the model's directory, by path.
    """

    config: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Override | None:
        """Read a load request's parameters; None if nothing is overridden.

        Contents of files are bytes, or base64 text over HTTP.

        Raises
        ------
        InternalError
            A parameter is unknown to Triton or of the wrong type, with the text of Triton's HTTP
            endpoint.
        """
        files: dict[str, bytes] = {}
        config = None
        for key, value in parameters.items():
            if key == "config":
                if not isinstance(value, str):
                    raise InternalError("attempt to access JSON non-string as string")
                config = value
            elif key.startswith(_FILE):
                if not isinstance(value, str | bytes):
                    raise InternalError("attempt to access JSON non-string as string")
                # Relative to the directory, even with a leading slash.
                files[key.removeprefix(_FILE).lstrip("/")] = _decoded(value)
            else:
                raise InternalError(
                    "unexpected error on creating Triton parameter",
                    hint=f"unrecognized load parameter '{key}'.",
                )
        return cls(config, files) if parameters else None

    def parse_config(self) -> ModelConfig:
        """Return the configuration.

        Raises
        ------
        InvalidArgumentError
            It is not a JSON object, or names files outside the model's directory, which only the
            repository's owner may do.
        """
        text = self.config or ""
        try:
            if not text.lstrip().startswith("{"):
                raise ConfigError("it is not a JSON object")
            config = as_config(text)
        except TritonError as error:
            raise InvalidArgumentError(f"Invalid config override: {error.message}") from None
        for field_name, path in _paths_of(config):
            if path and not _stays_inside(path):
                raise InvalidArgumentError(
                    f"Invalid config override: {field_name} '{path}' must stay within model "
                    "directory."
                )
        return config

    def write_files(self, directory: Path) -> None:
        """Write the files into an empty directory.

        Raises
        ------
        InvalidArgumentError
            The configuration is missing, or a file is outside the directory or cannot be written.
        """
        if self.config is None:
            raise InvalidArgumentError(
                "Load parameter 'config' must be specified for model file override"
            )
        for path in self.files:
            if not _stays_inside(path):
                raise InvalidArgumentError(
                    f"Invalid file parameter '{_FILE}{path}' must stay within model directory."
                )
        for path, content in self.files.items():
            target = directory / path
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            except OSError as error:
                raise InvalidArgumentError(
                    f"Invalid file parameter '{_FILE}{path}': {error.strerror}"
                ) from None


def _stays_inside(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return bool(parts) and not (".." in parts or PurePosixPath(path).is_absolute() or "\0" in path)


def _paths_of(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """Yield the fields of a configuration that name files, with the names."""
    yield "default_model_filename", config.default_model_filename
    for filename in config.cc_model_filenames.values():
        yield "cc_model_filenames", filename
    for output in config.output:
        yield "label_filename", output.label_filename
    for sample in config.model_warmup:
        for tensor in sample.inputs.values():
            yield "input_data_file", tensor.input_data_file
    for state in config.sequence_batching.state:
        for initial in state.initial_state:
            yield "data_file", initial.data_file


def _decoded(value: str | bytes) -> bytes:
    """Decode base64 as Triton does, skipping other characters (KS61)."""
    if isinstance(value, bytes):
        return value
    digits = re.sub(r"[^A-Za-z0-9+/]", "", value)
    digits = digits[: len(digits) - (len(digits) % 4 == 1)]
    try:
        return base64.b64decode(digits + "=" * (-len(digits) % 4))
    except binascii.Error:
        return b""
