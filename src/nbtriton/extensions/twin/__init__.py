"""A simulated copy of a running Triton, made of its configurations and its statistics."""

# Annotations are evaluated: the table of options is read from them.
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack

from nbtriton.common.checks import CALL, NAME, check, number, optional, whole
from nbtriton.common.errors import NotFoundError, TritonError, UnsupportedError, nearest
from nbtriton.common.packages import data_frame
from nbtriton.drawing.numbers import counted, measure
from nbtriton.extensions.twin.statistics import (
    Entry,
    Times,
    Traffic,
    asked_most,
    latest_entries,
    times_of,
    traffic_of,
)
from nbtriton.lab.perf.progress import Observer, PerfProgress
from nbtriton.lab.perf.settings import Protocol
from nbtriton.lab.perf.sweep import model_tree
from nbtriton.lab.simulate.model_profile import EngineCosts, ModelProfile, Profile, ServicePoint
from nbtriton.lab.simulate.prediction import predicted_point
from nbtriton.lab.simulate.profiling import profile
from nbtriton.model.config import (
    ModelConfig,
    amend,
    format_pbtxt,
    is_ensemble,
    parse_pbtxt,
    plan_instances,
)
from nbtriton.options.table import Option, read_settings, signed, table_of
from nbtriton.serving.clients.address import address_of
from nbtriton.serving.clients.base import Client

if TYPE_CHECKING:
    import pandas as pd

    from nbtriton.serving.server import Server

__all__ = ["Twin", "twin"]


class TwinSettings(TypedDict, total=False):
    """How a running Triton is looked at."""

    protocol: Protocol
    duration_s: Annotated[float, Option(
        "--duration-s", "how long to read its statistics (10)", "S", float, 10.0, kind=number(above=0))]  # fmt: skip
    at_once: Annotated["int | None", Option(
        "--at-once", "so many executions of a model at once take as long as one does: assumed, not seen (default: as many as it "
        "has instances)", "N", int, kind=optional(whole(1)), unset="as many as it has instances")]  # fmt: skip
    measure_s: Annotated["float | None", Option(
        "--measure-s", "send each model requests for so long, for what statistics do not say (default: send nothing)", "S", float,
        kind=optional(number(above=0)), unset="send nothing")]  # fmt: skip


TWIN = table_of(TwinSettings)


@dataclass(frozen=True, slots=True, repr=False)
class Twin(Profile):
    """The result of `nbtriton.twin`: a profile, with the traffic that was seen.

    Parameters
    ----------
    url : str
        Of the running server.
    seen : tuple of mapping
        One for each model, the rows of `traffic`.
    """

    url: str = ""
    seen: tuple[Mapping[str, Any], ...] = ()

    @property
    def traffic(self) -> "pd.DataFrame":
        """One row a model as a pandas DataFrame; times are averages per request, and in microseconds.

        ``predicted_queue_us`` is the queue time of this twin under the same rate, with exponential gaps. Where it is far
        from ``queue_us``, requests came in bursts, executions slow each other down, or the model's time is not its own.
        """
        return data_frame("a twin's traffic", self.seen)

    def stand_ins(self, server: "Server | None" = None) -> "Server":
        """Load stand-ins of all models: they take the time that the models took, and answer with zeros.

        So the views, `nbtriton.why` and `nbtriton.perf` work on a copy that runs here.

        Parameters
        ----------
        server : Server, optional
            One with the option ``stand_in``; by default a new one.

        Returns
        -------
        Server
            The caller closes a new one.

        Raises
        ------
        LoadError
            A model's configuration names what cannot be here, such as a file of labels.
        """
        with ExitStack() as stack:
            if server is None:
                from nbtriton.serving.server import Server

                server = stack.enter_context(Server(stand_in=True))
            for name, model in self.models.items():
                server.load(_stand_in(model), name=name)
            inner = (
                each for name in self.ensembles for each in reversed(model_tree(self, name)[0])
            )
            for name in dict.fromkeys(inner):  # the innermost first
                server.load(self.ensembles[name], name=name)
            stack.pop_all()  # the caller's from now on
        return server

    def save(self, path: str | Path) -> None:
        """Write the profile as JSON, without the traffic; `nbtriton.types.Profile.load` reads it."""
        plain = {each.name: getattr(self, each.name) for each in fields(Profile)}
        Profile(**plain).save(path)

    @property
    def headline(self) -> str:
        """A one-line summary."""
        executed = sum(point.executions for one in self.models.values() for point in one.points)
        words = (
            f"{self.url}: {counted(len(self.models), 'model')}, {counted(executed, 'execution')} "
            f"in {measure(self.elapsed_s)} s"
        )
        return words + (", interrupted" if self.interrupted else "")

    def _remarks(self) -> list[str]:
        return [*self.notes]


