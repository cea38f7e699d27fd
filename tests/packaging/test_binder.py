"""What Binder builds: pinned packages, the Python of CI, and the notebook that is opened. `make binder` makes it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scripts.metadata import FIRST_NOTEBOOK, badges

ROOT = Path(__file__).parents[2]
POST_BUILD = (ROOT / "binder" / "postBuild").read_text()
ADDRESS = "https://github.com/somebody/nbtriton"


def installed() -> list[str]:
    """What postBuild gives to pip, in its own words."""
    (command,) = re.findall(r"^pip install ((?:.*\\\n)*.*)$", POST_BUILD, re.MULTILINE)
    return re.findall(r'"([^"]+)"', command)


def test_each_package_of_binder_is_pinned_as_ci_has_it():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = {
        Requirement(line).name.replace("_", "-").lower()
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    extras = project["optional-dependencies"]
    wanted, others = installed()
    names = [*project["dependencies"]]
    queue = Requirement(f"nbtriton{wanted.removeprefix('.')}").extras
    while queue:
        extra = queue.pop()
        for text in extras[extra]:
            one = Requirement(text)
            if one.name == "nbtriton":
                queue |= one.extras
            else:
                names.append(text)
    assert {Requirement(text).name.lower() for text in [*names, others]} <= pinned
    assert "-c constraints.txt" in POST_BUILD


def test_binder_has_the_python_of_ci():
    version = (ROOT / "binder" / "runtime.txt").read_text().strip().removeprefix("python-")
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text()
    everything = workflow.partition("everything:")[2].partition("versions:")[0]
    assert f'python-version: "{version}"' in everything


def test_what_binder_opens_has_run_when_the_image_was_built():
    assert (ROOT / FIRST_NOTEBOOK).is_file()
    assert f"run_notebook.py {FIRST_NOTEBOOK}" in POST_BUILD


@pytest.mark.parametrize("name", ["postBuild", "start"])
def test_binder_can_execute_it(name):
    path = ROOT / "binder" / name
    assert path.stat().st_mode & 0o111
    assert path.read_text().startswith("#!/bin/bash\n")


def test_badges_lead_to_the_repository_and_there_are_none_without_one():
    binder, colab = badges(ADDRESS)
    assert (
        f"(https://mybinder.org/v2/gh/somebody/nbtriton/HEAD?urlpath=lab/tree/{FIRST_NOTEBOOK})"
        in binder
    )
    assert (
        f"(https://colab.research.google.com/github/somebody/nbtriton/blob/main/{FIRST_NOTEBOOK})"
        in colab
    )
    # Both services read GitHub.
    assert badges("https://example.org/somebody/nbtriton") == []
    assert badges("") == []
