"""Instances by load: a thread that watches a model, and adds and removes instances while requests run."""

# Annotations are evaluated: the table of options is read from them.
import math
import threading
import weakref
from argparse import ArgumentTypeError
from collections import deque
from time import monotonic_ns
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack

from nbtriton.common.checks import NAME, SERVER, Kind, check, is_list, is_whole, number
from nbtriton.common.closing import Stopping
from nbtriton.common.errors import (
    ConfigError,
    LoadError,
    TritonError,
    UnavailableError,
    UnsupportedError,
)
from nbtriton.common.packages import needed
from nbtriton.drawing.numbers import counted, percentile
from nbtriton.extensions.autoscale.policy import Change, Look, Policy, mean_work
from nbtriton.model.config import ModelConfig, is_ensemble
from nbtriton.options.reading import milliseconds
from nbtriton.options.table import Option, read_settings, signed, table_of
from nbtriton.runtime.engine.core.snapshot import RequestRecord
from nbtriton.runtime.engine.server import Server

if TYPE_CHECKING:
    from nbtriton.drawing.frames import TableFrame

__all__ = ["Autoscale", "autoscale"]


def _between(text: str) -> tuple[int, ...]:
    try:
        return tuple([int(part) for part in text.split(":")])
    except ValueError:
        raise ArgumentTypeError(f"'{text}' is not the fewest and the most, such as 1:8") from None


def _is_range(value: Any) -> bool:
    if not is_list(value) or len(value) != 2 or not all(map(is_whole, value)):
        return False
    return bool(1 <= value[0] <= value[1])


class AutoscaleSettings(TypedDict, total=False):
    """What instances are added and removed for."""

    between: Annotated["tuple[int, int]", Option(
        "--between", "the fewest and the most instances, by default 1:8", "FEWEST:MOST", _between, (1, 8),
        kind=Kind(_is_range, "the fewest and the most instances, from 1 on, such as (1, 8)"))]  # fmt: skip
    p99_ms: Annotated[float, Option(
        "--p99", "the p99 latency is to be at most this, in milliseconds", "20ms", milliseconds,
        kind=number(above=0))]  # fmt: skip


AUTOSCALE = table_of(AutoscaleSettings)


# The requests that are read at a look: more say nothing more about their 99th percentile, and cost time.
_REQUESTS = 2000
_DECISIONS = 1000
# The end waits so long for an instance that is being made.
_END_S = 5.0
# After instances could not be made: there is no memory, or no room on a cluster.
_RETRY_S = 30.0
# Outcomes of requests that an instance more would have answered.
_TOO_LATE = ("queue_full", "timeout")


@signed(AUTOSCALE)
def autoscale(server: Server, model: str, **options: Unpack[AutoscaleSettings]) -> "Autoscale":
    """Add instances of a model while its requests wait too long, and remove them when they rest.

    The number in its ``instance_group`` is changed as by `nbtriton.Server.load`: the model serves meanwhile, instances
    that stay keep what they hold, and those that go finish what they have begun. A second call for a model
    takes the place of the first.

    Parameters
    ----------
    server : Server
    model : str
        With one instance group, in threads, processes or on a cluster.
    **options
        See the table.

    Returns
    -------
    Autoscale
        Until its ``stop()``, or the end of a ``with`` block, of the model or of the server.

    Raises
    ------
    NotFoundError
        No such model.
    UnsupportedError
        An ensemble, whose composing models have the instances, or a model with several groups.
    UnavailableError
        The server has no recorder, the source of latencies.

    Examples
    --------
    >>> with nt.autoscale(server, "double", between=(1, 4), p99_ms=20) as scaling:
    ...     _ = server.infer("double", {"IN": ones})
    >>> scaling.frame["after"].tolist()[0]  # its instances at the begin
    1
    """
    check({"server": server, "model": model}, {"server": SERVER, "model": NAME})
    given = read_settings("autoscale", AUTOSCALE, options)
    _group(server.config(model))
    if not server.options.recorder:
        raise UnavailableError(
            "the server has no recorder, which the latencies come from",
            hint="%triton_server --recorder on, or nt.Server(recorder=True)",
        )
    for other in running(server):
        if other.model == model:
            other.stop()
    least, most = map(int, given["between"])
    return Autoscale(server, model, Policy(least, most, float(given["p99_ms"])))


def running(server: Server) -> "list[Autoscale]":
    """Return what scales the models of a server."""
    listeners = server.engine.dispatcher.listeners
    return [one for one in listeners if isinstance(one, Autoscale)]


