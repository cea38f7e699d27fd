"""Rows 13 to 16: tensors in shared memory, system and CUDA."""

from __future__ import annotations

import base64
import contextlib
import ctypes.util
import os
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

from tests.examples.clients.infer import LEFT, RIGHT, check, pair
from tests.examples.clients.strings import texts
from tests.examples.site import Site, Skipped

SIZE = LEFT.nbytes
NAMES = ("input0_data", "input1_data", "output0_data", "output1_data")


def has_gpu() -> bool:
    """Return whether CUDA's driver finds a device; asks nothing that would start CUDA here."""
    return ctypes.util.find_library("cuda") is not None and os.path.exists("/dev/nvidia0")  # noqa: PTH110


@contextlib.contextmanager
def region(client: Any, name: str, size: int) -> Iterator[Any]:
    """A region of system shared memory, registered while the block runs."""
    key = f"/nbtriton-examples-{os.getpid()}-{name}"
    handle = shm.create_shared_memory_region(name, key, size)
    try:
        client.register_system_shared_memory(name, key, size)
        yield handle
    finally:
        client.unregister_system_shared_memory(name)
        shm.destroy_shared_memory_region(handle)


def _start_clean(client: Any) -> None:
    # Also right where none is registered.
    for _ in range(2):
        client.unregister_system_shared_memory()
        client.unregister_cuda_shared_memory()


def _registered(client: Any) -> set[str]:
    status = client.get_system_shared_memory_status()
    return set(status.regions) if hasattr(status, "regions") else {each["name"] for each in status}


def _datatype(result: Any, name: str) -> tuple[str, list[int]]:
    output = result.get_output(name)
    if isinstance(output, dict):
        return output["datatype"], output["shape"]
    return output.datatype, list(output.shape)


def _one_region_each_way(client: Any, module: ModuleType) -> None:
    """Two inputs, then two outputs, in one region each: the second at an offset."""
    _start_clean(client)
    with (
        region(client, "input_data", 2 * SIZE) as into,
        region(client, "output_data", 2 * SIZE) as out,
    ):
        shm.set_shared_memory_region(into, [LEFT])
        shm.set_shared_memory_region(into, [RIGHT], offset=SIZE)
        inputs = [module.InferInput(f"INPUT{index}", [1, 16], "INT32") for index in (0, 1)]
        outputs = [module.InferRequestedOutput(f"OUTPUT{index}") for index in (0, 1)]
        for index in (0, 1):
            inputs[index].set_shared_memory("input_data", SIZE, offset=index * SIZE)
            outputs[index].set_shared_memory("output_data", SIZE, offset=index * SIZE)
        result = client.infer("simple", inputs, outputs=outputs)
        for index, expected in enumerate((LEFT + RIGHT, LEFT - RIGHT)):
            assert _datatype(result, f"OUTPUT{index}") == ("INT32", [1, 16])
            found = shm.get_contents_as_numpy(out, np.int32, [1, 16], offset=index * SIZE)
            np.testing.assert_array_equal(found, expected)
            del found
        assert _registered(client) == {"input_data", "output_data"}
        client.unregister_system_shared_memory()
        assert _registered(client) == set()


def _four_regions_of_strings(client: Any, module: ModuleType) -> None:
    """BYTES tensors as they are serialized, in regions of just their size."""
    _start_clean(client)
    tensors = [texts(each) for each in (LEFT, RIGHT, LEFT + RIGHT, LEFT - RIGHT)]
    raw = [serialize_byte_tensor(tensor) for tensor in tensors]
    sizes = [len(each.item()) for each in raw]
    with contextlib.ExitStack() as stack:
        handles = [
            stack.enter_context(region(client, name, size))
            for name, size in zip(NAMES, sizes, strict=True)
        ]
        inputs = [module.InferInput(f"INPUT{index}", [1, 16], "BYTES") for index in (0, 1)]
        outputs = [module.InferRequestedOutput(f"OUTPUT{index}") for index in (0, 1)]
        for index in (0, 1):
            shm.set_shared_memory_region(handles[index], [raw[index]])
            inputs[index].set_shared_memory(NAMES[index], sizes[index])
            outputs[index].set_shared_memory(NAMES[2 + index], sizes[2 + index])
        result = client.infer("simple_string", inputs, outputs=outputs)
        for index in (0, 1):
            assert _datatype(result, f"OUTPUT{index}") == ("BYTES", [1, 16])
            found = shm.get_contents_as_numpy(handles[2 + index], np.object_, [1, 16])
            assert found.tolist() == tensors[2 + index].tolist()
        assert _registered(client) == set(NAMES)


