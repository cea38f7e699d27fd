"""Environments made of requirements: kept by content, one error, nothing left of what failed."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from nbtriton.errors import InvalidArgumentError, UnavailableError
from nbtriton.workers.virtual_environment import environment
from tests.workers.wheels import write_wheel

pytestmark = pytest.mark.slow


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


def test_an_environment_is_made_once_for_the_same_content(tool, wheels, tmp_path):
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


def test_requirements_by_content_and_wheels_by_their_own(wheels, tmp_path):
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("tiny\n")
    second.write_text("tiny\n")
    made = environment("m", requirements=first)
    assert environment("m", requirements=second).folder == made.folder
    wheel = write_wheel(wheels, "tiny", "2.0", "VERSION = 2\n")
    assert environment("m", requirements=first).folder == made.folder
    renewed = environment("m", requirements=first, anew=True)
    assert renewed.folder == made.folder
    assert dict(renewed.packages)["tiny"] == "2.0"
    of_wheel = environment("m", [str(wheel)])
    assert of_wheel.folder != made.folder
    assert dict(of_wheel.packages)["tiny"] == "2.0"


def test_what_cannot_be_made_is_one_error_and_leaves_nothing(tool, wheels, tmp_path):
    with pytest.raises(UnavailableError) as caught:
        environment("m", ["tiny", "no-such-package==3"])
    text = caught.value.message
    assert text.startswith(f"environment 'm' cannot be made, {tool} says:\n")
    assert "no-such-package" in text
    assert [path.suffix for path in (tmp_path / "made").iterdir()] == [".lock"]


def test_an_interrupt_ends_the_installation_and_leaves_nothing(wheels, tmp_path):
    def interrupted(line):
        if "tiny" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        environment("m", ["tiny"], on_progress=interrupted)
    assert [path.suffix for path in (tmp_path / "made").iterdir()] == [".lock"]
    assert dict(environment("m", ["tiny"]).packages)["tiny"] == "1.0"


def test_what_is_not_asked_for_properly_is_refused(wheels, tmp_path):
    with pytest.raises(InvalidArgumentError, match="environment 'm' has no packages") as caught:
        environment("m", [" "])
    assert "--requirements" in caught.value.hint
    with pytest.raises(InvalidArgumentError, match=r"there is no requirements file '.*no\.txt'"):
        environment("m", requirements=tmp_path / "no.txt")
    with pytest.raises(UnavailableError, match="'/no/such/python' does not start"):
        environment("m", ["tiny"], python="/no/such/python")


def test_a_python_that_is_nowhere(wheels, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match=r"there is no Python 3\.2 on the PATH") as caught:
        environment("m", ["tiny"], python="3.2")
    assert "pip install uv" in caught.value.hint
