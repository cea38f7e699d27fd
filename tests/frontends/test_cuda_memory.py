"""CUDA shared memory: clean refusals without a GPU, and with one the whole way of a client."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from nbtriton.common.errors import InternalError, InvalidArgumentError, NotFoundError
from nbtriton.model.config import as_config
from nbtriton.runtime.engine import ModelSignature, Server
from nbtriton.serving.frontends import Endpoints, serve
from nbtriton.serving.frontends.kserve.shared_memory import (
    HANDLE_BYTES,
    Lease,
    SharedMemory,
    open_cuda_memory,
)
from nbtriton.serving.frontends.kserve.wire import WireInput, arrays_of, write_shared

REFUSED = "failed to register shared memory region: invalid args"


@pytest.mark.parametrize(
    ("handle", "device", "size"),
    [
        (b"x" * HANDLE_BYTES, 0, 16),  # no GPU, or no handle of any process
        (b"x" * HANDLE_BYTES, -1, 16),
        (b"x" * HANDLE_BYTES, 99, 16),
        (b"x" * HANDLE_BYTES, 0, 0),
        (b"x" * 8, 0, 16),  # gRPC does not look at its length
    ],
)
def test_KS44_handles_that_cannot_be_mapped_are_refused_and_leave_nothing(handle, device, size):
    with pytest.raises(InvalidArgumentError) as caught:
        open_cuda_memory(handle, device, size)
    assert caught.value.message == REFUSED
    memory = SharedMemory()
    with pytest.raises(InvalidArgumentError):
        memory.register_cuda("r", handle, device, size)
    assert memory.status("cuda") == []
    with pytest.raises(NotFoundError, match="Unable to find cuda shared memory region: 'r'"):
        memory.status("cuda", "r")
    memory.unregister("cuda", "r")
    with pytest.raises(NotFoundError, match="Unable to find shared memory region: 'r'"):
        memory.lease("r", 0, 4)


def _signature(datatype: str) -> ModelSignature:
    kind = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
    tensor = f'{{ name: "%s" data_type: {kind} dims: [ -1 ] }}'
    return ModelSignature(as_config(f'name: "same" input {tensor % "IN"} output {tensor % "OUT"}'))


# The bytes of a region are a torch tensor; where it is makes no difference to how they are read.
@pytest.mark.parametrize(
    ("datatype", "values"),
    [
        ("FP32", np.array([1.5, -2], np.float32)),
        ("INT64", np.array([1, -2, 3], np.int64)),
        ("UINT16", np.array([1, 65535], np.uint16)),
        ("FP16", np.array([0.5], np.float16)),
        ("BOOL", np.array([2, 0], np.uint8)),
    ],
)
@pytest.mark.parametrize("at", [0, 1])
def test_bytes_become_tensors_in_place(datatype, values, at):
    region = torch.zeros(64, dtype=torch.uint8)
    region[at : at + values.nbytes] = torch.frombuffer(
        bytearray(values.tobytes()), dtype=torch.uint8
    )
    part = region[at : at + values.nbytes]
    arrays = arrays_of(_signature(datatype), [WireInput("IN", datatype, values.shape, part)])
    expected = values != 0 if datatype == "BOOL" else values
    assert arrays["IN"].numpy().tolist() == expected.tolist()
    assert str(arrays["IN"].numpy().dtype) == str(expected.dtype)
    if at == 0 and datatype != "BOOL":
        assert arrays["IN"].data_ptr() == region.data_ptr()


def test_bfloat16_and_text():
    numbers = torch.tensor([1.5, -3], dtype=torch.bfloat16)
    region = numbers.view(torch.uint8)
    found = arrays_of(_signature("BF16"), [WireInput("IN", "BF16", (2,), region)])["IN"]
    assert torch.equal(torch.as_tensor(found).to(torch.bfloat16), numbers)
    text = bytearray(b"\x02\0\0\0ab\0\0\0\0")
    region = torch.frombuffer(text, dtype=torch.uint8)
    found = arrays_of(_signature("BYTES"), [WireInput("IN", "BYTES", (2,), region)])["IN"]
    assert found.tolist() == [b"ab", b""]
    with pytest.raises(InvalidArgumentError, match="expected 3 string elements"):
        arrays_of(_signature("BYTES"), [WireInput("IN", "BYTES", (3,), region)])
    with pytest.raises(InvalidArgumentError, match="Expected 12, got 10"):
        arrays_of(_signature("FP32"), [WireInput("IN", "FP32", (3,), region)])


def test_outputs_of_any_library_are_written():
    region = torch.zeros(16, dtype=torch.uint8)
    lease = Lease(16, region, 0, SharedMemory(), None, None)
    for array in (np.array([1, 2], np.float32), torch.tensor([1.0, 2.0])):
        region.zero_()
        write_shared(lease, array, "OUT")
        assert region[:8].view(torch.float32).tolist() == [1.0, 2.0]
        assert not region[8:].any()
    write_shared(lease, np.array([b"abc"], object), "OUT")
    assert bytes(region[:7].numpy()) == b"\x03\0\0\0abc"
    with pytest.raises(InternalError, match=r"\(16 bytes\) should be at least 20 bytes"):
        write_shared(lease, np.zeros(5, np.float32), "OUT")


# -- on a GPU ----------------------------------------------------------------------------------------

# What a client does: memory of its own, with numbers in it, and its handle.
OWNER = """
import base64, ctypes, sys
import numpy as np, torch
torch.zeros(1, device="cuda")
cuda = ctypes.CDLL("libcuda.so.1")
pointer, handle = ctypes.c_uint64(), (ctypes.c_char * 64)()
assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(64)) == 0
data = np.arange(16, dtype=np.float32)
assert cuda.cuMemcpyHtoD_v2(pointer, data.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(64)) == 0
assert cuda.cuIpcGetMemHandle(ctypes.byref(handle), pointer) == 0
print(base64.b64encode(handle.raw).decode(), flush=True)
for _ in sys.stdin:
    assert cuda.cuMemcpyDtoH_v2(data.ctypes.data_as(ctypes.c_void_p), pointer, ctypes.c_size_t(64)) == 0
    print(data.tolist(), flush=True)
