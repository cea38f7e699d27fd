"""The settings of simulated GPUs, and the text ``simulated:2,memory_mib=512`` that describes them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from nbtriton.common.errors import InvalidArgumentError, nearest

SIMULATED = "simulated"
# The classes of operations with their own speed; "trees" is a batch of a forest, "module" a whole call of
# any other model whose parts the device does not see.
OPERATIONS = ("elementwise", "reduction", "matmul", "trees", "module")


@dataclass(frozen=True, slots=True)
class SimulatedGPUs:
    """Simulated GPUs of one kind: the meaning of ``gpus="simulated:2"``, with every setting.

    Parameters
    ----------
    count : int
        Number of GPUs, with ids from 0.
    memory_mib : float
        Memory of each, in MiB.
    copy_gb_per_s, peer_gb_per_s : float
        Bandwidth of copies from and to the host, each way, and from one device to another, in 1e9 bytes
        per second.
    copy_latency_us : float
        Fixed cost of every copy.
    launch_us : float
        Fixed cost of every operation; a graph of many operations has it once.
    elementwise, reduction, matmul, trees, module : float
        Speed of a class of operations, as a factor on this machine's processor: with ``matmul=20`` a
        product that takes 2 ms here takes 100 us on the device's clock.

    Raises
    ------
    InvalidArgumentError
        A setting is not a number above 0.

    Examples
    --------
    >>> str(SimulatedGPUs(2, memory_mib=512))
    'simulated:2,memory_mib=512'
    """

    count: int = 1
    memory_mib: float = 16384.0
    copy_gb_per_s: float = 12.0
    peer_gb_per_s: float = 40.0
    copy_latency_us: float = 10.0
    launch_us: float = 5.0
    elementwise: float = 1.0
    reduction: float = 1.0
    matmul: float = 1.0
    trees: float = 1.0
    module: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.count, int) or not 1 <= self.count <= 64:
            raise InvalidArgumentError(
                f"{self.count!r} simulated GPUs cannot be", hint="1 to 64: simulated:2"
            )
        for one in fields(self)[1:]:
            value = getattr(self, one.name)
            least = 0 if one.name.endswith("_us") else 1e-9
            if not isinstance(value, (int, float)) or not least <= value < float("inf"):
                raise InvalidArgumentError(
                    f"{one.name}={value!r} of a simulated GPU is not a number above 0"
                )

    @property
    def memory_bytes(self) -> int:
        """Memory of each in bytes."""
        return int(self.memory_mib * 2**20)

    def copy_ns(self, nbytes: int, *, peer: bool = False) -> int:
        """Return how long a copy takes, in nanoseconds.

        Examples
        --------
        >>> SimulatedGPUs(copy_gb_per_s=12, copy_latency_us=10).copy_ns(12_000_000)
        1010000
        """
        rate = self.peer_gb_per_s if peer else self.copy_gb_per_s
        return int(self.copy_latency_us * 1000 + nbytes / rate)

    @property
    def launch_ns(self) -> int:
        """Fixed cost of every operation and every graph, in nanoseconds."""
        return int(self.launch_us * 1000)

    def compute_ns(self, operation: str, host_ns: int) -> int:
        """Return the time of an operation from its time on the host, in nanoseconds.

        Examples
        --------
        >>> SimulatedGPUs(matmul=20, launch_us=5).compute_ns("matmul", 2_000_000)
        105000
        """
        speed: float = getattr(self, operation)
        return self.launch_ns + int(host_ns / speed)

    def __str__(self) -> str:
        default = SimulatedGPUs()
        changed = [
            f"{one.name}={getattr(self, one.name):g}"
            for one in fields(self)[1:]
            if getattr(self, one.name) != getattr(default, one.name)
        ]
        return ",".join([f"{SIMULATED}:{self.count}", *changed])


def parse_simulated(text: str) -> SimulatedGPUs:
    """Return the simulated GPUs that a text such as ``"simulated:2,memory_mib=512"`` means.

    Raises
    ------
    InvalidArgumentError
        The text describes no simulated GPUs; with the nearest setting.

    Examples
    --------
    >>> parse_simulated("simulated:2,matmul=20").matmul
    20.0
    """
    head, *settings = (part.strip() for part in text.split(","))
    word, colon, count = head.partition(":")
    if word != SIMULATED or (colon and not count.isdigit()):
        raise InvalidArgumentError(
            f"gpus={text!r} is not a list of GPU ids, and names no simulated GPUs",
            hint="[0, 1], None for all, or simulated:2, simulated:2,memory_mib=512",
        )
    known = [one.name for one in fields(SimulatedGPUs)[1:]]
    found: dict[str, float] = {}
    for setting in settings:
        name, _, value = setting.partition("=")
        if name not in known:
            raise InvalidArgumentError(
                f"a simulated GPU has no setting '{name}'", hint=nearest(name, known)
            )
        try:
            found[name] = float(value)
        except ValueError:
            raise InvalidArgumentError(
                f"{setting!r} of a simulated GPU is not a number", hint=f"such as {name}=20"
            ) from None
    return replace(SimulatedGPUs(int(count or 1)), **found)  # type: ignore[arg-type]
