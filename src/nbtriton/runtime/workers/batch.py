"""The requests of a batch in a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbtriton.model.tensors import Array

if TYPE_CHECKING:
    from nbtriton.runtime.workers.core.remote import RemoteRequest

__all__ = ["RequestBatch"]


class RequestBatch(list["RemoteRequest"]):
    """The requests, with their inputs as received: a backend of whole batches need not join them again.

    Attributes
    ----------
    joined : dict of str to Array
        Inputs whose rows are one array, of which the requests have views.
    """

    def __init__(self) -> None:
        super().__init__()
        self.joined: dict[str, Array] = {}
