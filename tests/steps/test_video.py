"""The step `video`: frames of files, HTTP and RTSP addresses, and what may go wrong with them."""

from __future__ import annotations

import functools
import signal
import sys
import threading
from contextlib import nullcontext, suppress
from http import HTTPStatus
from types import SimpleNamespace

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.common.errors import InvalidArgumentError, TritonError, UnavailableError
from tests.until import until

av = pytest.importorskip("av", reason="PyAV is not installed")

from tests.steps.videos import (  # noqa: E402
    make_video,
    missing_for_rtsp,
    serve_http,
    serve_rtsp,
    stalling,
)

COUNT = 30
LONG = 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("videos")
    make_video(found / "clip.mp4", COUNT)
    make_video(found / "clip.ts", COUNT, codec="mpeg2video")
    # Longer than what a demuxer reads before the first frame.
    make_video(found / "long.ts", LONG, codec="mpeg2video")
    return found


@pytest.fixture
def load(server, folder):
    def made(**parameters):
        given = {"files": folder, "timeout_s": 600, **parameters}
        server.load("", nt.step("video", **given), name="video")

    return made


def frames(server, url="clip.mp4"):
    return server.stream("video", {"URL": [str(url)]})


def indices(server, url="clip.mp4"):
    return [int(one["INDEX"][0]) for one in frames(server, url)]


def counted(server):
    text = nt.status(server, "video")["metrics"][0]
    return {key: int(value) for key, value in (word.split(" ") for word in text.split(", "))}


def no_decoders():
    return until(lambda: not any(t.name.startswith("video-") for t in threading.enumerate()))


def decoding():
    return [t for t in threading.enumerate() if t.name in ("video-stream", "video-decoder")]


# -- files ------------------------------------------------------------------------------------------


def test_the_frames_are_those_of_the_library(server, load, folder):
    load()
    with av.open(str(folder / "clip.mp4")) as file:
        wanted = [(one.to_ndarray(format="rgb24"), one.time * 1000) for one in file.decode(video=0)]
    found = list(frames(server))
    assert [int(one["INDEX"][0]) for one in found] == list(range(COUNT))
    for one, (image, time_ms) in zip(found, wanted, strict=True):
        assert np.array_equal(one["FRAME"], image)
        assert one["TIMESTAMP_MS"][0] == pytest.approx(time_ms)
        assert not one.parameters, "nothing can be dropped"
    assert counted(server)["video_frames_sent"] == COUNT


def test_every_size_and_frames(server, load):
    load(every=4, size=(20, 32), frames=5)
    found = list(frames(server))
    assert [int(one["INDEX"][0]) for one in found] == [0, 4, 8, 12, 16]
    assert {one["FRAME"].shape for one in found} == {(20, 32, 3)}


def test_its_frames_are_what_a_step_that_batches_takes(server, load, folder):
    server.load("max_batch_size: 1", nt.step("video", files=folder, frames=3), name="video")
    server.load("", nt.step("resize", size=(8, 16)), name="resize")
    step = "step { model_name: '%s' model_version: -1 input_map { key: '%s' value: '%s' } output_map { key: '%s' value: '%s' } }"  # fmt: skip
    steps = [
        step % ("video", "URL", "URL", "FRAME", "frame"),
        step % ("resize", "IMAGE", "frame", "IMAGE", "SMALL"),
    ]
    server.load(
        'platform: "ensemble" max_batch_size: 1 '
        "input { name: 'URL' data_type: TYPE_STRING dims: 1 } "
        "output { name: 'SMALL' data_type: TYPE_UINT8 dims: [ -1, -1, 3 ] } "
        f"ensemble_scheduling {{ {' '.join(steps)} }}",
        name="small",
    )
    found = list(server.stream("small", {"URL": [["clip.mp4"]]}))
    assert [one["SMALL"].shape for one in found] == [(1, 8, 16, 3)] * 3


def test_several_streams_are_decoded_at_once_each_in_its_order(server, load):
    load()
    streams = [frames(server) for _ in range(6)]
    rounds = list(zip(*streams, strict=True))
    assert [[int(one["INDEX"][0]) for one in turn] for turn in rounds] == [[n] * 6 for n in range(COUNT)]  # fmt: skip


