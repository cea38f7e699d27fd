"""The options of a server: `nbtriton.Server`, ``%triton_server``, ``nbtriton serve`` and ``c.NBTriton`` have them from here."""

# Annotations are evaluated: the table is read from them.
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from nbtriton.common.checks import NAMES, SWITCH, Kind, is_number, is_whole, number, optional
from nbtriton.options.reading import ISOLATIONS, cache_bytes, gpu_ids, recorded, switch
from nbtriton.options.table import Option, table_of
from nbtriton.options.triton import backend_setting, by_group, host_policy, resource, seconds

if TYPE_CHECKING:
    from nbtriton.backends.devices.settings import SimulatedGPUs


def _is_settings(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(one, Mapping) for one in value.values())


def _is_cluster(value: Any) -> bool:
    kind, colon, rest = value.partition(":") if isinstance(value, str) else ("", "", "")
    return value == "auto" or (bool(colon and rest) and (kind != "local" or rest.isdecimal()))


def ray_address(given: str | None) -> str:
    """Return the address of the Ray cluster: the option, the environment's, or that of this machine."""
    return given or os.environ.get("RAY_ADDRESS") or "auto"


_SETTINGS = optional(Kind(_is_settings, "a mapping by name, each a mapping of settings"))


class ServerSettings(TypedDict, total=False):
    """Options that hold for all models of a server."""

    rate_limit: Annotated[str, Option(
        "--rate-limit", "whether instances wait for the resources of their group's rate_limiter (off)",
        choices=("off", "execution_count"), default="off")]  # fmt: skip
    rate_limit_resources: Annotated["Sequence[str]", Option(
        "--rate-limit-resource", "how much there is of a resource, such as R1:4, or R1:4:0 on a device",
        "NAME:COUNT[:DEVICE]", resource, action="append", default=(), off="none",
        unset="as large as the largest need of an instance", kind=Kind(NAMES.accepts, "a list of texts such as 'R1:4'"))]  # fmt: skip
    cache_bytes: Annotated["int | None", Option(
        "--cache-bytes --cache-config", "size of the response cache, for models with response_cache { enable: true }", "N",
        cache_bytes, off="none", unset="no response cache", unit="bytes",
        kind=optional(Kind(is_number, "a number of bytes")))]  # fmt: skip
    gpus: Annotated["Sequence[int] | str | SimulatedGPUs | None", Option(
        "--gpus", "ids of the GPUs that models may use, such as 0,1; or simulated ones, such as simulated:2 or "
        "simulated:2,memory_mib=512,matmul=20", "IDS|all|none|simulated:N", gpu_ids, unset="all", ours=True)]  # fmt: skip
    backend_config: Annotated["Mapping[str, Mapping[str, str]] | None", Option(
        "--backend-config", "settings of a backend, or of all, such as default-max-batch-size=8", "[BACKEND,]SETTING=VALUE",
        backend_setting, action="append", join=by_group, off="none", unset="none", kind=_SETTINGS)]  # fmt: skip
    summaries: Annotated[bool, Option(
        "--summaries", "quantiles of latencies in the metrics (off)", "on|off", switch, False, kind=SWITCH)]  # fmt: skip
    recorder: Annotated["bool | int", Option(
        "--recorder", "how many requests of each model are kept, with their batches, for views and explanations (512)",
        "N|on|off", recorded, True, unit="requests a model",
        kind=Kind(lambda value: SWITCH.accepts(value) or (is_whole(value) and value >= 0), "True, False or a number of requests, such as 20000"),
        ours=True)]  # fmt: skip
    isolation: Annotated[str, Option(
        "--isolation", "where instances live whose model has no parameter INSTANCE_ISOLATION: in threads, each in a "
        "process of its own, in processes from the next load on where they waited for the interpreter, or on the nodes of a "
        "Ray cluster (thread)",
        choices=ISOLATIONS, default="thread", ours=True)]  # fmt: skip
    ray: Annotated["str | None", Option(
        "--ray", "the Ray cluster for --isolation ray: a new one with N processors on this machine, the one that runs here, or "
        "one elsewhere (RAY_ADDRESS, else auto)", "local:N|auto|HOST:PORT|ray://HOST:PORT", off="none",
        unset="RAY_ADDRESS, else auto", kind=optional(Kind(_is_cluster, "local:N, auto or an address")), ours=True)]  # fmt: skip
    worker_timeout_s: Annotated["float | None", Option(
        "--worker-timeout", "seconds that one execution in a process may take before the process is ended and restarted",
        "SECONDS", seconds, off="none", unset="any time", unit="s", kind=optional(number(above=0)), ours=True)]  # fmt: skip
    host_policies: Annotated["Mapping[str, Mapping[str, str]] | None", Option(
        "--host-policy", "cpu-cores=FIRST-LAST or numa-node=N: processes of instances with this host_policy are bound to "
        "them; cpu, gpu_0 and model are those of groups that name none", "POLICY,SETTING=VALUE", host_policy,
        action="append", join=by_group, off="none", unset="none", kind=_SETTINGS)]  # fmt: skip
    stand_in: Annotated[bool, Option(
        "--stand-in", "a model whose backend or file is missing runs as a stand-in of its shapes, after the time that its "
        "parameter STAND_IN_COST_US declares (off)", "on|off", switch, False, kind=SWITCH, ours=True)]  # fmt: skip


SERVER = table_of(ServerSettings)
