"""A child process that hangs dumps its stacks, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.children import finish, run_python

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
