"""The mapping of a configuration's tensors to arguments and results of ``forward``.

The rules are those of Triton's PyTorch backend (``GetNamingConvention`` of libtorch.cc). Inputs are matched
by the names of the arguments of ``forward``, else by ``NAME__index``, else in the order of the configuration;
control tensors and states of sequences by ``NAME__index``; all of them by name if ``forward`` has one
dictionary argument. Outputs are matched by the keys of a dict, else by ``NAME__index``, else in the order of
the configuration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbtriton.backends.core.batching import name_outputs
from nbtriton.common.errors import ConfigError, InvalidArgumentError

# From the first "__" on, as in Triton; an empty index counts as 0.
_INDEXED = re.compile(r"(?:(?!__).)*__(\d*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Forward:
    """The arguments of ``forward``.

    Parameters
    ----------
    arguments : tuple of str or None
        Their names; None if unknown.
    required : int
        Number of arguments without a default.
    variadic : bool
        Whether more of them are allowed (``*args``).
    dictionary : bool
        Whether the only argument is a dictionary of tensors, by name.
    """

    arguments: tuple[str, ...] | None
    required: int = 0
    variadic: bool = False
    dictionary: bool = False


@dataclass(frozen=True, slots=True)
class InputOrder:
    """The passing of inputs: by keyword, in one dictionary, or by position in the order of `names`."""

    names: tuple[str, ...]
    by_keyword: bool = False
    as_dictionary: bool = False

    def call(self, module: Any, inputs: Mapping[str, Any]) -> Any:
        """Call a module with these inputs; optional ones may be missing."""
        if self.by_keyword:
            return module(**inputs)
        if self.as_dictionary:
            return module(dict(inputs))
        return module(*[inputs[name] for name in self.names if name in inputs])


def arrange_inputs(
    names: Sequence[str], forward: Forward, indexed: Sequence[str] = ()
) -> InputOrder:
    """Return how the inputs of a configuration are passed to ``forward``.

    Parameters
    ----------
    names : sequence of str
        In the order of the configuration.
    forward : Forward
    indexed : sequence of str
        Controls and states of sequences, which are always matched by their index.

    Raises
    ------
    ConfigError
        A duplicate index of ``NAME__index``, or a gap between indices.
    """
    if forward.dictionary:
        return InputOrder((*names, *indexed), as_dictionary=True)
    arguments = forward.arguments or ()
    if arguments and all(name in arguments for name in names):
        if not indexed:
            return InputOrder(tuple(names), by_keyword=True)
        places = [arguments.index(name) for name in names]
    elif all(index_of(name) is not None for name in names):
        places = [index_of(name) or 0 for name in names]
    elif not indexed:
        return InputOrder(tuple(names))
    else:
        places = list(range(len(names)))
    places += [index_of(name) or 0 for name in indexed]
    everything = (*names, *indexed)
    if sorted(places) != list(range(len(everything))):
        raise ConfigError(
            f"the indices of the inputs {', '.join(everything)} are not 0 to {len(everything) - 1}",
            hint="INPUT__0 is the first argument of forward, INPUT__1 the second",
            field="input",
        )
    return InputOrder(tuple(name for _, name in sorted(zip(places, everything, strict=True))))


def index_of(name: str) -> int | None:
    """Return the index of ``NAME__index``; None for a name of another form."""
    match = _INDEXED.fullmatch(name)
    return int(match[1] or 0) if match else None


@dataclass(frozen=True, slots=True)
class OutputOrder:
    """The outputs' names, and their indices among the results if all of them are ``NAME__index``."""

    names: tuple[str, ...]
    indices: tuple[int, ...] = ()


def arrange_outputs(names: Sequence[str]) -> OutputOrder:
    """Return the result of ``forward`` for each output of a configuration."""
    indices = tuple(index for index in map(index_of, names) if index is not None)
    return OutputOrder(tuple(names), indices if len(indices) == len(names) else ())


def name_results(result: Any, order: OutputOrder, *, model: str) -> dict[str, Any]:
    """Return the results of ``forward`` by output name.

    Parameters
    ----------
    result : tensor, mapping, tuple or list
    order : OutputOrder
    model : str
        For messages.

    Raises
    ------
    InvalidArgumentError
        ``NAME__index`` beyond the results, with Triton's text.
    InternalError
        A name missing in the dict, or a wrong number of results.
    """
    values = result if isinstance(result, (tuple, list)) else (result,)
    by_name = values is not result and isinstance(result, Mapping)
    if by_name or not order.indices:
        return name_outputs(result if by_name else values, order.names, model=model, exact=False)
    results = {}
    for name, index in zip(order.names, order.indices):  # noqa: B905 - of one length
        if index >= len(values):
            raise InvalidArgumentError(
                f"The output {name} in the model configuration refers to an output index "
                f"which doesn't exist. This model has {len(values)} outputs"
            )
        results[name] = values[index]
    return results
