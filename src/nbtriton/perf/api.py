"""``nbtriton.perf``: the signature and the documentation of a measurement."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtriton.errors import InvalidArgumentError, nearest
from nbtriton.perf.data import STRING_LENGTH, Inputs
from nbtriton.perf.loads import Distribution
from nbtriton.perf.measure import MeasurementMode
from nbtriton.perf.options import PROTOCOLS, PerfOptions, Protocol, SharedMemoryKind
from nbtriton.perf.placement import Placement
from nbtriton.perf.progress import Observer
from nbtriton.perf.recording import Recording
from nbtriton.perf.report import PerfReport
from nbtriton.perf.run import run
from nbtriton.perf.shared_memory import OUTPUT_BYTES
from nbtriton.perf.traffic import NUM_OF_SEQUENCES

if TYPE_CHECKING:
    from nbtriton.api import Server

__all__ = ["PROTOCOLS", "options_of", "perf"]


def perf(
    server: Server | None,
    model: str,
    *,
    concurrency: int | str | range | Iterable[int] = 1,
    request_rate: float | str | Iterable[float] | None = None,
    request_distribution: Distribution = "constant",
    intervals: Sequence[int] | None = None,
    periodic_concurrency: str | None = None,
    request_period: int = 10,
    recording: str | Path | Recording | None = None,
    speed: float | Sequence[float] = 1.0,
    request_count: int = 0,
    batch_size: int | Sequence[int] | None = None,
    inputs: Inputs | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    input_data: str | Path = "random",
    string_length: int = STRING_LENGTH,
    string_data: str | None = None,
    streaming: bool = False,
    priority: int | Sequence[int] = 0,
    timeout_us: int | Sequence[int] = 0,
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
    isolation: str | Sequence[str] | None = None,
    placement: Placement | Sequence[Placement] | None = None,
    kind: str | Sequence[str] | None = None,
    cache: bool | Sequence[bool] | None = None,
    rate_limit: str | Sequence[str] | None = None,
    sweep_models: Sequence[str] = (),
    seed: int = 0,
    quick: bool = False,
    observer: Observer | None = None,
    url: str | None = None,
    protocol: Protocol | None = None,
    shared_memory: SharedMemoryKind = "none",
    output_shared_memory_size: int = OUTPUT_BYTES,
) -> PerfReport:
    """Measure a model's throughput and latency under load, as perf_analyzer does.

    >>> report = nt.perf(server, "double", concurrency="1:2", instances=[1, 2], request_count=20)
    >>> [(point.label, int(point.value)) for point in report.points]
    [('instances=1', 1), ('instances=1', 2), ('instances=2', 1), ('instances=2', 2)]
    >>> nt.perf(None, "bert", url="gpu-box:8000", concurrency=8)  # doctest: +SKIP

    Parameters
    ----------
    server : Server
        The server in this process; None with a `url`.
    model : str
        A model or an ensemble that is loaded.
    url : str, optional
        A server of any kind that speaks Triton's protocol: ``host:port``, or with ``http://`` or
        ``grpc://`` in front. Its configuration stays as it is.
    protocol : {"inproc", "http", "grpc"}, optional
        How requests reach the server: in the process by default, and over HTTP at a `url`. A server in
        this process is measured over HTTP or gRPC at the port where it serves, or at a free one
        that is opened for the run.
    shared_memory : {"none", "system"}
        Over HTTP and gRPC: have the tensors of requests and responses in POSIX shared memory, of
        a server on this machine. The regions are registered before the load and taken back after it.
    output_shared_memory_size : int
        Bytes of room, a row, for each output of strings or with variable dimensions.
    concurrency : int, str, range or iterable of int
        Requests kept outstanding, one level each: ``8``, ``"1:32"`` (with 32), ``"1:32:4"``,
        ``"1:32:x2"`` (doubling), ``range(1, 33)``, ``[1, 8, 32]``. ``"1:0"`` goes on until
        `latency_threshold_ms` is crossed. At 1 a thread calls ``infer`` as a synchronous client
        would; above, the thread that finishes a request submits the next.
    request_rate : float, str or iterable of float, optional
        Requests per second instead, sent on schedule whether or not responses came; written likewise.
    request_distribution : {"constant", "poisson"}
        Gaps between the requests of a rate.
    intervals : sequence of int, optional
        Or the gaps themselves, in microseconds, in a cycle.
    periodic_concurrency : str, optional
        Or ``"START:END:STEP"`` of a decoupled model, with `streaming`: START requests at first, and STEP
        more each time those sent last have had `request_period` responses each, until END are sent
        in all. One window, without stability: the responses of streams that crowd each other.
    request_period : int
        Responses of each request before the next are sent, or its end if it has fewer.
    recording : path or Recording, optional
        Or the times at which the requests for this model came in recorded traffic (`nbtriton.record`).
        A level is the whole recording once, or `request_count` requests of it, over and over. What is
        sent is what `inputs` and the other options say: `nbtriton.replay` sends the recorded requests.
    speed : float or sequence of float
        How many times as fast as it was recorded; one level each.
    request_count : int
        Requests to send a level, without windows or stability; 0 for windows.
    batch_size : int or sequence of int, optional
        Rows per request; several are measured one after the other. By default 1, or what `inputs`
        have.
    inputs : mapping, or sequence of mappings, optional
        Inputs to send, as for ``server.infer``; several are sent in turn. With `batch_size`, their
        rows are cut into requests of that size.
    shapes : mapping of str to sequence of int, optional
        Dimensions of inputs with variable ones, without the batch dimension.
    input_data : {"random", "zero"} or path
        Data to generate where no `inputs` are given; once, reproducibly, and sent again and again.
        Or a file of perf_analyzer's: JSON with steps, or for a sequence model with streams of
        steps; or a directory with a file for each input.
    string_length : int
        Letters and digits of each generated string.
    string_data : str, optional
        Or the string itself.
    streaming : bool
        Record each response, and report the time to the first one and between them; for
        decoupled models. In the process or over gRPC.
    priority, timeout_us : int or sequence of int
        Priority of each request (1 is the highest, 0 the model's default) and its queue timeout in
        microseconds (0 for the model's default); several are given to the requests in turn.
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
        At most this number of windows a level.
    percentile : float, optional
        Assess stability and limit by this percentile of the latency instead of its mean, and
        report it.
    latency_threshold_ms : float, optional
        Milliseconds; the first level that reaches it ends the search and is not reported.
    binary_search : bool
        Search a range for the highest level below `latency_threshold_ms`.
    instances, max_batch_size, max_queue_delay_us, dynamic_batching, preferred, isolation : optional
        A value, or a list of values (`preferred`: a list of sizes, or several lists), for a sweep
        over all combinations. The model is reloaded with each, and with its own configuration at
        the end, also after an error or an interrupt. For an ensemble they apply to its composing
        models, and its ``max_batch_size`` follows the smallest of theirs.
    placement : str or mapping, or a sequence of them, optional
        Where the models run, swept likewise: ``"cpu"``, ``"gpu"`` (all of it), ``"gpu:1"``, or
        ``"models-on-gpu"``, with which steps in Python stay on the host. Or the device of each
        model: ``{"bert": "gpu:1", "trees": "cpu"}``; others stay where they are.
    kind : str or sequence of str, optional
        The kind of their instances, swept likewise: ``"cpu"``, ``"gpu"``, ``"auto"``, ``"model"``.
    cache : bool or sequence of bool, optional
        ``response_cache.enable``, swept likewise; the server needs a cache (`cache_bytes`).
    rate_limit : {"off", "execution_count"} or a sequence of them, optional
        The server's rate limiter, swept likewise. All of its models are loaded anew with each, and as
        they were at the end.
    sweep_models : sequence of str
        Apply them to these models instead.
    seed : int
        Of generated data and of the poisson schedule.
    quick : bool
        Three short windows a level: a look within 3 s, marked as such.
    observer : callable, optional
        Called with a `PerfProgress` after each window and four times a second in between, in the
        calling thread. It may stop the run by raising KeyboardInterrupt; any other exception is logged and silences it.

    Returns
    -------
    PerfReport
        Shows itself as curve and table. Requests that fail are counted, not raised. After a
        KeyboardInterrupt it has the levels so far, with ``interrupted=True``; a second interrupt
        while the first is handled is raised.

    Raises
    ------
    InvalidArgumentError
        Options that make no sense, in perf_analyzer's words where it has some.
    NotFoundError
        No such model.
    UnavailableError
        No server answers at the URL.

    Notes
    -----
    Rules are those of perf_analyzer 2.50, with one difference: it drops a level that does not
    become stable and stops there. Here its numbers stay, marked ``"unstable"``, and the sweep
    goes on: a notebook on a busy laptop is rarely stable, and losing what was measured
    helps no one.
    """
    # The parameters, by their names.
    return run(PerfOptions(**locals()))


_DEFAULTS: dict[str, Any] = {
    name: None if parameter.default is parameter.empty else parameter.default
    for name, parameter in inspect.signature(perf).parameters.items()
}


def options_of(given: Mapping[str, Any]) -> PerfOptions:
    """Return the options of a measurement from arguments of `perf`, by name.

    Raises
    ------
    InvalidArgumentError
        One that does not exist, or cannot be.
    """
    for name in given:
        if name not in _DEFAULTS:
            raise InvalidArgumentError(
                f"perf has no option '{name}'", hint=nearest(name, [*_DEFAULTS])
            )
    return PerfOptions(**(_DEFAULTS | dict(given)))
