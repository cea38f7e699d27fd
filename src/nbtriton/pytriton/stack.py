"""Decorated inference functions, whose decorators may read the bound model's configuration.

A decorator makes a `Decorated`. `attach` copies a stack of them with a configuration, so that one
function may be bound to several models.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nbtriton.pytriton.exceptions import PyTritonValidationError
from nbtriton.pytriton.model_config import TritonModelConfig

__all__ = ["Decorated", "ModelConfigs", "TritonContext", "attach", "convert_output", "mapped"]


class ModelConfigs(Mapping[Callable[..., Any], TritonModelConfig]):
    """Configurations by bound function, decorated or not."""

    def __init__(self) -> None:
        self._configs: dict[int, tuple[Callable[..., Any], TritonModelConfig]] = {}

    def add(self, function: Callable[..., Any], config: TritonModelConfig) -> None:
        """Add a bound function."""
        bare = _bare(function)
        self._configs[_key(bare)] = bare, config

    def __getitem__(self, function: Callable[..., Any]) -> TritonModelConfig:
        return self._configs[_key(_bare(function))][1]

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        return iter([function for function, _ in self._configs.values()])

    def __len__(self) -> int:
        return len(self._configs)


@dataclass
class TritonContext:
    """Argument of a function by ``@triton_context``.

    Attributes
    ----------
    model_configs : ModelConfigs
        By bound function, such as ``triton_context.model_configs[infer_fn]``.
    """

    model_configs: ModelConfigs = field(default_factory=ModelConfigs)


# One decorator's call of a function with its arguments.
Handler = Callable[["Decorated", tuple[Any, ...], dict[str, Any]], Any]


class Decorated:
    """A function with one decorator; as an attribute of a class a method.

    Parameters
    ----------
    function : callable
        May be decorated.
    handler : callable
        The decorator.
    config : TritonModelConfig, optional
        Configuration of the bound model.
    context : TritonContext, optional
        Context of the Triton.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        handler: Handler,
        config: TritonModelConfig | None = None,
        context: TritonContext | None = None,
    ) -> None:
        # Copies name and signature of the function; sets `__wrapped__`.
        functools.update_wrapper(self, function, updated=())
        self.function = function
        self.handler = handler
        self._config = config
        self._context = context

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.handler(self, args, kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Decorated:
        if instance is None:
            return self
        method = self.function.__get__(instance, owner)
        return Decorated(method, self.handler, self._config, self._context)

    @property
    def config(self) -> TritonModelConfig:
        """Configuration of the bound model."""
        if self._config is None:
            raise PyTritonValidationError(
                f"'{_name(self)}' is not bound to a model, whose configuration its decorator reads",
                hint="Triton().bind(model_name=…, infer_func=…)",
            )
        return self._config

    @property
    def context(self) -> TritonContext:
        """Context of the Triton."""
        return TritonContext() if self._context is None else self._context

    @property
    def handlers(self) -> list[Handler]:
        """Decorators, from this one inwards."""
        inner = self.function
        return [self.handler, *(inner.handlers if isinstance(inner, Decorated) else [])]


def attach(
    function: Callable[..., Any], config: TritonModelConfig, context: TritonContext
) -> Callable[..., Any]:
    """Return a copy of the function whose decorators have the model's configuration."""
    if isinstance(function, Decorated):
        inner = attach(function.function, config, context)
        return Decorated(inner, function.handler, config, context)
    if isinstance(function, functools.partial):
        inner = attach(function.func, config, context)
        return functools.partial(inner, *function.args, **function.keywords)
    call = inspect.getattr_static(type(function), "__call__", None)
    if isinstance(call, Decorated):  # an object whose `__call__` is decorated
        return attach(call.__get__(function, type(function)), config, context)
    return function


def convert_output(result: Any, config: TritonModelConfig) -> dict[str, Any]:
    """Return outputs by name; a list or tuple is in the order of the configuration.

    Raises
    ------
    PyTritonValidationError
        The number of outputs or the type of the result is wrong.
    """
    if isinstance(result, Mapping):
        return dict(result)
    if not isinstance(result, list | tuple):
        raise PyTritonValidationError(
            f"model '{config.model_name}': the function returned {type(result).__name__}",
            hint="a dict of arrays, or a list of them in the order of the outputs",
        )
    if len(result) != len(config.outputs):
        names = ", ".join(tensor.name for tensor in config.outputs)
        raise PyTritonValidationError(
            f"model '{config.model_name}': the function returned {len(result)} outputs instead of "
            f"{len(config.outputs)}: {names}"
        )
    return {tensor.name: value for tensor, value in zip(config.outputs, result, strict=True)}


def mapped(result: Any, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to a function's result, to each item of a generator, or to the awaited result."""
    if inspect.isgenerator(result):
        return (change(item) for item in result)
    if inspect.isasyncgen(result):
        return (change(item) async for item in result)
    if inspect.isawaitable(result):

        async def changed() -> Any:
            return change(await result)

        return changed()
    return change(result)


def _bare(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, Decorated):
        function = function.function
    return function


def _key(function: Callable[..., Any]) -> int:
    # A bound method is a new object each time.
    owner = getattr(function, "__self__", None)
    return hash((id(owner), id(function.__func__))) if inspect.ismethod(function) else id(function)


def _name(function: object) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))
