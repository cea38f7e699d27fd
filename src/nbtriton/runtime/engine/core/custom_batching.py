"""Custom batching: a user's five functions as the strategy of a model's batcher (G8, V46, V47).

The functions are Triton's ``TRITONBACKEND_ModelBatch…`` without their prefix, in Python's spelling;
what C returns through pointers is returned here.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from nbtriton.backends.base import ModelContext
from nbtriton.backends.tracebacks import model_error
from nbtriton.common.errors import ConfigError, NotFoundError
from nbtriton.common.foreign import BATCH_STRATEGY, batch_strategy_in
from nbtriton.model.config import STRATEGY_PATH, ModelConfig
from nbtriton.scheduling import Ticket

_log = logging.getLogger("nbtriton.runtime.engine")

# The names of the functions, and their parameters.
_HOOKS: Final[Mapping[str, tuple[str, ...]]] = {
    "model_batch_include_request": ("request", "batch"),
    "model_batch_initialize": ("batcher",),
    "model_batch_finalize": ("batch",),
    "model_batcher_initialize": ("model",),
    "model_batcher_finalize": ("batcher",),
}


class CustomBatching:
    """A `nbtriton.scheduling.BatchStrategy` made of the five functions.

    They run while the scheduler decides, so they must be quick and must not call the server. An
    exception in ``model_batch_initialize`` or ``model_batch_include_request`` fails the request in
    question; exceptions in the others are logged, as in Triton.

    Parameters
    ----------
    model : str
        For messages.
    hooks : mapping of str to callable
    """

    def __init__(self, model: str, hooks: Mapping[str, Callable[..., Any]]) -> None:
        self._model = model
        self._hooks = hooks
        self._include = hooks["model_batch_include_request"]
        self._batcher: Any = None
        self._opened = False

    def open(self, context: ModelContext) -> None:
        """Initialize the batcher, before the model's instances are created.

        Raises
        ------
        ModelError
            The function raised: the load fails.
        """
        try:
            self._batcher = self._hooks["model_batcher_initialize"](context)
        except BaseException as error:
            raise model_error("", error) from error
        self._opened = True

    def close(self) -> None:
        """Finalize the batcher, once, after the last batch."""
        if self._opened:
            self._opened = False
            self._finalize("model_batcher_finalize", self._batcher)

    def initialize(self) -> Any:
        """Begin a batch; see `nbtriton.scheduling.BatchStrategy`."""
        try:
            return self._hooks["model_batch_initialize"](self._batcher)
        except BaseException as error:
            raise self._failure("model_batch_initialize", error) from error

    def include(self, state: Any, ticket: Ticket) -> bool:
        """Ask whether a request may join the batch."""
        try:
            answer = self._include(ticket, state)
            if answer is None:
                raise TypeError("it returned None, expected True or False")
            return bool(answer)
        except BaseException as error:
            raise self._failure("model_batch_include_request", error) from error

    def finalize(self, state: Any) -> None:
        """End a batch."""
        self._finalize("model_batch_finalize", state)

    def _finalize(self, hook: str, argument: Any) -> None:
        try:
            self._hooks[hook](argument)
        except BaseException:
            _log.exception("%s of model '%s' raised", hook, self._model)

    def _failure(self, hook: str, error: BaseException) -> Exception:
        return model_error(f"custom batching of model '{self._model}' failed in {hook}: ", error)


def find_strategy(
    context: ModelContext, batching: object | None, model: object
) -> CustomBatching | None:
    """Return the strategy of a model, or None if it has none.

    Parameters
    ----------
    context : ModelContext
    batching : object or None
        The caller's argument: a class, which is instantiated, or any object with the functions.
    model : object
        The model's class or module, which may define the functions itself. As with Triton's
        libraries beside a model, they are used by the dynamic batcher only.

    Raises
    ------
    ConfigError
        Some of the functions are missing, or the model does not batch dynamically.
    ModelError
        The class could not be instantiated.
    """
    config = context.config
    if batching is None:
        if config.HasField("dynamic_batching") and any(hasattr(model, name) for name in _HOOKS):
            return CustomBatching(context.name, _hooks(model, context.name))
        _note_library(context)
        return None
    if config.HasField("sequence_batching"):
        raise ConfigError(
            f"{STRATEGY_PATH} cannot be specified with sequence batcher, using default batching "
            "strategy",
            hint="custom batching adds to the dynamic batcher",
            field="sequence_batching",
        )
    if not config.HasField("dynamic_batching"):
        raise ConfigError(
            f"custom batching of model '{context.name}' needs the dynamic batcher",
            hint="add dynamic_batching { } to the configuration",
            field="dynamic_batching",
        )
    if isinstance(batching, type):
        try:
            batching = batching()
        except BaseException as error:
            raise model_error("", error) from error
    return CustomBatching(context.name, _hooks(batching, context.name))


def check_library(config: ModelConfig) -> None:
    """Check that the C library named in a configuration exists (V47).

    Raises
    ------
    NotFoundError
        With Triton's text.
    """
    path = _configured(config)
    if path and not Path(path).exists():
        raise NotFoundError(
            f"Batching library path not found: {path}",
            hint=f"remove the parameter {STRATEGY_PATH}; here a strategy is Python: batching=…",
        )


def _note_library(context: ModelContext) -> None:
    """Warn that a library is not used: the dynamic batcher runs without it."""
    library = _configured(context.config) or _beside(context)
    if library and context.config.HasField("dynamic_batching"):
        _log.warning("model '%s': %s is not used: %s", context.name, library, BATCH_STRATEGY)


def _configured(config: ModelConfig) -> str:
    if STRATEGY_PATH not in config.parameters:
        return ""
    return config.parameters[STRATEGY_PATH].string_value


def _beside(context: ModelContext) -> str:
    directory = context.model_directory
    if directory is None:
        return ""
    return str(batch_strategy_in((directory / str(context.version), directory)) or "")


def _hooks(strategy: object, model: str) -> dict[str, Callable[..., Any]]:
    name = getattr(strategy, "__name__", type(strategy).__name__)
    found = {hook: getattr(strategy, hook, None) for hook in _HOOKS}
    missing = [hook for hook, function in found.items() if not callable(function)]
    if missing:
        raise ConfigError(
            f"{name} does not define all required custom batching functions for model {model}",
            hint="missing: " + ", ".join(missing),
            field="batching",
        )
    hooks = {hook: function for hook, function in found.items() if function is not None}
    for hook, function in hooks.items():
        _check_arguments(name, hook, function, static=isinstance(strategy, type))
    return hooks


def _check_arguments(name: str, hook: str, function: Callable[..., Any], *, static: bool) -> None:
    expected = _HOOKS[hook]
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function written in C may have no signature
        return
    try:
        signature.bind(*expected)
    except TypeError:
        raise ConfigError(
            f"{name}.{hook}{signature} does not take ({', '.join(expected)})",
            hint="on a model's class the functions are static: write @staticmethod above each"
            if static
            else "",
            field="batching",
        ) from None
