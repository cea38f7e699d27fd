"""``make gpu``: its checks run on a simulated GPU, and without a GPU it says so."""

from __future__ import annotations

import pytest

from bench import gpu
from nbtriton.backends.devices.device_set import visible_gpus


@pytest.mark.medium
def test_the_checks_pass_on_a_simulated_gpu():
    pytest.importorskip("torch")
    assert gpu.rehearse() == {}


@pytest.mark.skipif(bool(visible_gpus()), reason="this machine has a GPU, which is then measured")
def test_without_a_gpu_it_says_so_in_a_sentence(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["bench.gpu"])
    assert gpu.main() == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line == "make gpu needs an NVIDIA GPU that PyTorch can use, and finds none here."
