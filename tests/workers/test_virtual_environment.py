"""Environments made of requirements: kept by content, one error, nothing left of what failed."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from nbtriton.common.errors import InvalidArgumentError, UnavailableError
from nbtriton.extensions.environments import environment
from tests.workers.wheels import write_numpy_wheel, write_wheel

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def made(wheels, tmp_path, monkeypatch):
    """The folder for the environments of one test."""
    folder = tmp_path / "made"
    monkeypatch.setenv("NBTRITON_ENVIRONMENTS", str(folder))
    return folder


@pytest.fixture(params=["pip", "uv"])
def tool(request, monkeypatch):
    """The PATH with uv, if there is one, and without."""
    folders = os.environ["PATH"].split(os.pathsep)
    having = [folder for folder in folders if os.access(f"{folder}/uv", os.X_OK)]
    if request.param == "pip":
        kept = [folder for folder in folders if folder not in having]
        monkeypatch.setenv("PATH", os.pathsep.join(kept))
    elif not having:
        pytest.skip("there is no uv on the PATH")
    return request.param


def test_an_environment_is_made_once_for_the_same_content(tool, tmp_path):
    said: list[str] = []
    made = environment("one", ["tiny==1.0"], on_progress=said.append)
    assert dict(made.packages) == {"tiny": "1.0", "numpy": np.__version__}
    assert made.python == sys.version.partition(" ")[0]
    python = made.folder / "bin" / "python"
    done = subprocess.run(
        [python, "-c", "import tiny; print(tiny.VERSION)"], capture_output=True, check=True
    )
    assert done.stdout == b"1\n"
    assert (made.folder / "bin" / "activate").is_file()
    assert tool in said[0]
    assert any("tiny" in line for line in said)
    said.clear()
    again = environment("two", ["tiny==1.0"], on_progress=said.append)
    assert (again.name, again.folder, said) == ("two", made.folder, [])
    assert "tiny" in repr(again)


def test_requirements_by_content_and_anew_with_the_versions_of_today(tmp_path, monkeypatch):
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    for file in (first, second):
        file.write_text("tiny\n")
    own = tmp_path / "wheels"
    write_numpy_wheel(own)
    write_wheel(own, "tiny", "1.0", "")
    monkeypatch.setenv("PIP_FIND_LINKS", str(own))
    monkeypatch.setenv("UV_FIND_LINKS", str(own))
    made = environment("m", requirements=first)
    write_wheel(own, "tiny", "2.0", "")
    same = environment("m", requirements=second)
    assert (same.folder, dict(same.packages)["tiny"]) == (made.folder, "1.0")
    renewed = environment("m", requirements=first, anew=True)
    assert (renewed.folder, dict(renewed.packages)["tiny"]) == (made.folder, "2.0")


def test_what_cannot_be_made_is_one_error_and_leaves_nothing(tool, tmp_path):
    with pytest.raises(UnavailableError) as caught:
        environment("m", ["tiny", "no-such-package==3"])
    text = caught.value.message
    assert text.startswith(f"environment 'm' cannot be made, {tool} says:\n")
    assert "no-such-package" in text
    assert [path.suffix for path in (tmp_path / "made").iterdir()] == [".lock"]


def test_an_interrupt_ends_the_installation_and_leaves_nothing(tmp_path):
    def interrupted(line):
        if "tiny" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        environment("m", ["tiny"], on_progress=interrupted)
    assert [path.suffix for path in (tmp_path / "made").iterdir()] == [".lock"]


def test_what_is_not_asked_for_properly_is_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="environment 'm' has no packages") as caught:
        environment("m", [" "])
    assert "--requirements" in caught.value.hint
    with pytest.raises(InvalidArgumentError, match=r"there is no requirements file '.*no\.txt'"):
        environment("m", requirements=tmp_path / "no.txt")
    with pytest.raises(UnavailableError, match="'/no/such/python' does not start"):
        environment("m", ["tiny"], python="/no/such/python")


def test_a_python_that_is_nowhere(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match=r"there is no Python 3\.2 on the PATH") as caught:
        environment("m", ["tiny"], python="3.2")
    assert "pip install uv" in caught.value.hint