def test_a_reader_that_is_behind_holds_the_decoder(server, load):
    load()
    stream = frames(server)
    next(stream)
    assert counted(server)["video_frames_sent"] <= 8
    assert len(list(stream)) == COUNT - 1


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest"])
def test_a_reader_that_is_behind_misses_frames_and_each_is_accounted_for(server, folder, policy):
    video = nt.step("video", files=folder, slow_reader=policy, waiting=3, timeout_s=600)
    unread = 'parameters { key: "MAX_UNREAD_RESPONSES" value { string_value: "1" } }'
    server.load(unread, video, name="video")
    gate = threading.Event()
    send = functools.partial(held, (folder / "long.ts").read_bytes(), gate)
    with serve_http(send) as url:
        stream = frames(server, url)
        first = next(stream)
        # One is read, one waits for the reader, and one is held: three were kept however slow the sender was.
        assert until(lambda: counted(server)["video_frames_sent"] == 3)
        gate.set()
        # The source is read to its end meanwhile.
        assert until(lambda: not any(t.name == "video-decoder" for t in threading.enumerate()))
        found = [first, *stream]
    seen = [int(one["INDEX"][0]) for one in found]
    dropped = found[-1].parameters["dropped"]
    assert seen == sorted(seen)
    assert dropped > 0
    assert len(seen) + dropped == LONG
    assert counted(server) == {
        "video_frames_sent": len(seen),
        "video_frames_dropped": dropped,
        "video_reconnects": 0,
    }
    if policy == "drop_oldest":
        assert seen[-3:] == [LONG - 3, LONG - 2, LONG - 1]
    else:
        assert seen[-1] < LONG - 1, "those that came last were dropped"


def test_a_source_of_pictures_without_times_has_none(server, load, folder):
    (folder / "raw.mjpeg").write_bytes(b"".join(_jpeg(level) for level in (10, 120, 240)))
    load()
    found = list(frames(server, "raw.mjpeg"))
    assert [round(float(one["FRAME"].mean()) / 10) for one in found] == [1, 12, 24]


def _jpeg(level):
    from io import BytesIO

    from PIL import Image

    kept = BytesIO()
    Image.new("RGB", (16, 16), (level,) * 3).save(kept, "JPEG")
    return kept.getvalue()


# -- the end ----------------------------------------------------------------------------------------


def test_leaving_the_loop_frees_the_decoder(server, load):
    load()
    for one in frames(server):
        assert one["INDEX"][0] == 0
        break
    assert until(lambda: not decoding())
    assert counted(server)["video_frames_sent"] < COUNT


@pytest.mark.parametrize("policy", ["block", "drop_oldest"])
def test_a_model_that_is_unloaded_ends_its_streams_threads(server, load, policy):
    load(slow_reader=policy)
    stream = frames(server)
    next(stream)
    stream.close()
    server.unload("video")
    assert no_decoders()


@pytest.mark.parametrize("policy", ["block", "drop_oldest"])
def test_the_end_of_the_server_ends_streams_that_nobody_reads(server, load, policy):
    load(slow_reader=policy)
    streams = [frames(server) for _ in range(2)]
    for stream in streams:
        next(stream)
    server.close(timeout_s=0.1)
    assert no_decoders()


def test_more_streams_than_allowed_are_refused(server, load):
    load(streams=1)
    first = frames(server)
    next(first)
    with pytest.raises(UnavailableError, match="1 streams are decoded already"):
        next(frames(server))
    first.close()
    assert until(lambda: not decoding())
    assert len(indices(server)) == COUNT


