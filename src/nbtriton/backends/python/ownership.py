"""Whether anybody else can write to what a model sends: told by reference counts.

Counts are measured against code of this module, interpreted: the compiled core leaves it alone.
"""

# ruff: noqa: SLF001 - the public names of these classes are Triton's own, the others are ours
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from sys import getrefcount
from typing import Protocol

import numpy as np

from nbtriton.backends.base import BackendRequest
from nbtriton.backends.python.tensor import Tensor
from nbtriton.backends.synchronize import wait_for_outputs
from nbtriton.tensors import Array

__all__ = ["Holder", "own_outputs"]


class Holder(Protocol):
    """Something of ours that refers to arrays which a model may send, and leaves them alone."""

    def count_references(self, counts: dict[int, int]) -> None:
        """Add the references to each array, by its id.

        A `Tensor` that holds one of them is entered with 1: sent itself, it is no further reference.
        """
        ...


def own_outputs(
    tensors: Sequence[Tensor],
    holders: Iterable[Holder] = (),
    requests: Sequence[BackendRequest] = (),
) -> None:
    """Make outputs fit to leave the model: nobody else writes to them, and they are all written.

    In Triton outputs leave the process, so a model may send a buffer that it reuses, or its input.
    Here they are handed over as they are; the reference counts tell when that is not safe, and
    then a numpy array is copied. Call it when ``execute`` has returned and its local variables are
    gone. Tensors of other libraries have counts of their own and are not copied; those on a GPU
    are waited for.

    Parameters
    ----------
    tensors : sequence of Tensor
    holders : iterable of Holder
        What refers to arrays and shall not touch them again: a model that passes an input on
        shares it with nobody else.
    requests : sequence of BackendRequest
        Those that are answered. What the model got read-only stays as it is on its way to further
        steps of an ensemble, which get it read-only, too; whoever sent it has to wait for them.
    """
    for tensor in tensors:
        array = tensor._array
        if (
            type(array) is not np.ndarray
            or array.base is not None
            or getrefcount(array) > _ARRAY_COUNT
        ):
            array = None
            if requests:
                tensors = _without_inputs(tensors, requests)
            if tensors:
                _look_closer(tensors, holders)
            return


def _without_inputs(
    tensors: Sequence[Tensor], requests: Sequence[BackendRequest]
) -> Sequence[Tensor]:
    """Return the tensors without those that are read-only inputs, which are settled here."""
    inputs: set[int] = set()
    # Nothing says which request an output came from: only what all of them keep inside stays.
    inner = requests[0].inner_outputs
    for request in requests:
        if request.inner_outputs is not inner:
            inner &= request.inner_outputs
    others: list[Tensor] = []
    for tensor in tensors:
        array = tensor._array
        if type(array) is not np.ndarray or array.flags.writeable:
            others.append(tensor)
            continue
        if not inputs:
            for request in requests:
                for given in request.inputs.values():
                    inputs.add(id(given))
                    if type(given) is np.ndarray and given.base is not None:
                        inputs.add(id(given.base))
        if id(array) not in inputs and id(array.base) not in inputs:
            others.append(tensor)
            continue
        if tensor._name not in inner:
            tensor._array = array.copy()
    return others


def _look_closer(tensors: Sequence[Tensor], holders: Iterable[Holder]) -> None:
    views: list[Tensor] = []
    others: list[Tensor] = []
    foreign: list[Array] = []
    for tensor in tensors:
        array = tensor._array
        if type(array) is not np.ndarray:
            foreign.append(array)
        elif getrefcount(array) > _ARRAY_COUNT:
            others.append(tensor)
        elif array.base is not None:
            views.append(tensor)
    if foreign:
        wait_for_outputs(foreign)
    array = None
    if others:
        ours: dict[int, int] = {}
        for holder in holders:
            holder.count_references(ours)
        for tensor in others:
            array = tensor._array
            held = ours.get(id(array), 0) - ours.get(id(tensor), 0)
            if getrefcount(array) > _ARRAY_COUNT + held:
                tensor._array = array.copy()
            elif array.base is not None:
                views.append(tensor)
        array = None
    if views:
        _own_views(views)


def _own_views(tensors: Sequence[Tensor]) -> None:
    """Copy those views whose base somebody else refers to; those of one batch share theirs."""
    bases = Counter([id(tensor._array.base) for tensor in tensors])
    shared = [
        tensor
        for tensor in tensors
        if _base_count(tensor) > _BASE_COUNT + bases[id(tensor._array.base)] - 1
    ]
    for tensor in shared:
        tensor._array = tensor._array.copy()


def _base_count(tensor: Tensor) -> int:
    base = tensor._array.base
    return getrefcount(base)


def _array_count() -> int:
    tensor = Tensor._wrap("", np.empty(1))
    array = tensor._array
    return getrefcount(array)


# Measured, because interpreters differ in how many references a call itself holds.
_ARRAY_COUNT = _array_count()
_BASE_COUNT = _base_count(Tensor._wrap("", np.empty(1)[:]))
