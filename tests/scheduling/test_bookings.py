"""When a unit that does one thing at a time is free for more work."""

from hypothesis import given
from hypothesis import strategies as st

from nbtriton.scheduling.bookings import Bookings


def first_end(taken: set[int], earliest: int, duration: int) -> int:
    """Return the end of the first free time, by looking at every moment of it."""
    start = earliest
    while any(moment in taken for moment in range(start, start + duration)):
        start += 1
    return start + duration


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), max_size=20))
def test_work_gets_the_first_gap_that_is_long_enough(work):
    bookings, taken = Bookings(), set()
    for earliest, duration in work:
        end = bookings.book(earliest, duration)
        assert end == first_end(taken, earliest, duration)
        taken.update(range(end - duration, end))


def test_what_was_done_long_ago_is_forgotten_and_the_rest_is_not():
    bookings = Bookings()
    for at in range(5000):  # one of each two moments
        assert bookings.book(2 * at, 1) == 2 * at + 1
    # The last 250 of them are remembered: what begins with the first of these goes into the gaps.
    filled = [bookings.book(9500, 1) for _ in range(250)]
    assert filled == [9502 + 2 * at for at in range(250)]
    assert bookings.book(0, 2) == 2
