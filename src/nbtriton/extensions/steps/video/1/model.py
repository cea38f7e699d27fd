"""Decode a video file, or an HTTP or RTSP address, a response for each frame: PyAV."""

import base64
import functools
import math
import os
import re
import socket
import ssl
import threading
import time
import urllib.parse
import urllib.request
import warnings
import weakref
from collections import deque
from contextlib import closing, suppress

import av
import numpy as np
import triton_python_backend_utils as pb_utils
from av.video.reformatter import VideoReformatter

from .shared.parameters import read_parameters

PARAMETERS = {
    "every": ("1", (1, 100_000), "send each n-th frame"),
    "size": ("0,0", (0, 16_384), "height and width of the frames; 0,0: as they are"),
    "frames": ("0", (0, 1_000_000_000), "how many frames to send; 0: all"),
    "slow_reader": (
        "block",
        ("block", "drop_oldest", "drop_newest"),
        "while the reader is behind: wait for it, or drop frames that wait",
    ),
    "waiting": ("8", (1, 1024), "how many frames wait for the reader before one is dropped"),
    "reconnects": ("0", (0, 1_000_000), "how often in a row a lost address is opened again"),
    "pause_s": ("1.0", (0.0, 3600.0), "seconds before it is opened again"),
    "timeout_s": ("10.0", (0.1, 3600.0), "seconds for which a source may be silent"),
    "files": (".", None, "the folder whose files may be read; empty: none"),
    "streams": ("16", (1, 1024), "how many are decoded at once"),
}
# Containers that name no other files, as playlists do.
FORMATS = (
    "asf,avi,flv,gif,h264,hevc,ivf,matroska,mjpeg,mov,mpeg,mpegts,mpegvideo,mpjpeg,ogg,rtsp,webm"
)
# What PyAV may open beside what this file reads itself: `rtsp` tells the transports.
PROTOCOLS = {"file": "file", "rtsp": "rtsp,rtp,tcp", "rtsps": "rtsp,rtp,tcp,tls"}
PORTS = {"rtsp": 554, "rtsps": 322}
# How often a cancellation is looked for: a decoder is free within 200 ms.
POLL_S = 0.05
MOST_PIXELS = 1 << 26
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
# Parameters of a response came after Triton 2.51, which then gets none.
warnings.filterwarnings(
    "ignore", r"pb_utils\.InferenceResponse", module=re.escape(os.path.splitext(__file__)[0])
)


class RefusedError(Exception):
    """The address is none that may be read."""


class LostError(Exception):
    """The source broke, fell silent, or cannot be opened."""


def public(url):
    """Return an address for messages: without name and password."""
    return re.sub(r"//[^/@]*@", "//", url)


@functools.cache
def opener():
    """No proxies, and nothing but HTTP: a redirection may lead to another scheme."""
    web, found = urllib.request, urllib.request.OpenerDirector()
    https = web.HTTPSHandler(context=ssl.create_default_context())  # 0.1 s: not at a load
    errors = web.HTTPErrorProcessor(), web.HTTPDefaultErrorHandler(), web.UnknownHandler()
    for handler in (web.HTTPHandler(), https, web.HTTPRedirectHandler(), *errors):
        found.add_handler(handler)
    return found


class HttpFile:
    """What an HTTP address sends, as a file that PyAV reads; `abort` ends a read on another thread."""

    def __init__(self, url, timeout_s):
        self.url, self.timeout_s = url, timeout_s
        self.place, self.length, self.response = 0, -1, None
        self.request(0)

    def request(self, place):
        headers = {"Range": f"bytes={place}-"} if place else {}
        request = urllib.request.Request(public(self.url), headers=headers)  # noqa: S310 - http or https
        user, at, _ = urllib.parse.urlsplit(self.url).netloc.rpartition("@")
        if at:
            words = base64.b64encode(urllib.parse.unquote(user).encode()).decode()
            # Not for whom a redirection leads to.
            request.add_unredirected_header("Authorization", f"Basic {words}")
        response = opener().open(request, timeout=self.timeout_s)
        if place and response.status != 206:
            raise OSError("the address cannot be read from its middle")
        self.close()
        self.response, self.place = response, place
        if not place:
            self.length = int(response.headers.get("Content-Length") or -1)
            self.ranges = response.headers.get("Accept-Ranges") == "bytes"

    def read(self, size):
        data = self.response.read1(size)
        self.place += len(data)
        if not data and 0 <= self.place < self.length:
            raise OSError(f"the connection ended after {self.place} of {self.length} bytes")
        return data

    def seekable(self):
        return self.ranges and self.length >= 0

    def seek(self, offset, whence=0):
        place = offset + (0, self.place, self.length)[whence]
        if place != self.place:
            self.request(place)
        return place

    def tell(self):
        return self.place

    def abort(self):
        with (
            suppress(OSError, ValueError, AttributeError),  # it is closed, or at its end
            socket.socket(fileno=os.dup(self.response.fileno())) as s,
        ):
            s.shutdown(socket.SHUT_RDWR)

    def close(self):
        if self.response is not None:
            self.response.close()