# -- what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "/etc/passwd",
        "../outside.mp4",
        "link.mp4",
        "file:///etc/passwd",
        "file:/etc/passwd",
        "concat:clip.mp4|clip.mp4",
        "subfile,,start,0,end,9,,:clip.mp4",
        "data:video/mp4;base64,AAAA",
        "ftp://127.0.0.1/clip.mp4",
        "udp://127.0.0.1:9",
        "pipe:0",
        "clip.mp4\0.txt",
        "",
        "x" * 5000,
    ],
)
def test_hostile_addresses_are_refused(server, load, folder, url):
    make_video(folder.parent / "outside.mp4", 2)
    link = folder / "link.mp4"
    if not link.is_symlink():
        link.symlink_to(folder.parent / "outside.mp4")
    load()
    with pytest.raises(InvalidArgumentError):
        next(frames(server, url))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.m3u8", "#EXTM3U\n#EXTINF:1,\n{clip}\n#EXT-X-ENDLIST\n"),
        ("list.ffconcat", "ffconcat version 1.0\nfile {clip}\n"),
        ("list.txt", "root:x:0:0\n"),
    ],
)
def test_a_file_that_names_others_is_none(server, load, folder, name, text):
    (folder / name).write_text(text.format(clip=folder.parent / "outside.mp4"))
    load()
    with pytest.raises(UnavailableError, match="before its first frame"):
        next(frames(server, name))


def test_by_default_it_reads_from_the_working_directory(server, folder, monkeypatch):
    monkeypatch.chdir(folder)
    server.load("", nt.step("video"), name="video")
    assert len(indices(server)) == COUNT
    with pytest.raises(InvalidArgumentError, match=r"allows files in '\.'"):
        next(frames(server, "/etc/passwd"))


def test_no_files_at_all(server, load):
    load(files="")
    with pytest.raises(InvalidArgumentError, match="allows no files"):
        next(frames(server))


def test_a_missing_file_says_so(server, load):
    load()
    with pytest.raises(InvalidArgumentError, match=r"there is no file 'gone\.mp4'"):
        next(frames(server, "gone.mp4"))


# -- HTTP -------------------------------------------------------------------------------------------


def whole(data, handler, _number):
    handler.send_response(HTTPStatus.OK)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def ranged(data, handler, _number):
    first = int(handler.headers.get("Range", "bytes=0-")[6:].split("-")[0])
    handler.send_response(HTTPStatus.PARTIAL_CONTENT if first else HTTPStatus.OK)
    handler.send_header("Accept-Ranges", "bytes")
    handler.send_header("Content-Length", str(len(data) - first))
    handler.end_headers()
    handler.wfile.write(data[first:])


