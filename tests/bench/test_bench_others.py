"""What the bench beside other servers rests on: the same answers everywhere, and rest for who is not asked."""

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import nbtriton
from bench.environments import share_packages
from bench.figures import Missing
from bench.jobs import BATCH, JOBS
from bench.models import load, python_model
from bench.others import FIGURES, OTHERS, kserve, ours_of, see_right
from bench.processes import cpu_s, family, stopped
from bench.session import Session
from tests.children import run_python
from tests.until import until


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_a_job_answers_the_same_wherever_it_is_made_and_however_it_is_batched(job):
    rows = np.repeat(job.row(), BATCH, axis=0) * np.arange(BATCH, dtype=np.float32)[:, None]
    one, other = job.make(), job.make()
    batch = one(rows)
    assert (batch.shape, batch.dtype) == ((BATCH, job.outputs), np.float32)
    np.testing.assert_array_equal(other(rows), batch)
    for at in range(0, BATCH, 7):
        np.testing.assert_allclose(one(rows[at : at + 1]), batch[at : at + 1], rtol=1e-4, atol=1e-5)


def test_every_server_is_measured_with_every_job_one_request_and_many():
    names = [figure.name for figure in FIGURES]
    assert len(set(names)) == len(names) == len(OTHERS) * len(JOBS) * 2 * 2


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_nbtriton_serves_a_job_in_the_kernel_and_over_http(job):
    with ExitStack() as stack:
        session = Session(stack)
        ours = session.resource(job, lambda: ours_of(session, job))
        assert session.resource(job, lambda: ours_of(session, job)) is ours
        assert ours.served.post.load(BATCH, 0.1).infer_per_s > 0
        pid = ours.served.pid
        assert family(pid)
    assert not family(pid)
    with pytest.raises(Missing, match=f"/v2/models/{job.name}/infer is not there: "):
        ours.served.post.load(1, 0.1)


def test_a_server_whose_answer_is_another_is_not_measured(tmp_path):
    job = JOBS["double"]
    with nbtriton.Server(gpus=()) as server:
        endpoints = server.serve(http_port=0, grpc_port=None, metrics_port=None)
        post = kserve(job, "IN", endpoints.http_port)
        load(server, [python_model(job.name, "out = x * 3")], tmp_path / "wrong")
        with pytest.raises(Missing, match=r"the answer is \[0\. +0\.1875 .* not \[0\. +0\.125 "):
            see_right(job, post)
        load(server, [python_model(job.name, "out = x + x")], tmp_path / "right")
        see_right(job, post)


def states(pid):
    """The states of a process and its children, as Linux has them: T is stopped."""
    return {
        Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[0]
        for each in family(pid)
    }  # fmt: skip


def test_processes_rest_with_their_children_and_go_on():
    spin = "while True: pass"
    parent = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {spin!r}])\n"
        "print(child.pid, flush=True)\n"
        f"{spin}\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            child = int(process.stdout.readline())
            assert set(family(process.pid)) == {process.pid, child}
            with stopped(process.pid):
                assert until(lambda: states(process.pid) == {"T"})
                spent_s = cpu_s(process.pid)
            assert until(lambda: "T" not in states(process.pid))
            assert until(lambda: cpu_s(process.pid) > spent_s)
        finally:
            for pid in family(process.pid):
                subprocess.run(["kill", "-9", str(pid)], check=False)


def test_an_environment_imports_what_another_has_after_its_own(tmp_path):
    pythons = []
    for name, modules in (("one", ("own",)), ("other", ("own", "shared"))):
        run_python("-m", "venv", "--without-pip", tmp_path / name, check=True)
        (packages,) = (tmp_path / name / "lib").glob("python3*/site-packages")
        for module in modules:
            (packages / f"{module}.py").write_text(f"WHOSE = {name!r}")
        pythons.append(tmp_path / name / "bin" / "python")
    share_packages(*pythons)
    program = "import json, own, shared; print(json.dumps([own.WHOSE, shared.WHOSE]))"
    done = subprocess.run([pythons[0], "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == ["one", "other"]
