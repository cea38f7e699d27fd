"""Ray Serve's program: a job on rows of numbers, batched. ``python ray_server.py JOB PORT``."""

import signal
import sys

import numpy as np
from starlette.requests import Request

import ray
from bench.jobs import BATCH, JOBS
from ray import serve


@serve.deployment(num_replicas=1, max_ongoing_requests=256)
class Served:
    def __init__(self, job: str) -> None:
        self._run = JOBS[job].make()

    # 1 ms instead of 10: the longest useless wait of a single request.
    @serve.batch(max_batch_size=BATCH, batch_wait_timeout_s=0.001)
    async def batched(self, rows: list[np.ndarray]) -> list[np.ndarray]:
        return list(self._run(np.stack(rows)))

    async def __call__(self, request: Request) -> dict[str, list[float]]:
        row = np.asarray((await request.json())["input"], np.float32)
        return {"output": (await self.batched(row)).tolist()}


if __name__ == "__main__":
    ray.init(include_dashboard=False, log_to_driver=False, logging_level="error")
    # Instead of Ray's handler, which does not end a program that waits.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[2])})
    serve.run(Served.bind(sys.argv[1]), logging_config={"enable_access_log": False})
    try:
        signal.pause()
    finally:
        ray.shutdown()
