"""A child process that hangs dumps its stacks, and leaves nothing behind."""

from __future__ import annotations

import http.server
import socket
import struct
import subprocess
import sys
import threading

import pytest

from tests.children import finish, run_python
from tests.sites import Site

HANGS = """
import threading

def stuck():
    print("started", flush=True)
    threading.Event().wait()

stuck()
"""


def test_a_child_that_hangs_dumps_its_stacks_and_ends() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HANGS], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    with pytest.raises(AssertionError, match=r'File "<string>", line \d in stuck'):
        finish(process, 0.0)
    assert process.poll() is not None
    assert process.stdout.closed


def test_a_child_that_fails_shows_what_it_wrote() -> None:
    with pytest.raises(AssertionError, match="ValueError: broken"):
        run_python("-c", "raise ValueError('broken')", check=True)
    assert run_python("-c", "raise SystemExit(3)").returncode == 3


def test_a_client_that_leaves_puts_nothing_into_the_output_of_a_site(capfd) -> None:
    left, seen = threading.Event(), threading.Event()

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            left.wait()
            try:
                while True:
                    self.wfile.write(bytes(1 << 20))
            finally:
                seen.set()

    with Site(Answers) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        with socket.create_connection(site.server_address[:2]) as client:
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            # Closed with a reset, as a browser ends a page.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        left.set()
        assert seen.wait(60)
        site.shutdown()
    assert capfd.readouterr() == ("", "")
