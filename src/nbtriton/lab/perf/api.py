"""``nbtriton.perf`` and ``nbtriton.types.PerfRun``: a measurement, and one in the background; their signatures and documentation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Unpack

from nbtriton.lab.perf.options import PerfOptions
from nbtriton.lab.perf.progress import Observer, PerfProgress, progress_line
from nbtriton.lab.perf.report import PerfReport
from nbtriton.lab.perf.settings import PERF, PerfSettings
from nbtriton.options.table import signed

if TYPE_CHECKING:
    from nbtriton.serving.server import Server


@signed(PERF)
def perf(
    server: Server | None,
    model: str,
    *,
    observer: Observer | None = None,
    **options: Unpack[PerfSettings],
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
        A loaded model or ensemble.
    url : str, optional
        A remote server with Triton's protocol: ``host:port``, optionally with ``http://`` or ``grpc://`` in
        front. Its configuration stays as it is.
    protocol : {"inproc", "http", "grpc"}, optional
        The transport of requests: by default in the process, and HTTP for a `url`. Over HTTP or gRPC a server
        in this process is measured at its own port, or at a free one that is opened for the run.
    chained : bool or sequence of bool, optional
        Of an ensemble: True has the client ask for each step itself, one after the other, as a program without an
        ensemble does; ``[False, True]`` puts both into one table. It has a thread for each request in flight.
    shared_memory : {"none", "system"}
        Over HTTP and gRPC to a server on this machine: pass the tensors of requests and responses in POSIX
        shared memory. The regions are registered before the load and unregistered after it.
    output_shared_memory_size : int
        Bytes per row for each output of strings or with variable dimensions.
    concurrency : int, str, range or iterable of int
        Outstanding requests, one level each: ``8``, ``"1:32"`` (with 32), ``"1:32:4"``, ``"1:32:x2"``
        (doubling), ``range(1, 33)``, ``[1, 8, 32]``. ``"1:0"`` continues until `latency_threshold_ms` is
        exceeded. At 1 a thread calls ``infer`` as a synchronous client would; above, the thread that
        completes a request submits the next.
    request_rate : float, str or iterable of float, optional
        Requests per second, sent on schedule whether or not responses came; in the same notation.
    request_distribution : {"constant", "poisson"}
        Gaps between the requests of a rate.
    intervals : sequence of int, optional
        The gaps between requests in microseconds, cycled.
    periodic_concurrency : str, optional
        ``"START:END:STEP"`` for a decoupled model, with `streaming`: START requests at first, and STEP more
        each time that the last ones have had `request_period` responses each, until END are sent in all. One
        window, without stability: it shows how concurrent streams slow each other down.
    request_period : int
        Responses of each request before the next ones are sent, or its end if it has fewer.
    recording : path or Recording, optional
        Recorded traffic (`nbtriton.record`) that gives the send times of this model's requests. A level is
        the whole recording once, or `request_count` requests of it, repeated. The data come from `inputs` and
        the other options: `nbtriton.replay` sends the recorded requests themselves.
    speed : float or sequence of float
        Multiple of the recorded speed; one level each.
    request_count : int
        Requests to send a level, without windows or stability; 0 for windows.
    batch_size : int or sequence of int, optional
        Rows per request; several are measured one after the other. By default 1, or the rows of `inputs`.
    inputs : mapping, or sequence of mappings, optional
        Inputs, as for ``server.infer``; several are sent in turn. With `batch_size`, their rows are cut into
        requests of that size.
    shapes : mapping of str to sequence of int, optional
        Dimensions of inputs with variable ones, without the batch dimension.
    input_data : {"random", "zero"} or path
        Data without `inputs`: generated once, reproducibly, and sent repeatedly. Or input data of
        perf_analyzer: a JSON file with steps, or with streams of steps for a sequence model; or a directory
        with a file for each input.
    string_length : int
        Letters and digits of each generated string.
    string_data : str, optional
        The generated string itself.
    streaming : bool
        Record each response, and report the times to the first one and between them; for decoupled models, in
        the process or over gRPC.
    model_version : int, optional
        The version that is asked for; by default the highest one. `nbtriton.compare` measures two in turn.
    priority, timeout_us : int or sequence of int
        Priority of each request (1 is the highest, 0 the model's default) and its queue timeout in
        microseconds (0 for the model's default); several are given to the requests in turn.
    sequence_length : int, optional
        Requests per sequence, for a model with a sequence batcher; by default 20, or the number of steps in
        given data. Each outstanding request of a concurrency is a live sequence.
    sequence_length_variation : float
        Variation of the length to either side, in percent.
    sequence_id_range : int or str, optional
        First correlation id, or ``"START:END"`` with END excluded; by default 1 and no end.
    num_of_sequences : int
        Live sequences that share a request rate.
    serial_sequences : bool
        With a request rate: at most one outstanding request per sequence. Always on over HTTP and gRPC, where
        requests could overtake each other.
    measurement_mode : {"time_windows", "count_windows"}
        A window ends after a time, or after `measurement_request_count` requests.
    measurement_interval_ms : float, optional
        Nominal length of a window in milliseconds (its real length is 1.2 times that, as in perf_analyzer);
        by default 250 ms, and more where a request takes longer than 50 ms.
    measurement_request_count : int
    stability_percentage : float
        A level is stable when throughput and latency of the last three windows are within this spread.
    max_trials : int
        Most windows per level.
    percentile : float, optional
        Judge stability and limit by this percentile of the latency instead of its mean, and report it.
    latency_threshold_ms : float, optional
        Latency limit in milliseconds; the first level that reaches it ends the search and is not reported.
    binary_search : bool
        Search a range for the highest level below `latency_threshold_ms`.
    instances, max_batch_size, max_queue_delay_us, dynamic_batching, preferred, isolation : optional
        A value, or a list of values (`preferred`: a list of sizes, or several lists), for a sweep over all
        combinations. The model is reloaded with each, and with its own configuration at the end, also after
        an error or an interrupt. Options of an ensemble apply to its composing models, and its
        ``max_batch_size`` is the smallest of theirs.
    placement : str or mapping, or a sequence of them, optional
        Where the models run, also swept: ``"cpu"``, ``"gpu"`` (all of it), ``"gpu:1"``, or
        ``"models-on-gpu"``, which leaves Python steps on the host. Or the device of each model: ``{"bert":
        "gpu:1", "trees": "cpu"}``; others stay where they are.
    kind : str or sequence of str, optional
        The kind of their instances, also swept: ``"cpu"``, ``"gpu"``, ``"auto"``, ``"model"``.
    cache : bool or sequence of bool, optional
        ``response_cache.enable``, also swept; the server needs a cache (`cache_bytes`).
    rate_limit : {"off", "execution_count"} or a sequence of them, optional
        The server's rate limiter, also swept. All of its models are reloaded with each value, and with the
        original one at the end.
    sweep_models : sequence of str
        Apply the swept options to these models instead.
    seed : int
        Seed of generated data and of the poisson schedule.
    quick : bool
        Three short windows per level: a rough result within 3 s, marked as such.
    observer : callable, optional
        Called with a `PerfProgress` after each window and four times a second in between, in the calling
        thread. A KeyboardInterrupt from it stops the run; after any other exception, which is logged, it is
        not called again.

    Returns
    -------
    PerfReport
        Displayed as curve and table. Failed requests are counted, not raised. After a KeyboardInterrupt it
        has the levels so far, with ``interrupted=True``; a second interrupt meanwhile is raised. An error after the
        first level, such as of a configuration that cannot be loaded, ends it as well: its ``failure`` tells it.

    Raises
    ------
    InvalidArgumentError
        Invalid options, with perf_analyzer's text where it has one.
    NotFoundError
        No such model.
    UnavailableError
        No server answers at the URL.

    Notes
    -----
    The rules are those of perf_analyzer 2.50, with one difference: perf_analyzer drops an unstable level and
    stops there. Here its numbers stay, marked ``"unstable"``, and the sweep continues: a notebook on a busy
    laptop is rarely stable, and its measurements should not be lost.
    """
    from nbtriton.lab.perf.run import run  # the engine and its clients

    return run(PerfOptions(server, model, observer=observer, **options))