def _stand_in(model: ModelProfile) -> ModelConfig:
    """Return the configuration of a stand-in on the host, with the mean times by batch size."""
    config = parse_pbtxt(model.config)
    alone = [point for point in model.points if point.at_once == 1]
    cost = ", ".join(f"{point.rows}:{point.mean_us:.1f}" for point in alone)
    config.parameters["STAND_IN_COST_US"].string_value = cost
    # Files of the model's directory are there, not here.
    del config.model_warmup[:]
    return amend(config, f"instance_group {{ kind: KIND_CPU count: {instances_of(config)} }}")


def instances_of(config: ModelConfig) -> int:
    """Return how many instances a model executes on."""
    return max(1, sum(not plan.passive for plan in plan_instances(config, gpus=None)))


# The statistics of all models, the time of their reading in seconds, and how much earlier or later it may have been.
_Look = tuple[Mapping[str, Any], float, float]

# Looks at the statistics; calls that measure the way there and back.
_LOOKS = 21
_PINGS = 25
# Requests of the simulation whose queue time is put beside the seen one; the ratio from which a note says so, where
# the queue is at least this share of a request.
_CHECKED = 2000
_OFF, _MATTERS = 1.5, 0.1
# The share of the stretch by which its length may be another one, from which a note says so.
_UNSURE = 0.05

_KINDS = {"url": NAME, "model": optional(NAME), "observer": optional(CALL)}


