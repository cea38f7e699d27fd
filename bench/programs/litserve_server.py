"""LitServe's program: a job on rows of numbers, batched. ``python litserve_server.py JOB PORT``."""

import sys

import litserve as ls
import numpy as np

from bench.jobs import BATCH, JOBS


class Api(ls.LitAPI):
    def setup(self, device):
        self.run = JOBS[sys.argv[1]].make()

    def decode_request(self, request):
        return np.asarray(request["input"], np.float32)

    def batch(self, inputs):
        return np.stack(inputs)

    def predict(self, x):
        return self.run(x)

    def unbatch(self, output):
        return list(output)

    def encode_response(self, output):
        return {"output": output.tolist()}


if __name__ == "__main__":
    # 1 ms instead of the usual 10 ms and more: the longest useless wait of a single request.
    api = Api(max_batch_size=BATCH, batch_timeout=0.001)
    server = ls.LitServer(api, accelerator="cpu", workers_per_device=1, fast_queue=True)
    server.run(
        host="127.0.0.1", port=int(sys.argv[2]), generate_client_file=False,
        log_level="error", access_log=False,
    )  # fmt: skip
