"""The magic that measures."""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import Any

from IPython.core.magic import Magics, line_magic, magics_class, output_can_be_silenced
from IPython.core.magic_arguments import argument, magic_arguments

from nbtriton.api import server
from nbtriton.magics.common import (
    evaluate,
    int_list,
    keep,
    keep_option,
    name_list,
    parse,
    unquoted,
)

__all__ = ["MeasureMagics", "read_options"]


def _switches(text: str) -> list[bool]:
    words = {"on": True, "yes": True, "true": True, "off": False, "no": False, "false": False}
    try:
        return [words[part.lower()] for part in unquoted(text).split(",")]
    except KeyError as error:
        raise ArgumentTypeError(f"{error} is neither on nor off; write off,on for both") from None


def placements(text: str) -> list[Any]:
    """Read placements: names, or devices of models such as ``bert=gpu:1+trees=cpu``."""
    found: list[Any] = []
    for part in unquoted(text).split(","):
        if "=" not in part:
            found.append(part.strip())
            continue
        pairs = [each.partition("=") for each in part.split("+")]
        found.append({model.strip(): device.strip() for model, _, device in pairs})
    return found


def _size_lists(text: str) -> list[list[int]]:
    return [int_list(part) for part in unquoted(text).split("/")]


def _shape(text: str) -> tuple[str, list[int]]:
    name, colon, dims = unquoted(text).rpartition(":")
    if not colon:
        raise ArgumentTypeError(f"'{text}' is not NAME:DIMS, such as IN:3,224,224")
    return name, int_list(dims)


def read_options(shell: Any, options: dict[str, Any]) -> None:
    """Evaluate, in place, the options that are expressions; the names are those of `nbtriton.perf`."""
    options["shapes"] = dict(options["shapes"] or ()) or None
    if (text := options["inputs"]) is not None:
        options["inputs"] = evaluate(shell, text, "--inputs ")
    if (text := options.get("intervals")) is not None:
        text = f"[{text}]" if "," in text else text
        options["intervals"] = evaluate(shell, text, "--intervals ")


