"""Auto-complete: the argument of a model's ``auto_complete_config``.

Rules and texts are those of ``ModelConfig`` in Triton's triton_python_backend_utils.py (AC4). It wraps a
plain dict instead of the protobuf message: the environment of a model may lack protobuf.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_INPUT = (("name", "data_type", "dims", "optional"), "'name', 'data_type', 'dims' and 'optional'")
_OUTPUT = (("name", "data_type", "dims"), "'name', 'data_type' and 'dims'")


class AutoCompleteConfig:
    """A configuration that a model may complete.

    Parameters
    ----------
    config : str or bytes
        JSON, as reported by Triton.

    Notes
    -----
    A conflict raises `ValueError` with Triton's text: the model's own code calls these methods, and may catch
    Triton's exception.
    """

    def __init__(self, config: str | bytes) -> None:
        self._model_config: dict[str, Any] = json.loads(config)

    def as_dict(self) -> dict[str, Any]:
        """Return the configuration as reported by Triton; changes to the dict take effect."""
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set the largest batch size; a configured one can be raised, not lowered."""
        configured = self._model_config["max_batch_size"]
        if configured > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {configured}, but in "
                f"auto-complete-config function for model '{self._name}' specified max_batch_size "
                f"{max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Choose the dynamic batcher; its configured settings stay."""
        for other in ("sequence_batching", "ensemble_scheduling"):
            if other in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{other}', but "
                    f"auto-complete-config function for model '{self._name}' tries to set "
                    "scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input: Mapping[str, Any]) -> None:  # noqa: A002 - Triton's name
        """Add an input (`name`, `data_type`, `dims`, `optional`), or check it against a configured one."""
        self._add("input", input, *_INPUT)

    def add_output(self, output: Mapping[str, Any]) -> None:
        """Add an output (`name`, `data_type`, `dims`), or check it against a configured one."""
        self._add("output", output, *_OUTPUT)

    def set_model_transaction_policy(self, transaction_policy_dict: Mapping[str, Any]) -> None:
        """Set whether the model is decoupled: ``{"decoupled": True}``."""
        if any(key != "decoupled" for key in transaction_policy_dict):
            raise ValueError(
                f"model transaction property in auto-complete-config function for model "
                f"'{self._name}' contains property other than 'decoupled'."
            )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" in transaction_policy_dict:
            decoupled = transaction_policy_dict["decoupled"]
            if policy.setdefault("decoupled", decoupled) != decoupled:
                raise ValueError(
                    "trying to change decoupled property in auto-complete-config for model "
                    f"'{self._name}', which is already set to '{policy['decoupled']}'."
                )

    @property
    def _name(self) -> str:
        return str(self._model_config["name"])

    def _add(
        self, what: str, tensor: Mapping[str, Any], keys: tuple[str, ...], listed: str
    ) -> None:
        where = f"in auto-complete-config function for model '{self._name}'"
        if any(key not in keys for key in tensor):
            raise ValueError(
                f"{what} '{tensor.get('name', '')}' {where} contains property other than {listed}."
            )
        if "name" not in tensor:
            raise ValueError(f"{what} {where} is missing 'name' property.")
        name = tensor["name"]
        for key in ("data_type", "dims"):
            if key not in tensor:
                raise ValueError(f"{what} '{name}' {where} is missing '{key}' property.")
        tensors: list[Any] = self._model_config[what]
        for configured in tensors:
            if configured["name"] == name:
                self._agree(what, configured, tensor)
                return
        tensors.append(tensor)

    def _agree(self, what: str, configured: dict[str, Any], tensor: Mapping[str, Any]) -> None:
        """Fill fields that the configuration lacks; a difference in the others fails the load."""
        name, data_type = tensor["name"], configured["data_type"]
        if data_type not in ("TYPE_INVALID", tensor["data_type"]):
            raise ValueError(
                f"unable to load model '{self._name}', configuration expects datatype {data_type} "
                f"for {what} '{name}', model provides {tensor['data_type']}"
            )
        for key in ("dims", "optional"):
            if key not in tensor or key not in configured:
                continue
            if configured[key] != tensor[key] and (key == "optional" or configured[key]):
                raise ValueError(
                    f"model '{self._name}', tensor '{name}': the model expects {key} {tensor[key]} "
                    f"but the model configuration specifies {key} {configured[key]}"
                )
        configured.update(tensor)


def completing(config: dict[str, Any]) -> AutoCompleteConfig:
    """Wrap a configuration to complete; the dict is changed."""
    made = AutoCompleteConfig("{}")
    made._model_config = config  # noqa: SLF001 - models construct it from text alone
    return made
