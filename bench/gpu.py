"""Models on a GPU: checks against direct calls of PyTorch and NumPy, and measurements: ``make gpu``.

Writes ``bench/results/gpu-DATE.json`` with the device, the versions and the date. ``--rehearse`` runs the checks on
a simulated GPU, to test this program only.
"""

# ruff: noqa: F821, N803, N806 - annotations of tensors, by their names

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import nbtriton as nt
from bench.machine import commit, machine
from nbtriton.backends.devices.device_set import visible_gpus
from nbtriton.common.errors import LoadError, TritonError

__all__ = ["CHECKS", "main", "rehearse"]

RESULTS = Path(__file__).with_name("results")
GPU = "max_batch_size: 64 dynamic_batching { } instance_group [ { kind: KIND_GPU gpus: [ 0 ] } ]"
CPU = "max_batch_size: 64 dynamic_batching { } instance_group [ { kind: KIND_CPU } ]"
ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:  # type: ignore[name-defined,misc]
    return {"OUT": IN * 2}


def in_place(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:  # type: ignore[name-defined,misc]
    IN += 1
    return {"OUT": IN * 3}


@contextmanager
def _server(gpus: Any) -> Iterator[nt.Server]:
    with nt.Server(gpus=gpus) as server:
        for name, config, model in (
            ("a", GPU, double),
            ("b", GPU, in_place),
            ("host", CPU, double),
        ):
            server.load(config, model, name=name)
        server.load(_chain("gpu", ["a", "b"]))
        server.load(_chain("mixed", ["a", "host", "b"]))
        yield server


def _chain(name: str, models: list[str]) -> str:
    tensor = '[ {{ name: "T{}" data_type: TYPE_FP32 dims: [ 4 ] }} ]'
    steps = ", ".join(
        f'{{ model_name: "{model}" model_version: -1 input_map {{ key: "IN" value: "T{n}" }} '
        f'output_map {{ key: "OUT" value: "T{n + 1}" }} }}'
        for n, model in enumerate(models)
    )
    return (
        f'name: "{name}" platform: "ensemble" max_batch_size: 64 input {tensor.format(0)} '
        f"output {tensor.format(len(models))} ensemble_scheduling {{ step [ {steps} ] }}"
    )


def _equal(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-5)


# -- correctness -------------------------------------------------------------------------------------


def check_function(gpus: Any) -> None:
    """Check that a function on the device equals NumPy on the host."""
    with _server(gpus) as server:
        result = server.infer("a", {"IN": ROWS})
        assert type(result.raw("OUT")) is not np.ndarray, "the output left the device"
        _equal(result["OUT"], ROWS * 2)


def check_steps_stay_on_the_device(gpus: Any) -> None:
    """Check that two steps on one GPU pass the right tensor without a copy."""
    with _server(gpus) as server:
        _equal(server.infer("gpu", {"T0": ROWS})["T2"], (ROWS * 2 + 1) * 3)
        between = [one for one in server.devices.ledger.copies() if one.reader == "b.IN"]
        assert between == [], between


def check_bounces_are_named(gpus: Any) -> None:
    """Check that a step on the host between two on the GPU costs two copies, which the ledger reports."""
    with _server(gpus) as server:
        _equal(server.infer("mixed", {"T0": ROWS})["T3"], (ROWS * 4 + 1) * 3)
        frame = nt.copies(server).set_index("reader")
        assert frame.loc["host.IN", "bounce"] == "host", frame
        assert frame.loc["b.IN", "bounce"] == "host", frame


def check_many_at_once(gpus: Any) -> None:
    """Check the responses to hundreds of concurrent requests with different values, for races."""
    with _server(gpus) as server:
        sent = [
            (n, server.submit("gpu", {"T0": ROWS + n})) for n in range(500 if gpus == [0] else 50)
        ]
        for n, future in sent:
            _equal(future.result(60)["T2"], ((ROWS + n) * 2 + 1) * 3)


def check_out_of_memory(gpus: Any) -> None:
    """Check that a batch too large for memory fails alone, and frees its memory."""

    def grow(IN: "FP32[1]") -> {"OUT": "FP32[1]"}:  # type: ignore[name-defined,misc]
        for _ in range(60):  # up to 2**60 elements
            IN = np.concatenate([IN, IN]) if hasattr(IN, "get") else IN.repeat(2, 1)
        return {"OUT": IN}

    with _server(gpus) as server:
        config = "max_batch_size: 4 instance_group [ { kind: KIND_GPU gpus: [ 0 ] } ]"
        server.load(config, grow, name="grow")
        try:
            server.infer("grow", {"IN": np.ones((1, 1), np.float32)})
        except TritonError as error:
            assert "out of memory" in error.message, error  # noqa: PT017 - no test
        else:
            raise AssertionError("2**60 elements fit")
        gc.collect()
        _equal(server.infer("a", {"IN": ROWS})["OUT"], ROWS * 2)


def check_too_large_a_model(gpus: Any) -> None:
    """Check that a model too large for memory is refused with Triton's text; the others still serve."""
    import torch

    class Large(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(2**40, device="meta"))

        def forward(self, IN: "FP32[4]") -> {"OUT": "FP32[4]"}:  # type: ignore[name-defined,misc]
            return IN  # type: ignore[no-any-return]

    with _server(gpus) as server:
        try:
            server.load(GPU, Large, name="large")
        except LoadError as error:
            assert "memory limit set for GPU 0 has exceeded" in error.message, error  # noqa: PT017
        else:
            raise AssertionError("4 TiB fit")
        _equal(server.infer("a", {"IN": ROWS})["OUT"], ROWS * 2)


def check_torch_module(gpus: Any) -> None:
    """Check that a torch module equals its direct call, also with CUDA graphs."""
    import torch

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
    module.eval()
    tensors = (
        'input [ { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 64 ] } ] '
        'output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 8 ] } ] '
    )
    with _server(gpus) as server:
        for name, graphs in (("plain", ""), ("graphs", "optimization { cuda { graphs: true } }")):
            server.load(GPU + tensors + graphs, module, name=name)
            for rows in (1, 7, 64, 7, 1):
                x = np.random.default_rng(rows).random((rows, 64), dtype=np.float32)
                with torch.inference_mode():
                    expected = module(torch.from_numpy(x)).numpy()
                found = server.infer(name, {"INPUT__0": x})["OUTPUT__0"]
                np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def check_forest(gpus: Any) -> None:
    """Check that a forest equals treelite on the host."""
    import treelite
    from sklearn.ensemble import RandomForestRegressor

    random = np.random.default_rng(0)
    x = random.standard_normal((64, 8)).astype(np.float32)
    forest = RandomForestRegressor(30, max_depth=10, random_state=0).fit(x, x[:, 0] * x[:, 1])
    expected = treelite.gtil.predict(treelite.sklearn.import_model(forest), x)[:, 0, 0]
    with _server(gpus) as server:
        server.load(GPU + ' backend: "fil"', forest, name="forest")
        result = server.infer("forest", {"input__0": x})
        assert type(result.raw("output__0")) is not np.ndarray, "the output left the device"
        np.testing.assert_allclose(result["output__0"], expected, rtol=1e-6, atol=1e-6)


CHECKS: tuple[Callable[[Any], None], ...] = (
    check_function,
    check_steps_stay_on_the_device,
    check_bounces_are_named,
    check_many_at_once,
    check_out_of_memory,
    check_too_large_a_model,
    check_torch_module,
    check_forest,
)


def rehearse() -> dict[str, str]:
    """Run the checks on a simulated GPU; return the errors by check."""
    return _checked("simulated:1,memory_mib=64")


def _checked(gpus: Any) -> dict[str, str]:
    failed = {}
    for check in CHECKS:
        title = (check.__doc__ or "").partition("\n")[0]
        try:
            check(gpus)
        except Exception as error:  # run all checks
            failed[check.__name__] = f"{type(error).__name__}: {error}"
        print(f"{'FAILED' if check.__name__ in failed else 'ok':7s}{title}", flush=True)
    return failed


# -- measurements: medians on a GPU --------------------------------------------------------------------


def _median_s(call: Callable[[], object], count: int = 30) -> float:
    import torch

    for _ in range(5):
        call()
    times = []
    for _ in range(count):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def measure_device() -> dict[str, float]:
    """Return the device's rates: matrix products in bf16, and copies of pinned memory."""
    import torch

    n = 8192
    a = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
    host = torch.empty(2**28, dtype=torch.uint8, pin_memory=True)
    on_device = host.to("cuda")
    return {
        "matmul_bf16_tflops": 2 * n**3 / _median_s(lambda: a @ a) / 1e12,
        "copy_in_gb_per_s": 2**28
        / _median_s(lambda: on_device.copy_(host, non_blocking=True))
        / 1e9,
        "copy_out_gb_per_s": 2**28
        / _median_s(lambda: host.copy_(on_device, non_blocking=True))
        / 1e9,
    }


def measure_steps() -> dict[str, float]:
    """Return the times of requests through one and two steps on the GPU, and with one on the host."""
    with _server([0]) as server:
        one = _median_s(lambda: server.infer("a", {"IN": ROWS})["OUT"], 300)
        two = _median_s(lambda: server.infer("gpu", {"T0": ROWS})["T2"], 300)
        mixed = _median_s(lambda: server.infer("mixed", {"T0": ROWS})["T3"], 300)
        return {"one_step_us": one * 1e6, "two_steps_us": two * 1e6, "mixed_us": mixed * 1e6}


def measure_bert(tokens: int = 256) -> dict[str, float]:
    """Return the times of BERT-large in bf16 and of a bare loop over the module, in turn, and of one excerpt."""
    import torch

    from bench.readability.bert import seeded

    module = seeded("large", torch.bfloat16).eval()
    bare = seeded("large", torch.bfloat16).eval().to("cuda")
    config = (
        "max_batch_size: 512 instance_group [ { kind: KIND_GPU gpus: [ 0 ] } ] "
        'input [ { name: "INPUT__0" data_type: TYPE_INT64 dims: [ %d ] }, '
        '{ name: "INPUT__1" data_type: TYPE_INT64 dims: [ %d ] } ] '
        'output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 1 ] } ] '
        "optimization { cuda { graphs: %s } }"
    )
    found: dict[str, float] = {"tokens": tokens}
    with nt.Server(gpus=[0]) as server:
        for name, graphs in (("bert", "false"), ("bert_graphs", "true")):
            server.load(config % (tokens, tokens, graphs), module, name=name)
        for rows in (1, 512):
            ids = torch.randint(0, 30000, (rows, tokens))
            mask = torch.ones_like(ids)
            inputs = {"INPUT__0": ids.numpy(), "INPUT__1": mask.numpy()}

            def loop(ids: Any = ids, mask: Any = mask) -> Any:
                with torch.inference_mode():
                    return bare(ids.to("cuda"), mask.to("cuda")).cpu()

            ours, theirs = [], []
            for _ in range(5):  # in turn
                theirs.append(_median_s(loop, 5))
                ours.append(
                    _median_s(
                        lambda i=inputs: server.infer("bert", i)["OUTPUT__0"],  # type: ignore[misc]
                        5,
                    )
                )
            found[f"rows_{rows}_ms"] = statistics.median(ours) * 1e3
            found[f"rows_{rows}_of_bare_loop"] = statistics.median(
                t / o for t, o in zip(theirs, ours, strict=True)
            )
            if rows == 1:
                graphs_s = _median_s(lambda i=inputs: server.infer("bert_graphs", i)["OUTPUT__0"])  # type: ignore[misc]
                found["rows_1_graphs_ms"] = graphs_s * 1e3
        found["samples_per_s"] = 512e3 / found["rows_512_ms"]
    # Two operations per weight and token, without those of attention.
    linear = (part for part in bare.modules() if isinstance(part, torch.nn.Linear))
    weights = sum(part.weight.numel() for part in linear)
    found["tflops"] = found["samples_per_s"] * tokens * 2 * weights / 1e12
    return found


def measure_readability() -> dict[str, Any]:
    """Return the measurements of the readability pipeline in three placements by batch size."""
    from bench.readability.build import Pipeline
    from bench.readability.table import measure, table

    pipeline = Pipeline(bert="large", dtype="bfloat16")
    found = measure(pipeline, [1, 8, 64, 512], say=lambda text: print(text, flush=True))
    return {"pipeline": str(pipeline), "table": table(found)}


def _device() -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda,
        "torch": str(torch.__version__),
    }


