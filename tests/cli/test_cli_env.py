"""``nbtriton env``: prints the folder of an environment, and nothing else, on standard output."""

from __future__ import annotations

import pytest

from nbtriton.extensions.environments import environment
from nbtriton.magics.cli import main

pytestmark = pytest.mark.slow


def test_env_prints_the_folder_of_an_environment(wheels, capsys):
    assert main(["env", "tiny<2"]) == 0
    folder = environment("m", ["tiny<2"]).folder
    assert capsys.readouterr().out == f"{folder}\n"
    assert main(["env", "tiny<2"]) == 0
    assert capsys.readouterr() == (f"{folder}\n", "")


def test_env_says_what_pip_says(wheels, capsys):
    assert main(["env", "no-such-package"]) == 2
    assert "environment 'environment' cannot be made" in capsys.readouterr().err