class Stream:
    """One request: its source, its decoder and what waits for its reader."""

    def __init__(self, model, sender, url, batched):
        self.batched = batched
        self.model, self.values, self.sender, self.url = model, model.values, sender, url
        self.stop = threading.Event()
        self.sending = threading.Lock()
        self.answered = False
        self.http = self.camera = None
        self.index, self.timestamp_ms, self.sent, self.dropped = -1, math.nan, 0, 0
        self.waiting, self.changed = deque(), threading.Condition()

    # -- responses --------------------------------------------------------------------------------

    def send(self, response=None, flags=0, wait=True):
        if not self.sending.acquire(wait):
            return
        try:
            if not self.answered:
                self.answered = flags == FINAL
                self.sender.send(response, flags) if response else self.sender.send(flags=flags)
        except pb_utils.TritonModelException:  # the end of its server has answered
            self.answered = True
            self.stop.set()
        finally:
            self.sending.release()

    def send_frame(self, frame):
        named = zip(("FRAME", "TIMESTAMP_MS", "INDEX"), frame, strict=True)
        tensors = [pb_utils.Tensor(n, array[None] if self.batched else array) for n, array in named]
        given = {}
        if self.model.has_parameters and self.values["slow_reader"] != "block":
            given = {"parameters": {"dropped": self.dropped}}
        self.sent += 1
        self.model.sent.increment(1)
        self.send(pb_utils.InferenceResponse(tensors, **given))
        # At once: nothing that is sent from now on is read.
        if self.sender.is_cancelled():
            self.stop.set()

    def fail(self, text, code):
        self.send(pb_utils.InferenceResponse([], pb_utils.TritonError(text, code)), FINAL)

    def poll(self):
        """End it if its request is cancelled; called on the model's thread, so it never waits."""
        if self.stop.is_set() or self.sender.is_cancelled():
            self.stop.set()
            with self.changed:
                self.changed.notify_all()
            if self.http is not None:
                self.http.abort()
            with suppress(OSError, AttributeError):  # it is closed, or there is none
                self.camera.shutdown(socket.SHUT_RDWR)
            self.send(flags=FINAL, wait=False)

    # -- the threads ------------------------------------------------------------------------------

    def run(self):
        try:
            if self.values["slow_reader"] == "block":
                with closing(self.decode()) as frames:
                    for frame in frames:
                        self.send_frame(frame)
            else:
                self.drop()
            self.send(flags=FINAL)
        except RefusedError as error:
            self.fail(str(error), pb_utils.TritonError.INVALID_ARG)
        except LostError as error:
            after = f"after frame {self.index} ({self.timestamp_ms:.1f} ms)"
            stood = "before its first frame" if self.index < 0 else after
            self.fail(f"'{public(self.url)}' {stood}: {error}", pb_utils.TritonError.UNAVAILABLE)
        except Exception as error:
            self.fail(
                f"'{public(self.url)}': {type(error).__name__}: {error}",
                pb_utils.TritonError.INTERNAL,
            )
        finally:
            self.model.ended(self)

    def drop(self):
        """Decode as fast as the source is, on a thread beside, and send what the reader can take."""
        failed = []
        reader = threading.Thread(target=self.keep, args=(failed,), name="video-decoder")
        reader.start()
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.waiting)
                frame = self.waiting.popleft()
            if frame is None or self.stop.is_set():
                break
            self.send_frame(frame)
        reader.join()
        if failed:
            raise failed[0]

    def keep(self, failed):
        oldest = self.values["slow_reader"] == "drop_oldest"
        try:
            with closing(self.decode()) as frames:
                for frame in frames:
                    with self.changed:
                        full = len(self.waiting) >= self.values["waiting"]
                        if full:
                            self.dropped += 1
                            self.model.dropped.increment(1)
                        if full and oldest:
                            self.waiting.popleft()
                        if oldest or not full:
                            self.waiting.append(frame)
                            self.changed.notify_all()
        except Exception as error:
            failed.append(error)
        with self.changed:
            self.waiting.append(None)
            self.changed.notify_all()

    # -- the source -------------------------------------------------------------------------------

    def decode(self):
        """Yield frames, times and numbers until the source ends; open a lost address again."""
        kind, place = self.checked()
        every, most = self.values["every"], self.values["frames"]
        reformatter, size, lost = VideoReformatter(), self.values["size"], 0
        given = 0
        while not self.stop.is_set():
            try:
                with closing(self.opened(kind, place)) as frames:
                    for frame in frames:
                        self.index, lost = self.index + 1, 0
                        self.timestamp_ms = math.nan if frame.time is None else frame.time * 1000.0
                        if self.index % every:
                            continue
                        height, width = (size[0] or frame.height, size[1] or frame.width)
                        image = reformatter.reformat(frame, width, height, "rgb24").to_ndarray()
                        yield image, np.array([self.timestamp_ms]), np.array([self.index])
                        given += 1
                        if given == most or self.stop.is_set():
                            return
                # A camera has no end.
                if not (kind.startswith("rtsp") and self.values["reconnects"]):
                    return
                reason = "it ended"
            except (av.FFmpegError, OSError, LostError) as error:
                reason = public(str(error))
            if self.stop.is_set():
                return
            if kind == "file" or lost >= self.values["reconnects"]:
                raise LostError(reason)
            lost += 1
            self.model.reconnected.increment(1)
            self.stop.wait(self.values["pause_s"])

    def checked(self):
        """Return the scheme of the address, and what to open."""
        url = self.url
        if not url or "\0" in url or len(url) > 4096:
            raise RefusedError("URL must be a path or an address of 1 to 4096 characters")
        try:
            parts = urllib.parse.urlsplit(url if "://" in url else "")
            scheme, _ = parts.scheme, parts.port
        except ValueError as error:
            raise RefusedError(f"'{public(url)}' is refused: {error}") from None
        if scheme in ("http", "https", "rtsp", "rtsps"):
            return scheme, url
        if scheme or re.match(r"\w[\w+.,-]*:", url):
            raise RefusedError(
                f"'{public(url)}' is refused: a path, http, https, rtsp or rtsps may be read"
            )
        folder = self.values["files"]
        root = os.path.realpath(folder)
        path = os.path.realpath(os.path.join(root, url))
        if not folder or os.path.commonpath([root, path]) != root:
            allowed = f"files in '{folder}'" if folder else "no files"
            raise RefusedError(f"'{url}' is refused: parameter 'files' allows {allowed}")
        if not os.path.isfile(path):
            raise RefusedError(f"there is no file '{url}'")
        return "file", path

    def opened(self, kind, place):
        """Yield the decoded frames of an open source."""
        timeout_s, live, broken_s = self.values["timeout_s"], kind.startswith("rtsp"), math.inf
        options = {"format_whitelist": FORMATS, "protocol_whitelist": PROTOCOLS.get(kind, "none")}
        if live:
            options["rtsp_transport"] = "tcp"
        source = f"file:{place}" if kind == "file" else place
        try:
            if kind.startswith("http"):
                source = self.http = HttpFile(place, timeout_s)
            with self.container(source, options, live) as container:
                if not container.streams.video:
                    raise LostError("it has no video")
                stream = container.streams.video[0]
                if stream.width * stream.height > MOST_PIXELS:
                    raise LostError(
                        f"frames of {stream.width} x {stream.height} pixels are too large"
                    )
                if kind == "file":
                    stream.thread_type = "AUTO"  # which delays frames
                for packet in container.demux(stream):
                    if self.stop.is_set():
                        return
                    try:
                        found = packet.decode()
                    except av.InvalidDataError:
                        # A camera drops packets of a reader that is behind: what refers to them is skipped, and so is
                        # the rest of a packet that a camera left behind when it fell silent.
                        broken_s = min(broken_s, time.monotonic())
                        if not live or time.monotonic() - broken_s > timeout_s:
                            raise
                        continue
                    broken_s = math.inf
                    yield from found
        except (av.ExitError, TimeoutError):
            raise LostError(f"it was silent for {timeout_s:g} s") from None
        finally:
            if self.http is not None:
                self.http.close()
            with self.model.lock:
                camera, self.camera = self.camera, None
            if camera is not None:
                camera.close()

    def container(self, source, options, live):
        """Open a source.

        PyAV ends a read by its timeout alone, and a read that ended within a packet has lost its place in the
        stream. So a cancelled request closes the camera's connection.
        """
        if not live:
            return av.open(source, options=options)
        place = urllib.parse.urlsplit(source)
        address = place.hostname, place.port or PORTS[place.scheme]
        timeout_s = self.values["timeout_s"]
        with self.model.lock:
            opening = self.model.opening.setdefault(address, threading.Lock())
        with opening:
            if self.stop.is_set():
                raise LostError("it was not opened")
            try:
                opened = av.open(source, options=options, timeout=timeout_s)
            except av.ExitError:
                raise LostError(f"it did not open within {timeout_s:g} s") from None
            self.camera = self.connection(address)
        return opened

    def connection(self, address):
        """Return the socket of the camera that was opened; None where that cannot be found out."""
        with self.model.lock:
            cameras = [one.camera for one in self.model.streams if one.camera]
            others = {one.getsockname() for one in cameras}
        with suppress(OSError):  # a system other than Linux
            peers = [one[4] for one in socket.getaddrinfo(*address, type=socket.SOCK_STREAM)]
            for name in os.listdir("/proc/self/fd"):
                with suppress(OSError):  # closed meanwhile, or not connected
                    if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                        with socket.socket(fileno=os.dup(int(name))) as one:
                            if one.getsockname() not in others and one.getpeername() in peers:
                                return one.dup()
        return None


