"""Fixtures and skips that every test folder may need."""

from __future__ import annotations

import os
import shutil
import signal

import pytest


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a browser: what `make test` found, else what is on the PATH."""
    path = os.environ.get("NBTRITON_CHROMIUM") or shutil.which("chromium")
    if not path:
        pytest.skip("no Chromium: set NBTRITON_CHROMIUM, or run `make test`, which gets one")
    return path


@pytest.fixture(scope="module")
def playwright_driver():
    """Playwright, while a module needs it: its loop keeps others from running in the main thread."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    with playwright.sync_playwright() as driver:
        yield driver


@pytest.fixture(scope="session")
def reference():
    """The real tritonserver and perf_analyzer, installed on first use."""
    from nbtriton.errors import TritonError
    from nbtriton.repository.verify.reference import ensure_reference

    try:
        return ensure_reference()
    except TritonError as error:
        pytest.skip(f"the real tritonserver cannot be installed here: {error.message}")


def pytest_configure() -> None:
    """Hear Ctrl-C where a script started the tests with `&`, which leaves it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where torch finds none, and say so."""
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if not wanting:
        return
    import torch

    if not torch.cuda.is_available():
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason="torch finds no NVIDIA GPU here"))