@signed(PERF)
class PerfRun:
    """A measurement in a thread of its own, started at once.

    >>> run = nt.types.PerfRun(server, "double", concurrency=2, request_count=20)
    >>> run.result().points[0].request_count >= 20  # in a notebook also: await run
    True

    Parameters
    ----------
    server, model, observer
        As for `nbtriton.perf`; an `observer` is called in the run's thread.
    **options
        See `nbtriton.lab.perf.settings.PerfSettings`.

    Attributes
    ----------
    progress : PerfProgress or None
        The latest; None before the first.

    Raises
    ------
    InvalidArgumentError
        Invalid options. `result` raises the errors of the run itself.
    """

    def __init__(
        self,
        server: Server | None,
        model: str,
        *,
        observer: Observer | None = None,
        **options: Unpack[PerfSettings],
    ) -> None:
        self._observer = observer
        checked = PerfOptions(server, model, observer=self._observe, **options)
        checked.level_plan()
        self.model = model
        self.progress: PerfProgress | None = None
        self._stopping = False
        self._future: Future[PerfReport] = Future()
        self._future.set_running_or_notify_cancel()  # awaiting code cannot cancel it
        self._ended = threading.Event()
        self._future.add_done_callback(lambda _: self._ended.set())
        self._thread = threading.Thread(
            target=self._run, args=(checked,), name="nbtriton-perf-run", daemon=True
        )
        self._thread.start()

    def done(self) -> bool:
        """Return whether the run has ended.

        Examples
        --------
        >>> run = nt.types.PerfRun(server, "double", concurrency=1, request_count=4)
        >>> report = run.result(timeout=60)
        >>> run.done()
        True
        """
        return self._future.done()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end of the run, and return the error that ended it; None after a report.

        Examples
        --------
        >>> nt.types.PerfRun(server, "double", concurrency=1, request_count=4).exception(
        ...     timeout=60
        ... ) is None
        True
        """
        self._wait(timeout)
        return self._future.exception()

    def stop(self) -> PerfReport:
        """Stop the run; return the report of the measurements so far, with ``interrupted=True``.

        Raises
        ------
        TritonError
            The run had failed.

        Examples
        --------
        >>> run = nt.types.PerfRun(server, "double", concurrency=range(1, 100))
        >>> run.stop().interrupted
        True
        """
        self._stopping = True
        return self.result()

    def result(self, timeout: float | None = None) -> PerfReport:
        """Wait for the end of the run, and return the report.

        Raises
        ------
        TimeoutError
            The run has not ended after `timeout` seconds.
        TritonError
            The run failed, as `nbtriton.perf` does.
        """
        self._wait(timeout)
        return self._future.result()

    def _wait(self, timeout: float | None) -> None:
        from nbtriton.runtime.interrupts import wait_in_slices

        if not wait_in_slices(self._ended.wait, timeout):
            raise TimeoutError(f"'{self.model}' is still being measured after {timeout:g} s")

    def add_done_callback(self, call: Callable[[PerfRun], None]) -> None:
        """Call a function at the end of the run, in its thread; at once if it has ended.

        Examples
        --------
        >>> ended = []
        >>> run = nt.types.PerfRun(server, "double", concurrency=1, request_count=4)
        >>> run.add_done_callback(ended.append)
        >>> report = run.result(timeout=60)
        """
        self._future.add_done_callback(lambda _: call(self))

    def __await__(self) -> Generator[Any, None, PerfReport]:
        import asyncio  # 20 ms, only for callers that await

        return asyncio.wrap_future(self._future).__await__()

    def __repr__(self) -> str:
        if not self.done():
            line = progress_line(self.progress)[0] if self.progress else "starting"
            return f"<PerfRun {self.model}: {line}>"
        if (error := self._future.exception()) is not None:
            return f"<PerfRun {self.model}: failed: {error}>"
        return f"<PerfRun {self.result().headline}>"

    def _run(self, options: PerfOptions) -> None:
        from nbtriton.lab.perf.run import run  # the engine and its clients

        try:
            report = run(options)
        except BaseException as error:
            self._future.set_exception(error)
        else:
            self._future.set_result(report)

    def _observe(self, progress: PerfProgress) -> None:
        self.progress = progress
        if self._stopping:
            raise KeyboardInterrupt
        if self._observer is not None:
            self._observer(progress)