@signed(TWIN)
def twin(
    url: str,
    model: str | None = None,
    *,
    observer: Observer | None = None,
    **options: Unpack[TwinSettings],
) -> Twin:
    """Make a simulated copy of a running Triton from its configurations and its statistics.

    It reads the statistics of all models for some seconds: their sums give the mean execution time of each batch size,
    and how these means vary from look to look gives the spread. No model gets a request, unless `measure_s` asks for it.
    The copy is a profile: `nbtriton.whatif` and `nbtriton.tune` answer about it. `Twin.stand_ins` runs stand-ins of its models here.

    Parameters
    ----------
    url : str
        ``host:port``, optionally with ``http://`` or ``grpc://`` in front.
    model : str, optional
        What a prediction is about unless it names another one; by default the model to which clients sent the most requests.
    observer : callable, optional
        Called with a `PerfProgress` after each look.
    **options
        See the table.

    Returns
    -------
    Twin
        After a KeyboardInterrupt: with the looks until then.

    Raises
    ------
    NotFoundError
        No such model, or no model has executed anything.
    UnavailableError
        The server does not answer.
    KeyboardInterrupt
        Before the second look.

    Notes
    -----
    Statistics do not say how executions slow each other down. As many at once as a model has instances take what was seen;
    more are beyond the twin, unless `at_once` assumes that they are independent. The spread is drawn from a log-normal
    distribution. What a model calls itself (BLS) is a part of its time.

    Examples
    --------
    >>> ports = server.serve(http_port=0, grpc_port=None, metrics_port=None)
    >>> _ = server.infer("double", {"IN": ones})
    >>> copy = nt.twin(f"localhost:{ports.http_port}", "double", duration_s=0.1)
    >>> copy.url.startswith("http://localhost:")
    True
    >>> ports.stop()
    """
    given = read_settings("twin", TWIN, options)
    check({"url": url, "model": model, "observer": observer}, _KINDS)
    started_s = time.monotonic()
    with address_of(url, given["protocol"]).client() as client:
        looks: list[_Look] = []
        interrupted = False
        try:
            looks.extend(_looks(client, given["duration_s"], observer))
        except KeyboardInterrupt:
            interrupted = True
            if len(looks) < 2:
                raise
        (_, began_s, before_s), (_, ended_s, after_s) = looks[0], looks[-1]
        entries = latest_entries([document for document, *_ in looks])
        first_ones, last_ones = entries[0], entries[-1]
        configs = {name: client.config(name) for name in last_ones}
        if model is not None and model not in configs:
            has = f"{url} has no model '{model}'; it has {', '.join(configs) or 'none'}"
            raise NotFoundError(has, hint=nearest(model, configs))
        round_trip_us, client_us = _call_us(client)
        described = client.describe()
        where = f"{client.protocol}://{client.url}"
    seconds, unsure_s = ended_s - began_s, before_s + after_s
    traffic = {name: traffic_of(first_ones.get(name), last_ones[name], seconds) for name in configs}
    models, notes = _models(configs, entries, given["at_once"])
    if unsure_s > _UNSURE * seconds:
        most = f"to {seconds / (seconds - unsure_s):.0%}" if unsure_s < seconds else "or more"
        least = f"{seconds / (seconds + unsure_s):.0%}"
        notes.append(
            f"the statistics took long to be read, so that a rate may be {least} {most} of what is said"
        )
    if given["measure_s"] is not None and not interrupted:
        interrupted = _measure(where, configs, models, given["measure_s"], observer)
    ensembles = {
        name: format_pbtxt(config)
        for name, config in configs.items()
        if is_ensemble(config) and all(step.model_name in {*models, *configs} for step in config.ensemble_scheduling.step)
    }  # fmt: skip
    if not models:
        raise NotFoundError(
            f"no model of {where} has executed anything: there are no times to copy",
            hint="look again while it works, or let measure_s=5 send requests",
        )
    known = {name: traffic[name] for name in (*ensembles, *models)}
    chosen = model or asked_most(
        {name: one.requests for name, one in known.items()},
        {name: [step.model_name for step in configs[name].ensemble_scheduling.step] for name in ensembles},
    )  # fmt: skip
    found = Twin(
        chosen,
        models,
        ensembles,
        costs=EngineCosts(submit_us=client_us, way_us=(max(0.0, round_trip_us - client_us) / 2,)),
        environment={"server": f"{described} at {where}"},
        elapsed_s=time.monotonic() - started_s,
        interrupted=interrupted,
        url=where,
    )
    seen, remarks = _seen(found, known)
    first = (
        f"a request's way there and back takes {measure(round_trip_us)} µs, of which {measure(client_us)} µs are the client's: "
        "measured from here; statistics do not say how executions slow each other down"
    )
    return replace(found, seen=seen, notes=(first, *notes, *remarks))


def _looks(client: Client[Any], seconds: float, observer: Observer | None) -> Iterator[_Look]:
    """Yield the statistics at equal distances."""
    began_s = time.monotonic()
    for look in range(_LOOKS):
        time.sleep(max(0.0, began_s + seconds * look / (_LOOKS - 1) - time.monotonic()))
        before_s = time.monotonic()
        document = client.statistics()
        after_s = time.monotonic()
        yield document, (before_s + after_s) / 2, (after_s - before_s) / 2
        if observer is not None:
            elapsed_s = after_s - began_s
            left_s = max(0.0, seconds - elapsed_s)
            observer(PerfProgress.step(look, _LOOKS, "statistics", elapsed_s, left_s))