class Autoscale(Stopping):
    """A model whose instances are scaled; a context manager that ends it, with the instances as they are then.

    Parameters
    ----------
    server : Server
    model : str
    policy : Policy

    Attributes
    ----------
    model : str
    reason : str
        Of the latest decision, also to change nothing; or why it has ended.
    ended : threading.Event
    """

    def __init__(self, server: Server, model: str, policy: Policy) -> None:
        self.model = model
        self.reason = "begun"
        self.ended = threading.Event()
        self._server = weakref.ref(server)  # a server that is dropped is not kept by the thread
        self._policy = policy
        self._began_ns = self._changed_ns = self._seen_ns = monotonic_ns()
        runtime = server.engine.registry.resolve(model)
        self._busy = {one: one.busy_until(self._seen_ns) for one in runtime.meters()}
        count = int(_group(runtime.config).count)
        self._looks: deque[Look] = deque(maxlen=math.ceil(policy.rest_s / policy.look_s) + 1)
        self._changes: deque[Change] = deque([Change(0.0, count, count)], maxlen=_DECISIONS)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nbtriton-autoscale", daemon=True)
        server.engine.dispatcher.listen(self)  # for its `close`: the end of the server
        self._thread.start()

    def __call__(self, *_: Any, **__: Any) -> None:
        """Let a request pass."""

    def close(self) -> None:
        """End it: its server has ended."""
        self.stop()

    def stop(self) -> None:
        """End it; may be called again.

        Examples
        --------
        >>> nt.autoscale(server, "double", p99_ms=20).stop()
        """
        self._stopping.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(_END_S)

    @property
    def frame(self) -> "TableFrame":
        """The changes of the number of instances, a row each; the first is the begin."""
        with needed("a table of decisions"):
            import pandas as pd

            from nbtriton.drawing.frames import TableFrame

        return TableFrame(pd.DataFrame(list(self._changes), columns=Change._fields))

    def __repr__(self) -> str:
        state = "ended" if self.ended.is_set() else counted(self._changes[-1].after, "instance")
        between = f"{self._policy.least}:{self._policy.most}"
        return f"<Autoscale {self.model} between {between}: {state}; {self.reason}>"

    def _repr_mimebundle_(self, **_options: object) -> dict[str, str]:
        html, text = self.frame.compact_view(caption=repr(self).strip("<>"))
        return {"text/plain": text, "text/html": html}

    def _run(self) -> None:
        pause_s, reason = self._policy.look_s, "failed"
        try:
            while not self._stopping.wait(pause_s):
                pause_s = self._step()
            reason = "stopped"
        except TritonError as error:  # such as of a model that is unloaded
            reason = error.message
        finally:
            server = self._server()
            if server is not None:
                server.engine.dispatcher.stop_listening(self)
            self.reason = reason
            self.ended.set()

    def _step(self) -> float:
        """Look, decide and change; return the seconds until the next look."""
        server = self._server()
        if server is None:
            self._stopping.set()
            return 0.0
        look, config = self._look(server)
        self._looks.append(look)
        count, self.reason = self._policy.decide(self._looks, self._changes)
        pause_s = self._policy.look_s
        if count == look.instances:
            return pause_s
        wanted = server.engine.inspection.user_config(self.model)
        if server.config(self.model) != config:
            self.reason = "its configuration was changed meanwhile"
            return pause_s
        _group(config).count = count
        del wanted.instance_group[:]
        wanted.instance_group.extend(config.instance_group)
        try:
            server.engine.lifecycle.load(wanted, name=self.model)  # `Server.load` warns again
        except (LoadError, ConfigError) as error:  # such as without memory: it serves as before
            self.reason += f"; no change: {error.message}"
            count, pause_s = look.instances, _RETRY_S
        self._changed_ns = monotonic_ns()
        at_s = (self._changed_ns - self._began_ns) / 1e9
        work = mean_work(self._looks)
        change = Change(at_s, look.instances, count, work, look.p99_ms, look.wait_ms, self.reason)
        self._changes.append(change)
        history = server.engine.registry.resolve(self.model).history
        if history is not None:
            told = counted(count, "instance")
            history.changed(f"autoscale, {look.instances} to {told}: {self.reason}")
        return pause_s

    def _look(self, server: Server) -> tuple[Look, ModelConfig]:
        runtime = server.engine.registry.resolve(self.model)
        config = server.config(self.model)
        group = _group(config)
        now_ns = monotonic_ns()
        busy = {one: one.busy_until(now_ns) for one in runtime.meters()}
        worked_ns = sum(max(0, ns - self._busy.get(one, 0)) for one, ns in busy.items())
        # No more than all of them: this thread may have stopped after it took the time.
        work = worked_ns / max(1, now_ns - self._seen_ns) / max(1, len(group.gpus))
        work = min(work, float(group.count))
        self._busy, self._seen_ns = busy, now_ns
        since_ns = max(now_ns - int(self._policy.window_s * 1e9), self._changed_ns)
        delay_ms = config.dynamic_batching.max_queue_delay_microseconds / 1000
        found = [
            _times(one, one.arrival_ns, now_ns, delay_ms)
            for one in server.requests(self.model, since_ns=since_ns, most=_REQUESTS)
            if one.arrival_ns >= since_ns and (not one.status or one.outcome in _TOO_LATE)
        ]
        # What a request in flight has taken is the least that it will take; one from before the change begins with it.
        inside = [
            _times(one, max(one.arrival_ns, self._changed_ns), now_ns, delay_ms)
            for one in server.in_flight(self.model)
        ]
        found += [times for times in inside if times[0] > self._policy.limit_ms]
        look = Look((now_ns - self._began_ns) / 1e9, int(group.count), work)
        if found:
            p99_ms, wait_ms = (percentile(sorted(one), 99) for one in zip(*found, strict=True))
            look = look._replace(p99_ms=p99_ms, wait_ms=wait_ms)
        return look, config


def _group(config: ModelConfig) -> Any:
    """Return the instance group whose number is changed."""
    groups = [group for group in config.instance_group if not group.passive]
    if len(groups) != 1:
        raise UnsupportedError(
            f"model '{config.name}' has {counted(len(groups), 'instance group')}, and only one can be scaled",
            hint="scale the composing models" if is_ensemble(config) else "",
        )
    return groups[0]


def _times(
    request: RequestRecord, from_ns: int, now_ns: int, delay_ms: float
) -> tuple[float, float]:
    """Return how long a request took from a moment on, and how much of that it waited for an instance."""
    if request.outcome in _TOO_LATE:
        return math.inf, math.inf
    if request.batch is not None:
        formed_ns = request.batch.formed_ns
    else:  # it waits, or was answered by the cache
        formed_ns = from_ns if request.answered_ns else now_ns
    wait_ms = (formed_ns - from_ns) / 1e6 - delay_ms
    return ((request.answered_ns or now_ns) - from_ns) / 1e6, max(0.0, wait_ms)
