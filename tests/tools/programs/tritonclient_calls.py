"""Calls of all clients of tritonclient; prints which."""

import asyncio
import queue
import sys

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http
import tritonclient.http.aio as http_aio
import tritonclient.utils.shared_memory as memory

HTTP, GRPC = sys.argv[1:]
GIVEN = np.arange(8, dtype=np.float32).reshape(2, 4)


def inputs(library):
    found = library.InferInput("IN", GIVEN.shape, "FP32")
    found.set_data_from_numpy(GIVEN)
    return [found]


def check(result):
    assert result.as_numpy("OUT").tolist() == (GIVEN * 2).tolist()


def plain(library, url):
    with library.InferenceServerClient(url) as client:
        assert client.is_server_ready()
        assert client.is_model_ready("double")
        check(client.infer("double", inputs(library), request_id="7"))
        check(
            client.infer("double", inputs(library), outputs=[library.InferRequestedOutput("OUT")])
        )
        client.get_model_config("double")
        client.get_inference_statistics("double")
        client.unload_model("double")
        assert not client.is_model_ready("double")
        client.load_model("double")
        said = "nothing was refused"
        try:
            client.infer("missing", inputs(library))
        except library.InferenceServerException as error:
            said = error.message()
        assert "unknown model" in said, said


def shared(library, url):
    with library.InferenceServerClient(url) as client:
        region = memory.create_shared_memory_region("r", "/nbtriton_tools", 2 * GIVEN.nbytes)
        try:
            memory.set_shared_memory_region(region, [GIVEN])
            client.register_system_shared_memory("r", "/nbtriton_tools", 2 * GIVEN.nbytes)
            given = library.InferInput("IN", GIVEN.shape, "FP32")
            given.set_shared_memory("r", GIVEN.nbytes)
            wanted = library.InferRequestedOutput("OUT")
            wanted.set_shared_memory("r", GIVEN.nbytes, GIVEN.nbytes)
            client.infer("double", [given], outputs=[wanted])
            found = memory.get_contents_as_numpy(region, np.float32, [2, 2, 4])[1]
            assert found.tolist() == (GIVEN * 2).tolist()
            client.unregister_system_shared_memory("r")
        finally:
            memory.destroy_shared_memory_region(region)


async def later(library, url):
    client = library.InferenceServerClient(url)
    try:
        check(await client.infer("double", inputs(library)))
    finally:
        await client.close()


def streamed():
    answers = queue.Queue()
    with grpc.InferenceServerClient(GRPC) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for _ in range(3):
            client.async_stream_infer("double", inputs(grpc))
        for _ in range(3):
            result, error = answers.get(timeout=60)
            assert error is None, error
            check(result)
        client.stop_stream()


plain(http, HTTP)
plain(grpc, GRPC)
shared(http, HTTP)
shared(grpc, GRPC)
asyncio.run(later(http_aio, HTTP))
asyncio.run(later(grpc_aio, GRPC))
streamed()
print("HTTP and gRPC, also with asyncio, shared memory, a stream, model control")
