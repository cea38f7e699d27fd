"""The errors of a request, in the order in which Triton finds them (A3 to A11).

Names of outputs, the number of inputs, all batch sizes, then each input by itself: datatype, shape, bytes. Only a
request that will be refused comes here.

Errors of several inputs name the first one in the order of Triton's hash table; lists of names in messages, and the
outputs of an ensemble, follow it. It is that of ``std::unordered_map<std::string, …>`` in GNU's C++ library, whose
hash has no seed: the same names inserted in the same order always have the same order. It is
computed only when a request is refused or a model is loaded.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from nbtriton.common.errors import InvalidArgumentError, nearest
from nbtriton.model.config import TensorSpec
from nbtriton.model.tensors import format_shape, numpy_dtype

# Numbers of buckets as the table grows: the library's primes.
_SIZES = (13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273)
_64_BITS = (1 << 64) - 1
_SEED = 0xC70F6907
_FACTOR = 0xC6A4A7935BD1E995


def hash_order(names: Iterable[str]) -> list[str]:
    """Return names in the order in which Triton's table lists them after their insertion in this order."""
    listed: list[str] = []
    size = _SIZES[0]
    hashes: dict[str, int] = {}
    for count, name in enumerate(names, start=1):
        hashes[name] = _hash(name.encode("utf-8", "surrogateescape"))
        if count > size:
            size = _SIZES[min(bisect(_SIZES, size), len(_SIZES) - 1)]
            before, listed = listed, []
            for known in before:
                _insert(listed, known, hashes, size)
        _insert(listed, name, hashes, size)
    return listed


def _insert(listed: list[str], name: str, hashes: dict[str, int], size: int) -> None:
    """Put a name before the others of its bucket, or before all if its bucket is empty."""
    bucket = hashes[name] % size
    places = (place for place, other in enumerate(listed) if hashes[other] % size == bucket)
    listed.insert(next(places, 0), name)


def _hash(text: bytes) -> int:
    """Return ``std::hash<std::string>`` of 64 bits, a MurmurHash."""
    whole = len(text) & ~7
    found = _SEED ^ (len(text) * _FACTOR & _64_BITS)
    for at in range(0, whole, 8):
        block = _mixed(int.from_bytes(text[at : at + 8], "little") * _FACTOR & _64_BITS)
        found = (found ^ (block * _FACTOR & _64_BITS)) * _FACTOR & _64_BITS
    if whole < len(text):
        found = (found ^ int.from_bytes(text[whole:], "little")) * _FACTOR & _64_BITS
    return _mixed(_mixed(found) * _FACTOR & _64_BITS)


def _mixed(value: int) -> int:
    return value ^ (value >> 47)


def fits(shape: Sequence[int], dims: Sequence[int]) -> bool:
    """Return True if a shape is one of those that ``dims`` allows, where -1 is any size."""
    return len(shape) == len(dims) and all(
        want in (-1, found) for want, found in zip(dims, shape, strict=True)
    )


# The declared datatype and shape of an input.
Claim = tuple[str, tuple[int, ...]]

# Triton keeps the batch size in 32 bits without a sign, and compares it with one.
_INT32_MAX = (1 << 31) - 1
_SHAPE_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be "
    "prepended to each input shape. If you want to specify the full shape including the batch dim "
    "in your input dims config, try setting max_batch_size to zero. See the model configuration "
    "docs for more info on max_batch_size."
)