@magics_class
class MeasureMagics(Magics):
    """``%triton_perf``."""

    @output_can_be_silenced
    @magic_arguments()
    @argument("name", help="a model or an ensemble")
    @argument(
        "-c", "--concurrency", "--concurrency-range", type=unquoted, default=1, metavar="LEVELS",
        help="requests kept outstanding: 8, 1:32, 1:32:4, 1:32:x2 (doubling) or 1,8,32",
    )  # fmt: skip
    @argument(
        "-u", "--url", type=unquoted, metavar="HOST:PORT",
        help="measure a server there; http:// or grpc:// may stand in front",
    )  # fmt: skip
    @argument(
        "-i", "--protocol", choices=("inproc", "http", "grpc"),
        help="how to ask: in the process by default, http at a --url; here over http or grpc at the "
        "port that %%triton_serve has open, or one for the run",
    )  # fmt: skip
    @argument(
        "--request-rate", "--request-rate-range", type=unquoted, metavar="LEVELS",
        help="or requests per second, written likewise",
    )  # fmt: skip
    @argument(
        "--request-distribution", choices=("constant", "poisson"), default="constant",
        help="gaps between the requests of a rate",
    )  # fmt: skip
    @argument(
        "--intervals", "--request-intervals", type=unquoted, metavar="LIST|EXPR",
        help="or the gaps themselves in microseconds",
    )  # fmt: skip
    @argument(
        "--request-count", type=int, default=0, metavar="N", help="exactly N requests a level"
    )
    @argument("-b", "--batch-size", type=int_list, metavar="LIST", help="rows per request")
    @argument(
        "--inputs", type=unquoted, metavar="EXPR",
        help="what to send: a mapping of arrays, or a list of them",
    )  # fmt: skip
    @argument(
        "--shape", dest="shapes", type=_shape, action="append", metavar="NAME:DIMS",
        help="dims of an input with variable ones",
    )  # fmt: skip
    @argument(
        "--input-data", type=unquoted, default="random", metavar="random|zero|FILE",
        help="without --inputs; a JSON file of perf_analyzer's, or a directory of files",
    )  # fmt: skip
    @argument(
        "-z", "--zero-input", dest="input_data", action="store_const", const="zero",
        help="the same as --input-data zero",
    )  # fmt: skip
    @argument("--string-length", type=int, default=128, metavar="N", help="of generated strings")
    @argument("--string-data", type=unquoted, metavar="TEXT", help="or the string itself")
    @argument(
        "--streaming", action="store_true",
        help="listen to each response, for decoupled models: time to the first and between them",
    )  # fmt: skip
    @argument(
        "--priority", type=int_list, default=0, metavar="LIST",
        help="of the requests, in turn; 1 is the highest",
    )  # fmt: skip
    @argument(
        "--timeout-us", type=int_list, default=0, metavar="LIST",
        help="queue timeouts of the requests, in turn",
    )  # fmt: skip
    @argument(
        "--sequence-length", type=int, metavar="N",
        help="requests of a sequence; 20, or the steps of the data",
    )  # fmt: skip
    @argument(
        "--sequence-length-variation", type=float, default=20.0, metavar="PERCENT",
        help="by which lengths vary to either side",
    )  # fmt: skip
    @argument(
        "--sequence-id-range", metavar="START[:END]", help="correlation ids, END excluded; from 1"
    )
    @argument(
        "--num-of-sequences", type=int, default=4, metavar="N",
        help="live sequences that share a request rate",
    )  # fmt: skip
    @argument(
        "--serial-sequences", action="store_true",
        help="with a request rate: one request of a sequence at a time",
    )  # fmt: skip
    @argument("--instances", type=int_list, metavar="LIST", help="sweep over instances")
    @argument("--max-batch-size", type=int_list, metavar="LIST", help="sweep over max_batch_size")
    @argument("--max-queue-delay-us", type=int_list, metavar="LIST", help="sweep over queue delays")
    @argument(
        "--dynamic-batching", type=_switches, metavar="on|off|off,on", help="sweep over batching"
    )
    @argument(
        "--preferred", type=_size_lists, metavar="SIZES", help="preferred sizes: 4,8 or 4/8/4,8"
    )
    @argument(
        "--isolation", type=name_list, metavar="LIST", help="sweep over thread, process, auto"
    )
    @argument(
        "--placement", type=placements, metavar="LIST",
        help="sweep over cpu, models-on-gpu, gpu, gpu:N, or one device a model: bert=gpu:1+trees=cpu",
    )  # fmt: skip
    @argument("--sweep-models", type=name_list, default=[], metavar="NAMES", help="of an ensemble")
    @argument(
        "--measurement-mode", choices=("time_windows", "count_windows"), default="time_windows"
    )
    @argument(
        "-p", "--measurement-interval", dest="measurement_interval_ms", type=float, metavar="MS",
        help="length of a window",
    )  # fmt: skip
    @argument("--measurement-request-count", type=int, default=50, metavar="N")
    @argument("-s", "--stability-percentage", type=float, default=10.0, metavar="PERCENT")
    @argument(
        "-r", "--max-trials", type=int, default=10, metavar="N", help="windows a level at most"
    )
    @argument("--percentile", type=float, metavar="N", help="judge by it instead of the mean")
    @argument(
        "-l", "--latency-threshold", dest="latency_threshold_ms", type=float, metavar="MS",
        help="stop at this latency",
    )  # fmt: skip
    @argument("--binary-search", action="store_true", help="search the highest level below it")
    @argument("--seed", type=int, default=0, metavar="N")
    @argument("--quick", action="store_true", help="short windows: a look within 3 s")
    @argument(
        "--bg", action="store_true",
        help="return at once with a handle: await it, or call its stop() or result()",
    )  # fmt: skip
    @keep_option
    @line_magic
    def triton_perf(self, line: str) -> Any:
        """Measure throughput and latency under load, over levels and configurations.

        A model with a sequence batcher gets sequences, as many at a time as requests are
        outstanding; a decoupled model wants ``--streaming``. Interrupt it, or press Stop, and it
        returns what was measured so far::

            report = %triton_perf double --concurrency 1:8:x2 --quick
            %triton_perf double -c 8 --dynamic-batching off,on --instances 1,2 --quick
            %triton_perf double -c 4 --streaming --quick
            %triton_perf double --placement cpu --quick
            %triton_perf double -c 4 --protocol http --quick
            %triton_perf double -c 8 --url grpc://gpu-box:8001
            run = %triton_perf double -c 1:8 --bg
            run.stop()
        """
        from nbtriton.magics.live import LiveRun
        from nbtriton.perf import PerfRun, perf

        # The names of the options are those of `perf`.
        options = vars(parse(self.triton_perf, line))
        name, out, background = options.pop("name"), options.pop("out"), options.pop("bg")
        read_options(self.shell, options)
        # After `;` nothing is shown; a terminal shows the report as any other result.
        visible = not line.rstrip().endswith(";")
        target = None if options["url"] is not None else server()
        run = LiveRun(self.shell, name, visible=visible)
        options["observer"] = run.observe
        if background:
            return keep(
                self.shell, out, run.in_background(lambda: PerfRun(target, name, **options))
            )
        report = run.of(lambda: perf(target, name, **options))
        return keep(self.shell, out, report)
