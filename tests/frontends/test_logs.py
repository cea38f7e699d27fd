"""Log settings: levels, form and lifetime; lines compared with the real server's."""

from __future__ import annotations

import io
import json
import logging
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from nbtriton.runtime.engine import Server
from nbtriton.serving.frontends import serve
from nbtriton.serving.frontends.logs import LogSettings

_log = logging.getLogger("nbtriton.model.some")
LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
DEFAULT = r"[IWE]\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ \w+\.\w+:\d+\] "
ISO = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ [IWE] \d+ \w+\.\w+:\d+\] "


def say() -> None:
    for level in LEVELS:
        _log.log(level, "at %d", level)


@pytest.fixture
def written():
    stream = io.StringIO()
    settings = LogSettings(logging.StreamHandler(stream))
    yield settings, stream
    settings.close()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [20, 30, 40, 50]),
        ({"log_verbose_level": 1}, [10, 20, 30, 40, 50]),
        ({"log_info": False}, [30, 40, 50]),
        ({"log_info": False, "log_error": False, "log_verbose_level": 2}, [10, 30]),
        ({"log_warning": False}, [20, 40, 50]),
    ],
)
def test_each_level_has_its_switch(written, changes, expected):
    settings, stream = written
    settings.update(changes)
    say()
    assert [int(n) for n in re.findall(r'"at (\d+)"', stream.getvalue())] == expected


def test_the_form_of_lines(written):
    settings, stream = written
    _log.error('it said "no"\nand left')
    _log.info("%s", "\n+---+\n| x |")
    settings.update({"log_format": "ISO8601"})
    _log.warning("later")
    first, second, *table, last = stream.getvalue().splitlines()
    assert re.fullmatch(DEFAULT + r'"it said \\"no\\"\\nand left"', first)
    assert first[0] == "E"
    assert "test_logs.py:" in first
    assert re.fullmatch(DEFAULT, second)
    assert table == ["+---+", "| x |"]
    assert re.fullmatch(ISO + '"later"', last)


def test_a_traceback_follows_its_line(written):
    _, stream = written
    try:
        raise ValueError("why")
    except ValueError:
        _log.exception("failed")
    head, *rest = stream.getvalue().splitlines()
    assert re.fullmatch(DEFAULT + '"failed"', head)
    assert rest[0].startswith("Traceback")
    assert rest[-1] == "ValueError: why"


def test_a_refused_request_changes_nothing():
    body = b'{"log_warning":false,"log_verbose_level":"x"}'
    with Server(gpus=()) as server, serve(server, http_port=0, metrics_port=None) as endpoints:
        url = f"http://127.0.0.1:{endpoints.http_port}/v2/logging"
        with pytest.raises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(url, body)
        raised.value.close()
        with urllib.request.urlopen(url) as reply:
            assert json.load(reply)["log_warning"] is True


def test_in_a_notebook_a_change_applies_until_the_endpoints_close(caplog):
    logger = logging.getLogger("nbtriton")
    before = (logger.level, logger.propagate, list(logger.handlers))

    def heard() -> list[int]:
        caplog.clear()
        say()
        return [record.levelno for record in caplog.records]

    with Server(gpus=()) as server, serve(server, http_port=0, metrics_port=None) as endpoints:
        usual = heard()
        url = f"http://127.0.0.1:{endpoints.http_port}/v2/logging"
        for changes, expected in (
            ({"log_warning": False, "log_verbose_level": 1}, [10, 20, 40, 50]),
            ({"log_error": False, "log_info": False}, [10]),
            ({"log_warning": True, "log_verbose_level": 0}, [30]),
        ):
            with urllib.request.urlopen(url, json.dumps(changes).encode()) as reply:
                assert json.load(reply).items() >= changes.items()
            assert heard() == expected
    assert heard() == usual
    assert (logger.level, logger.propagate, list(logger.handlers)) == before


@pytest.mark.reference
@pytest.mark.slow
def test_lines_of_the_real_server_have_this_form(reference, tmp_path: Path):
    (tmp_path / "models").mkdir()
    for flag, form in (("default", DEFAULT), ("ISO8601", ISO)):
        log = tmp_path / flag
        with reference.server(tmp_path / "models", f"--log-format={flag}", log=log):
            pass
        lines = [line for line in log.read_text().splitlines() if re.match(form, line)]
        texts = [re.sub(form, "", line) for line in lines]
        assert any(text.startswith('"Started HTTPService at') for text in texts)
        assert "" in texts  # a table follows
        assert all(text == "" or text[0] == '"' for text in texts)


SAYING = """import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        logger = pb_utils.Logger
        logger.log_info("it's here: \\"x\\"")
        logger.log_warn("careful\\nnow")
        logger.log_error("no good")
        logger.log_verbose("by the way")
        logger.log("plain")

    def execute(self, requests):
        return []
"""


def said(text: str) -> list[tuple[str, str, str]]:
    """Level, source line and text of a model's messages."""
    return re.findall(r"^([IWE])\d{4} \S+ \d+ model\.py:(\d+)\] (.*)", text, re.MULTILINE)


@pytest.mark.reference
@pytest.mark.slow
def test_messages_of_models_are_logged_as_by_the_real_server(reference, written, tmp_path: Path):
    (tmp_path / "models" / "m" / "1").mkdir(parents=True)
    source = tmp_path / "models" / "m" / "1" / "model.py"
    source.write_text(SAYING)
    tensor = '{ name: "%s" data_type: TYPE_FP32 dims: 1 }'
    config = f'backend: "python" input {tensor % "IN"} output {tensor % "OUT"}'
    (tmp_path / "models" / "m" / "config.pbtxt").write_text(config)
    log = tmp_path / "log"
    with reference.server(tmp_path / "models", "--log-verbose=1", log=log):
        pass
    settings, stream = written
    settings.update({"log_verbose_level": 1})
    with Server(gpus=()) as server:
        server.load(config, source, name="m")
    assert said(stream.getvalue()) == said(log.read_text())
    assert len(said(stream.getvalue())) == 5
