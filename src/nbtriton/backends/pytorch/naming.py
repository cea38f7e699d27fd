"""Which tensor of a configuration is which argument and which result of ``forward``.

The rules are those of Triton's PyTorch backend: inputs by the names of the arguments of
``forward``, else by ``NAME__index``, else in the order of the configuration; outputs by the keys of
a dict, else by ``NAME__index``, else in the order of the configuration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbtriton.errors import ConfigError, InternalError, InvalidArgumentError, nearest

__all__ = ["InputOrder", "OutputOrder", "arrange_inputs", "arrange_outputs", "name_results"]

_INDEXED = re.compile(r".*__(\d+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class InputOrder:
    """How inputs are passed: by keyword, or by position in the order of `names`."""

    names: tuple[str, ...]
    by_keyword: bool


def arrange_inputs(names: Sequence[str], arguments: Sequence[str] | None) -> InputOrder:
    """Return how the inputs of a configuration are passed to ``forward``.

    Parameters
    ----------
    names : sequence of str
        In the order of the configuration.
    arguments : sequence of str or None
        Those of ``forward``; None if they cannot be known.

    Raises
    ------
    ConfigError
        ``NAME__index`` with an index twice, or one that leaves a gap.
    """
    if arguments and all(name in arguments for name in names):
        return InputOrder(tuple(names), by_keyword=True)
    matches = [_INDEXED.fullmatch(name) for name in names]
    if not all(matches):
        return InputOrder(tuple(names), by_keyword=False)
    by_index = {int(match[1]): name for match, name in zip(matches, names, strict=True) if match}
    if sorted(by_index) != list(range(len(names))):
        raise ConfigError(
            f"the indices of the inputs {', '.join(names)} are not 0 to {len(names) - 1}",
            hint="INPUT__0 is the first argument of forward, INPUT__1 the second",
            field="input",
        )
    return InputOrder(tuple(by_index[i] for i in range(len(names))), by_keyword=False)


@dataclass(frozen=True, slots=True)
class OutputOrder:
    """Each output's name, and which result it is where ``forward`` returns no dict."""

    places: tuple[tuple[str, int], ...]
    by_index: bool


def arrange_outputs(names: Sequence[str]) -> OutputOrder:
    """Return which results of ``forward`` the outputs of a configuration are."""
    matches = [_INDEXED.fullmatch(name) for name in names]
    indices = [int(match[1]) for match in matches if match]
    if not names or len(indices) < len(names):
        return OutputOrder(tuple((name, at) for at, name in enumerate(names)), by_index=False)
    return OutputOrder(tuple(zip(names, indices, strict=True)), by_index=True)


def name_results(result: Any, order: OutputOrder, *, model: str) -> dict[str, Any]:
    """Return what ``forward`` returned by output name.

    Parameters
    ----------
    result : tensor, mapping, tuple or list
    order : OutputOrder
    model : str
        For messages.

    Raises
    ------
    InvalidArgumentError
        ``NAME__index`` beyond what there is, with Triton's text.
    InternalError
        A name that the dict lacks, or a wrong number of results.
    """
    listed = isinstance(result, (tuple, list))
    if not listed and isinstance(result, Mapping):
        for name, _ in order.places:
            if name not in result:
                raise InternalError(
                    f"model '{model}' did not return the output '{name}', found "
                    + (", ".join(f"'{key}'" for key in result) or "an empty dict"),
                    hint=nearest(name, [str(key) for key in result]),
                )
        return {name: result[name] for name, _ in order.places}
    values = result if listed else (result,)
    count = len(values)
    if not order.by_index and count != len(order.places):
        raise InternalError(
            f"model '{model}' returned {count} outputs, its configuration has "
            f"{len(order.places)}: " + ", ".join(f"'{name}'" for name, _ in order.places)
        )
    found = {}
    for name, index in order.places:
        if index >= count:
            raise InvalidArgumentError(
                f"The output {name} in the model configuration refers to an output index "
                f"which doesn't exist. This model has {count} outputs"
            )
        found[name] = values[index]
    return found