def _reuse(client: Any, module: ModuleType) -> None:
    """The same input and output objects in shared memory, in the message, and in memory again."""
    _start_clean(client)
    with contextlib.ExitStack() as stack:
        handles = [stack.enter_context(region(client, name, SIZE)) for name in NAMES]
        shm.set_shared_memory_region(handles[0], [LEFT])
        shm.set_shared_memory_region(handles[1], [RIGHT])
        inputs = pair(module)
        outputs = [module.InferRequestedOutput(f"OUTPUT{index}") for index in (0, 1)]
        for shared in (True, False, True):
            for index in (0, 1):
                if shared:
                    inputs[index].set_shared_memory(NAMES[index], SIZE)
                    outputs[index].set_shared_memory(NAMES[2 + index], SIZE)
                    shm.set_shared_memory_region(handles[2 + index], [np.zeros(16, np.int32)])
                else:
                    inputs[index].set_data_from_numpy((LEFT, RIGHT)[index])
                    outputs[index].unset_shared_memory()
            result = client.infer("simple", inputs, outputs=outputs)
            if not shared:
                check(result)
                continue
            for index, expected in enumerate((LEFT + RIGHT, LEFT - RIGHT)):
                found = shm.get_contents_as_numpy(handles[2 + index], np.int32, [1, 16])
                np.testing.assert_array_equal(found, expected)
                del found


def _cuda(client: Any, module: ModuleType) -> None:
    """Inputs and outputs in regions of GPU memory."""
    if not has_gpu():
        raise Skipped("needs a GPU")
    try:
        import tritonclient.utils.cuda_shared_memory as cudashm
    except (ImportError, RuntimeError):
        raise Skipped("needs the package 'cuda-python'") from None
    _start_clean(client)
    handles = []
    try:
        for name in NAMES:
            handles.append(cudashm.create_shared_memory_region(name, SIZE, 0))
            raw = cudashm.get_raw_handle(handles[-1])
            client.register_cuda_shared_memory(name, raw, 0, SIZE)
        cudashm.set_shared_memory_region(handles[0], [LEFT])
        cudashm.set_shared_memory_region(handles[1], [RIGHT])
        inputs = [module.InferInput(f"INPUT{index}", [1, 16], "INT32") for index in (0, 1)]
        outputs = [module.InferRequestedOutput(f"OUTPUT{index}") for index in (0, 1)]
        for index in (0, 1):
            inputs[index].set_shared_memory(NAMES[index], SIZE)
            outputs[index].set_shared_memory(NAMES[2 + index], SIZE)
        client.infer("simple", inputs, outputs=outputs)
        for index, expected in enumerate((LEFT + RIGHT, LEFT - RIGHT)):
            found = cudashm.get_contents_as_numpy(handles[2 + index], np.int32, [1, 16])
            np.testing.assert_array_equal(found, expected)
    finally:
        client.unregister_cuda_shared_memory()
        for handle in handles:
            cudashm.destroy_shared_memory_region(handle)


def _refused(client: Any, _: ModuleType) -> None:
    """Without a GPU a CUDA handle is refused, and everything else goes on."""
    if has_gpu():
        raise Skipped("there is a GPU")
    _start_clean(client)
    handle = base64.b64encode(bytes(64))
    with pytest.raises(InferenceServerException) as refused:
        client.register_cuda_shared_memory("output0_data", handle, 0, SIZE)
    assert refused.value.message() == "failed to register shared memory region: invalid args"
    assert refused.value.status() in {"400", "StatusCode.INVALID_ARGUMENT"}
    status = client.get_cuda_shared_memory_status()
    assert not (status.regions if hasattr(status, "regions") else status)
    assert client.is_server_ready()


def _over_both(
    program: Callable[[Any, ModuleType], None],
) -> tuple[Callable[[Site], None], Callable[[Site], None]]:
    """Make two programs of one, over HTTP and over gRPC."""

    def over_http(site: Site) -> None:
        with http.InferenceServerClient(site.http) as client:
            program(client, http)

    def over_grpc(site: Site) -> None:
        with grpc.InferenceServerClient(site.grpc) as client:
            program(client, grpc)

    return over_http, over_grpc


http_shm, grpc_shm = _over_both(_one_region_each_way)
http_shm_string, grpc_shm_string = _over_both(_four_regions_of_strings)
reuse_infer_objects_http, reuse_infer_objects_grpc = _over_both(_reuse)
http_cudashm, grpc_cudashm = _over_both(_cuda)
http_cudashm_without_gpu, grpc_cudashm_without_gpu = _over_both(_refused)
