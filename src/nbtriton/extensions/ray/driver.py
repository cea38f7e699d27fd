"""The process that speaks with Ray: its driver, beside the kernel.

A driver in the kernel would end it when the cluster's head is gone for a minute, and takes over signals, logging and
forks. This one ends with its connection to the kernel, and Ray ends the actors of a driver that has ended.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from time import sleep
from typing import Any, Final

from nbtriton.extensions.ray.actor import Place
from nbtriton.runtime.workers.core.channel import Channel, ChannelClosed

# From the kernel.
START: Final = 1  # number, seconds, options of the actor, and what `Place.serve` takes
KILL: Final = 2  # number
# To the kernel.
READY: Final = 10  # the error of the connection to the cluster, empty without one
STARTED: Final = 11  # number, where it is
ENDED: Final = 12  # number, the cause

# The error of a connection that was there.
LEFT: Final = "the node that it was joined through has gone"
# How many of its limits a start may take where there is room: on a busy machine a process takes a minute to start.
PERIODS: Final = 3
# Seconds between two looks at that node.
_LOOK_S: Final = 1.0
# Ray's smallest: tensors do not go through its object store.
_STORE_BYTES: Final = 80 << 20


def main(descriptor: int, address: str) -> None:
    """Serve one kernel until its connection ends."""
    channel = Channel(socket.socket(fileno=descriptor))
    try:
        _connect(address)
    except BaseException as error:
        channel.send((READY, _first_line(error)))
        return
    channel.send((READY, ""))
    actors = _Actors(channel)
    threading.Thread(target=actors.watch, daemon=True).start()
    with suppress(ChannelClosed):
        while True:
            message, _ = channel.receive()
            if message[0] == START:
                actors.start(*message[1:])
            else:
                actors.kill(message[1])
    import ray

    ray.shutdown()


def _connect(address: str) -> None:
    import ray

    kind, _, count = address.partition(":")
    if kind == "local":
        ray.init(
            address="local", num_cpus=int(count), include_dashboard=False, log_to_driver=False,
            object_store_memory=_STORE_BYTES, _node_ip_address="127.0.0.1", logging_level="error",
        )  # fmt: skip
    else:
        ray.init(address=address, log_to_driver=False, logging_level="error")


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


class _Actors:
    """The actors of the kernel's instances, by number."""

    def __init__(self, channel: Channel) -> None:
        import ray

        self._ray = ray
        self._node = ray.get_runtime_context().get_node_id()
        self._class = ray.remote(max_restarts=0)(Place)
        self._channel = channel
        self._actors: dict[int, Any] = {}
        self._starting: dict[int, threading.Timer] = {}

    def start(
        self, number: int, limit_s: float, options: Mapping[str, Any], *place: str | int
    ) -> None:
        try:
            actor = self._class.options(**options, scheduling_strategy="SPREAD").remote()
        except Exception as error:
            self._channel.send((ENDED, number, _first_line(error)))
            return
        self._actors[number] = actor
        timer = self._starting[number] = threading.Timer(
            limit_s, self._give_up, (number, options, limit_s)
        )
        timer.daemon = True
        timer.start()
        where, served = actor.where.remote(), actor.serve.remote(*place)
        where.future().add_done_callback(lambda future: self._started(number, future))
        served.future().add_done_callback(lambda future: self._ended(number, future))

    def watch(self) -> None:
        """Leave the cluster with the node that it was joined through: Ray ends the actors of its driver, and starts none."""
        while self._joined():
            sleep(_LOOK_S)
        with suppress(ChannelClosed):
            self._channel.send((READY, LEFT))
        self._channel.close()

    def _joined(self) -> bool:
        try:
            return any(one["Alive"] for one in self._ray.nodes() if one["NodeID"] == self._node)
        except Exception:  # the cluster does not answer
            return False

    def kill(self, number: int) -> None:
        actor = self._actors.pop(number, None)
        if actor is not None:
            self._ray.kill(actor)

    def _started(self, number: int, future: Future[Any]) -> None:
        timer = None if future.exception() else self._starting.pop(number, None)
        if timer is None:  # too late, or `serve` fails as well
            return
        timer.cancel()
        with suppress(ChannelClosed):
            self._channel.send((STARTED, number, *future.result()))

    def _ended(self, number: int, future: Future[Any]) -> None:
        timer = self._starting.pop(number, None)
        if timer is not None:
            timer.cancel()
        error = future.exception()
        if timer is not None and not self._joined():
            return  # the kernel starts it elsewhere, once it is told
        with suppress(ChannelClosed):
            self._channel.send((ENDED, number, "" if error is None else _first_line(error)))

    def _give_up(self, number: int, options: Mapping[str, Any], limit_s: float) -> None:
        """End an actor that has found no node, or has not started; one that starts slowly where there is room has more time."""
        asked = {"CPU": options["num_cpus"], "GPU": options["num_gpus"], **options["resources"]}
        for left in range(PERIODS - 1, -1, -1):
            there, free = self._ray.cluster_resources(), self._ray.available_resources()
            room = all(free.get(name, 0) >= count for name, count in asked.items())
            if not room or not left:
                break
            sleep(limit_s)
        if self._starting.pop(number, None) is None:
            return
        wanted = ", ".join(
            f"{name}={count:g} (of {there.get(name, 0):g}, {free.get(name, 0):g} are free)"
            for name, count in asked.items()
            if count
        )
        cause = "it has not started, although there was" if room else "no node of the cluster had"
        with suppress(ChannelClosed):
            self._channel.send((ENDED, number, f"{cause} room for {wanted}"))
        self.kill(number)