"""


class Owner:
    """Another process with 64 bytes on the GPU: 0 to 15 as FP32."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.handle = self.process.stdout.readline().strip()

    def read(self) -> list[float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@pytest.fixture
def owner() -> Iterator[Owner]:
    made = Owner()
    yield made
    made.process.communicate()


@pytest.fixture
def endpoints() -> Iterator[Endpoints]:
    def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:  # noqa: F821, N803, UP037
        return {"OUT": IN * 2}

    with Server() as server:
        server.load("max_batch_size: 2", double, name="double")
        with serve(server, http_port=0, metrics_port=None) as opened:
            yield opened


def ask(endpoints: Endpoints, path: str, document: object = None) -> tuple[int, object]:
    data = None if document is None else json.dumps(document).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{endpoints.http_port}/v2/{path}", data)
    try:
        with urllib.request.urlopen(request) as reply:
            body = reply.read()
            return 200, json.loads(body) if body else None
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]


@pytest.mark.gpu
def test_a_client_on_a_gpu(endpoints: Endpoints, owner: Owner) -> None:
    def register(size: int, device: int = 0):
        document = {"raw_handle": {"b64": owner.handle}, "device_id": device, "byte_size": size}
        return ask(endpoints, "cudasharedmemory/region/r/register", document)

    assert register(1 << 40) == (400, REFUSED)
    assert register(64, 99) == (400, REFUSED)
    assert register(64) == (200, None)
    assert register(64) == (400, "shared memory region 'r' already in manager")
    status = [{"name": "r", "device_id": 0, "byte_size": 64}]
    assert ask(endpoints, "cudasharedmemory/status") == (200, status)
    part = {"shared_memory_region": "r", "shared_memory_byte_size": 16}
    request = {
        "inputs": [
            {
                "name": "IN", "shape": [1, 4], "datatype": "FP32",
                "parameters": {**part, "shared_memory_offset": 16},
            }
        ],
        "outputs": [{"name": "OUT", "parameters": {**part, "shared_memory_offset": 48}}],
    }  # fmt: skip
    code, answer = ask(endpoints, "models/double/infer", request)
    assert code == 200, answer
    assert owner.read() == [*range(12), 8, 10, 12, 14]
    request["inputs"][0]["parameters"]["shared_memory_offset"] = 56
    assert ask(endpoints, "models/double/infer", request) == (
        400, "Invalid offset + byte size for shared memory region: 'r'",
    )  # fmt: skip
    assert ask(endpoints, "cudasharedmemory/region/r/unregister", {}) == (200, None)
    assert ask(endpoints, "cudasharedmemory/status") == (200, [])


@pytest.mark.gpu
def test_memory_stays_as_long_as_a_tensor_of_it(owner: Owner) -> None:
    tensor = open_cuda_memory(base64.b64decode(owner.handle), 0, 64)
    part = tensor[16:32]
    del tensor
    assert part.view(torch.float32).tolist() == [4, 5, 6, 7]
