"""The rest of pb_utils: tensors, helpers, constants, errors, metrics."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

from nbtriton.backends.python import install_pb_utils
from nbtriton.backends.python.api.metrics import families_of
from tests.backends.fakes import Server, ones

install_pb_utils()
import triton_python_backend_utils as pb_utils  # noqa: E402


def address(array):
    return array.__array_interface__["data"][0]


# -- Tensor -----------------------------------------------------------------------------------------


def test_PB42_a_tensor_is_its_array():
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    tensor = pb_utils.Tensor("X", array)
    assert tensor.as_numpy() is array
    assert (tensor.name(), tensor.shape(), tensor.is_cpu()) == ("X", [2, 3], True)
    assert pb_utils.triton_to_numpy_type(tensor.triton_dtype()) is np.int16
    assert pb_utils.Tensor("S", np.zeros((), np.float32)).shape() == []
    assert pb_utils.Tensor("B", np.array([b"abc"])).as_numpy().dtype == np.dtype("S3")


@pytest.mark.parametrize("array", [np.zeros(1, np.complex64), np.array(["text"])])
def test_PB42_a_dtype_that_triton_lacks_is_refused(array):
    with pytest.raises(pb_utils.TritonModelException, match=r"NumPy dtype is not supported\."):
        pb_utils.Tensor("X", array)


@pytest.mark.parametrize("value", [[1, 2], 3, torch.zeros(1)])
def test_only_numpy_arrays_are_tensors(value):
    with pytest.raises(TypeError, match=type(value).__name__):
        pb_utils.Tensor("X", value)


@pytest.mark.parametrize(
    "make_source",
    [
        lambda a: a,
        lambda a: a.__dlpack__(),
        torch.from_numpy,
        lambda a: torch.from_numpy(a).__dlpack__(),
        lambda a: pb_utils.Tensor("Y", a),
        lambda a: pb_utils.Tensor("Y", a).to_dlpack(),
    ],
)
def test_from_dlpack_takes_capsules_and_objects_without_a_copy(make_source):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = pb_utils.Tensor.from_dlpack("X", make_source(array))
    assert tensor.name() == "X"
    assert address(tensor.as_numpy()) == address(array)
    assert tensor.as_numpy().flags.writeable


@pytest.mark.parametrize("read", [np.from_dlpack, torch.from_dlpack])
def test_a_tensor_offers_dlpack(read):
    array = np.arange(4, dtype=np.float32)
    tensor = pb_utils.Tensor("X", array)
    assert tensor.__dlpack_device__() == (1, 0)
    shared = read(tensor)
    array[0] = 9
    assert float(shared[0]) == 9
    assert torch.utils.dlpack.from_dlpack(tensor.to_dlpack())[0] == 9


def test_PB42_bf16_goes_through_dlpack_only():
    source = torch.tensor([1.5, 2.0], dtype=torch.bfloat16)
    for given in (source, source.__dlpack__()):
        tensor = pb_utils.Tensor.from_dlpack("X", given)
        with pytest.raises(
            pb_utils.TritonModelException,
            match="Tensor dtype is BF16 and cannot be converted to NumPy. "
            r"Use to_dlpack\(\) and from_dlpack\(\) instead.",
        ):
            tensor.as_numpy()
        back = torch.from_dlpack(tensor)
        assert torch.equal(back, source)
        assert back.data_ptr() == source.data_ptr()


def test_PB42_strings_have_no_dlpack():
    tensor = pb_utils.Tensor("X", np.array([b"a"], dtype=object))
    with pytest.raises(pb_utils.TritonModelException, match="DLPack does not have support for"):
        tensor.to_dlpack()


@pytest.mark.parametrize(
    "source",
    [
        torch.zeros(2, 3).T,
        torch.zeros(2, 3).T.__dlpack__(),
        np.zeros((2, 3)).T.__dlpack__(),
    ],
)
def test_dlpack_must_be_contiguous(source):
    with pytest.raises(pb_utils.TritonModelException, match="DLPack tensor is not contiguous"):
        pb_utils.Tensor.from_dlpack("X", source)


def test_from_dlpack_says_what_it_needs():
    with pytest.raises(pb_utils.TritonModelException, match="found type int"):
        pb_utils.Tensor.from_dlpack("X", 3)
    capsule = np.zeros(2).__dlpack__()
    np_first = pb_utils.Tensor.from_dlpack("X", capsule)
    with pytest.raises(pb_utils.TritonModelException, match="unused capsule"):
        pb_utils.Tensor.from_dlpack("X", capsule)
    assert np_first.shape() == [2]


@pytest.mark.gpu
def test_a_tensor_on_a_gpu_stays_there():
    source = torch.ones(3, device="cuda")
    tensor = pb_utils.Tensor.from_dlpack("X", source)
    assert not tensor.is_cpu()
    assert tensor.__dlpack_device__() == (2, 0)
    assert torch.from_dlpack(tensor).data_ptr() == source.data_ptr()
    with pytest.raises(pb_utils.TritonModelException, match="stored in GPU"):
        tensor.as_numpy()


# -- responses and errors ---------------------------------------------------------------------------


def test_PB44_a_response_holds_tensors_error_and_parameters():
    tensor = pb_utils.Tensor("X", ones())
    response = pb_utils.InferenceResponse(output_tensors=[tensor], parameters={"a": 1})
    assert response.output_tensors() == [tensor]
    assert not response.has_error()
    assert response.error() is None
    assert response.parameters() == '{"a":1}'
    assert pb_utils.get_output_tensor_by_name(response, "X") is tensor
    assert pb_utils.get_output_tensor_by_name(response, "Y") is None


@pytest.mark.parametrize(
    "arguments", [{"output_tensors": [ones()]}, {"error": "text"}, {"error": ValueError("x")}]
)
def test_PB44_a_response_refuses_foreign_objects(arguments):
    with pytest.raises(TypeError):
        pb_utils.InferenceResponse(**arguments)


def test_PB45_TritonError_is_a_value_with_a_code():
    error = pb_utils.TritonError("m")
    assert not isinstance(error, Exception)
    assert (error.message(), error.code()) == ("m", pb_utils.TritonError.INTERNAL)
    names = ["UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED",
             "ALREADY_EXISTS", "CANCELLED"]  # fmt: skip
    assert [int(getattr(pb_utils.TritonError, name)) for name in names] == list(range(8))


# -- helpers and constants --------------------------------------------------------------------------


def test_PB40_constants_have_triton_s_values():
    assert pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START == 1
    assert pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END == 2
    assert pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL == 1
    assert pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL == 1
    assert pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE == 2
    assert "TYPE_BF16" not in pb_utils.TRITON_STRING_TO_NUMPY


def test_PB41_types_convert_in_all_directions():
    numbers = {
        1: np.bool_, 2: np.uint8, 3: np.uint16, 4: np.uint32, 5: np.uint64, 6: np.int8, 7: np.int16,
        8: np.int32, 9: np.int64, 10: np.float16, 11: np.float32, 12: np.float64, 13: np.object_,
    }  # fmt: skip
    for number, kind in numbers.items():
        assert pb_utils.triton_to_numpy_type(number) is kind
        assert pb_utils.numpy_to_triton_type(kind) == number
        assert pb_utils.numpy_to_triton_type(np.dtype(kind)) == number
    assert pb_utils.numpy_to_triton_type(np.bytes_) == 13
    assert pb_utils.numpy_to_triton_type(np.complex64) is None
    assert pb_utils.triton_string_to_numpy("TYPE_STRING") is np.object_
    with pytest.raises(KeyError):
        pb_utils.triton_string_to_numpy("TYPE_BF16")


def test_PB41_configuration_helpers():
    config = {
        "input": [{"name": "A", "dims": [1]}],
        "output": [{"name": "B"}],
        "model_transaction_policy": {"decoupled": True},
    }
    assert pb_utils.get_input_config_by_name(config, "A") == {"name": "A", "dims": [1]}
    assert pb_utils.get_output_config_by_name(config, "B") == {"name": "B"}
    assert pb_utils.get_output_config_by_name(config, "A") is None
    assert pb_utils.get_input_config_by_name({}, "A") is None
    assert pb_utils.using_decoupled_model_transaction_policy(config)
    assert not pb_utils.using_decoupled_model_transaction_policy({})


def test_PB41_byte_tensors_serialize():
    array = np.array([b"ab", "c"], dtype=object)
    encoded = pb_utils.serialize_byte_tensor(array)
    assert pb_utils.deserialize_bytes_tensor(encoded).tolist() == [b"ab", b"c"]
    assert pb_utils.serialize_byte_tensor(np.empty(0, dtype=object)) == ()
    assert pb_utils.serialize_byte_tensor(np.zeros(2)) is None


# -- metrics ----------------------------------------------------------------------------------------


@pytest.fixture
def inside(make, run):
    def inside(function, server=None):
        seen = []

        class TritonPythonModel:
            def execute(self, requests):
                seen.append(function())
                return [pb_utils.InferenceResponse() for _ in requests]

        run(make(TritonPythonModel, server=server), ones())
        return seen.pop()

    return inside


def failing(call):
    with pytest.raises(pb_utils.TritonModelException) as caught:
        call()
    return str(caught.value)


MESSAGE = "Failed to process the request for model 'm_0_0', message: "


def test_PB80_counters(inside):
    def use():
        family = pb_utils.MetricFamily("c", "a counter", pb_utils.MetricFamily.COUNTER)
        counter = family.Metric()
        counter.increment(2)
        counter.increment(0.5)
        return (
            counter.value(),
            failing(lambda: counter.increment(-1)),
            failing(lambda: counter.set(1)),
            failing(lambda: counter.observe(1)),
        )

    value, negative, set_, observe = inside(use)
    assert value == 2.5
    assert negative == (
        f"Failed to increment metric value: {MESSAGE}TRITONSERVER_METRIC_KIND_COUNTER can only be "
        "incremented monotonically by non-negative values."
    )
    assert set_ == (
        f"Failed to set metric value: {MESSAGE}TRITONSERVER_METRIC_KIND_COUNTER does not support Set"
    )
    assert observe.endswith("TRITONSERVER_METRIC_KIND_COUNTER does not support Observe")


def test_PB81_gauges(inside):
    def use():
        family = pb_utils.MetricFamily("g", "a gauge", pb_utils.MetricFamily.GAUGE)
        gauge = family.Metric()
        gauge.set(3)
        gauge.increment(-5)
        return gauge.value()

    assert inside(use) == -2


def test_PB82_histograms(inside):
    def use():
        family = pb_utils.MetricFamily(
            name="h", description="d", kind=pb_utils.MetricFamily.HISTOGRAM
        )
        histogram = family.Metric(labels={"a": "b"}, buckets=[1, 2.5])
        for value in (0.5, 1, 2, 9):
            histogram.observe(value)
        sample = histogram._sample
        return (
            (sample.buckets, sample.count, sample.total),
            failing(histogram.value),
            failing(family.Metric),
        )

    sample, value, missing = inside(use)
    assert sample == ([2, 1, 1], 4, 12.5)
    assert value == (
        f"Failed to get metric value: {MESSAGE}TRITONSERVER_METRIC_KIND_HISTOGRAM does not support "
        "Value"
    )
    assert missing == "Failed to create metric. Missing required buckets."


def test_PB82_a_histogram_may_have_one_bucket_for_all(inside):
    def use():
        family = pb_utils.MetricFamily("all", "d", pb_utils.MetricFamily.HISTOGRAM)
        histogram = family.Metric(buckets=[])
        histogram.observe(3)
        return histogram._sample.buckets

    assert inside(use) == [1]


@pytest.mark.parametrize("kind", ["COUNTER", "GAUGE", "HISTOGRAM"])
def test_a_metric_is_of_no_use_without_its_family(inside, kind):
    def use():
        family = pb_utils.MetricFamily(f"gone_{kind}", "d", getattr(pb_utils.MetricFamily, kind))
        metric = family.Metric(buckets=[1] if kind == "HISTOGRAM" else None)
        del family
        return [
            failing(lambda: metric.increment(1)),
            failing(lambda: metric.set(1)),
            failing(lambda: metric.observe(1)),
            failing(metric.value),
        ]

    for what, text in zip(("increment", "set", "observe", "get"), inside(use), strict=True):
        assert text.startswith(
            f"Failed to {what} metric value: Invalid metric operation as the corresponding "
            "'MetricFamily' has been deleted."
        )


def test_PB83_the_same_name_and_labels_are_the_same_metric(inside):
    def use():
        one = pb_utils.MetricFamily("same", "first", pb_utils.MetricFamily.COUNTER)
        two = pb_utils.MetricFamily("same", "second", pb_utils.MetricFamily.COUNTER)
        a, b = one.Metric({"x": "1", "y": "2"}), two.Metric({"y": "2", "x": "1"})
        other = one.Metric({"x": "2"})
        a.increment(1)
        return (
            b.value(),
            other.value(),
            two._family.description,
            failing(lambda: pb_utils.MetricFamily("same", "d", pb_utils.MetricFamily.GAUGE)),
        )

    assert inside(use) == (
        1,
        0,
        "first",
        f"Error when creating MetricFamily: {MESSAGE}Family name already exists with different type",
    )


EMPTY = "for request with id '7' and model name 'm' should not be empty."


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: request(inputs=[None]), pb_utils.TritonModelException, f"Input tensor {EMPTY}"),
        (lambda: request(inputs=None), TypeError, "inputs"),
        (lambda: request(inputs=["x"]), TypeError, "found type str"),
        (
            lambda: request(requested_output_names=[""]),
            pb_utils.TritonModelException,
            f"Requested output name {EMPTY}",
        ),
        *(
            (lambda name=name: request(**{name: None}), TypeError, "NoneType")
            for name in ("correlation_id", "request_id", "model_version", "flags", "timeout")
        ),
        (lambda: request(flags=1.0), TypeError, "float"),
        (
            lambda: pb_utils.InferenceResponse([None]),
            pb_utils.TritonModelException,
            "Output tensor for inference response should not be empty.",
        ),
        (lambda: pb_utils.InferenceResponse([1]), TypeError, "found type int"),
        (lambda: pb_utils.Logger.log("text", None), TypeError, "found type NoneType"),
        (lambda: pb_utils.Logger.log("text", 1), TypeError, "found type int"),
    ],
)
def test_wrong_arguments_are_refused_as_in_triton(make, error, message):
    with pytest.raises(error) as caught:
        make()
    assert message in str(caught.value)


def request(**changed):
    given = {"inputs": [], "requested_output_names": [], "model_name": "m", "request_id": "7"}
    return pb_utils.InferenceRequest(**{**given, **changed})


@pytest.mark.medium
def test_PB85_metrics_belong_to_their_server_and_go_with_their_objects(inside):
    server, other = Server({}), Server({})
    family = inside(lambda: pb_utils.MetricFamily("mine", "d", pb_utils.MetricFamily.GAUGE), server)
    metric = family.Metric({"a": "b"})
    metric.set(4)
    assert [(f.name, [s.value for s in f.samples.values()]) for f in families_of(server)] == [
        ("mine", [4])
    ]
    assert families_of(other) == []
    del metric
    gc.collect()
    assert list(families_of(server)[0].samples) == []
    del family
    gc.collect()
    assert families_of(server) == []


NAMES = {
    "family": [
        ("bad name!", "Invalid metric name"),
        ("__x", "Invalid metric name"),
        ("", "Invalid metric name"),
    ],
    "label": [
        ("bad-name", "Invalid label name"),
        ("__a", "Invalid label name"),
        ("", "Invalid label name"),
    ],
}


@pytest.mark.parametrize(("what", "name", "said"), [(w, *row) for w in NAMES for row in NAMES[w]])
def test_names_that_the_metrics_endpoint_cannot_have_are_refused(inside, what, name, said):
    def use():
        if what == "family":
            return failing(lambda: pb_utils.MetricFamily(name, "d", pb_utils.MetricFamily.COUNTER))
        family = pb_utils.MetricFamily("named", "d", pb_utils.MetricFamily.COUNTER)
        return failing(lambda: family.Metric({name: "x"}))

    assert inside(use).endswith(f"message: {said}")


def test_buckets_that_do_not_rise_are_refused(inside):
    def use():
        family = pb_utils.MetricFamily("steps", "d", pb_utils.MetricFamily.HISTOGRAM)
        return failing(lambda: family.Metric({}, [2.0, 1.0]))

    assert inside(use).endswith("message: Bucket Boundaries must be strictly sorted")