def cut(data, until_number, handler, number):
    """The connection of the first requests ends in the middle."""
    handler.send_response(HTTPStatus.OK)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data[: len(data) // 2] if number < until_number else data)


def held(data, gate, handler, _number):
    """Half of it, then silence until the gate opens."""
    handler.send_response(HTTPStatus.OK)
    handler.end_headers()
    handler.wfile.write(data[: len(data) // 2])
    handler.wfile.flush()
    gate.wait(120)
    handler.wfile.write(data[len(data) // 2 :])


@pytest.mark.parametrize(("send", "name"), [(whole, "clip.ts"), (ranged, "clip.mp4")])
def test_an_http_address(server, load, folder, send, name):
    load()
    with serve_http(functools.partial(send, (folder / name).read_bytes())) as url:
        assert indices(server, url) == list(range(COUNT))


@pytest.mark.medium
def test_an_http_address_that_breaks_says_where_it_stood(server, load, folder):
    load()
    data = (folder / "long.ts").read_bytes()
    with serve_http(functools.partial(cut, data, 1)) as url, pytest.raises(UnavailableError) as caught:  # fmt: skip
        indices(server, url.replace("//", "//me:secret@"))
    assert "after frame" in caught.value.message
    assert f"of {len(data)} bytes" in caught.value.message
    assert "secret" not in caught.value.message


def test_it_is_opened_again(server, load, folder):
    load(reconnects=2, pause_s=0.01)
    data = (folder / "long.ts").read_bytes()
    with serve_http(functools.partial(cut, data, 1)) as url:
        found = indices(server, url)
    assert found == list(range(len(found))), "the numbers go on"
    assert len(found) > LONG
    assert counted(server)["video_reconnects"] == 1


def test_but_not_for_ever(server, load):
    load(reconnects=3, pause_s=0.01)
    asked = []

    def refuse(handler, number):
        asked.append(number)
        handler.send_error(HTTPStatus.SERVICE_UNAVAILABLE)

    with serve_http(refuse) as url, pytest.raises(UnavailableError, match="503"):
        indices(server, url)
    assert len(asked) == 4


@pytest.mark.parametrize("answers", [True, False])
def test_a_silent_source_is_an_error_after_its_timeout(server, load, folder, answers):
    load(timeout_s=0.5)
    gate = threading.Event()

    def send(handler, number):
        assert answers or gate.wait(120)
        held((folder / "long.ts").read_bytes(), gate, handler, number)

    with serve_http(send) as url, pytest.raises(UnavailableError, match=r"silent for 0\.5 s"):
        indices(server, url)
    gate.set()


def test_cancelling_frees_the_decoder_of_a_silent_source(server, load, folder):
    load(timeout_s=600)
    gate = threading.Event()
    send = functools.partial(held, (folder / "long.ts").read_bytes(), gate)
    with serve_http(send) as url:
        stream = frames(server, url)
        next(stream)
        stream.close()
        assert until(lambda: not decoding())
        gate.set()


def test_a_response_that_its_thread_has_closed_can_be_aborted(server, load, folder):
    load()
    video = [module for module in list(sys.modules.values()) if hasattr(module, "HttpFile")][-1]
    with serve_http(functools.partial(whole, (folder / "clip.mp4").read_bytes())) as url:
        file = video.HttpFile(url, timeout_s=60)
        file.close()
        file.abort()


def redirect(place, handler, _number):
    handler.send_response(HTTPStatus.FOUND)
    handler.send_header("Location", place)
    handler.end_headers()


@pytest.mark.parametrize("place", ["file:///etc/passwd", "ftp://127.0.0.1:1/clip.ts"])
def test_an_http_address_cannot_lead_to_another_scheme(server, load, place):
    load()
    send = functools.partial(redirect, place)
    with (
        serve_http(send) as url,
        pytest.raises(TritonError, match=r"Found|redirect|unknown url type"),
    ):
        indices(server, url)


def test_a_redirection_gets_no_password(server, load, folder):
    load()
    data, passwords = (folder / "clip.ts").read_bytes(), []

    def there(handler, number):
        passwords.append(handler.headers.get("Authorization"))
        whole(data, handler, number)

    def here(handler, number):
        passwords.append(handler.headers.get("Authorization"))
        redirect(target, handler, number)

    with serve_http(there) as target, serve_http(here) as url:
        assert indices(server, url.replace("//", "//user:secret@"))
    assert passwords == ["Basic dXNlcjpzZWNyZXQ=", None]


# -- RTSP -------------------------------------------------------------------------------------------


@pytest.fixture
def camera():
    if missing := missing_for_rtsp():
        pytest.skip(f"no RTSP server: {missing}")
    with serve_rtsp() as (url, process):
        yield url, process


@pytest.mark.slow
def test_an_rtsp_address(server, load, camera):
    load(frames=20, timeout_s=60)
    found = list(frames(server, camera[0]))
    assert [int(one["INDEX"][0]) for one in found] == list(range(20))
    assert {one["FRAME"].shape for one in found} == {(120, 160, 3)}
    times = [float(one["TIMESTAMP_MS"][0]) for one in found]
    # The first frame of a camera may have no time.
    assert np.diff(times)[1:] == pytest.approx(40.0, abs=15)


@pytest.mark.slow
def test_a_camera_that_falls_silent_and_goes_on(server, load, camera):
    url, process = camera
    load(timeout_s=60)
    stream = frames(server, url)
    next(stream)
    process.send_signal(signal.SIGSTOP)
    timer = threading.Timer(1.0, process.send_signal, (signal.SIGCONT,))
    timer.start()
    assert [int(next(stream)["INDEX"][0]) for _ in range(60)] == list(range(1, 61))
    stream.close()
    assert until(lambda: not decoding())


def opened(server, url):
    """A stream whose first frame has come; a camera may take longer than `timeout_s` to begin."""
    found = []

    def begins():
        stream = frames(server, url)
        with suppress(UnavailableError):
            next(stream)
            found.append(stream)
        return found

    assert until(begins)
    return found[0]


def port_of(url):
    return int(url.split(":")[2].split("/")[0])


@pytest.mark.slow
def test_a_camera_whose_packets_come_in_pieces_loses_none(server, load, camera):
    load(timeout_s=60)
    with stalling(port_of(camera[0])) as port:
        stream = frames(server, f"rtsp://127.0.0.1:{port}/camera")
        assert [int(next(stream)["INDEX"][0]) for _ in range(100)] == list(range(100))
        stream.close()
        assert until(lambda: not decoding())


def test_what_cannot_be_decoded_behind_a_pause_of_either_side_is_skipped(server, load, monkeypatch):
    load(timeout_s=3)
    (instance,) = server.engine.registry.entries["video"].latest._instances.active.values()
    model = instance._model._model
    code = sys.modules[type(model).__module__]
    now_s = [0.0]
    monkeypatch.setattr(code, "time", SimpleNamespace(monotonic=lambda: now_s[0]))

    def broken():
        raise av.InvalidDataError(0, "refers to what was dropped")

    def demux(_):
        for one in (lambda: [1], broken, lambda: [2]):
            yield SimpleNamespace(decode=one)
        now_s[0] = 200.0
        yield SimpleNamespace(decode=broken)
        raise TimeoutError

    video = SimpleNamespace(video=[SimpleNamespace(width=1, height=1)])
    camera = SimpleNamespace(streams=video, demux=demux)
    stream = code.Stream(model, None, "", False)
    stream.container = lambda *_: nullcontext(camera)
    found = stream.opened("rtsp", "")
    assert next(found) == 1
    now_s[0] = 100.0
    assert next(found) == 2
    with pytest.raises(code.LostError, match="silent for 3 s"):
        next(found)


@pytest.mark.slow
def test_a_silent_camera_is_an_error(server, load, camera):
    url, process = camera
    load(timeout_s=3)
    stream = opened(server, url)
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(UnavailableError, match="silent for 3 s"):
        list(stream)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ends with timeout_s elsewhere")
def test_cancelling_one_stream_of_a_silent_camera_frees_it_and_leaves_the_other(server, load, camera):  # fmt: skip
    url, process = camera
    load(timeout_s=600)
    stream, cancelled = frames(server, url), frames(server, url)
    next(stream)
    next(cancelled)
    process.send_signal(signal.SIGSTOP)
    cancelled.close()
    assert until(lambda: len(decoding()) <= 1)
    process.send_signal(signal.SIGCONT)
    assert [int(next(stream)["INDEX"][0]) for _ in range(50)] == list(range(1, 51))
    stream.close()
    assert until(lambda: not decoding())


@pytest.mark.slow
def test_a_camera_that_was_lost_is_opened_again(server, load, camera):
    url, process = camera
    load(reconnects=100, pause_s=0.2, timeout_s=5)
    stream = frames(server, url)
    next(stream)
    process.kill()
    process.wait()
    with serve_rtsp(port_of(url)):
        found = [int(next(stream)["INDEX"][0]) for _ in range(150)]
    assert found == list(range(1, 151))
    assert counted(server)["video_reconnects"] > 0
    stream.close()


# -- the real server --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.reference
def test_the_real_server_sends_the_same_frames(server, load, folder, reference, tmp_path):
    load(every=3)
    wanted = [(one["FRAME"], int(one["INDEX"][0])) for one in frames(server)]
    server.export(tmp_path / "models", models=["video"])
    python = reference.shared_python(tmp_path / "python")
    if python is None:
        pytest.skip("the reference is for another version of Python")
    grpcclient = pytest.importorskip("tritonclient.grpc")
    answers, ended = [], threading.Event()

    def receive(result, error):
        answers.append(error or result)
        final = error is not None or (
            result.get_response().parameters["triton_final_response"].bool_param
        )
        if final:
            ended.set()

    given = grpcclient.InferInput("URL", [1], "BYTES")
    given.set_data_from_numpy(np.array(["clip.mp4"], object))
    with (
        reference.server(tmp_path / "models", python=python) as running,
        grpcclient.InferenceServerClient(running.grpc_url) as client,
    ):
        client.start_stream(receive)
        client.async_stream_infer("video", [given], enable_empty_final_response=True)
        assert ended.wait(120)
    found = [(one.as_numpy("FRAME"), int(one.as_numpy("INDEX")[0])) for one in answers[:-1]]
    assert [index for _, index in found] == [index for _, index in wanted]
    assert all(np.array_equal(a, b) for (a, _), (b, _) in zip(found, wanted, strict=True))
