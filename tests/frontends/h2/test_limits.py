"""The bucket that limits frames, beside one that counts its tokens exactly."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from nbtriton.extensions.grpc.http2.streams import Http2ConnectionError, TokenBucket

# Eighths of a second that pass, and tokens that are earned meanwhile, before each one that is taken.
STEPS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5)), max_size=60)


@given(size=st.integers(1, 12), per_s=st.sampled_from([1, 2, 3, 10, 1000]), steps=STEPS)
def test_a_bucket_has_as_many_tokens_as_are_counted(size: int, per_s: int, steps) -> None:
    bucket = TokenBucket("no more", size, per_s, 7.0)
    left, now = Fraction(size), 7.0
    for eighths, earned in steps:
        now += eighths / 8
        bucket.earned += earned
        left = min(Fraction(size), left + earned + Fraction(eighths, 8) * per_s)
        try:
            bucket.acquire(now)
        except Http2ConnectionError:
            assert left < 1
            return
        assert left >= 1
        left -= 1
