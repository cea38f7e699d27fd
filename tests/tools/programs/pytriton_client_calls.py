"""Calls of PyTriton's clients; prints which."""

import asyncio
import sys

import numpy as np
from pytriton.client import AsyncioModelClient, FuturesModelClient, ModelClient

HTTP, GRPC = sys.argv[1:]
GIVEN = np.arange(8, dtype=np.float32).reshape(2, 4)


def check(result):
    assert result["OUT"].tolist() == (GIVEN * 2).tolist()


for url in (f"http://{HTTP}", f"grpc://{GRPC}"):
    with ModelClient(url, "double") as client:
        check(client.infer_batch(GIVEN))
        assert client.infer_sample(GIVEN[0])["OUT"].tolist() == (GIVEN[0] * 2).tolist()
# Over gRPC it fails with tritonserver, too.
with FuturesModelClient(f"http://{HTTP}", "double") as client:
    for future in [client.infer_batch(GIVEN) for _ in range(4)]:
        check(future.result())


async def later(url):
    async with AsyncioModelClient(url, "double") as client:
        check(await client.infer_batch(GIVEN))


for url in (f"http://{HTTP}", f"grpc://{GRPC}"):
    asyncio.run(later(url))
print("ModelClient, AsyncioModelClient over HTTP and gRPC, FuturesModelClient over HTTP")
