"""Models that bring their configuration along."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbtriton.model.config._proto import ModelConfig
from nbtriton.model.config.convert import Dumpable, amend, as_config


@dataclass(frozen=True, slots=True)
class ReadyModel:
    """A model's file and its configuration, such as those of a folder of a repository.

    Parameters
    ----------
    config : ModelConfig
        Without a name.
    source : Path
        As for `nbtriton.Server.load`.

    Examples
    --------
    >>> from pathlib import Path
    >>> ready = ReadyModel(parse_pbtxt("max_batch_size: 8"), Path("double/1/model.py"))
    >>> ready.configured("max_batch_size: 4").max_batch_size
    4
    """

    config: ModelConfig
    source: Path

    def configured(
        self, given: str | Mapping[str, Any] | ModelConfig | Dumpable | None
    ) -> ModelConfig:
        """Return the model's configuration, changed by what is given with it.

        Raises
        ------
        ConfigError
            As `as_config`.
        """
        if given is None:
            return self.config
        fields = given if isinstance(given, str | Mapping) else as_config(given)
        return amend(self.config, fields, whole=False)
