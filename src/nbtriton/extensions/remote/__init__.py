"""A model of a running Triton as a model here: a step of an ensemble, and a target of every magic."""

from __future__ import annotations

from typing import ClassVar

from nbtriton.backends.base import (
    Backend,
    BackendInstance,
    BackendRequest,
    InstanceContext,
    ModelContext,
)
from nbtriton.common.errors import ConfigError, InvalidArgumentError
from nbtriton.extensions.remote.calls import Calls, RemoteInstance, StreamingInstance
from nbtriton.extensions.remote.model import RemoteModel, remote
from nbtriton.model.config import ModelConfig, copy_config
from nbtriton.model.config._proto import KINDS
from nbtriton.serving.clients.base import NO_STREAMS

__all__ = ["RemoteBackend", "RemoteModel", "remote"]

# Executions at once for each instance there: while one is on its way, the other one computes.
_OUTSTANDING = 2
_MOST_INSTANCES = 64


class RemoteBackend(Backend):
    """Sends batches to a model of a running Triton, and gives what it answers.

    Parameters of the configuration: ``REMOTE_URL``, and the options of `nbtriton.remote` in capitals, such as
    ``REMOTE_TIMEOUT_S``.
    """

    name: ClassVar[str] = "remote"
    needs_source: ClassVar[bool] = False

    def __init__(self) -> None:
        self._calls: Calls | None = None

    @classmethod
    def accepts(cls, source: object) -> bool:
        """Return True for what `nbtriton.remote` returns."""
        return isinstance(source, RemoteModel)

    def prefers_gpu(self) -> bool:
        """Return False: it computes elsewhere."""
        return False

    def complete_config(self, context: ModelContext) -> ModelConfig:
        """Fill in what the server says of its model.

        Raises
        ------
        UnavailableError
            The server does not answer.
        NotFoundError
            It has no such model.
        """
        far = self._far(context)
        with far.client() as client:
            theirs = client.config(far.model or context.name, far.version)
        return completed(context.config, theirs, far)

    def check(self, context: ModelContext) -> None:
        """Check that the protocol can do what the model does."""
        far = self._far(context)
        if context.config.model_transaction_policy.decoupled and far.protocol != "grpc":
            raise InvalidArgumentError(
                NO_STREAMS, hint=f"model '{context.name}' is decoupled: give --protocol grpc, and the port for it"
            )  # fmt: skip

    def open(self, context: ModelContext) -> None:
        """Make the client."""
        far = self._far(context)
        self._calls = Calls(far.client(), far, far.model or context.name, context.config)

    def create_instance(self, context: InstanceContext) -> BackendInstance:
        """Create one instance."""
        assert self._calls is not None
        if context.model.config.model_transaction_policy.decoupled:
            return StreamingInstance(self._calls)
        return RemoteInstance(self._calls)

    def cancelled(self, request: BackendRequest) -> None:
        """Give a request up at the server, too."""
        if self._calls is not None:
            self._calls.cancel(request)

    def close(self) -> None:
        """Close the connections."""
        if self._calls is not None:
            self._calls.close()

    def _far(self, context: ModelContext) -> RemoteModel:
        source = context.source
        return source if isinstance(source, RemoteModel) else RemoteModel.of(context.config)


def completed(given: ModelConfig, theirs: ModelConfig, far: RemoteModel) -> ModelConfig:
    """Return a configuration with the tensors and the batching of a remote model.

    Parameters
    ----------
    given : ModelConfig
        Where it has tensors, a batcher or instances, they stay. ``max_batch_size`` may be smaller than there.
    theirs : ModelConfig
        As the remote server completed it.
    far : RemoteModel

    Raises
    ------
    ConfigError
        The largest batch is larger than that of the remote model.
    """
    config = copy_config(given)
    config.backend = RemoteBackend.name
    for key, value in far.parameters().items():
        config.parameters[key].string_value = value
    if not config.input and not config.output:
        for tensor in theirs.input:
            config.input.add(
                name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, optional=tensor.optional,
                allow_ragged_batch=tensor.allow_ragged_batch, is_shape_tensor=tensor.is_shape_tensor,
            )  # fmt: skip
        for output in theirs.output:
            config.output.add(name=output.name, data_type=output.data_type, dims=output.dims)
    if config.max_batch_size > theirs.max_batch_size:
        raise ConfigError(
            f"max_batch_size of model '{config.name}' is {config.max_batch_size}, that of the remote model {theirs.max_batch_size}",
            field="max_batch_size",
        )
    config.max_batch_size = config.max_batch_size or theirs.max_batch_size
    config.model_transaction_policy.decoupled = theirs.model_transaction_policy.decoupled
    count = sum(max(1, group.count) for group in theirs.instance_group if not group.passive) or 1
    if config.WhichOneof("scheduling_choice") is None:
        _schedule(config, theirs, count)
    if not config.instance_group:
        config.instance_group.add(
            count=min(_OUTSTANDING * count, _MOST_INSTANCES), kind=KINDS["KIND_CPU"]
        )
    return config


def _schedule(config: ModelConfig, theirs: ModelConfig, count: int) -> None:
    """Form batches here where they are formed there, and keep the order of each sequence."""
    sequences = theirs.sequence_batching
    # An iterative model is asked once for each answer, whatever sequence that is there.
    if theirs.HasField("sequence_batching") and not sequences.iterative_sequence:
        slots = sequences.oldest.max_candidate_sequences or max(1, theirs.max_batch_size)
        config.sequence_batching.max_sequence_idle_microseconds = (
            sequences.max_sequence_idle_microseconds
        )
        config.sequence_batching.oldest.max_candidate_sequences = slots * count
    elif theirs.HasField("dynamic_batching"):
        config.dynamic_batching.SetInParent()
