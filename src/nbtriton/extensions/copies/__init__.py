"""The copies between host and GPUs as a DataFrame: their edges, sizes and the steps that cause them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbtriton.backends.devices.ledger import BY_LINE, HOST, Copied
from nbtriton.common.checks import SERVER, check
from nbtriton.common.packages import needed
from nbtriton.model.config import ModelConfig, enum_name, is_ensemble
from nbtriton.model.config.parameters import text_parameter
from nbtriton.runtime.engine.server import Server
from nbtriton.runtime.engine.status import configs_of

if TYPE_CHECKING:
    import pandas as pd


_COLUMNS = (
    "ensemble", "tensor", "writer", "reader", "source", "target", "copies", "requests", "bytes",
    "bytes_per_request", "us_per_copy", "us_per_request", "clock", "bounce", "cause",
)  # fmt: skip
# The columns for a narrow page.
_FIRST = (
    "tensor", "source", "target", "copies", "bytes_per_request", "us_per_request", "writer", "reader",
)  # fmt: skip


def copies(server: Server, *, clear: bool = False) -> pd.DataFrame:
    """Return the copies between host, GPUs and nodes since the server began, one row for each edge and direction.

    Parameters
    ----------
    server : Server
    clear : bool
        Reset the counts after this table.

    Returns
    -------
    pandas.DataFrame
        ``writer`` and ``reader`` are ``model.TENSOR``, or ``host`` for a caller; ``tensor`` is the edge's
        name in the ensembles that have it. For copies by a model's own code it is ``model: line 3:
        y = IN.get()``. For an instance on a node it is the model: the messages of its executions, and the time of
        their way with the conversion of tensors. Other times are the device's own; ``clock`` tells whether they are
        measured or simulated. ``cause`` is why the tensor had to move, and ``bounce`` the step that makes it
        leave a GPU only to come back.

    Examples
    --------
    >>> nt.copies(server)["bytes"].sum()
    0
    """
    check({"server": server}, {"server": SERVER})
    with needed("a table of copies"):
        import pandas as pd

        from nbtriton.drawing.frames import TableFrame

    ledger = server.devices.ledger
    found = ledger.copies()
    if clear:
        ledger.clear()
    graph = _Graph(configs_of(server))
    frame = pd.DataFrame([_row(one, found, graph) for one in found], columns=_COLUMNS)
    return TableFrame(
        frame, _FIRST, empty="nothing has been copied between the host and a GPU or a node"
    )


def bounces(frame: pd.DataFrame) -> list[str]:
    """Return a sentence for each step that makes tensors leave a GPU only to come back.

    Parameters
    ----------
    frame : pandas.DataFrame
        Of `copies`.
    """
    found = []
    for step, rows in frame[frame["bounce"] != ""].groupby("bounce", sort=False):
        out, back = rows[rows["target"] == "CPU"], rows[rows["target"] != "CPU"]
        requests = max(1, rows["requests"].max())
        us = (rows["copies"] * rows["us_per_copy"]).sum() / requests
        left = ", ".join(one for one in dict.fromkeys(out["writer"]) if one != HOST)
        came = ", ".join(one for one in dict.fromkeys(back["reader"]) if BY_LINE not in one)
        found.append(
            f"'{step}' takes {left or 'what it reads'} to the host and {came or 'its result'} back to a GPU: "
            f"{rows['bytes'].sum() / requests:,.0f} bytes and {us:,.0f} µs ({rows['clock'].iloc[0]}) a request, as "
            + "; ".join(dict.fromkeys(out["cause"]))
        )
    return found


def _row(one: Copied, found: Sequence[Copied], graph: _Graph) -> tuple[Any, ...]:
    edges = graph.edges_of(one)
    requests = max(1, one.requests)
    return (
        ", ".join(dict.fromkeys(edge.ensemble for edge in edges)),
        ", ".join(dict.fromkeys(edge.tensor for edge in edges)),
        one.writer, one.reader, one.source, one.target, one.copies, one.requests, one.nbytes,
        round(one.nbytes / requests, 1),
        round(one.time_ns / one.copies / 1000, 1),
        round(one.time_ns / requests / 1000, 1),
        "simulated" if one.simulated else "measured", graph.bounce(one, found), graph.cause(one),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Edge:
    """A tensor of an ensemble on its way to a step; `writer` is the model before it, if any."""

    ensemble: str
    tensor: str
    writer: str
    reader: str
    input: str


class _Graph:
    """The edges of all ensembles, and where the models run."""

    def __init__(self, configs: Mapping[str, ModelConfig]) -> None:
        self._configs = configs
        self._edges = [edge for config in configs.values() for edge in _edges_of(config)]

    def edges_to(self, reader: str) -> list[_Edge]:
        """Return the edges to ``model.INPUT``."""
        return [e for e in self._edges if reader in (f"{e.reader}.{e.input}", e.reader)]

    def edges_of(self, one: Copied) -> list[_Edge]:
        """Return the edges that a copy may have been over."""
        writer = one.writer.partition(".")[0]
        return [edge for edge in self.edges_to(one.reader) if writer in (HOST, edge.writer)]

    def cause(self, one: Copied) -> str:
        """Return why a tensor had to move."""
        reader, writer = one.reader.partition(".")[0], one.writer.partition(".")[0]
        for memory in (one.source, one.target):
            if not memory.startswith(("CPU", "GPU")):
                return f"'{reader if memory is one.target else writer}' runs on {memory}"
        if one.reader.endswith(": weights"):
            return "the model is loaded"
        owner, by_line, line = one.reader.partition(BY_LINE)
        if by_line:
            does = "puts it there" if one.source == "CPU" else "takes it to the host"
            return f"the code of '{owner}' {does} in line {line}"
        if one.reader == HOST:
            return "the caller reads it"
        if not one.source.startswith("CPU") and not one.target.startswith("CPU"):
            return f"'{writer}' runs on {one.source}, '{reader}' on {one.target}"
        if one.target == "CPU":
            return self._why_on_host(reader, takes=True)
        writers = {edge.writer for edge in self.edges_to(one.reader)}
        named = [name for name in writers if name]
        if "" in writers:  # a caller, unless a model is on the host as well
            named = [name for name in named if self._is_on_cpu(name)]
        if not named:
            return "the caller's input is on the host"
        return "; ".join(self._why_on_host(name, takes=False) for name in sorted(named))

    def bounce(self, one: Copied, found: Collection[Copied]) -> str:
        """Return the step that makes a tensor leave a GPU and its result come back to one."""
        owner, by_line, _ = one.reader.partition(BY_LINE)
        if by_line and any(self._comes_back(owner, one.target, other) for other in found):
            return owner
        if one.target == "CPU":
            between = owner if by_line else one.reader.partition(".")[0]
            back = {edge.reader for edge in self._edges if edge.writer == between}
            comes = any(
                other.source == "CPU" and other.reader.partition(".")[0] in back for other in found
            )
            return between if comes else ""
        if one.source != "CPU":
            return ""
        for edge in self.edges_to(one.reader):
            if any(
                other.target == "CPU" and other.reader.partition(".")[0] == edge.writer
                for other in found
            ):
                return edge.writer
        return ""

    def _comes_back(self, owner: str, memory: str, other: Copied) -> bool:
        """Return whether the code of the same model also copies in the other direction."""
        same = other.reader.partition(BY_LINE)
        return same[0] == owner and bool(same[1]) and other.source == memory

    def _is_on_cpu(self, model: str) -> bool:
        config = self._configs.get(model)
        groups = () if config is None else config.instance_group
        return {enum_name(group, "kind") for group in groups} == {"KIND_CPU"}

    def _why_on_host(self, model: str, *, takes: bool) -> str:
        config = self._configs.get(model)
        if config is None:
            return f"'{model}' is on the host"
        if self._is_on_cpu(model):
            return f"'{model}' runs on the CPU: instance_group {{ kind: KIND_CPU }}"
        if not takes:
            return f"'{model}' runs on a GPU and gives arrays of the host"
        forced = text_parameter(config, "FORCE_CPU_ONLY_INPUT_TENSORS")
        if config.backend == "python" and forced in (None, "yes"):
            said = "yes" if forced else "yes by default"
            return (
                f"'{model}' runs on a GPU and takes inputs on the host: FORCE_CPU_ONLY_INPUT_TENSORS is "
                f"{said}, or its arguments are NumPy's"
            )
        return f"'{model}' runs on a GPU and takes inputs on the host"


def _edges_of(config: ModelConfig) -> list[_Edge]:
    if not is_ensemble(config):
        return []
    writers = {
        tensor: step.model_name
        for step in config.ensemble_scheduling.step
        for tensor in step.output_map.values()
    }
    return [
        _Edge(config.name, tensor, writers.get(tensor, ""), step.model_name, name)
        for step in config.ensemble_scheduling.step
        for name, tensor in step.input_map.items()
    ]
