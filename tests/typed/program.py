"""A user's program with types throughout: mypy --strict and pyright accept it, and it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, TypedDict

import numpy as np
import numpy.typing as npt

import nbtriton as nt

Row = Annotated[npt.NDArray[np.float32], "FP32[4]"]
ONE: npt.NDArray[np.float32] = np.ones((1, 4), np.float32)


class Outputs(TypedDict):
    OUT: Row
    SUM: Annotated[npt.NDArray[np.float32], "FP32[1]"]


def double(IN: Row) -> Outputs:
    return {"OUT": IN * np.float32(2), "SUM": IN.sum(axis=-1, keepdims=True)}


def triple(IN: Row) -> Annotated[dict[str, npt.NDArray[np.float32]], {"OUT": "FP32[4]"}]:
    return {"OUT": IN * np.float32(3)}


def twice(IN: Row) -> Iterator[Outputs]:
    for _ in range(2):
        yield double(IN)


async def later(server: nt.Server) -> nt.types.InferenceResult:
    return await server.infer_async("double", {"IN": ONE})


def main() -> None:
    with nt.Server(gpus=()) as server:
        handle: nt.types.ModelHandle = server.load("max_batch_size: 8", double, name="double")
        server.load({"max_batch_size": 8}, triple, name="triple")
        server.load(None, twice, name="twice")
        server.load(None, Path(__file__).with_name("model.py"), name="model")
        for name in ("double", "triple", "model"):
            print(name, server.infer(name, {"IN": ONE})["OUT"].tolist())
        print(handle(IN=ONE)["SUM"].item())
        future: nt.types.InferenceFuture = server.submit("double", {"IN": ONE})
        print(future.result(timeout=60)["OUT"].sum(), asyncio.run(later(server))["SUM"].sum())
        print([one["SUM"].item() for one in server.stream("twice", {"IN": ONE[0]})])
        server.load(None, Path(__file__).with_name("caller.py"), name="caller")
        print([one["OUT"].sum().item() for one in server.stream("caller", {"IN": ONE})])
        try:
            server.infer("doubel", {"IN": ONE})
        except nt.TritonError as error:
            print(error.status, error.hint)
        report: nt.types.PerfReport = nt.perf(server, "double", concurrency=[1, 2], request_count=4)
        print(len(report.frame), len(nt.status(server)), nt.compiled, bool(nt.__version__))


if __name__ == "__main__":
    main()
