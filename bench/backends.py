"""Backends on the CPU at their best batch size, each compared with a loop that calls its library."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

import nbtriton
from bench.figures import Figure, Missing, Sides, ratio_at_least, together
from bench.nets import PASSES, SIZES, Turn, in_a_row_ns, seeded, times_ns, turns_of
from bench.session import Session

__all__ = ["FIGURES"]

# Consecutive calls of one side in a turn, of which the mean counts. An even number, as every other call returns the
# memory of intermediate results to the system, which costs the next call a tenth of its time.
TURN = 6
FEATURES, TREES, DEPTH = 207, 100, 16
# Rows for the forest's training.
TRAINING = 4000
# Different rows in each call: a forest is faster for rows whose paths are in the processor's cache.
POOL = 4096
# Relative difference below which rates are equal.
SAME = 0.97

Rows = npt.NDArray[np.float32]
Call = Callable[[Rows], object]


@dataclass(frozen=True, slots=True)
class Library:
    """A model for a backend, and the loop over its library.

    Parameters
    ----------
    backend, title : str
    inputs, outputs : tuple of str and int
        Name and size of the tensor.
    write : callable
        Writes the model into a folder and returns its file.
    call : callable
        Returns the library's call for a file and a batch size.
    parameters : str
        Parameters of the configuration for one thread, as in the loop.
    """

    backend: str
    title: str
    inputs: tuple[str, int]
    outputs: tuple[str, int]
    write: Callable[[Path], Path]
    call: Callable[[Path, int], Call]
    parameters: str = ""

    def batches(self, size: int) -> Iterator[Rows]:
        """Yield batches without end."""
        rows = np.random.default_rng(0).random((POOL, self.inputs[1]), np.float32)
        return cycle([rows[at : at + size] for at in range(0, POOL, size)])

    def bare(self, file: Path, size: int) -> Turn:
        """Return turns of the loop."""
        call, batches = self.call(file, size), self.batches(size)
        return turns_of(lambda: call(next(batches)))

    def config(self, max_batch_size: int) -> str:
        """Return the configuration."""
        tensors = "".join(
            f'{kind} {{ name: "{name}" data_type: TYPE_FP32 dims: {size} }} '
            for kind, (name, size) in (("input", self.inputs), ("output", self.outputs))
        )
        return (
            f'backend: "{self.backend}" max_batch_size: {max_batch_size} {tensors} {self.parameters} '
            "instance_group { count: 1 kind: KIND_CPU } dynamic_batching { }"
        )

    def best(self, file: Path) -> int:
        """Return the batch size with the highest throughput of the loop; the largest such.

        Each pass over the sizes is evaluated separately, as the machine's speed may change between passes.
        """
        shares: dict[int, list[float]] = {size: [] for size in SIZES}
        turns = {size: self.bare(file, size) for size in SIZES}
        for _ in range(PASSES):
            rates = {size: size / in_a_row_ns(turn) for size, turn in turns.items()}
            for size, rate in rates.items():
                shares[size].append(rate / sum(rates.values()))
        found = {size: median(share) for size, share in shares.items()}
        best = max(found.values())
        return max(size for size, rate in found.items() if rate >= SAME * best)


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }} '


def script_file(folder: Path) -> Path:
    import torch

    jit: Any = torch.jit
    jit.trace(seeded("mlp"), torch.zeros(2, 784)).save(str(folder / "model.pt"))
    return folder / "model.pt"


def script_call(file: Path, size: int) -> Call:  # noqa: ARG001
    import torch

    jit: Any = torch.jit
    module = jit.load(str(file))

    def call(rows: Rows) -> object:
        with torch.inference_mode():
            return module(torch.from_numpy(rows))

    return call


def onnx_file(folder: Path) -> Path:
    """Write the MLP of `bench.nets` with its weights as ONNX."""
    try:
        from onnx import TensorProto, helper, numpy_helper
    except ImportError:
        raise Missing("needs onnx") from None
    nodes: list[Any] = []
    weights: list[Any] = []
    last = "IN"
    layers: list[Any] = [layer for layer in seeded("mlp").children() if hasattr(layer, "weight")]
    for at, layer in enumerate(layers):
        for name, value in (("w", layer.weight), ("b", layer.bias)):
            weights.append(numpy_helper.from_array(value.detach().numpy(), f"{name}{at}"))
        made = "OUT" if at == len(layers) - 1 else f"x{at}"
        nodes.append(helper.make_node("Gemm", [last, f"w{at}", f"b{at}"], [made], transB=1))
        last = made
        if made != "OUT":
            nodes.append(helper.make_node("Relu", [made], [f"y{at}"]))
            last = f"y{at}"
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])
        for name, size in (("IN", 784), ("OUT", 10))
    ]
    graph = helper.make_graph(nodes, "mlp", tensors[:1], tensors[1:], weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    proto.ir_version = 9
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    return folder / "model.onnx"


def onnx_call(file: Path, size: int) -> Call:  # noqa: ARG001
    try:
        import onnxruntime
    except ImportError:
        raise Missing("needs onnxruntime") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda rows: session.run(None, {"IN": rows})


def openvino_call(file: Path, size: int) -> Call:
    try:
        import openvino
    except ImportError:
        raise Missing("needs openvino") from None
    model = openvino.Core().read_model(file)
    model.reshape([size, 784])
    compiled = openvino.compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": "1"})
    request = compiled.create_infer_request()
    return lambda rows: request.infer({"IN": rows}, share_inputs=True)


def forest_file(folder: Path) -> Path:
    """Write a random forest of the readability pipeline's size, as a treelite checkpoint."""
    try:
        import treelite
        from sklearn.ensemble import RandomForestRegressor
    except ImportError:
        raise Missing("needs treelite and scikit-learn") from None
    random = np.random.default_rng(0)
    rows = random.random((TRAINING, FEATURES), np.float32)
    scores = rows[:, :8].sum(1) + random.normal(0, 0.1, TRAINING)
    # A few features per split: training takes a second instead of a minute.
    forest = RandomForestRegressor(TREES, max_depth=DEPTH, max_features=8, random_state=0)
    treelite.sklearn.import_model(forest.fit(rows, scores)).serialize(folder / "checkpoint.tl")
    return folder / "checkpoint.tl"


