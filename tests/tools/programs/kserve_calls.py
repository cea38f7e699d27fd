"""Calls of KServe's clients; prints which."""

import asyncio
import sys

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig

HTTP, GRPC = sys.argv[1:]
GIVEN = np.arange(8, dtype=np.float32).reshape(2, 4)


def request(*, binary):
    found = InferInput("IN", list(GIVEN.shape), "FP32")
    found.set_data_from_numpy(GIVEN, binary_data=binary)
    return InferRequest(model_name="double", infer_inputs=[found], request_id="7")


def check(response):
    (out,) = response.outputs
    assert np.array_equal(out.as_numpy().reshape(GIVEN.shape), GIVEN * 2)


async def main():
    rest = InferenceRESTClient(RESTConfig(protocol="v2"))
    assert await rest.is_model_ready(f"http://{HTTP}", model_name="double")
    for binary in (False, True):
        check(await rest.infer(f"http://{HTTP}", request(binary=binary), model_name="double"))
    client = InferenceGRPCClient(url=GRPC)
    assert await client.is_server_ready()
    assert await client.is_model_ready("double")
    check(await client.infer(request(binary=True)))
    said = "nothing was refused"
    try:
        await rest.infer(f"http://{HTTP}", request(binary=False), model_name="missing")
    except Exception as error:
        said = str(error)
    assert "missing" in said, said


asyncio.run(main())
print("REST with JSON and binary tensors, gRPC, readiness, a refusal")
