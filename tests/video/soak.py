"""Eight streams at once for minutes: memory stays flat, and every frame is accounted for.

``python -m tests.video.soak --seconds 300`` prints a line every half minute, and fails with what was lost.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import nbtriton as nt
from tests.steps.videos import make_video, missing_for_rtsp, serve_rtsp
from tests.until import until

__all__ = ["soak"]

COUNT = 250
# What a first round of all streams needs, and what may come after it.
MOST_MB = 64.0


def resident_mb() -> float:
    """Return the memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class LossError(Exception):
    """A frame is missing, or there is one too many."""


def soak(seconds: float, say: Callable[[str], object] = print) -> dict[str, int]:
    """Read eight streams again and again; return how many frames were read and dropped.

    A camera may drop a reader that the machine leaves too little time: it is opened again.

    Three files by a reader that is held, three by readers that are slower than the decoder, and two cameras (or
    files, where there is no RTSP server).
    """
    counts = {"read": 0, "dropped": 0, "streams": 0}
    lock, over, failed, begun = threading.Lock(), threading.Event(), [], set()
    with _sources() as (folder, camera), nt.Server(gpus=()) as server:
        for name, policy in (
            ("held", "block"),
            ("oldest", "drop_oldest"),
            ("newest", "drop_newest"),
        ):
            server.load(
                "", nt.step("video", files=folder, slow_reader=policy, reconnects=1000), name=name
            )

        clip = "clip.mp4"

        def one(model: str, url: str, pause_s: float) -> None:
            last, read, dropped = -1, 0, 0

            def behind() -> bool:
                text = nt.status(server, model)["metrics"][0]
                return over.is_set() or "video_frames_dropped 0" not in text

            for result in server.stream(model, {"URL": [url]}):
                index = int(result["INDEX"][0])
                if index <= last or (model == "held" and index != last + 1):
                    raise LossError(f"{model} of {url}: frame {index} after {last}")
                last, read = index, read + 1
                dropped = result.parameters.get("dropped", 0)
                if pause_s and url == clip and read == 1:  # slower than any decoder
                    until(behind)
                begun.add(threading.get_ident())
                if over.wait(pause_s) if pause_s else over.is_set():
                    break
            else:
                if url != camera and read + dropped != COUNT:
                    raise LossError(
                        f"{model} of {url}: {read} read and {dropped} dropped of {COUNT}"
                    )
            with lock:
                counts["read"] += read
                counts["dropped"] += dropped
                counts["streams"] += 1

        def follow(model: str, url: str, pause_s: float) -> None:
            try:
                while not over.is_set():
                    one(model, url, pause_s)
            except Exception as error:
                failed.append(error)
                over.set()

        readers = (
            [("held", clip, 0.0)] * 3 + [("oldest", clip, 0.01)] * 2 + [("newest", clip, 0.01)]
        )
        readers += [("held", camera or clip, 0.0), ("oldest", camera or clip, 0.05)]
        threads = [threading.Thread(target=follow, args=reader) for reader in readers]
        for thread in threads:
            thread.start()
        try:
            until(lambda: over.is_set() or len(begun) == len(readers))
            began, least = time.monotonic(), None
            while (passed := time.monotonic() - began) < seconds and not over.is_set():
                over.wait(min(30.0, seconds / 5, max(0.1, seconds - passed)))
                now = resident_mb()
                least = now if least is None else least
                say(f"{time.monotonic() - began:5.0f} s: {now:6.0f} MB, {counts}")
                if now - least > MOST_MB:
                    raise LossError(f"memory grew from {least:.0f} to {now:.0f} MB")
        finally:
            over.set()
            for thread in threads:
                thread.join(60)
        if failed:
            raise failed[0]
        for name in ("held", "oldest", "newest"):
            say(f"{name}: {nt.status(server, name)['metrics'][0]}")
            server.unload(name)
    left = lambda: [one.name for one in threading.enumerate() if one.name.startswith("video-")]
    if not until(lambda: not left()):
        raise LossError(f"threads that have not ended: {left()}")
    return counts


@contextmanager
def _sources() -> Iterator[tuple[Path, str]]:
    """Yield a folder with a clip, and the address of a camera, empty where none can be had."""
    with tempfile.TemporaryDirectory() as folder:
        make_video(Path(folder, "clip.mp4"), COUNT, (180, 320))
        with (
            nullcontext(("", None)) if missing_for_rtsp() else serve_rtsp(lives_s=3600) as (url, _)
        ):
            yield Path(folder), url


def main(argv: Sequence[str]) -> None:
    """Soak, and print what was read."""
    parser = argparse.ArgumentParser(prog="python -m tests.video.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    counts = soak(parser.parse_args(argv).seconds)
    print(f"every frame accounted for: {counts}")


if __name__ == "__main__":
    main(sys.argv[1:])
