"""PyTriton's program: a job on rows of numbers, batched.

``python pytriton_server.py JOB PORT GRPC METRICS``
"""

import sys

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from bench.jobs import BATCH, JOBS

if __name__ == "__main__":
    job = JOBS[sys.argv[1]]
    http, grpc, metrics = map(int, sys.argv[2:5])
    run = job.make()

    @batch
    def infer(IN):  # noqa: N803  the tensor's name
        return {"OUT": run(IN)}

    ports = TritonConfig(http_port=http, grpc_port=grpc, metrics_port=metrics)
    with Triton(config=ports) as triton:
        triton.bind(
            model_name=job.name,
            infer_func=infer,
            inputs=[Tensor(name="IN", dtype=np.float32, shape=(job.inputs,))],
            outputs=[Tensor(name="OUT", dtype=np.float32, shape=(job.outputs,))],
            config=ModelConfig(max_batch_size=BATCH, batcher=DynamicBatcher()),
        )
        triton.serve()
