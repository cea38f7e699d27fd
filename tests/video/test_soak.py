"""The soak in its short form."""

from __future__ import annotations

import pytest

pytest.importorskip("av", reason="PyAV is not installed")

from tests.video.soak import soak


@pytest.mark.slow
def test_eight_streams_lose_nothing():
    said: list[str] = []
    counts = soak(5.0, said.append)
    assert counts["streams"] >= 8
    assert counts["dropped"] > 0, "some readers are slower than the decoder"
    assert said