def _gpu() -> bool:
    if not visible_gpus():
        return False
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def main() -> int:
    """Check, measure and write the results; print the reason if there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--rehearse", action="store_true", help="the checks on a simulated GPU")
    arguments = parser.parse_args()
    if arguments.rehearse:
        return 1 if rehearse() else 0
    if not _gpu():
        print("make gpu needs an NVIDIA GPU that PyTorch can use, and finds none here.")
        return 0
    failed = _checked([0])
    measured: dict[str, Any] = {}
    for measure in (
        measure_device,
        measure_steps,
        measure_bert,
        measure_readability,
    ):
        name = measure.__name__.removeprefix("measure_")
        try:
            measured[name] = measure()
        except Exception as error:
            measured[name] = failed[measure.__name__] = f"{type(error).__name__}: {error}"
        print(f"{name}: {measured[name]}", flush=True)
    now = datetime.now(UTC)
    report = {
        "measured_at": now.isoformat(timespec="seconds"),
        "device": _device(),
        "machine": machine(),
        "nbtriton": {"version": nt.__version__, "commit": commit()},
        "checks": {check.__name__: failed.get(check.__name__, "ok") for check in CHECKS},
        "measured": measured,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"gpu-{now:%Y%m%d-%H%M%S}.json"
    path.write_text(json.dumps(report, indent=2, default=str) + "\n")
    print(f"Written to {path}; {len(failed)} failed.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
