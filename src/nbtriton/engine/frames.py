"""What pandas users get: the outputs of a request, and the state of the models, as DataFrames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from nbtriton.packages import needed
from nbtriton.tensors import Array, to_numpy

if TYPE_CHECKING:
    import pandas as pd

    from nbtriton.engine.core.snapshot import ModelSnapshot
    from nbtriton.engine.server import Server

__all__ = ["frame_of", "status"]


def frame_of(outputs: Mapping[str, Array]) -> pd.DataFrame:
    """Return one row for each row of the batch; see `nbtriton.InferenceResult.to_frame`."""
    with needed("to_frame"):
        import pandas as pd

    arrays = {name: to_numpy(array) for name, array in outputs.items()}
    rows = {array.shape[0] if array.ndim else None for array in arrays.values()}
    if len(rows) != 1 or None in rows:
        # No common batch dimension: all of it is one row.
        arrays = {name: array[None] for name, array in arrays.items()}
    return pd.DataFrame({name: _column(array) for name, array in arrays.items()})


def _column(array: np.ndarray[Any, Any]) -> Any:
    """Return what stands in each row: a number or a string, or a list of them."""
    if array.dtype.kind in "OS":
        texts = np.empty(array.shape, object)
        texts.reshape(-1)[:] = [_text(item) for item in array.reshape(-1)]
        array = texts
    if array.size == array.shape[0]:
        return array.reshape(-1)
    return list(array.tolist())


def _text(item: object) -> object:
    """Return a string; bytes that are no UTF-8 stay bytes."""
    if not isinstance(item, bytes):
        return item
    try:
        return item.decode()
    except UnicodeDecodeError:
        return item


def status(server: Server, name: str | None = None) -> pd.DataFrame:
    """Return the models, their state, queues and statistics, one row a version.

    Parameters
    ----------
    server : Server
    name : str, optional
        By default all models.

    Returns
    -------
    pandas.DataFrame
        Durations are means per successful request, in microseconds.
    """
    with needed("a table of models"):
        import pandas as pd

    shown = [model for model in server.models() if name in (None, model.name)]
    frame = pd.DataFrame([_row(model) for model in shown], columns=_COLUMNS)
    if any(model.ignored for model in shown):
        frame["ignored"] = [", ".join(model.ignored) for model in shown]
    return frame


_COLUMNS = (
    "model", "version", "state", "platform", "instances", "max_batch_size", "queued", "executing",
    "requests", "failed", "inferences", "executions", "mean_batch_size", "queue_us", "compute_us",
)  # fmt: skip


def _row(model: ModelSnapshot) -> tuple[Any, ...]:
    per_request_us = 1 / (1000 * model.success_count) if model.success_count else float("nan")
    compute_ns = model.compute_input_ns + model.compute_infer_ns + model.compute_output_ns
    kinds = [instance.kind.removeprefix("KIND_") for instance in model.instances]
    return (
        model.name,
        model.version,
        model.state if not model.reason else f"{model.state}: {model.reason}",
        model.platform,
        " + ".join(f"{kinds.count(kind)} \u00d7 {kind}" for kind in dict.fromkeys(kinds)),
        model.max_batch_size,
        model.queued,
        model.executing,
        model.success_count,
        model.fail_count,
        model.inference_count,
        model.execution_count,
        model.inference_count / model.execution_count if model.execution_count else float("nan"),
        round(model.queue_ns * per_request_us, 1),
        round(compute_ns * per_request_us, 1),
    )