@dataclass(frozen=True, slots=True)
class Faults:
    """Finder of the errors of requests to one model.

    Parameters
    ----------
    model : str
    max_batch_size : int
    inputs : mapping of str to TensorSpec
    outputs : collection of str
    """

    model: str
    max_batch_size: int
    inputs: Mapping[str, TensorSpec]
    outputs: Collection[str]

    def check(
        self,
        claims: Mapping[str, Claim],
        outputs: Collection[str] = (),
        request_id: str = "",
        look: Callable[[str, int], None] | None = None,
    ) -> None:
        """Raise Triton's error for a request, if it has one.

        Parameters
        ----------
        claims : mapping of str to (datatype, shape)
            In the order in which the client named them.
        outputs : collection of str
            The requested ones.
        request_id : str
        look : callable, optional
            ``look(name, count)`` raises if an input does not have the bytes of `count` elements; by
            default it has those of its shape.

        Raises
        ------
        InvalidArgumentError
            With Triton's text.
        """
        prefix = f"[request id: {request_id or '<id_unknown>'}] "
        for name in outputs:
            if name not in self.outputs:
                raise InvalidArgumentError(
                    f"unexpected inference output '{name}' for model '{self.model}'",
                    hint=f"outputs are a list of names: ['{outputs}']"
                    if isinstance(outputs, str)
                    else nearest(name, self.outputs),
                )
        names = hash_order(claims)
        required = [name for name, spec in self.inputs.items() if not spec.optional]
        missing = [name for name in required if name not in claims]
        if not len(required) <= len(claims) <= len(self.inputs):
            self._refuse_count(names, len(required), missing, prefix)
        batch_size = self._batch_size(claims, names, prefix)
        if self.max_batch_size < batch_size <= _INT32_MAX:
            raise InvalidArgumentError(
                f"{prefix}inference request batch-size must be <= {self.max_batch_size} for "
                f"'{self.model}'",
                hint=self._lacks_batch_hint(claims)
                or f"found {batch_size}; a request is never split",
            )
        for name in names:
            spec, (_, shape) = self.inputs[name], claims[name]
            item = self._item_of(spec, claims[name], prefix)
            # A batch of 0 counts as one item here: Triton reports its content as missing (A14).
            count = math.prod(item) * (1 if spec.is_shape_tensor else batch_size or 1)
            if look is not None:
                look(name, count)
            elif math.prod(shape) != count:
                self._refuse_bytes(spec, math.prod(shape), count, prefix)
        if missing:  # optional ones replace them, which Triton does not notice
            raise InvalidArgumentError(
                f"{prefix}expected all required inputs for model '{self.model}'. "
                f"{_lists(names, missing)}"
            )
        if self.max_batch_size and not batch_size and claims:
            raise InvalidArgumentError(
                f"{prefix}inference request batch-size must be >= 1 for '{self.model}'",
                hint="the batch dimension is 0",
            )

    def _refuse_count(
        self, names: list[str], required: int, missing: list[str], prefix: str
    ) -> None:
        most = len(self.inputs)
        expected = (
            f"number of inputs between {required} and {most}"
            if required < most
            else f"{most} inputs"
        )
        unknown = [name for name in names if name not in self.inputs]
        raise InvalidArgumentError(
            f"{prefix}expected {expected} but got {len(names)} inputs for model '{self.model}'. "
            f"{_lists(names, missing)}",
            hint=nearest(unknown[0], self.inputs) if unknown else "",
        )

    def _batch_size(self, claims: Mapping[str, Claim], names: list[str], prefix: str) -> int:
        """Return the batch size as Triton computes it: it takes a 0 for a missing batch size."""
        size = 0
        for name in names:
            if name not in self.inputs:
                raise InvalidArgumentError(
                    f"unexpected inference input '{name}' for model '{self.model}'",
                    hint=nearest(name, self.inputs),
                )
            if not self.max_batch_size or self.inputs[name].is_shape_tensor:
                continue
            shape = claims[name][1]
            if not shape:
                raise InvalidArgumentError(
                    f"{prefix}input '{name}' has no shape but model requires batch dimension for "
                    f"'{self.model}'"
                )
            if size not in (0, shape[0]):
                raise InvalidArgumentError(
                    f"{prefix}input '{name}' batch size does not match other inputs for "
                    f"'{self.model}'",
                    hint=f"found {shape[0]} and {size}",
                )
            size = shape[0] if shape[0] >= 0 else shape[0] % (1 << 32)
        return size

    def _item_of(self, spec: TensorSpec, claim: Claim, prefix: str) -> tuple[int, ...]:
        """Return the shape of one item, if datatype and shape are the model's."""
        datatype, shape = claim
        if datatype != spec.datatype:
            raise InvalidArgumentError(
                f"{prefix}inference input '{spec.name}' data-type is '{datatype}', but model "
                f"'{self.model}' expects '{spec.datatype}'",
                hint=f"convert it, for example with {_conversion(spec.datatype)}",
            )
        batches = self.max_batch_size > 0
        item = shape[1:] if batches and not spec.is_shape_tensor else shape
        if spec.is_shape_tensor and batches and shape == (spec.dims[0] + 1,):
            return item  # G9: preceded by the batch size
        if len(item) == len(spec.dims):
            for want, found in zip(spec.dims, item, strict=True):
                if found == -1:
                    raise InvalidArgumentError(
                        f"{prefix}All input dimensions should be specified for input '{spec.name}' "
                        f"for model '{self.model}', got {format_shape(shape)}"
                    )
                if want not in (-1, found):
                    break
            else:
                return item
        dims = (-1, *spec.dims) if batches else spec.dims
        raise InvalidArgumentError(
            f"{prefix}unexpected shape for input '{spec.name}' for model '{self.model}'. "
            f"Expected {format_shape(dims)}, got {format_shape(shape)}. "
            f"{_SHAPE_NOTE if batches else ''}",
            hint=self._lacks_batch_hint({spec.name: claim}) or _wrong_dimension(dims, shape),
        )

    def _lacks_batch_hint(self, claims: Mapping[str, Claim]) -> str:
        """Return advice if the shape of an input is that of one row."""
        for name, (_, shape) in claims.items():
            if self.max_batch_size and fits(shape, self.inputs[name].dims):
                return f"add the batch dimension: {name}[None] is a batch of one"
        return ""

    def _refuse_bytes(self, spec: TensorSpec, found: int, count: int, prefix: str) -> None:
        if spec.datatype == "BYTES":
            raise InvalidArgumentError(
                f"{prefix}expected {count} string elements for inference input '{spec.name}' for "
                f"model '{self.model}', got {found}",
                hint="the batch dimension is 0",
            )
        size = 2 if spec.datatype == "BF16" else numpy_dtype(spec.datatype).itemsize
        raise InvalidArgumentError(
            f"{prefix}input byte size mismatch for input '{spec.name}' for model '{self.model}'. "
            f"Expected {count * size}, got {found * size}",
            hint="the batch dimension is 0",
        )


def _wrong_dimension(dims: Sequence[int], shape: Sequence[int]) -> str:
    """Return which dimension of a shape is wrong, or that their number is."""
    if len(dims) != len(shape):
        return f"{len(shape)} dimension{'s' * (len(shape) != 1)} instead of {len(dims)}"
    wrong = [
        f"dimension {index} is {found} instead of {want}"
        for index, (want, found) in enumerate(zip(dims, shape, strict=True))
        if want not in (-1, found)
    ]
    return ", ".join(wrong)


def _lists(names: list[str], missing: list[str]) -> str:
    given = ",".join(f"'{name}'" for name in names)
    lacking = ",".join(f"'{name}'" for name in missing)
    return (
        f"Got input(s) [{given}], but missing required input(s) {f'[{lacking}]' if missing else ']'}. "
        "Please provide all required input(s)."
    )  # A5: the bracket that is missing is missing in Triton


def _conversion(datatype: str) -> str:
    if datatype == "BF16":  # which NumPy alone does not have
        return ".astype(ml_dtypes.bfloat16), or .to(torch.bfloat16) of a tensor of torch"
    return f".astype('{'object' if datatype == 'BYTES' else numpy_dtype(datatype).name}')"
