"""``%triton_load``, ``%triton_export``, ``%triton_serve``."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import urllib.request

import numpy as np
import pytest
from IPython.core.error import UsageError

from nbtriton.common.errors import AlreadyExistsError, NotFoundError, UnavailableError
from nbtriton.serving.server import server
from tests.frontends.certificates import write_keys
from tests.magics.cells import DOUBLE
from tests.repository.models import BROKEN, MODEL, add, times

ONE = np.ones((1, 4), np.float32)


@pytest.fixture
def root(tmp_path):
    add(tmp_path / "models", "good", source=times(3))
    add(tmp_path / "models", "bad", source=BROKEN)
    return tmp_path / "models"


@pytest.mark.medium
def test_a_repository_is_loaded_and_shown(notebook, root):
    ran = notebook.ok(f"control = %triton_load {root}\ncontrol")
    assert server().infer("good", {"IN": ONE})["OUT"][0, 0] == 3.0
    forms = notebook.forms(ran.value)
    for form in (forms["text/plain"], forms["text/html"]):
        assert "READY" in form
        assert "no luck" in form


@pytest.mark.medium
def test_the_table_is_about_the_repository_alone(doubled, root):
    control = doubled.ok(f"%triton_load {root}").value
    text = doubled.forms(control)["text/plain"]
    assert "double" not in text
    assert "no luck" in text
    # A model of the notebook takes the place of one that failed.
    doubled.ok(f"%%triton_model bad\n{DOUBLE}")
    text = doubled.forms(control)["text/plain"]
    assert text.count("READY") == 2
    assert "no luck" not in text


@pytest.mark.medium
def test_a_reload_that_fails_is_said_under_the_cell(notebook, root):
    notebook.ok(f"%triton_load {root}")
    (root / "good" / "1" / "model.py").write_text("def")
    ran = notebook.ok(f"control = %triton_load {root}")
    assert ran.err.startswith("model 'good': what was loaded before serves, as this load failed: ")
    assert "invalid syntax" in ran.err
    assert "Warning" not in ran.err


def test_it_is_the_same_as_in_python(notebook, root):
    ran = notebook.ok(f"%triton_load {root} --control explicit --load-model good -o kept")
    assert ran.value is notebook.names["kept"]
    assert ran.value.index() == server().load_repository(
        root, control_mode="explicit", load_models=["good"]
    ).index()  # fmt: skip


def test_names_and_quotes(notebook, root):
    notebook.names["where"] = str(root)
    notebook.ok("%triton_load '{where}' --control explicit --load-model '*';")
    assert server().is_ready("good")
    assert isinstance(notebook("%triton_load /nowhere").error, NotFoundError)
    assert isinstance(notebook("%triton_load ''").error, NotFoundError)
    assert isinstance(notebook("%triton_load").error, UsageError)
    assert isinstance(notebook(f"%triton_load {root} --control sometimes").error, UsageError)


@pytest.mark.medium
def test_a_polling_control_ends_with_the_extension(notebook, root):
    notebook.ok(f"control = %triton_load {root} --control poll --poll-s 3600")
    add(root, "new", source=times(7))
    notebook.ok("control.poll_now()")
    assert server().infer("new", {"IN": ONE})["OUT"][0, 0] == 7.0
    # The fixture checks that no thread is left.


def test_a_cell_becomes_a_file(notebook, tmp_path):
    notebook.ok("SCALE = 3")
    notebook.ok(
        "%%triton_model scaled --max-batch-size 8\n"
        'def scaled(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:\n'
        '    return {"OUT": IN * SCALE}\n'
    )
    ran = notebook.ok(f"exported = %triton_export {tmp_path / 'out'}")
    assert ran.err == (
        "the file of model 'scaled' will not have 'SCALE' (3): define it in the model's cell, or "
        "carry it along with carry=['SCALE']\n"
    )
    assert "SCALE" in notebook.forms(notebook.names["exported"])["text/html"]
    assert notebook.ok(f"exported = %triton_export {tmp_path / 'out'} --carry SCALE").err == ""
    text = (tmp_path / "out" / "scaled" / "1" / "model.py").read_text()
    assert "SCALE = 3\n" in text
    assert '    return {"OUT": IN * SCALE}\n' in text
    before = server().infer("scaled", {"IN": ONE})["OUT"]
    notebook.ok("%triton_unload scaled")
    notebook.ok(f"%triton_load {tmp_path / 'out'}")
    assert server().infer("scaled", {"IN": ONE})["OUT"].tolist() == before.tolist()


def test_a_cell_with_a_class_is_a_file_as_it_stands(notebook, tmp_path):
    notebook.ok(f"%%triton_model m\n{MODEL}")
    ran = notebook.ok(f"%triton_export {tmp_path / 'out'} m --carry-all")
    assert ran.err == ""
    text = (tmp_path / "out" / "m" / "1" / "model.py").read_text()
    assert text.split() == MODEL.split()


def test_an_export_has_files_for_platforms(doubled, tmp_path):
    out = tmp_path / "out"
    ran = doubled.ok(f"%triton_export {out} double --kubernetes s3://bucket/models --ray-serve")
    assert 'storageUri: "s3://bucket/models"' in (out / "inference_service.yaml").read_text()
    assert f"wrote {out / 'ray_serve.py'}" in ran.out
    doubled.ok(f"%triton_export {out} --kubernetes")
    assert 'storageUri: "pvc://CLAIM' in (out / "inference_service.yaml").read_text()


def test_what_is_there_is_kept(doubled, tmp_path):
    (tmp_path / "mine").touch()
    assert isinstance(doubled(f"%triton_export {tmp_path}").error, AlreadyExistsError)
    doubled.ok(f"%triton_export {tmp_path} --overwrite")
    assert (tmp_path / "mine").exists()


def test_verifying_without_a_server_says_how_to_get_one(doubled, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("NBTRITON_REFERENCE", str(tmp_path / "none"))
    ran = doubled(f"%triton_export {tmp_path / 'out'} --verify")
    assert isinstance(ran.error, UnavailableError)
    assert 'reference="install"' in ran.out


@pytest.mark.reference
@pytest.mark.slow
def test_verified_by_the_real_server(doubled, reference, tmp_path):
    doubled.ok("given = {'double': [{'IN': np.ones((2, 4), np.float32)}] * 3}")
    ran = doubled.ok(
        f"%triton_export {tmp_path / 'out'} --verify --requests given --reference {reference.directory}"
    )
    assert ran.value.ok
    assert [(m.name, m.verdict, m.requests) for m in ran.value.models] == [("double", "equal", 3)]


@pytest.mark.medium
def test_real_clients_are_answered(doubled, root):
    doubled.ok(f"%triton_load {root} --control explicit --load-model good;")
    doubled.ok("endpoints = %triton_serve --http-port 0 --metrics-port none --grpc-port none")
    port = doubled.names["endpoints"].http_port

    def ask(path: str, body: bytes | None) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", body, timeout=60) as reply:
            return reply.read()

    names = {entry["name"] for entry in json.loads(ask("/v2/repository/index", b""))}
    assert names == {"good", "bad", "double"}
    ask("/v2/repository/models/good/unload", b"")
    assert not server().is_ready("good")
    ask("/v2/repository/models/good/load", b"")
    assert server().is_ready("good")
    doubled.ok("again = %triton_serve --http-port 0 --metrics-port none --grpc-port none")
    assert doubled.names["endpoints"].http_port is None
    assert b"triton" in ask("/v2", None)  # at the port that clients know
    doubled.ok("%triton_serve --stop")
    assert doubled.names["again"].http_port is None
    with pytest.raises(OSError):
        ask("/v2", None)


@pytest.mark.medium
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the keys")
@pytest.mark.parametrize("mutual", [False, True])
def test_clients_are_answered_over_tls(doubled, tmp_path, mutual):
    keys = write_keys(tmp_path)
    files = (
        f"--tls-cert {keys}/server.pem --tls-key '{keys}/server.key'"
        + mutual * f" --tls-root {keys}/root.pem"
    )
    doubled.ok(
        f"endpoints = %triton_serve --http-port 0 --metrics-port none --grpc-port none {files}"
    )
    url = f"https://localhost:{doubled.names['endpoints'].http_port}/v2/health/live"
    context = ssl.create_default_context(cafile=str(keys / "root.pem"))
    if mutual:
        with pytest.raises(OSError):
            urllib.request.urlopen(url, timeout=60, context=context).read()
        context.load_cert_chain(keys / "client.pem", keys / "client.key")
    with urllib.request.urlopen(url, timeout=60, context=context) as reply:
        assert reply.status == 200
    doubled.ok("%triton_serve --stop")


def test_a_port_of_another_process_leaves_the_open_ones_open(doubled):
    line = "endpoints = %triton_serve --http-port 0 --metrics-port none --grpc-port"
    doubled.ok(f"{line} none")
    port = doubled.names["endpoints"].http_port
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        ran = doubled(f"{line} {taken}")
    assert str(taken) in str(ran.error)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2", timeout=60) as reply:
        assert json.load(reply)["name"] == "triton"
    doubled.ok("%triton_serve --stop")
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/v2", timeout=60).read()


def test_wrong_ports(notebook):
    ran = notebook("%triton_serve --http-port eighty")
    assert isinstance(ran.error, UsageError)
    assert "'eighty' is neither PORT nor 'none'" in str(ran.error)


@pytest.mark.medium
def test_paths_and_names_are_completed(doubled, root, monkeypatch):
    monkeypatch.chdir(root.parent)
    assert "models/" in doubled.complete("%triton_load mod")
    assert "models/" in doubled.complete("%triton_export mod")
    assert "double" in doubled.complete("%triton_export models/ do")
    assert "--carry-all" in doubled.complete("%triton_export models/ --carry-")
    assert {"none", "explicit", "poll"} <= set(doubled.complete("%triton_load models/ --control "))
