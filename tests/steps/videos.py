"""Videos made on the fly, and servers on loopback that send them."""

from __future__ import annotations

import functools
import shutil
import socket
import socketserver
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import av
import numpy as np

__all__ = ["GSTREAMER", "make_video", "serve_http", "serve_rtsp", "stalling"]

# Debian's packages of the RTSP server; its Python is the system's.
GSTREAMER = (
    "gir1.2-gst-rtsp-server-1.0", "gstreamer1.0-plugins-base", "gstreamer1.0-plugins-good",
    "gstreamer1.0-plugins-ugly", "python3-gi",
)  # fmt: skip
_SYSTEM_PYTHON = "/usr/bin/python3"
_RTSP_SERVER = """
import sys
import gi
gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer
Gst.init(None)
server = GstRtspServer.RTSPServer()
server.set_address("127.0.0.1")
server.set_service(sys.argv[1])
factory = GstRtspServer.RTSPMediaFactory()
factory.set_shared(True)
factory.set_launch(
    "( videotestsrc is-live=true pattern=ball ! video/x-raw,width=160,height=120,framerate=25/1 "
    "! x264enc tune=zerolatency speed-preset=ultrafast key-int-max=25 ! rtph264pay name=pay0 pt=96 )"
)
server.get_mount_points().add_factory("/camera", factory)
assert server.attach(None)
print(server.get_bound_port(), flush=True)
GLib.timeout_add_seconds(int(sys.argv[2]), sys.exit)
GLib.MainLoop().run()
"""


def make_video(
    path: Path, count: int = 30, size: tuple[int, int] = (48, 64), *, rate: int = 25, codec: str = "mpeg4"
) -> Path:  # fmt: skip
    """Write a video whose frames are told apart: a bright column that moves."""
    height, width = size
    with av.open(str(path), "w") as file:
        stream = file.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(count):
            image = np.full((height, width, 3), 30, np.uint8)
            place = 2 * number % width
            image[:, place : place + 8] = (200, 80, 40)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        file.mux(stream.encode())
    return path


Send = Callable[[BaseHTTPRequestHandler, int], None]


@contextmanager
def serve_http(send: Send) -> Iterator[str]:
    """Serve on loopback: ``send(handler, number)`` answers the request of this number."""
    requests = iter(range(1 << 30))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # The reader may leave at any time.
            with suppress(OSError):
                send(self, next(requests))

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@functools.cache
def missing_for_rtsp() -> str:
    """Return why no RTSP server can be started here; empty if one can."""
    if not shutil.which(_SYSTEM_PYTHON):
        return "the system has no Python"
    probe = _RTSP_SERVER.partition("server = ")[0] + "assert Gst.ElementFactory.find('x264enc')"
    done = subprocess.run([_SYSTEM_PYTHON, "-c", probe], capture_output=True, check=False)
    return f"apt-get install {' '.join(GSTREAMER)}" if done.returncode else ""


@contextmanager
def serve_rtsp(port: int = 0, *, lives_s: int = 600) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:  # fmt: skip
    """Serve a camera of 25 frames a second on loopback."""
    command = [_SYSTEM_PYTHON, "-c", _RTSP_SERVER, str(port), str(lives_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline() or 0)
            assert port, "the RTSP server does not listen"
            yield f"rtsp://127.0.0.1:{port}/camera", process
        finally:
            process.kill()


@contextmanager
def stalling(port: int) -> Iterator[int]:
    """Relay the connections to a port, by a link that stalls for 0.3 s again and again, in the middle of what it sends."""

    class Relay(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with (
                suppress(OSError),  # the reader may leave at any time
                socket.create_connection(("127.0.0.1", port)) as camera,
            ):
                threading.Thread(target=self.ask, args=(camera,), daemon=True).start()
                number = 0
                while data := camera.recv(1 << 16):
                    number += 1
                    half = len(data) // 2 if number % 20 == 0 else 0
                    self.request.sendall(data[:half])
                    if half:
                        over.wait(0.3)
                    self.request.sendall(data[half:])

        def ask(self, camera: socket.socket) -> None:
            with suppress(OSError):
                while data := self.request.recv(1 << 16):
                    camera.sendall(data)

    over = threading.Event()
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Relay) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            over.set()
            server.shutdown()
            thread.join()