def forest_call(file: Path, size: int) -> Call:  # noqa: ARG001
    import treelite

    model = treelite.Model.deserialize(file)
    return lambda rows: treelite.gtil.predict(model, rows, nthread=1)


LIBRARIES = (
    Library(
        "pytorch", "the MLP of 784 numbers as TorchScript that only reads its inputs", ("INPUT__0", 784),
        ("OUTPUT__0", 10), script_file, script_call, parameter("READ_ONLY_INPUTS", "yes"),
    ),
    Library(
        "onnxruntime", "the same MLP as ONNX", ("IN", 784), ("OUT", 10), onnx_file, onnx_call,
        parameter("intra_op_thread_count", "1"),
    ),
    Library(
        "openvino", "the same ONNX by OpenVINO", ("IN", 784), ("OUT", 10), onnx_file, openvino_call,
        parameter("INFERENCE_NUM_THREADS", "1"),
    ),
    Library(
        "fil", f"a forest of {TREES} trees, {DEPTH} deep, {FEATURES} features", ("input__0", FEATURES),
        ("output__0", 1), forest_file, forest_call,
        parameter("model_type", "treelite_checkpoint") + parameter("output_class", "false")
        + parameter("cpu_nthread", "1"),
    ),
)  # fmt: skip


def mean_call_ns(times: Sequence[int]) -> float:
    """Return the median over turns of the mean time of a call."""
    return median(sum(times[at : at + TURN]) / TURN for at in range(0, len(times), TURN))


def whole_batches(library: Library) -> Callable[[Session], AbstractContextManager[Sides]]:
    @contextmanager
    def sides(session: Session) -> Iterator[Sides]:
        with tempfile.TemporaryDirectory() as folder, nbtriton.Server(gpus=()) as server:
            file = library.write(Path(folder))
            batch = library.best(file)
            name, batches = library.inputs[0], library.batches(batch)
            served = turns_of(lambda: server.infer("m", {name: next(batches)}))
            first = cycle((True, False))

            def loaded() -> Turn:
                server.load(library.config(batch), file, name="m")
                return served

            def rows_per_s() -> tuple[float, float]:
                # New copies of the model in each round, as their place in memory changes a call by a percent or two.
                if next(first):
                    turns = [loaded(), library.bare(file, batch)]
                else:
                    turns = [library.bare(file, batch), loaded()][::-1]
                for turn in turns:
                    turn(TURN)
                ours, theirs = times_ns(turns, TURN, 6 * session.interval_ms / 1000)
                return batch / mean_call_ns(ours) * 1e9, batch / mean_call_ns(theirs) * 1e9

            yield together(rows_per_s, f"batches of {batch}")

    return sides


FIGURES = tuple(
    Figure(
        f"backends.{library.backend}", f"{library.backend}: {library.title}, whole batches of the best size",
        "rows/s", "higher", "a bare loop", (ratio_at_least(0.97),), whole_batches(library),
    )
    for library in LIBRARIES
)  # fmt: skip