class TritonPythonModel:
    def initialize(self, args):
        self.values = read_parameters(args["model_config"], PARAMETERS)
        labels = {"model": args["model_name"], "version": args["model_version"]}
        self.families, counters = [], []
        for name, words in (
            ("video_frames_sent", "Frames sent to readers"),
            ("video_frames_dropped", "Frames dropped because a reader was behind"),
            ("video_reconnects", "Addresses opened again"),
        ):
            self.families.append(pb_utils.MetricFamily(name, words, pb_utils.MetricFamily.COUNTER))
            counters.append(self.families[-1].Metric(labels=labels))
        self.sent, self.dropped, self.reconnected = counters
        try:
            pb_utils.InferenceResponse([], parameters={})
            self.has_parameters = True
        except TypeError:
            self.has_parameters = False
        self.streams, self.lock = {}, threading.Lock()
        # One stream of a camera is opened at a time: its connection is the new one.
        self.opening = weakref.WeakValueDictionary()
        self.closing = threading.Event()
        self.watcher = threading.Thread(target=self.watch, name="video-watcher", daemon=True)
        self.watcher.start()

    def execute(self, requests):
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "URL").as_numpy()
            url = given.reshape(-1)[0]
            url = url.decode("utf-8", "replace") if isinstance(url, bytes) else str(url)
            # With max_batch_size 1 its frames are what batching steps of an ensemble take.
            stream = Stream(self, request.get_response_sender(), url, given.ndim == 2)
            with self.lock:
                full = len(self.streams) >= self.values["streams"]
                if not full:
                    thread = threading.Thread(target=stream.run, name="video-stream", daemon=True)
                    self.streams[stream] = thread
            if full:
                many = f"{self.values['streams']} streams are decoded already: parameter 'streams'"
                stream.fail(many, pb_utils.TritonError.UNAVAILABLE)
            else:
                thread.start()

    def watch(self):
        while not self.closing.wait(POLL_S):
            with self.lock:
                streams = list(self.streams)
            for stream in streams:
                stream.poll()

    def ended(self, stream):
        with self.lock:
            del self.streams[stream]

    def finalize(self):
        self.closing.set()
        self.watcher.join()
        with self.lock:
            left = dict(self.streams)
        for stream in left:
            stream.stop.set()
            stream.poll()
        for thread in left.values():
            thread.join(5.0)
