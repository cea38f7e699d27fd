"""What the probe does, by name. Each returns the response to the request."""

import gc
import json
import os
import threading
import time
import warnings

import numpy as np
import triton_python_backend_utils as pb_utils

from nbtriton.runtime.workers.core.memory import Outgoing

KEPT = {}


def tensor(request, name="IN"):
    return pb_utils.get_input_tensor_by_name(request, name)


def answer(value=None, array=None):
    tensors = [pb_utils.Tensor("TEXT", np.array([json.dumps(value).encode()], object))]
    if array is not None:
        tensors.append(pb_utils.Tensor("OUT", array))
    return pb_utils.InferenceResponse(tensors)


def double(model, request):
    return answer(array=tensor(request).as_numpy() * 2)


def echo(model, request):
    return answer(array=tensor(request).as_numpy())


def pid(model, request):
    return answer(os.getpid())


def write(model, request):
    array = tensor(request).as_numpy()
    array += 1
    return answer(bool(array.flags.carray), array)


def keep(model, request):
    """Keep the input of this request, and answer with what is left of the one before."""
    before = KEPT.get("array")
    KEPT["array"] = tensor(request).as_numpy()
    return answer(None if before is None else [float(before.min()), float(before.max())])


def forget(model, request):
    KEPT.clear()
    return answer()


def what_it_sees(model, request):
    return answer(
        {
            "id": request.request_id(),
            "correlation_id": request.correlation_id(),
            "flags": request.flags(),
            "timeout": request.timeout(),
            "parameters": json.loads(request.parameters()),
            "outputs": sorted(request.requested_output_names()),
            "cancelled": request.is_cancelled(),
            "inputs": sorted(one.name() for one in request.inputs()),
            "args": {key: value for key, value in model.args.items() if key != "model_config"},
        }
    )


def fail(model, request):
    raise ValueError("kaboom")


def leave(model, request):
    raise SystemExit(3)


def error(model, request):
    return pb_utils.InferenceResponse(
        error=pb_utils.TritonError("not this one", pb_utils.TritonError.NOT_FOUND)
    )


def say(model, request):
    print("printed")
    pb_utils.Logger.log_warn("logged")
    pb_utils.Logger.log_verbose("not logged")
    warnings.warn("warned", RuntimeWarning, stacklevel=1)
    return answer()


def call(model, request, name="target", **options):
    return pb_utils.InferenceRequest(
        model_name=name, requested_output_names=["OUT"], inputs=[tensor(request)], **options
    )


def outcome(response):
    if response.has_error():
        return response.error().message()
    found = pb_utils.get_output_tensor_by_name(response, "OUT")
    return None if found is None else found.as_numpy().tolist()  # a bare end of a stream


def bls(model, request):
    return answer(outcome(call(model, request).exec()))


def bls_unknown(model, request):
    return answer(outcome(call(model, request, "nobody").exec()))


def bls_failing(model, request):
    return answer(outcome(call(model, request, "failing").exec()))


def bls_stream(model, request):
    return answer([outcome(one) for one in call(model, request, "stream").exec(decoupled=True)])


def bls_stream_refused(model, request):
    return answer(outcome(call(model, request, "stream").exec()))


def bls_in_a_thread(model, request):
    found = []

    def run():
        found.append(outcome(call(model, request).exec()))
        found.append([outcome(o) for o in call(model, request, "stream").exec(decoupled=True)])

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return answer(found)


def bls_large(model, request):
    response = call(model, request).exec()
    return answer(array=pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy())


def ready(model, request):
    return answer([pb_utils.is_model_ready("target"), pb_utils.is_model_ready("nobody")])


def load(model, request):
    try:
        pb_utils.load_model("nobody")
    except pb_utils.TritonModelException as refused:
        return answer(str(refused))
    return answer("loaded")


def count(model, request):
    family = KEPT.setdefault(
        "family", pb_utils.MetricFamily("probe_total", "calls", pb_utils.MetricFamily.COUNTER)
    )
    metric = KEPT.setdefault("metric", family.Metric(labels={"who": "probe"}))
    metric.increment(2)
    return answer(metric.value())


def count_otherwise(model, request):
    count(model, request)
    try:
        pb_utils.MetricFamily("probe_total", "calls", pb_utils.MetricFamily.GAUGE)
    except pb_utils.TritonModelException as refused:
        return answer(str(refused))
    return answer("made")


def by_sender(model, request):
    request.get_response_sender().send(
        answer("sent"), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
    )
    return


def later(model, request):
    """Answer from a thread of the model's own, behind the end of `execute`."""
    sender = request.get_response_sender()

    def run():
        sender.send(answer("later"), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    threading.Timer(0.01, run).start()
    return


def wait_for_cancel(model, request):
    # The caller knows by this that the request is inside.
    call(model, request, "started").exec()
    turns = 0
    while not request.is_cancelled():
        turns += 1
    call(model, request, "cancelled").exec()
    return answer("cancelled")


def say_and_call(model, request):
    print("printed", flush=True)
    call(model, request, "started").exec()
    return answer()


def spin(model, request):
    call(model, request, "started").exec()
    while True:
        pass


def by_dlpack(model, request):
    array = np.from_dlpack(tensor(request))
    made = pb_utils.Tensor.from_dlpack("OUT", array * 3)
    return pb_utils.InferenceResponse([made, pb_utils.Tensor("TEXT", np.array([b"1"], object))])


def text(model, request):
    found = tensor(request, "WORDS").as_numpy()
    return pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", found[::-1])])


def bls_traced(model, request):
    return answer(outcome(call(model, request, trace=request.trace()).exec()))


def shared_memory(model, request):
    """Bytes of the blocks that this process has given out."""
    gc.collect()
    heaps = [one for one in gc.get_objects() if isinstance(one, Outgoing)]
    free = (room for one in heaps for part in one._segments.values() for _, room in part.free)
    return answer(sum(one.size for one in heaps) - sum(free))


def nap(model, request):
    time.sleep(0.02)
    return answer()
