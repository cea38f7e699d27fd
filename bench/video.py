"""Frames decoded by the step `video` beside a bare loop of PyAV, and the time of `bytetrack`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np

import nbtriton as nt
from bench.figures import Figure, Sides, ratio_at_least, together, value_at_most
from bench.session import Session

__all__ = ["FIGURES"]

SIZE, COUNT = (640, 360), 150
BOXES = 100


def write_video(path: Path) -> None:
    """Write six seconds in which something moves before noise."""
    import av

    rng = np.random.default_rng(0)
    ground = rng.integers(60, 120, (SIZE[1], SIZE[0], 3), np.uint8)
    with av.open(str(path), "w") as file:
        stream: Any = file.add_stream("mpeg4", rate=25)
        (stream.width, stream.height), stream.pix_fmt, stream.bit_rate = SIZE, "yuv420p", 2_000_000
        for number in range(COUNT):
            image = ground.copy()
            image[100:200, 3 * number : 3 * number + 80] = 230
            file.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        file.mux(stream.encode())


def bare(path: Path) -> int:
    """Decode as the step does: the same threads and the same conversion."""
    import av

    with av.open(str(path)) as file:
        file.streams.video[0].thread_type = "AUTO"
        return sum(len(one.to_ndarray(format="rgb24")) > 0 for one in file.decode(video=0))


def beside(of_frame: Callable[[float, float], float]) -> Callable[[Session], AbstractContextManager[Sides]]:  # fmt: skip
    """Return sides whose value is made of the seconds and the processor's seconds of a frame."""

    @contextmanager
    def sides(session: Session) -> Iterator[Sides]:
        with decoders(session) as both:

            def measure() -> tuple[float, float]:
                found: tuple[list[float], list[float]] = ([], [])
                for turn in range(6):
                    for side in (0, 1) if turn % 2 else (1, 0):
                        begin, spent = perf_counter(), process_time()
                        assert both[side]() == COUNT
                        took, spent = perf_counter() - begin, process_time() - spent
                        found[side].append(of_frame(took / COUNT, spent / COUNT))
                return median(found[0]), median(found[1])

            yield together(measure)

    return sides


@contextmanager
def decoders(session: Session) -> Iterator[tuple[Callable[[], int], Callable[[], int]]]:
    """Return the step and the bare loop, each of which decodes the file and counts."""
    path = session.folder() / "clip.mp4"
    write_video(path)
    with nt.Server(gpus=()) as server:
        server.load("", nt.step("video", files=path.parent), name="video")

        def stepped() -> int:
            return sum(1 for _ in server.stream("video", {"URL": [path.name]}))

        yield stepped, lambda: bare(path)


@contextmanager
def tracking(session: Session) -> Iterator[Sides]:  # noqa: ARG001 - as all sides
    rng = np.random.default_rng(0)
    corner, speed = rng.uniform(0, 1800, (BOXES, 2)), rng.normal(0, 3, (BOXES, 2))
    scores = rng.uniform(0.3, 1.0, (1, BOXES)).astype(np.float32)
    with nt.Server(gpus=()) as server:
        server.load("", nt.step("bytetrack"), name="bytetrack")

        def measure() -> float:
            taken = []
            for frame in range(100):
                at = corner + speed * frame
                boxes = np.concatenate([at, at + np.array([40.0, 80.0])], axis=1)[None].astype(
                    np.float32
                )
                begin = perf_counter()
                server.infer(
                    "bytetrack", {"BOXES": boxes, "SCORES": scores},
                    sequence_id=1, sequence_start=frame == 0,
                )  # fmt: skip
                taken.append(perf_counter() - begin)
            return 1000 * median(taken)

        yield Sides(measure, None)


FIGURES = (
    Figure(
        "video.decode", "a file of 640x360 pixels, frames read by server.stream", "frames/s", "higher", "bare PyAV loop",
        (ratio_at_least(0.9),), beside(lambda took, _: 1 / took),
    ),
    Figure(
        "video.processor", "the same: processor time of a frame, of all threads", "ms", "lower", "bare PyAV loop",
        (ratio_at_least(0.9),), beside(lambda _, spent: 1000 * spent),
    ),
    Figure(
        "video.track", f"bytetrack, a frame of {BOXES} boxes, request and answer", "ms", "lower", "",
        (value_at_most(1.0),), tracking,
    ),
)  # fmt: skip
