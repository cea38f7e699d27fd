"""The state of the models as a DataFrame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from nbtriton.backends.python.api.metrics import MetricKind, families_of
from nbtriton.common.checks import NAME, SERVER, check, optional
from nbtriton.common.errors import TritonError
from nbtriton.common.packages import needed
from nbtriton.drawing.numbers import byte_size, count, mean_size, measure
from nbtriton.model.config import ModelConfig, stand_in_reason
from nbtriton.runtime.engine.core.snapshot import InstanceSnapshot, ModelSnapshot
from nbtriton.runtime.engine.server import Server

if TYPE_CHECKING:
    import pandas as pd

    from nbtriton.drawing.frames import TableFrame

# Each model with the models of its steps, in the order in which they are shown.
Pipeline = tuple[tuple[str, tuple[str, ...]], ...]


def status(server: Server, model: str | None = None) -> pd.DataFrame:
    """Return the models, their state, queues and statistics, one row per version.

    Parameters
    ----------
    server : Server
    model : str, optional
        By default all models.

    Returns
    -------
    pandas.DataFrame
        Durations are means per successful request, in microseconds. ``interpreter_wait``, where
        several instances of a model have run at once, is the share of their time, from 0 to 1, that
        they waited for each other's Python code. ``restarts``, if processes of instances have
        ended, has how often and why, when an instance will be restarted, and how many restarts are
        left. ``nodes`` has those of instances on other machines, and the bytes that went there and
        came back. ``metrics`` has the counters and gauges of a model's own code (`pb_utils.MetricFamily`)
        that have its name as the label ``model``. If there are stand-ins, a column has what each is missing. The times of instances on
        ``simulated GPU`` are simulated.

    Raises
    ------
    NotFoundError
        No model of this name is loaded.

    Examples
    --------
    >>> nt.status(server)["state"].tolist()
    ['READY']
    """
    check({"server": server, "model": model}, {"server": SERVER, "model": optional(NAME)})
    frame = status_table(server, model)
    if model is not None and not len(frame):
        server.config(model)  # raises an error with the reason
    return frame


def status_table(server: Server, name: str | None = None) -> TableFrame:
    """Return the same as `status`; an empty table for a model that is not loaded."""
    with needed("a table of models"):
        import pandas as pd

        from nbtriton.drawing.frames import TableFrame

    shown = [model for model in server.models() if name in (None, model.name)]
    order = [one for one, _ in pipelines(shown, partial(steps_of, server))]
    shown.sort(key=lambda model: order.index(model.name))
    frame = pd.DataFrame([_row(model) for model in shown], columns=_COLUMNS)
    if any(model.interpreter.probes for model in shown):
        frame["interpreter_wait"] = [round(model.interpreter.share, 2) for model in shown]
    columns: dict[str, Callable[[ModelSnapshot], str]] = {
        "restarts": lambda model: "; ".join(filter(None, map(_restarts, model.instances))),
        "nodes": nodes_of,
        "ignored": lambda model: ", ".join(model.ignored),
        "metrics": partial(_metrics, server),
        "stand_in": partial(_stand_in, server),
    }
    for column, text_of in columns.items():
        texts = list(map(text_of, shown))
        if any(texts):
            frame[column] = texts
    # Rows of one model differ by their version.
    several = len({model.name for model in shown}) < len(shown)
    always = [*(("model", "version") if several else ("model",)), *_FIRST[1:]]
    always += [name for name in columns if name in frame]
    return TableFrame(
        frame,
        (*always, "interpreter_wait", "instances", "executing"),
        empty="no models are loaded",
        always=len(always),
    )


def steps_of(server: Server, ensemble: str) -> list[str]:
    """Return the models of an ensemble's steps; none of one that does not serve."""
    config = config_of(server, ensemble)
    return [] if config is None else [step.model_name for step in config.ensemble_scheduling.step]


def config_of(server: Server, name: str, version: int = -1) -> ModelConfig | None:
    """Return the configuration of a model; None of one that does not serve, such as one that is being unloaded."""
    try:
        return server.config(name, version)
    except TritonError:
        return None


def configs_of(server: Server) -> dict[str, ModelConfig]:
    """Return the configurations of the models that serve."""
    found = {name: config_of(server, name) for name in {model.name for model in server.models()}}
    return {name: config for name, config in found.items() if config is not None}


def pipelines(models: Sequence[ModelSnapshot], steps: Callable[[str], Sequence[str]]) -> Pipeline:
    """Return all models in the order of their pipelines, as all views show them: an ensemble, its steps, then the remaining models.

    Parameters
    ----------
    models : sequence of ModelSnapshot
    steps : callable
        Returns the models of an ensemble's steps, as `steps_of`.

    Returns
    -------
    tuple of (str, tuple of str)
        Each model with its steps.
    """
    ensembles = {one.name: tuple(steps(one.name)) for one in models if one.platform == "ensemble"}
    inner = {step for name in ensembles for step in ensembles[name]}
    found: dict[str, tuple[str, ...]] = {}

    def add(name: str) -> None:
        if name not in found:
            found[name] = ensembles.get(name, ())
            for step in found[name]:
                add(step)

    for name in (*(one for one in ensembles if one not in inner), *(one.name for one in models)):
        add(name)
    return tuple(found.items())


