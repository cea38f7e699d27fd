"""Where isolation is asked for: the configuration, the server, `auto`; and what binds the processes."""

# ruff: noqa: F821, N803 - annotations name tensors

import os

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.backends.python import install_pb_utils
from nbtriton.common.errors import ConfigError, ConfigWarning, InvalidArgumentError, LoadError
from nbtriton.runtime.engine.diagnostics.interpreter import has_interpreter_lock, is_waiting
from nbtriton.runtime.workers.resources import kernel_threads
from tests.until import until

pytestmark = pytest.mark.slow

ONE = np.ones((1, 1), np.int64)
CONFIG = (
    "max_batch_size: 1 instance_group {{ kind: KIND_CPU count: {count} {policy} }} {parameters}"
)


def config(count=1, isolation=None, policy="", **parameters):
    if isolation is not None:
        parameters["INSTANCE_ISOLATION"] = isolation
    text = " ".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
        for key, value in parameters.items()
    )
    return CONFIG.format(count=count, policy=policy, parameters=text)


def place(IN: "INT64[1]") -> {"OUT": "INT64[3]"}:
    """Process, cores and threads of an instance."""
    import os

    import numpy as np
    from threadpoolctl import threadpool_info

    threads = max(pool["num_threads"] for pool in threadpool_info())
    return {"OUT": np.array([[os.getpid(), len(os.sched_getaffinity(0)), threads]])}


def slow(IN: "INT64[1]") -> {"OUT": "INT64[1]"}:
    sum(i * i for i in range(20000))
    return {"OUT": IN}


def asked(server, name="m"):
    return server.infer(name, {"IN": ONE})["OUT"][0].tolist()


def stays_waiting(wait):
    """True also if each of two instances adds a sample behind its last answer, without a wait."""
    return is_waiting(wait) and is_waiting(wait._replace(probes=wait.probes + 2))


def isolation(server, name="m"):
    (found,) = [model.isolation for model in server.models() if model.name == name]
    return found


def test_the_configuration_wins_over_the_server():
    with nt.Server(gpus=(), isolation="process") as server:
        server.load(config(), place, name="m")
        server.load(config(isolation="thread"), place, name="here")
        assert asked(server)[0] != os.getpid() == asked(server, "here")[0]
        assert (isolation(server), isolation(server, "here")) == ("process", "thread")
        frame = nt.status(server).set_index("model")
        assert frame["isolation"].to_dict() == {"m": "process", "here": "thread"}
        assert set(server.set_options(isolation="thread")) == {"here", "m"}
        assert asked(server)[0] == os.getpid()


def test_an_unknown_isolation_is_refused_with_the_nearest():
    with pytest.raises(InvalidArgumentError, match="unknown isolation 'proces'") as caught:
        nt.Server(isolation="proces")
    assert caught.value.hint == "did you mean 'process'?"
    with nt.Server(gpus=()) as server:
        server.load(config(), place, name="m")
        with pytest.raises(ConfigError, match="Incorrect value for INSTANCE_ISOLATION") as caught:
            server.load(config(isolation="threat"), place, name="m")
        assert "did you mean 'thread'?" in caught.value.hint
        assert asked(server)[0] == os.getpid()


def test_what_cannot_be_carried_is_refused_and_what_serves_stays():
    stream = open(os.devnull)  # noqa: PTH123, SIM115 - a live object

    def model(IN: "INT64[1]") -> {"OUT": "INT64[1]"}:
        return {"OUT": IN + stream.fileno()}

    with nt.Server(gpus=()) as server:
        server.load(config(), place, name="m")
        with pytest.raises(LoadError, match="'stream' cannot go to a worker process") as caught:
            server.load(config(isolation="process"), model, name="m")
        assert "test_isolation_options.py" in caught.value.message
        assert "--isolation thread" in caught.value.hint
        assert asked(server)[0] == os.getpid()
    stream.close()


