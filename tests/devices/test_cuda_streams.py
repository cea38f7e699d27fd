"""Which of torch's streams are handed out; the rest of the CUDA device needs one."""

import itertools
from types import SimpleNamespace

import pytest

from nbtriton.backends.devices import CaptureError
from nbtriton.backends.devices.cuda import _InUse

torch = pytest.importorskip("torch", reason="torch is not installed (extra torch)")


@pytest.fixture
def in_use(monkeypatch):
    """The table, over a pool of 32 streams that are handed out in turn, as torch's are."""
    number = itertools.count()

    def stream(place):
        return SimpleNamespace(device=place, cuda_stream=next(number) % 32)

    monkeypatch.setattr(torch.cuda, "Stream", stream)
    return _InUse()


def test_no_two_have_the_same_stream_while_there_is_another(in_use):
    taken = [in_use.acquire(0) for _ in range(10)]
    for _ in range(5):  # a model's own, which are not in the table
        torch.cuda.Stream(torch.device("cuda", 0))
    taken += [in_use.acquire(0) for _ in range(22)]
    assert {one.cuda_stream for one in taken} == set(range(32))
    in_use.release(taken[7])
    assert in_use.acquire(0).cuda_stream == taken[7].cuda_stream


def test_a_stream_that_several_have_is_not_captured(in_use):
    taken = [in_use.acquire(0) for _ in range(33)]
    shared = taken[-1]
    with (
        pytest.raises(CaptureError, match="more than 32 streams are in use"),
        in_use.capture(shared),
    ):
        pass
    in_use.release(shared)
    with in_use.capture(shared):
        for _ in range(70):
            assert in_use.acquire(0).cuda_stream != shared.cuda_stream
    assert in_use.acquire(0).cuda_stream == shared.cuda_stream  # which the fewest have now
    in_use.acquire(1)  # of another GPU
