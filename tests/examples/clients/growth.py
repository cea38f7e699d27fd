"""Row 31: clients that send one request and leave add nothing to the server."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http

from tests.examples.clients.infer import LEFT
from tests.examples.site import Site, Skipped
from tests.until import until

# A connection that is kept costs a file and, in this server or in Triton's, 10 kB and more.
MOST_BYTES_EACH = 4096
# Of what serves any client, opened meanwhile; a connection is closed some time after its client has left.
MOST_FILES = 8
# A server grows to what it needs: with gRPC some 75 MB in steps, over the first 10,000 clients, and then
# no more. One that leaks never has a round without growth.
MOST_CLIENTS = 24_000


def http_memory_growth(site: Site) -> None:
    _come_and_go(site, http, site.http)


def grpc_memory_growth(site: Site) -> None:
    _come_and_go(site, grpc, site.grpc)


def _come_and_go(site: Site, module: ModuleType, url: str) -> None:
    if not Path("/proc/self/fd").exists():
        raise Skipped("needs the /proc of Linux")
    _clients(module, url, site.fresh_clients // 4)
    files, memory = _held(site.pid)
    for _ in range(MOST_CLIENTS // site.fresh_clients):
        _clients(module, url, site.fresh_clients)
        assert until(lambda: _held(site.pid)[0] - files <= MOST_FILES)
        more_memory = _held(site.pid)[1]
        if more_memory - memory <= MOST_BYTES_EACH * site.fresh_clients:
            return
        memory = more_memory
    raise AssertionError(f"memory grew with every {site.fresh_clients} of {MOST_CLIENTS} clients")


def _clients(module: ModuleType, url: str, count: int) -> None:
    for _ in range(count):
        client = module.InferenceServerClient(url)
        tensor = module.InferInput("INPUT0", [1, 16], "INT32")
        tensor.set_data_from_numpy(LEFT)
        output = module.InferRequestedOutput("OUTPUT0")
        result = client.infer("custom_identity_int32", [tensor], outputs=[output])
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), LEFT)
        client.close()


def _held(pid: int) -> tuple[int, int]:
    """Return a process's open files and the bytes of memory that it has in use."""
    process = Path(f"/proc/{pid}")
    status = (process / "status").read_text()
    (resident,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
    return sum(1 for _ in (process / "fd").iterdir()), int(resident) * 1024