@pytest.mark.skipif(not has_interpreter_lock(), reason="without a lock threads run side by side")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core runs one process at a time")
def test_auto_takes_processes_once_threads_have_waited_and_one_instance_needs_none():
    with nt.Server(gpus=(), isolation="auto") as server:
        server.load(config(2), slow, name="m")
        assert isolation(server) == "thread"
        while not stays_waiting(server.models()[0].interpreter):
            for future in [server.submit("m", {"IN": ONE}) for _ in range(20)]:
                future.result()
        server.load(config(2), slow, name="m")
        assert isolation(server) == "process"
        server.load(config(2, SOMETHING="else"), slow, name="m")
        assert isolation(server) == "process"  # it stays with them
        server.load(config(1, SOMETHING="else again"), slow, name="m")
        assert isolation(server) == "thread"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="nothing can be bound to a part")
def test_L23_host_policies_bind_workers_and_threads_are_shared():
    cores = sorted(os.sched_getaffinity(0))
    policies = {"near": {"cpu-cores": f"{cores[0]}-{cores[0]}"}}
    with nt.Server(gpus=(), isolation="process", host_policies=policies) as server:
        server.load(config(policy="host_policy: 'near'"), place, name="bound")
        assert asked(server, "bound")[1:] == [1, 1]
        assert server.ignored("bound") == {}
        server.load(config(INTRA_OP_THREAD_COUNT=1), place, name="one")
        server.load(config(), place, name="m")
        assert asked(server, "one")[1:] == [len(cores), 1]
        # At most what the tests of this process have left to torch.
        most = min(len(cores), kernel_threads() or len(cores))
        assert asked(server)[1:] == [len(cores), max(1, min(most, len(cores) - 2))]
        server.unload("bound", timeout_s=30)
        server.unload("one", timeout_s=30)
        # What an unloaded model's process had is given back as it ends.
        assert until(lambda: asked(server)[1:] == [len(cores), most])
        with pytest.warns(ConfigWarning, match=r"instance_group\[0\].host_policy has no effect"):
            server.load(config(isolation="thread", policy="host_policy: 'near'"), place, name="m")


def test_L24_policies_are_checked_when_they_are_set():
    with pytest.raises(InvalidArgumentError, match="setting 'cpu-cores' format is"):
        nt.Server(host_policies={"near": {"cpu-cores": "1"}})
    with pytest.raises(
        InvalidArgumentError, match="worker_timeout_s must be a number above 0; found 0"
    ):
        nt.Server(worker_timeout_s=0)


ONE_EACH = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        found = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", one * len(found))]) for one in found]
"""
BATCHING = """
    @staticmethod
    def model_batcher_initialize(model): return None
    @staticmethod
    def model_batcher_finalize(batcher): pass
    @staticmethod
    def model_batch_initialize(batcher): return []
    @staticmethod
    def model_batch_finalize(batch): pass
    @staticmethod
    def model_batch_include_request(request, batch):
        batch.append(request)
        return len(batch) == 1
"""
# Without the functions, four requests are one batch.
FULL = """
backend: "python" max_batch_size: 4
input { name: "IN" data_type: TYPE_INT64 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT64 dims: [ 1 ] }
dynamic_batching { max_queue_delay_microseconds: 10000000 }
instance_group { kind: KIND_CPU count: 1 }
"""


def test_custom_batching_is_called_in_this_process_or_refused(tmp_path):
    file = tmp_path / "1" / "model.py"
    file.parent.mkdir()
    given: dict[str, type] = {}
    install_pb_utils()
    exec(ONE_EACH + BATCHING, given)
    with nt.Server(gpus=(), isolation="process") as server:
        file.write_text(ONE_EACH)
        server.load(FULL, file, name="given", batching=given["TritonPythonModel"])
        server.load(FULL, given["TritonPythonModel"], name="own")
        for name in ("given", "own"):
            futures = [server.submit(name, {"IN": ONE}) for _ in range(4)]
            futures.pop().cancel()  # which waits for others
            assert [future.result()["OUT"].item() for future in futures] == [1, 1, 1]
        file.write_text(ONE_EACH + BATCHING)
        server.load(FULL.replace("dynamic_batching", "# "), file, name="not_asked")
        with pytest.raises(LoadError, match="'apart' defines model_batch_include_request, which"):
            server.load(FULL, file, name="apart")
        assert "apart" not in {model.name for model in server.models() if model.state == "READY"}