def show_server(server: Server) -> dict[str, str]:
    """Show a server in a notebook: its models, if it has any."""
    head = repr(server)
    if server.engine.state != "open" or not server.models():
        return {"text/plain": head}
    html, text = status_table(server).compact_view(caption=head.strip("<>"))
    return {"text/plain": text, "text/html": html}


def _restarts(instance: InstanceSnapshot) -> str:
    """Return how often an instance was restarted, and why; empty if it was never lost."""
    state = instance.restart
    if not state.cause:
        return ""
    text = f"{instance.name}: {state.restarts} \u00d7, {state.cause}"
    if state.down:
        return f"{text}; not restarted any more, until the model is loaded again"
    if state.due_ns is None:
        return text
    again_s = max(0, state.due_ns - monotonic_ns()) / 1e9
    return f"{text}; again in {again_s:.1f} s, {state.left} \u00d7 left after that"


def _metrics(server: Server, model: ModelSnapshot) -> str:
    """Return what a version's own code counts, by the labels that its samples have."""
    return ", ".join(
        f"{family.name} {sample.value:g}"
        for family in families_of(server.engine.model_server)
        if family.kind is not MetricKind.HISTOGRAM
        for sample in list(family.samples.values())
        if ("model", model.name) in sample.labels
        and dict(sample.labels).get("version", str(model.version)) == str(model.version)
    )


def _stand_in(server: Server, model: ModelSnapshot) -> str:
    """Return why a version is a stand-in; empty if it is not, or no longer serves."""
    config = config_of(server, model.name, model.version)
    return "" if config is None else stand_in_reason(config)


# Fewer executions mean nothing: the first ones are slower.
_ENOUGH = 20


def nodes_of(model: ModelSnapshot) -> str:
    """Return the nodes of a model's instances and the bytes that went there and came back; empty if they are here."""
    found = [one.placement for one in model.instances if one.placement is not None]
    if not found:
        return ""
    nodes = Counter(one.node for one in found)
    sent, received = sum(one.sent_bytes for one in found), sum(one.received_bytes for one in found)
    names = ", ".join(f"{number} \u00d7 {node}" for node, number in sorted(nodes.items()))
    return f"{names}; {byte_size(sent)} there, {byte_size(received)} back"


def way_sentence(model: ModelSnapshot, *, only_long: bool = False) -> str:
    """Return what part of a request's time the way to the nodes takes; empty for a model that is here.

    With ``only_long`` also empty if the way takes no longer than the model.
    """
    nodes = nodes_of(model)
    # The time of executions outside the model: inputs there and outputs back, with their conversion.
    way_ns = model.compute_input_ns + model.compute_output_ns
    if not nodes or model.execution_count < _ENOUGH or not model.success_count:
        return ""
    if only_long and way_ns <= model.compute_infer_ns:
        return ""
    way_ms, model_ms = (ns / model.success_count / 1e6 for ns in (way_ns, model.compute_infer_ns))
    return (
        f"the instances of '{model.name}' are elsewhere ({nodes}, since they started): of {count(model.success_count)} requests the "
        f"way took {measure(way_ms)} ms each, and the model {measure(model_ms)} ms"
    )


_COLUMNS = (
    "model", "version", "state", "platform", "instances", "isolation", "max_batch_size", "queued",
    "executing", "requests", "failed", "inferences", "executions", "mean_batch_size", "queue_us", "compute_us",
)  # fmt: skip

# What a page shows of each model, whatever the numbers are; what only some models have follows.
_FIRST = (
    "model", "state", "queued", "requests", "failed", "queue_us", "compute_us", "mean_batch_size",
)  # fmt: skip


def _row(model: ModelSnapshot) -> tuple[Any, ...]:
    per_request_us = 1 / (1000 * model.success_count) if model.success_count else float("nan")
    compute_ns = model.compute_input_ns + model.compute_infer_ns + model.compute_output_ns
    kinds = [
        "simulated " * instance.simulated + instance.kind.removeprefix("KIND_")
        for instance in model.instances
    ]
    return (
        model.name,
        model.version,
        model.state if not model.reason else f"{model.state}: {model.reason}",
        model.platform,
        " + ".join(f"{kinds.count(kind)} \u00d7 {kind}" for kind in dict.fromkeys(kinds)),
        model.isolation if kinds else "",
        model.max_batch_size,
        model.queued,
        model.executing,
        model.success_count,
        model.fail_count,
        model.inference_count,
        model.execution_count,
        mean_size(model.batch_sizes) or float("nan"),
        round(model.queue_ns * per_request_us, 1),
        round(compute_ns * per_request_us, 1),
    )
