"""Instances on the device of their context, where the memory of their weights is accounted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from nbtriton.backends.base import (
    Backend,
    BackendInstance,
    BackendRequest,
    BatchTimer,
    InstanceContext,
    Placement,
    Response,
)
from nbtriton.backends.devices.base import OutOfMemoryError, Reservation
from nbtriton.common.errors import UnavailableError


def create_instance(backend: Backend, context: InstanceContext) -> BackendInstance:
    """Create an instance on the device of its context: the host, a GPU, or a simulated GPU.

    Raises
    ------
    UnavailableError
        The model does not fit into the memory of its GPU, with Triton's text.
    """
    device = context.device
    if device is None:
        return backend.create_instance(context)
    try:
        weights = device.reserve(
            context.model.name, backend.weights_bytes(context.model), context.model
        )
    except OutOfMemoryError as error:
        raise UnavailableError(
            f"can not create model '{context.model.name}': memory limit set for GPU "
            f"{context.device_id} has exceeded, model loading is rejected.",
            hint=f"{error.message} {error.hint}",
        ) from error
    try:
        if not device.simulated or backend.knows_simulated(context):
            inner = backend.create_instance(context)
            return _Weighted(inner, weights)
        inner = backend.create_instance(replace(context, kind="KIND_CPU"))
        return _Weighted(device.hosted(inner, context.model.name, backend.operation), weights)
    except BaseException:
        weights.release()
        raise


class WrappedInstance(BackendInstance):
    """Delegates to another instance."""

    def __init__(self, inner: BackendInstance) -> None:
        self.inner = inner
        self.any_thread = inner.any_thread
        self.running = inner.running

    @property
    def readiness(self) -> Callable[[], bool] | None:  # type: ignore[override]
        """The inner instance's value."""
        return self.inner.readiness

    def execute(
        self, requests: Sequence[BackendRequest], timer: BatchTimer
    ) -> Sequence[Response | None] | None:
        """Run one batch; see `BackendInstance.execute`."""
        return self.inner.execute(requests, timer)

    def watch(self, on_lost: Callable[[str], None]) -> None:
        """See `BackendInstance.watch`."""
        self.inner.watch(on_lost)

    def restart(self) -> None:
        """See `BackendInstance.restart`."""
        self.inner.restart()

    def abandon(self) -> None:
        """See `BackendInstance.abandon`."""
        self.inner.abandon()

    def placement(self) -> Placement | None:
        """See `BackendInstance.placement`."""
        return self.inner.placement()

    def finalize(self) -> None:
        """Release the instance's resources."""
        self.inner.finalize()


class _Weighted(WrappedInstance):
    """An instance whose weights are accounted on its device."""

    def __init__(self, inner: BackendInstance, weights: Reservation) -> None:
        super().__init__(inner)
        self._weights = weights

    def finalize(self) -> None:
        """Release the memory of the weights as well."""
        try:
            super().finalize()
        finally:
            self._weights.release()
