"""``nbtriton.perf``: reads what is asked, goes through configurations and levels, reports."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from nbtriton import __version__
from nbtriton.clients.base import NO_STREAMS
from nbtriton.errors import InvalidArgumentError, nearest
from nbtriton.perf.data import STRING_LENGTH, Inputs
from nbtriton.perf.loads import Distribution, RequestIntervals, level_values, parse_levels
from nbtriton.perf.measure import Level, MeasurementMode, WindowPlan
from nbtriton.perf.prepare import Data, check_streaming, sequence_plan, workloads
from nbtriton.perf.remote import RemoteServer, Target, remote_server
from nbtriton.perf.report import Observer, PerfReport
from nbtriton.perf.search import check_search
from nbtriton.perf.session import LevelPlan, Session
from nbtriton.perf.sweep import Configuration, Configurator, combinations, model_tree
from nbtriton.perf.traffic import NUM_OF_SEQUENCES, SequencePlan, read_id_range
from nbtriton.perf.windows import STABLE_WINDOWS, StabilityRule

if TYPE_CHECKING:
    from nbtriton.api import Server

__all__ = ["PROTOCOLS", "perf"]

Protocol = Literal["inproc", "http", "grpc"]
PROTOCOLS: tuple[str, ...] = get_args(Protocol)

# perf_analyzer's 5000 ms are made for milliseconds across a network. In the kernel a request
# takes 10 us to some ms: 250 ms (300 ms with PA1's factor) hold 100 requests even at 3 ms each,
# so a p99 means something, and a level takes 1 s where it is stable at once. Slower models get
# longer windows (`WindowPlan.fitted`).
_INTERVAL_MS = 250.0
_WARM_UP_S = 0.05
# How long one window of a slow model, and its warm-up, may get.
_LONGEST_S = 2.0
# Quick: three windows a level and no more, the whole sweep in 3 * 1.2 * 450 ms = 1.6 s, which leaves
# room for loading configurations within the promised 3 s. Under 20 ms the thread switches of a
# busy kernel (5 ms each) are all that one measures; over 100 ms it is not quick.
_QUICK_TOTAL_MS = 450.0
_QUICK_INTERVAL_MS = (20.0, 100.0)
_QUICK_WARM_UP_S = 0.02
_QUICK_LONGEST_S = 0.3
# Levels to expect of a search that does not know.
_QUICK_LEVELS = 8


def perf(
    server: Server | None,
    model: str,
    *,
    concurrency: int | str | range | Iterable[int] = 1,
    request_rate: float | str | Iterable[float] | None = None,
    request_distribution: Distribution = "constant",
    intervals: Sequence[int] | None = None,
    request_count: int = 0,
    batch_size: int | Sequence[int] | None = None,
    inputs: Inputs | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    input_data: str | Path = "random",
    string_length: int = STRING_LENGTH,
    string_data: str | None = None,
    streaming: bool = False,
    sequence_length: int | None = None,
    sequence_length_variation: float = 20.0,
    sequence_id_range: int | str | Sequence[int] | None = None,
    num_of_sequences: int = NUM_OF_SEQUENCES,
    serial_sequences: bool = False,
    measurement_mode: MeasurementMode = "time_windows",
    measurement_interval_ms: float | None = None,
    measurement_request_count: int = 50,
    stability_percentage: float = 10.0,
    max_trials: int = 10,
    percentile: float | None = None,
    latency_threshold_ms: float | None = None,
    binary_search: bool = False,
    instances: int | Sequence[int] | None = None,
    max_batch_size: int | Sequence[int] | None = None,
    max_queue_delay_us: int | Sequence[int] | None = None,
    dynamic_batching: bool | Sequence[bool] | None = None,
    preferred: int | Sequence[int] | Sequence[Sequence[int]] | None = None,
    sweep_models: Sequence[str] = (),
    seed: int = 0,
    quick: bool = False,
    observer: Observer | None = None,
    url: str | None = None,
    protocol: Protocol | None = None,
) -> PerfReport:
    """Measure a model's throughput and latency under load, as perf_analyzer does.

    >>> report = nt.perf(server, "bert", concurrency="1:32:x2", instances=[1, 2])  # doctest: +SKIP
    >>> report.best(p99_ms=20).label  # doctest: +SKIP
    'instances=2'
    >>> nt.perf(None, "bert", url="gpu-box:8000", concurrency=8)  # doctest: +SKIP

    Parameters
    ----------
    server : Server
        In this process; None with a `url`.
    model : str
        A model or an ensemble that is loaded.
    url : str, optional
        A server of any kind that speaks Triton's protocol: ``host:port``, or with ``http://`` or
        ``grpc://`` in front. Its configuration stays as it is.
    protocol : {"inproc", "http", "grpc"}, optional
        How the server is asked: in the process by default, and over HTTP at a `url`. A server in
        this process is measured over HTTP or gRPC at the port where it serves, or at a free one
        that is opened for the run.
    concurrency : int, str, range or iterable of int
        Requests kept outstanding, one level each: ``8``, ``"1:32"`` (with 32), ``"1:32:4"``,
        ``"1:32:x2"`` (doubling), ``range(1, 33)``, ``[1, 8, 32]``. ``"1:0"`` goes on until
        `latency_threshold_ms` is crossed. At 1 a thread calls ``infer`` as a synchronous client
        would; above, the thread that finishes a request submits the next.
    request_rate : float, str or iterable of float, optional
        Requests per second instead, sent on schedule whatever comes back; written likewise.
    request_distribution : {"constant", "poisson"}
        Gaps between the requests of a rate.
    intervals : sequence of int, optional
        Or the gaps themselves, in microseconds, in a cycle.
    request_count : int
        Send just so many requests a level, without windows or stability; 0 for windows.
    batch_size : int or sequence of int, optional
        Rows per request; several are measured one after the other. By default 1, or what `inputs`
        have.
    inputs : mapping, or sequence of mappings, optional
        What to send, as for ``server.infer``; several are sent in turn. With `batch_size`, their
        rows are cut into requests of that size.
    shapes : mapping of str to sequence of int, optional
        Dimensions of inputs with variable ones, without the batch dimension.
    input_data : {"random", "zero"} or path
        What to generate where no `inputs` are given; once, reproducibly, and sent again and again.
        Or a file of perf_analyzer's: JSON with steps, or for a sequence model with streams of
        steps; or a directory with a file for each input.
    string_length : int
        Letters and digits of each generated string.
    string_data : str, optional
        Or the string itself.
    streaming : bool
        Listen to each response, and report the time to the first one and between them; for
        decoupled models. In the process or over gRPC.
    sequence_length : int, optional
        Requests of a sequence, of a model with a sequence batcher; 20 by default, or the number of
        steps of the data where they are given. Each outstanding request of a concurrency is a live
        sequence.
    sequence_length_variation : float
        By how many percent a length varies to either side.
    sequence_id_range : int or str, optional
        First correlation id, or ``"START:END"`` with END excluded; by default 1 and no end.
    num_of_sequences : int
        Live sequences that share a request rate.
    serial_sequences : bool
        With a request rate: a sequence has one request outstanding at most. Always so over HTTP
        and gRPC, where requests could overtake each other.
    measurement_mode : {"time_windows", "count_windows"}
        A window ends after a time, or after `measurement_request_count` requests.
    measurement_interval_ms : float, optional
        Nominal length of a window in milliseconds (it really takes 1.2 times that, as in
        perf_analyzer); by default 250 ms, and more where a request takes longer than 50 ms.
    measurement_request_count : int
    stability_percentage : float
        A level is stable when throughput and latency of the last three windows lie within this.
    max_trials : int
        Windows a level at most.
    percentile : float, optional
        Judge stability and limit by this percentile of the latency instead of its mean, and
        report it.
    latency_threshold_ms : float, optional
        Milliseconds; the first level that reaches it ends the search and is not reported.
    binary_search : bool
        Search a range for the highest level below `latency_threshold_ms`.
    instances, max_batch_size, max_queue_delay_us, dynamic_batching, preferred : optional
        A value, or a list of values (`preferred`: a list of sizes, or several lists), for a sweep
        over all combinations. The model is reloaded with each, and with its own configuration at
        the end, also after an error or an interrupt. For an ensemble they apply to its composing
        models, and its ``max_batch_size`` follows the smallest of theirs.
    sweep_models : sequence of str
        Apply them to these models instead.
    seed : int
        Of generated data and of the poisson schedule.
    quick : bool
        Three short windows a level: a look within 3 s, marked as such.
    observer : callable, optional
        Called with a `PerfProgress` after each window, in the calling thread. It may stop the
        run by raising KeyboardInterrupt; any other exception is logged and silences it.

    Returns
    -------
    PerfReport
        Shows itself as curve and table. Requests that fail are counted, not raised. After a
        KeyboardInterrupt it holds what was measured, with ``interrupted=True``; a second
        interrupt while the first is dealt with is raised.

    Raises
    ------
    InvalidArgumentError
        Options that make no sense, in perf_analyzer's words where it has some.
    NotFoundError
        No such model.
    UnavailableError
        Nobody answers at the URL.

    Notes
    -----
    Rules are those of perf_analyzer 2.50, with one difference: it drops a level that does not
    become stable and stops there. Here its numbers stay, marked ``"unstable"``, and the sweep
    goes on: a notebook on a busy laptop is rarely stable, and to lose what was measured helps
    nobody.
    """
    plan = _level_plan(concurrency, request_rate, request_distribution, intervals, binary_search)
    check_search(plan.levels, binary=binary_search, latency_threshold_ms=latency_threshold_ms)
    _check_choice("request_distribution", request_distribution, get_args(Distribution))
    _check_choice("measurement_mode", measurement_mode, get_args(MeasurementMode))
    if protocol is not None:
        _check_choice("protocol", protocol, PROTOCOLS)
    _check_numbers(
        percentile=percentile,
        measurement_interval_ms=measurement_interval_ms,
        max_trials=max_trials,
        request_count=request_count,
        measurement_request_count=measurement_request_count,
        stability_percentage=stability_percentage,
        latency_threshold_ms=latency_threshold_ms,
        string_length=string_length,
        sequence_length=sequence_length,
        sequence_length_variation=sequence_length_variation,
        num_of_sequences=num_of_sequences,
    )
    configurations = combinations(
        instances=instances,
        max_batch_size=max_batch_size,
        max_queue_delay_us=max_queue_delay_us,
        dynamic_batching=dynamic_batching,
        preferred=preferred,
    )
    first_id, end_id = read_id_range(sequence_id_range)
    wanted = SequencePlan(
        length=sequence_length,
        variation=sequence_length_variation,
        first_id=first_id,
        end_id=end_id,
        num_of_sequences=num_of_sequences,
        serial=serial_sequences,
    )
    data = Data(inputs, shapes, input_data, string_length, string_data, seed)
    with contextlib.ExitStack() as stack:
        target, remote = _target(stack, server, url, protocol)
        if url is not None:
            _check_remote(configurations, sweep_models)
        ensembles, others = model_tree(target, model)
        config = ensembles.get(model) or others[model]
        check_streaming(ensembles | others, streaming=streaming)
        if streaming and remote is not None and remote.protocol == "http":
            raise InvalidArgumentError(NO_STREAMS, hint="--protocol grpc")
        sequences = sequence_plan(ensembles | others, wanted, serial=remote is not None)
        if sequences is not None:
            sequences.check(_most_live(plan, sequences))
        largest = min(o.get("max_batch_size", config.max_batch_size) for o in configurations)
        batches, remarks = workloads(
            config,
            list(batch_size) if isinstance(batch_size, Sequence) else [batch_size],
            data,
            sequences,
            largest,
        )
        configurator = None
        if server is not None:
            configurator = Configurator(server, model, configurations, sweep_models)

        total = plan.count and plan.count * len(configurations) * len(batches)
        interval_ms = measurement_interval_ms or _INTERVAL_MS
        warm_up_s, longest_s = _WARM_UP_S, _LONGEST_S
        if quick:
            max_trials = STABLE_WINDOWS
            warm_up_s, longest_s = _QUICK_WARM_UP_S, _QUICK_LONGEST_S
            share = _QUICK_TOTAL_MS / (total or _QUICK_LEVELS)
            interval_ms = measurement_interval_ms or min(
                max(share, _QUICK_INTERVAL_MS[0]), _QUICK_INTERVAL_MS[1]
            )
        windows = WindowPlan(
            mode=measurement_mode,
            interval_ms=interval_ms,
            request_count=measurement_request_count,
            longest_ms=0.0 if measurement_interval_ms else longest_s * 1000,
        )
        rule = StabilityRule(
            percentage=stability_percentage,
            percentile=percentile,
            max_trials=max_trials,
            latency_threshold_ms=latency_threshold_ms,
        )
        session = Session(target, model, tuple(others) if ensembles else (), total, observer)
        started, interrupted = time.monotonic(), False
        try:
            for options in configurations:
                if configurator is not None:
                    configurator.apply(options)
                for workload in batches:
                    level_of = partial(
                        Level,
                        requests=workload.requests,
                        batch_size=workload.batch_size,
                        sequences=workload.sequences,
                        streaming=streaming,
                        rule=rule,
                        plan=windows,
                        warm_up_s=warm_up_s,
                        longest_warm_up_s=longest_s,
                        request_count=request_count,
                        seed=seed,
                        configuration=options,
                    )
                    session.search(plan, level_of)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            if configurator is not None:
                configurator.restore()
        return PerfReport(
            model=model,
            points=tuple(session.points),
            settings={
                "measurement_mode": measurement_mode,
                "measurement_interval_ms": interval_ms,
                "measurement_request_count": measurement_request_count,
                "stability_percentage": stability_percentage,
                "max_trials": max_trials,
                "percentile": percentile,
                "latency_threshold_ms": latency_threshold_ms,
                "binary_search": binary_search,
                "request_distribution": request_distribution,
                "request_count": request_count,
                "input_data": str(input_data) if inputs is None else "given",
                "seed": seed,
                "streaming": streaming,
                **({} if sequences is None else {"sequences": asdict(sequences)}),
                **({} if remote is None else {"url": remote.url, "protocol": remote.protocol}),
            },
            environment={
                **_environment(),
                **({} if remote is None else {"server": remote.describe()}),
            },
            notes=(*remarks, *session.notes),
            elapsed_s=time.monotonic() - started,
            interrupted=interrupted,
            quick=quick,
        )


def _target(
    stack: contextlib.ExitStack, server: Server | None, url: str | None, protocol: Protocol | None
) -> tuple[Target, RemoteServer | None]:
    """Return what is asked; and once more if requests leave the process."""
    if url is None:
        if server is None:
            raise InvalidArgumentError("nothing to measure", hint="give a server, or a url")
        if protocol in (None, "inproc"):
            return server, None
        url = stack.enter_context(server.reached_over(protocol))
    elif server is not None:
        raise InvalidArgumentError("give a server or a url, not both")
    if protocol == "inproc":
        raise InvalidArgumentError(
            f"the server at {url} is not in this process", hint="--protocol http or grpc"
        )
    remote = stack.enter_context(remote_server(url, protocol))
    return remote, remote


def _check_remote(configurations: Sequence[Configuration], sweep_models: Sequence[str]) -> None:
    """Refuse what only a server in this process can be asked for."""
    swept = sorted({name for options in configurations for name in options})
    if swept or sweep_models:
        raise InvalidArgumentError(
            f"the configuration of a server at a url is not changed: {', '.join(swept) or 'sweep_models'}",
            hint="load the model here to sweep over its configuration",
        )


def _most_live(plan: LevelPlan, sequences: SequencePlan) -> int:
    """Return how many sequences are live at the highest level; the lowest of an open range."""
    if plan.mode != "concurrency":
        return sequences.num_of_sequences
    levels = level_values(plan.levels)
    return int(max(levels) if levels is not None else next(iter(plan.levels)))


def _level_plan(
    concurrency: int | str | range | Iterable[int],
    request_rate: float | str | Iterable[float] | None,
    distribution: Distribution,
    intervals: Sequence[int] | None,
    binary: bool,
) -> LevelPlan:
    """Read the load options; only one kind of load may be given."""
    given = [concurrency != 1, request_rate is not None, intervals is not None]
    if sum(given) > 1:
        raise InvalidArgumentError(
            "Cannot specify more then one inference load mode. Please choose only one of the "
            "following modes: --concurrency, --request-rate, or --intervals.",
        )
    if intervals is not None:
        gaps = tuple(int(gap) for gap in intervals)
        if not gaps or min(gaps) < 0 or not sum(gaps):
            raise InvalidArgumentError(
                "intervals must be a list of microseconds, none of them negative and not all 0"
            )
        load = RequestIntervals(gaps)
        return LevelPlan("intervals", (load.value,), distribution, gaps, binary)
    if request_rate is not None:
        levels = parse_levels(request_rate, option="--request-rate-range", integral=False)
        return LevelPlan("request_rate", levels, distribution, (), binary)
    levels = parse_levels(concurrency, option="--concurrency-range", integral=True)
    return LevelPlan("concurrency", levels, distribution, (), binary)


def _check_choice(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise InvalidArgumentError(
            f"Failed to parse --{name.replace('_', '-')}. Unsupported type provided: '{value}'. "
            f"The available options are {', '.join(repr(each) for each in allowed)}.",
            hint=nearest(value, allowed),
        )


def _check_numbers(
    *,
    percentile: float | None,
    measurement_interval_ms: float | None,
    measurement_request_count: int,
    max_trials: int,
    request_count: int,
    stability_percentage: float,
    latency_threshold_ms: float | None,
    string_length: int,
    sequence_length: int | None,
    sequence_length_variation: float,
    num_of_sequences: int,
) -> None:
    """Refuse numbers that mean nothing, with perf_analyzer's texts (A.8)."""
    interval = measurement_interval_ms
    for wrong, text in (
        (
            percentile is not None and not 0 < percentile < 100,
            "--percentile. The value must be -1 for not reporting or in range (0, 100).",
        ),
        (
            interval is not None and interval <= 0,
            "--measurement-interval (-p). The value must be > 0 msec.",
        ),
        (measurement_request_count <= 0, "--measurement-request-count. The value must be > 0."),
        (max_trials <= 0, "--max-trials (-r). The value must be > 0."),
        (request_count < 0, "--request-count. The value must be >= 0."),
        (stability_percentage < 0, "--stability-percentage (-s). The value must be >= 0.0."),
        (
            latency_threshold_ms is not None and latency_threshold_ms < 0,
            "--latency-threshold (-l). The value must be >= 0 msecs.",
        ),
        (string_length <= 0, "--string-length. The value must be > 0."),
        (
            sequence_length is not None and sequence_length <= 0,
            "--sequence-length. The value must be > 0.",
        ),
        (
            sequence_length_variation < 0,
            "--sequence-length-variation. The value must be >= 0.0.",
        ),
        (num_of_sequences <= 0, "--num-of-sequences. The value must be > 0."),
    ):
        if wrong:
            raise InvalidArgumentError(f"Failed to parse {text}")


def _environment() -> dict[str, Any]:
    """Where it was measured; a GPU is named only if torch is in use already."""
    facts: dict[str, Any] = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "nbtriton": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        facts["torch"] = str(torch.__version__)
        if torch.cuda.is_available():
            facts["gpus"] = [
                torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())
            ]
    return facts
