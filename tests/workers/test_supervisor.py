"""The policy of restarts, under a virtual clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtriton.common.errors import ConfigError
from nbtriton.model.config import parse_pbtxt
from nbtriton.runtime.workers.supervisor import (
    RestartPolicy,
    RestartState,
    Supervisor,
    restart_policy,
)

S = 1_000_000_000
POLICY = RestartPolicy(limit=4, first_ns=S, factor=3, longest_ns=5 * S, quiet_ns=60 * S)


def test_the_first_restart_is_immediate_and_each_further_one_waits_longer():
    supervisor = Supervisor(POLICY)
    supervisor.started(0)
    now, waits = 10, []
    for _ in range(4):
        due = supervisor.ended(now, "exit status 1")
        assert due is not None
        waits.append(due - now)
        now = due
        supervisor.started(now)
    assert waits == [0, S, 3 * S, 5 * S]
    assert supervisor.state == RestartState(restarts=4, cause="exit status 1")


def test_after_the_limit_the_instance_stays_down():
    supervisor = Supervisor(POLICY)
    for now in range(4):
        assert supervisor.ended(now, "killed (SIGSEGV)") is not None
    assert supervisor.ended(5, "killed (SIGABRT)") is None
    assert supervisor.state == RestartState(cause="killed (SIGABRT)", down=True)
    assert supervisor.ended(6, "") is None


def test_a_quiet_time_begins_the_count_anew():
    supervisor = Supervisor(POLICY)
    now = 0
    for number in range(20):
        supervisor.started(now)
        now += 60 * S
        assert supervisor.ended(now, "exit status 1") == now
        assert supervisor.state.restarts == number
    supervisor.started(now)
    now += 60 * S - 1
    assert supervisor.ended(now, "exit status 1") == now + S


def test_a_restart_that_fails_counts_as_one():
    """A model whose initialize raises must not be started for ever."""
    supervisor = Supervisor(POLICY)
    supervisor.started(0)
    now = 100 * S
    tries = 0
    while (due := supervisor.ended(now, "initialize failed")) is not None:
        now = due
        tries += 1
    assert tries == POLICY.limit
    assert supervisor.state.restarts == 0


@given(
    policy=st.builds(
        RestartPolicy,
        limit=st.integers(0, 5),
        first_ns=st.integers(0, 5),
        factor=st.integers(1, 3),
        longest_ns=st.integers(0, 20),
        quiet_ns=st.integers(0, 20),
    ),
    lives=st.lists(st.integers(0, 30), max_size=60),
)
def test_whatever_happens_restarts_are_bounded_and_never_in_the_past(
    policy: RestartPolicy, lives: list[int]
):
    supervisor = Supervisor(policy)
    now = recent = 0
    supervisor.started(now)
    for restarts, life in enumerate(lives):
        now += life
        recent = 0 if life >= policy.quiet_ns else recent
        due = supervisor.ended(now, "x")
        assert supervisor.state.restarts == restarts
        assert supervisor.state.due_ns == due
        if recent == policy.limit:
            assert due is None
            assert supervisor.state.down
            return
        assert due is not None
        assert now <= due <= now + policy.longest_ns
        recent += 1
        now = due
        supervisor.started(now)
        assert supervisor.state.due_ns is None


def restarts(text: str) -> RestartPolicy:
    value = f'{{ key: "INSTANCE_RESTARTS" value {{ string_value: "{text}" }} }}'
    return restart_policy(parse_pbtxt(f'name: "m" parameters {value}'))


def test_a_model_sets_what_it_names_of_the_policy():
    assert restart_policy(parse_pbtxt("")) == RestartPolicy()
    assert restarts("number=0") == RestartPolicy(limit=0)
    assert restarts("number=3, pause_s=0.5,longest_pause_s=2,quiet_s=9") == RestartPolicy(
        limit=3, first_ns=S // 2, longest_ns=2 * S, quiet_ns=9 * S
    )


@pytest.mark.parametrize("text", ["3", "number=many", "number=-1", "number=nan", "pauses_s=1"])
def test_a_policy_that_cannot_be_read_is_refused_with_what_may_be_said(text: str):
    with pytest.raises(
        ConfigError, match="Incorrect value for INSTANCE_RESTARTS of model 'm'"
    ) as caught:
        restarts(text)
    assert caught.value.field == "parameters.INSTANCE_RESTARTS"
    assert "number, pause_s, longest_pause_s, quiet_s" in caught.value.hint
    if text == "pauses_s=1":
        assert "'pause_s'" in caught.value.hint
