"""PyTriton: doubles rows of numbers, batched. ``python pytriton_double.py PORT GRPC METRICS``."""

import sys

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


@batch
def double(IN):  # noqa: N803  the tensor's name
    return {"OUT": IN * 2}


if __name__ == "__main__":
    http, grpc, metrics = map(int, sys.argv[1:4])
    ports = TritonConfig(http_port=http, grpc_port=grpc, metrics_port=metrics)
    with Triton(config=ports) as triton:
        triton.bind(
            model_name="double",
            infer_func=double,
            inputs=[Tensor(name="IN", dtype=np.float32, shape=(16,))],
            outputs=[Tensor(name="OUT", dtype=np.float32, shape=(16,))],
            config=ModelConfig(max_batch_size=32, batcher=DynamicBatcher()),
        )
        triton.serve()
