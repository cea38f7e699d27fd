"""Traffic: sequences with their ids, lengths and flags; nothing is sent."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.lab.perf.api import perf
from nbtriton.lab.perf.options import PerfOptions
from nbtriton.lab.perf.traffic import Repeated, SequenceData, SequencePlan, Sequences, read_id_range

STEPS = [{"X": 0}, {"X": 1}, {"X": 2}]


def sequences(lanes=1, *, given=False, seed=0, streams=(STEPS,), **plan):
    return Sequences(
        SequenceData(SequencePlan(**plan), streams, given=given), lanes=lanes, seed=seed
    )


def whole(traffic, lane=0):
    """One whole sequence of a lane, as its calls."""
    calls = [traffic.next(lane, 0)]
    while not calls[-1].options["sequence_end"]:
        calls.append(traffic.next(lane, 0))
    return calls


def test_repeated_requests_come_in_turn():
    traffic = Repeated([{"X": 1}, {"X": 2}])
    assert [traffic.next(0, n).inputs["X"] for n in range(5)] == [1, 2, 1, 2, 1]
    assert traffic.closing(0) is None


@given(
    length=st.integers(1, 30),
    variation=st.floats(0, 150),
    seed=st.integers(0, 99),
)
def test_PA22_lengths_vary_by_the_percentage_and_flags_mark_the_ends(length, variation, seed):
    traffic = sequences(length=length, variation=variation, seed=seed)
    for _ in range(5):
        calls = whole(traffic)
        offset = int(variation / 100 * length)
        assert max(1, length - offset) <= len(calls) <= length + offset
        assert [call.options["sequence_start"] for call in calls] == [True] + [False] * (
            len(calls) - 1
        )
        assert [call.ends for call in calls] == [False] * (len(calls) - 1) + [True]
        assert len({call.options["sequence_id"] for call in calls}) == 1
        assert [call.inputs["X"] for call in calls] == [i % 3 for i in range(len(calls))]


def test_PA22_PA24_given_data_is_as_long_as_its_stream_unless_a_length_is_given():
    streams = (STEPS, STEPS[:1])
    lengths = {len(whole(sequences(given=True, streams=streams, seed=seed))) for seed in range(20)}
    assert lengths == {1, 3}
    traffic = sequences(given=True, length=7, variation=0.0)
    assert len(whole(traffic)) == 7


def test_PA23_ids_go_up_from_the_first():
    traffic = sequences(2, length=1)
    found = [traffic.next(lane, 0).options["sequence_id"] for lane in (0, 1, 0, 0, 1)]
    assert found == [1, 2, 3, 4, 5]
    assert sequences(first_id=40, as_text=True).next(0, 0).options["sequence_id"] == "40"


@given(
    lanes=st.integers(1, 5), extra=st.integers(0, 3), turns=st.lists(st.integers(0, 4), max_size=60)
)
def test_PA23_no_two_live_sequences_share_an_id(lanes, extra, turns):
    traffic = sequences(lanes, length=2, variation=0.0, first_id=10, end_id=10 + lanes + extra)
    live: dict[int, int] = {}
    for turn in turns:
        lane = turn % lanes
        options = traffic.next(lane, 0).options
        number = options["sequence_id"]
        assert 10 <= number < 10 + lanes + extra
        assert number not in [other for where, other in live.items() if where != lane]
        live[lane] = number
        if options["sequence_end"]:
            del live[lane]


def test_PA23_fewer_ids_than_sequences_are_refused():
    with pytest.raises(InvalidArgumentError, match="sequence id collision may occur"):
        sequences(3, first_id=1, end_id=3)


def test_the_end_of_a_load_ends_live_sequences():
    traffic = sequences(2, length=5, variation=0.0)
    traffic.next(0, 0)
    closing = traffic.closing(0)
    assert closing.closing
    assert not closing.ends  # it does not count as a whole sequence
    assert closing.options == {"sequence_id": 1, "sequence_start": False, "sequence_end": True}
    assert traffic.closing(0) is None
    assert traffic.closing(1) is None


def test_a_sequence_of_one_request_does_not_end_for_an_iterative_model():
    for iterative in (False, True):
        call = sequences(1, length=1, variation=0.0, iterative=iterative).next(0, 0)
        assert call.ends
        assert call.options["sequence_start"]
        assert call.options["sequence_end"] is not iterative
    two = sequences(1, length=2, variation=0.0, iterative=True)
    assert [two.next(0, n).options["sequence_end"] for n in range(2)] == [False, True]


@pytest.mark.parametrize(
    ("written", "found"),
    [(None, (1, None)), (7, (7, None)), ("7", (7, None)), ("7:9", (7, 9)), ((7, 9), (7, 9))],
)
def test_a_range_of_ids(written, found):
    assert read_id_range(written) == found


@pytest.mark.parametrize("written", ["", "a", "1:2:3", "-1:3", "9:7", "7:7", 0])
def test_impossible_ranges_are_refused(written):
    with pytest.raises(InvalidArgumentError, match="Failed to parse --sequence-id-range"):
        read_id_range(written)


def test_priorities_and_timeouts_are_given_to_the_requests_in_turn():
    options = perf_options(priority=[1, 2, 2], timeout_us=5000).call_options()
    traffic = Repeated([{"IN": 0}, {"IN": 1}], options)  # type: ignore[dict-item]
    calls = [traffic.next(0, number) for number in range(6)]
    assert [call.inputs["IN"] for call in calls] == [0, 1, 0, 1, 0, 1]
    assert [call.options["priority"] for call in calls] == [1, 2, 2, 1, 2, 2]
    assert {call.options["timeout_us"] for call in calls} == {5000}
    assert perf_options().call_options() == ()
    with pytest.raises(InvalidArgumentError, match=r"Failed to parse --timeout-us\..*found -1"):
        perf_options(timeout_us=-1)


def test_requests_of_sequences_have_priorities_too():
    data = SequenceData(SequencePlan(length=2, variation=0), [[{}]], given=False)
    traffic = Sequences(data, lanes=1, seed=0, options=[{"priority": 1}, {"priority": 3}])
    calls = [traffic.next(0, number) for number in range(3)]
    assert [call.options["priority"] for call in calls] == [1, 3, 1]
    assert [call.options["sequence_start"] for call in calls] == [True, False, True]


def perf_options(**options):
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(perf).parameters.items()
        if parameter.default is not parameter.empty
    }
    return PerfOptions(server=None, model="m", **(defaults | options))