def _call_us(client: Client[Any]) -> tuple[float, float]:
    """Return the median time of a call that computes nothing, and of the client's thread for it."""
    took_s, worked_s = [], []
    for _ in range(_PINGS):
        began_s, before_s = time.perf_counter(), time.thread_time()
        client.describe()
        worked_s.append(time.thread_time() - before_s)
        took_s.append(time.perf_counter() - began_s)
    return median(took_s) * 1e6, median(worked_s) * 1e6


def _models(
    configs: Mapping[str, ModelConfig],
    looks: list[dict[str, Entry]],
    at_once: int | None,
) -> tuple[dict[str, ModelProfile], list[str]]:
    """Return the profiles of the models that have executed something, and what to know of the others."""
    found: dict[str, ModelProfile] = {}
    left_out, single = [], []
    for name, config in configs.items():
        if is_ensemble(config):
            continue
        times = times_of([entries[name] for entries in looks if name in entries])
        if not times or config.model_transaction_policy.decoupled:
            left_out.append(name)
            continue
        if not any(one.deviation_us for one in times.values()):
            single.append(name)
        found[name] = _profile(config, times, at_once or instances_of(config))
    notes = []
    if left_out:
        notes.append(
            f"left out, as they are decoupled or have executed nothing: {', '.join(left_out)}"
        )
    if single:
        notes.append(
            f"too few executions for a spread, so that p99 is too low: {', '.join(single)}"
        )
    if at_once is not None:
        notes.append(f"assumed: {counted(at_once, 'execution')} at once take as long as one does")
    return found, notes


def _profile(config: ModelConfig, times: Mapping[int, Times], at_once: int) -> ModelProfile:
    points = tuple(
        ServicePoint(rows, level, one.quantiles_us(), one.executions, one.stalls_us)
        for level in sorted({1, at_once})
        for rows, one in times.items()
    )
    return ModelProfile(format_pbtxt(config), "remote", points)


def _measure(
    url: str,
    configs: Mapping[str, ModelConfig],
    models: dict[str, ModelProfile],
    seconds: float,
    observer: Observer | None,
) -> bool:
    """Give the models the times of a short load of each; return True if the user stopped it."""
    for name, config in configs.items():
        if is_ensemble(config) or config.model_transaction_policy.decoupled:
            continue
        try:
            measured = profile(None, name, url=url, duration_s=seconds, observer=observer)
        except KeyboardInterrupt:
            if not models:
                raise
            return True
        if measured.failure:
            raise TritonError(measured.failure)
        models[name] = measured.models[name]
        if measured.interrupted:
            return True
    return False


def _seen(
    twin: Twin, traffic: Mapping[str, Traffic]
) -> tuple[tuple[Mapping[str, Any], ...], list[str]]:
    """Return the traffic of each model beside the queue time of the twin under it, and where they disagree."""
    rows, notes = [], []
    for name, one in traffic.items():
        predicted_us = _queue_us(twin, name, one) if one.requests and name in twin.models else None
        rows.append({"model": name, **asdict(one), "predicted_queue_us": predicted_us})
        if predicted_us is None:
            continue
        high, low = max(predicted_us, one.queue_us), min(predicted_us, one.queue_us)
        if high > _OFF * low and high > _MATTERS * one.request_us:
            notes.append(
                f"{name}: a request waited {measure(one.queue_us)} µs, and would wait {measure(predicted_us)} µs in the twin "
                "under the same rate with exponential gaps: its requests came otherwise, or its time is not its own"
            )
    return tuple(rows), notes


def _queue_us(twin: Twin, name: str, traffic: Traffic) -> float | None:
    rows = max(1, round(traffic.rows))
    try:
        point = predicted_point(
            twin, name, request_rate=traffic.requests_per_s, request_distribution="poisson", batch_size=rows,
            request_count=_CHECKED,
        )  # fmt: skip
    except UnsupportedError:
        return None
    return None if point.server is None else point.server.queue_us
