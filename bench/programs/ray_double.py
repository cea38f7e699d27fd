"""Ray Serve: doubles rows of numbers, batched. ``python ray_double.py PORT``."""

import signal
import sys

import numpy as np
import ray
from ray import serve
from starlette.requests import Request


@serve.deployment(num_replicas=1, max_ongoing_requests=256)
class Double:
    # 1 ms instead of 10: a lone request would wait for nobody that long.
    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.001)
    async def double(self, rows: list[np.ndarray]) -> list[np.ndarray]:
        return list(np.stack(rows) * 2)

    async def __call__(self, request: Request) -> dict[str, list[float]]:
        row = np.asarray((await request.json())["input"], np.float32)
        return {"output": (await self.double(row)).tolist()}


if __name__ == "__main__":
    ray.init(include_dashboard=False, log_to_driver=False, logging_level="error")
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    serve.run(Double.bind(), logging_config={"enable_access_log": False})
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    serve.shutdown()
    ray.shutdown()
