"""A forked child has none of a server's sockets, and the parent's endpoints do not depend on it."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from nbtriton.runtime.engine import Server
from nbtriton.serving.frontends import serve
from tests.forked import start_child
from tests.until import until

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

WAIT_S = 30.0
# An address of its own: at the usual one another process may take a port that is free again.
HOST = "127.0.0.18"


def connect(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), WAIT_S)


def answer(client: socket.socket) -> bytes:
    client.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n")
    return client.recv(1000)


@pytest.mark.parametrize("notified", [True, False], ids=["python", "c"])
def test_endpoints_close_while_a_child_lives(notified: bool, monkeypatch: pytest.MonkeyPatch):
    """Also one that C code forked, without Python's hooks: a client does not connect in vain."""
    with Server(gpus=()) as server:
        endpoints = serve(server, host=HOST, http_port=0, grpc_port=0, metrics_port=0)
        ports = [endpoints.http_port, endpoints.grpc_port, endpoints.metrics_port]
        client = connect(ports[0])
        assert answer(client).startswith(b"HTTP/1.1 200")
        ended = os.pipe()
        if not notified:
            monkeypatch.setattr(endpoints, "in_child", lambda: None)

        def live() -> str:
            os.close(ended[1])
            os.read(ended[0], 1)
            endpoints.close()  # not ours: nothing happens
            return "lived"

        wait = start_child(live if notified else lambda: os.close(ended[1]) or os.read(ended[0], 1))
        assert answer(client).startswith(b"HTTP/1.1 200")
        endpoints.close()
        if notified:
            assert client.recv(1) == b"", "the child keeps the connection open"
        client.close()
        for port in ports:
            with pytest.raises(ConnectionRefusedError):
                connect(port)
        again = serve(
            server, host=HOST, http_port=ports[0], grpc_port=ports[1], metrics_port=ports[2]
        )
        with connect(ports[0]) as client:
            assert answer(client).startswith(b"HTTP/1.1 200")
        again.close()
        os.close(ended[1])
        assert wait() == ("lived" if notified else b"")
        os.close(ended[0])


@pytest.mark.medium
def test_forks_while_clients_connect_and_disconnect():
    with (
        Server(gpus=()) as server,
        serve(server, host=HOST, http_port=0, metrics_port=None) as endpoints,
    ):
        port = endpoints.http_port
        stop = threading.Event()
        answered: list[bytes] = []

        def ask() -> None:
            while not stop.is_set():
                with connect(port) as client:
                    answered.append(answer(client)[:12])

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            assert until(lambda: answered)
            for _ in range(10):
                assert start_child(lambda: "lived")() == "lived"
        finally:
            stop.set()
            for thread in threads:
                thread.join(WAIT_S)
        assert set(answered) == {b"HTTP/1.1 200"}
