"""Host policies and threads of workers: what they are bound to, and how the cores are shared."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.model.config import parse_pbtxt
from nbtriton.runtime.workers.resources import (
    HostPolicy,
    ThreadBudget,
    fixed_threads,
    kernel_threads,
    parse_cores,
    usable_cores,
)

FORMAT = "host policy setting 'cpu-cores' format is '<lower_cpu_core_id>-<upper_cpu_core_id>'"
WORKER = """
import ctypes, json, os, sys
import numpy
from nbtriton.runtime.workers.worker.making import bind, set_threads
bind({cores!r}, {node!r})
set_threads({threads})
from threadpoolctl import threadpool_info
import torch
mode = ctypes.c_int()
ctypes.CDLL(None).syscall(239, ctypes.byref(mode), None, 0, None, 0)
print(json.dumps({{
    "cores": sorted(os.sched_getaffinity(0)), "torch": torch.get_num_threads(),
    "pools": [pool["num_threads"] for pool in threadpool_info()], "memory": mode.value,
}}))
"""


def worker(cores, node, threads):
    program = WORKER.format(cores=cores, node=node, threads=threads)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=False, timeout=120, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux binds processes")
def test_L23_a_worker_is_bound_to_its_cores_and_memory_and_computes_with_its_threads():
    one = min(os.sched_getaffinity(0))
    found = worker({one}, 0, 1)
    assert found["cores"] == [one]
    assert found["torch"] == 1
    assert found["pools"]
    assert set(found["pools"]) == {1}
    if os.uname().machine == "x86_64":
        assert found["memory"] == 2  # MPOL_BIND


@pytest.mark.parametrize(
    ("text", "cores"), [("0-3", {0, 1, 2, 3}), ("0-1,4-5", {0, 1, 4, 5}), ("2-2", {2})]
)
def test_L24_cpu_cores_are_ranges_with_both_ends(text, cores):
    assert parse_cores(text) == cores
    assert HostPolicy.of("p", {"cpu-cores": text}) == HostPolicy(frozenset(cores), None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"cpu-cores": "3"},
            f"{FORMAT}. Got 3",
        ),
        (
            {"cpu-cores": "0-1,7"},
            f"{FORMAT}. Got 7",
        ),
        ({"cpu-cores": "a-1"}, "Parsing 'cpu-cores' value: Can't parse 'a' to integer"),
        ({"numa-node": "x"}, "Parsing 'numa-node' value: Can't parse 'x' to integer"),
        ({"cpu-core": "0-1"}, "Unsupported host policy setting 'cpu-core' is specified"),
    ],
)
def test_L24_a_policy_that_cannot_be_is_refused_in_triton_s_words(settings, message):
    with pytest.raises(InvalidArgumentError) as caught:
        HostPolicy.of("p", settings)
    assert caught.value.message.startswith(message)


def test_the_node_of_a_policy_is_a_number():
    assert HostPolicy.of("p", {"numa-node": "1"}) == HostPolicy(frozenset(), 1)


def test_workers_share_the_cores_and_get_them_back():
    budget = ThreadBudget(8)
    alone = budget.join()
    assert alone.threads == 8
    others = [budget.join(), budget.join(), budget.join()]
    assert [share.threads for share in (alone, *others)] == [2, 2, 2, 2]
    for share in others:
        budget.leave(share)
    assert alone.threads == 8


def test_the_number_of_a_configuration_stays_and_the_others_share_the_rest():
    budget = ThreadBudget(8)
    fixed, *rest = budget.join(6), budget.join(), budget.join()
    assert [share.threads for share in (fixed, *rest)] == [6, 1, 1]
    assert budget.total() == (3, 8)


def test_a_worker_has_no_more_threads_than_the_cores_that_it_is_bound_to():
    budget = ThreadBudget(8)
    bound, free = budget.join(most=2), budget.join()
    assert (bound.threads, free.threads) == (2, 6)


@given(
    st.integers(1, 64),
    st.lists(st.tuples(st.booleans(), st.integers(0, 4)), min_size=1, max_size=40),
)
def test_the_sum_of_threads_never_exceeds_the_cores_while_workers_do_not(cores, steps):
    budget = ThreadBudget(cores)
    shares = []
    for leaves, most in steps:
        if leaves and shares:
            budget.leave(shares.pop(0))
        else:
            shares.append(budget.join(most=most))
        workers, threads = budget.total()
        assert workers == len(shares)
        assert threads <= max(cores, workers)
        assert all(share.threads >= 1 for share in shares)


@pytest.mark.parametrize(
    ("key", "value", "threads"),
    [
        ("INTRA_OP_THREAD_COUNT", "3", 3),
        ("intra_op_thread_count", "2", 2),
        ("INTRA_OP_THREAD_COUNT", "0", 0),
        ("OTHER", "3", 0),
    ],
)
def test_a_configuration_may_give_the_number_of_threads(key, value, threads):
    text = f'name: "m" parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
    assert fixed_threads(parse_pbtxt(text)) == threads


def test_what_the_kernel_leaves_to_torch_is_the_most_of_a_worker():
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert kernel_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_this_process_may_use_a_core():
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
