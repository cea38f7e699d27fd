"""A report names more threads than cores."""

from dataclasses import replace

import pytest

from nbtriton.lab.perf.conditions import oversubscription
from nbtriton.runtime.workers.resources import ThreadBudget
from tests.widgets.samples import instance, model

torch = pytest.importorskip("torch")


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def net(count, isolation="thread", platform="pytorch_libtorch"):
    instances = tuple(instance(f"m_0_{number}") for number in range(count))
    return replace(model("m"), platform=platform, isolation=isolation, instances=instances)


def test_instances_in_threads_with_torch_s_threads_each(threads):
    threads(2)
    (said,) = oversubscription([net(2)], ThreadBudget(2))
    assert said == (
        "2 instances of 'm' compute with 2 threads each on 2 cores: INTRA_OP_THREAD_COUNT 1, or "
        "--isolation process, which shares the cores"
    )
    assert oversubscription([net(2)], ThreadBudget(4)) == []
    assert oversubscription([net(1)], ThreadBudget(1)) == []
    assert oversubscription([net(2, platform="python")], ThreadBudget(2)) == []
    threads(1)
    assert oversubscription([net(2)], ThreadBudget(1)) == []


def test_worker_processes_with_more_threads_than_cores():
    budget = ThreadBudget(2)
    model_ = net(2, isolation="process")
    budget.join()
    budget.join()
    assert oversubscription([model_], budget) == []
    budget.join(fixed=2)
    (said,) = oversubscription([model_], budget)
    assert said.startswith("3 worker processes compute with 4 threads on 2 cores: ")
