"""Torch modules: sources, naming conventions, weights, auto-complete."""

# ruff: noqa: N803 - tensors have Triton's names

import re
import threading

import numpy as np
import pytest
import torch

import nbtriton as nt
from nbtriton.backends import InstanceContext, ModelContext, find_backend
from nbtriton.common.errors import (
    ConfigError,
    InternalError,
    InvalidArgumentError,
    ModelError,
    UnsupportedError,
)
from nbtriton.extensions.pytorch.core.naming import (
    Forward,
    InputOrder,
    arrange_inputs,
    arrange_outputs,
    name_results,
)
from nbtriton.model.config import as_config, normalize
from nbtriton.model.tensors import kind_of, to_kind
from tests.backends.fakes import DEFAULT, Request, Timer, ones


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(2.0))
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x):
        return self.dropout(x * self.weight)


class Pair(torch.nn.Module):
    def forward(self, x, y):
        return x + y, x - y


class Dict(torch.nn.Module):
    def forward(self, x):
        return {"B": x + 2, "A": x + 1, "unused": x}


class Annotated(torch.nn.Module):
    def forward(self, x: "FP32[1,8,8]", y: "INT64[1]" = None) -> {"OUT": "FP32[10]"}:  # noqa: F821
        return x.flatten(1)[:, :10]


class Plain(torch.nn.Module):
    """Annotated as torch users annotate: types say nothing about shapes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)[:, :10]


def config(inputs, outputs, rest="max_batch_size: 8"):
    def one(kind, names):
        return "".join(
            f'{kind} {{ name: "{n}" data_type: TYPE_FP32 dims: [ 4 ] }}\n' for n in names
        )

    return f"{rest}\n{one('input', inputs)}{one('output', outputs)}"


def parameter(key, value):
    return f'\nparameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


@pytest.fixture
def torch_model(make):
    return lambda source, text=DEFAULT, **options: make(source, text, backend="pytorch", **options)


def first(response, name="OUT"):
    return float(response.outputs[name].reshape(-1)[0])


# -- sources ----------------------------------------------------------------------------------------


@pytest.fixture(params=["class", "module", "script", "trace", "export"])
def source(request, tmp_path):
    module = Scale().eval()
    path = tmp_path / "model.pt"
    if request.param == "class":
        return Scale
    if request.param == "module":
        return module
    if request.param == "script":
        torch.jit.script(module).save(path)
    elif request.param == "trace":
        torch.jit.trace(module, torch.ones(1, 4)).save(path)
    else:
        path = tmp_path / "model.pt2"
        dims = {"x": {0: torch.export.Dim.DYNAMIC}}
        torch.export.save(
            torch.export.export(module, (torch.ones(2, 4),), dynamic_shapes=dims), path
        )
    return path


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_every_form_of_a_module_runs(torch_model, source):
    timer = Timer()
    found = torch_model(source).execute(
        [Request({"IN": ones()}), Request({"IN": ones(2, 3)})], timer
    )
    assert [r.outputs["OUT"].tolist() for r in found] == [[[2] * 4], [[6] * 4] * 2]
    assert timer.marks == ["inputs_ready", "infer_done"]


@pytest.mark.parametrize("convert", [lambda array: array, torch.from_numpy])
def test_outputs_are_views_of_one_result_and_of_the_kind_that_came_in(torch_model, run, convert):
    sent = convert(ones()), convert(ones(2, 3))
    found = [r.outputs["OUT"] for r in run(torch_model(Scale), *sent)]
    assert {type(output) for output in found} == {type(sent[0])}
    a, b = (np.asarray(output).ctypes.data for output in found)
    assert b == a + 16


def test_of_mixed_kinds_the_outputs_are_torch_tensors(torch_model, run):
    found = run(torch_model(Scale), ones(), torch.from_numpy(ones(2, 3)))
    assert [type(r.outputs["OUT"]) for r in found] == [torch.Tensor] * 2


def test_a_module_of_the_notebook_is_served_as_it_was_at_load(torch_model, run):
    module = Scale().train()
    instance = torch_model(module)
    with torch.no_grad():
        module.weight.fill_(100)
    assert module.training
    (found,) = run(instance, ones())
    assert found.outputs["OUT"].tolist() == [[2] * 4]


def test_instances_on_the_host_share_the_weights():
    backend = find_backend("pytorch")()
    context = ModelContext("m", 1, normalize(as_config(DEFAULT), name="m"), Scale)
    backend.open(context)
    one, two = (
        backend.create_instance(InstanceContext(context, f"m_0_{i}", "KIND_CPU")) for i in range(2)
    )
    assert one._module is two._module


@pytest.mark.parametrize("content", [b"", b"no model", None])
def test_a_file_that_is_no_model_is_a_load_error(torch_model, tmp_path, content):
    path = tmp_path / "model.pt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InternalError, match="model 'm'"):
        torch_model(path)


def test_a_state_dict_is_distinguished_from_a_model(torch_model, tmp_path):
    torch.save(Scale().state_dict(), tmp_path / "model.pt")
    with pytest.raises(InternalError) as caught:
        torch_model(tmp_path / "model.pt")
    assert "torch.jit.script" in caught.value.hint


def test_a_class_whose_constructor_raises_is_a_load_error(torch_model):
    class Broken(torch.nn.Module):
        def __init__(self):
            raise ValueError("no weights")

    with pytest.raises(ModelError, match=re.escape("ValueError: no weights\n\nAt:\n  ")) as caught:
        torch_model(Broken)
    assert 'raise ValueError("no weights")' in caught.value.user_traceback


# -- naming -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (["y", "x"], (3, -1)),  # by the names of the arguments
        (["IN__1", "IN__0"], (3, -1)),  # by index
        (["second", "first"], (3, 1)),  # in the order of the configuration
    ],
)
def test_inputs_find_their_arguments(torch_model, run, inputs, expected):
    instance = torch_model(Pair, config(inputs, ["A", "B"]))
    request = Request(dict(zip(inputs, (ones(1, 2), ones(1, 1)), strict=True)), frozenset("AB"))
    (found,) = run(instance, request)
    assert (first(found, "A"), first(found, "B")) == expected


def test_results_of_a_dict_go_by_name(torch_model, run):
    (found,) = run(
        torch_model(Dict, config(["x"], ["A", "B"])), Request({"x": ones()}, frozenset("AB"))
    )
    assert (first(found, "A"), first(found, "B")) == (2, 3)


def test_results_go_by_index(torch_model, run):
    instance = torch_model(Pair, config(["x", "y"], ["OUT__1"]))
    request = Request({"x": ones(), "y": ones()}, frozenset({"OUT__1"}))
    (found,) = run(instance, request)
    assert first(found, "OUT__1") == 0


def test_arguments_that_cannot_be_known_go_by_the_configuration():
    assert arrange_inputs(["b", "a"], Forward(None)) == InputOrder(("b", "a"))


@pytest.mark.parametrize("names", [["A__0", "A__2"], ["A__0", "B__0"]])
def test_indices_of_inputs_have_no_gaps(names):
    with pytest.raises(ConfigError, match="are not 0 to 1"):
        arrange_inputs(names, Forward(("x", "y"), 2))


@pytest.mark.parametrize(
    ("result", "names", "kind", "message"),
    [
        (
            (1, 2), ["OUT__2"], InvalidArgumentError,
            ("The output OUT__2 in the model configuration refers to an output index which doesn't "
            "exist. This model has 2 outputs"),
        ),
        ((1, 2), ["A"], InternalError, "model 'm' returned 2 outputs, its configuration has 1: 'A'"),
        ({"A": 1}, ["B"], InternalError, "model 'm' did not return the output 'B', found 'A'"),
    ],
)  # fmt: skip
def test_results_that_do_not_fit_are_listed(result, names, kind, message):
    with pytest.raises(kind) as caught:
        name_results(result, arrange_outputs(names), model="m")
    assert caught.value.message == message


# -- execution --------------------------------------------------------------------------------------


def test_forward_runs_in_inference_mode_or_without_gradients(torch_model, run):
    seen = []

    class Spy(torch.nn.Module):
        def forward(self, IN):
            seen.append((torch.is_inference_mode_enabled(), torch.is_grad_enabled(), self.training))
            return IN + 1

    run(torch_model(Spy), ones())
    run(torch_model(Spy, DEFAULT + parameter("INFERENCE_MODE", "false")), ones())
    assert seen == [(True, False, False), (False, False, False)]


@pytest.mark.parametrize("owned", [True, False])
def test_inputs_that_only_the_request_has_are_not_copied(torch_model, run, owned):
    seen = []

    class Spy(torch.nn.Module):
        def forward(self, IN):
            seen.append(IN.data_ptr())
            return IN + 1

    array = ones()
    run(torch_model(Spy), Request({"IN": array}, owned_inputs=frozenset({"IN"} if owned else ())))
    assert (seen == [array.__array_interface__["data"][0]]) is owned


def test_an_error_in_forward_is_triton_s_with_the_user_s_traceback(torch_model, run):
    class Broken(torch.nn.Module):
        def forward(self, IN):
            return IN @ torch.ones(3, 3)

    with pytest.raises(ModelError) as caught:
        run(torch_model(Broken), ones())
    assert caught.value.message.startswith("PyTorch execute failure: RuntimeError: ")
    assert caught.value.message.endswith(": forward\n")
    frames = [line for line in caught.value.user_traceback.splitlines() if "File" in line]
    assert len(frames) == 1
    assert "return IN @ torch.ones(3, 3)" in caught.value.user_traceback


def test_an_interrupt_passes_untouched(torch_model, run):
    class Slow(torch.nn.Module):
        def forward(self, IN):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(torch_model(Slow), ones())


def test_an_output_of_another_datatype_is_refused(torch_model, run):
    class Double(torch.nn.Module):
        def forward(self, IN):
            return IN.double()

    with pytest.raises(InvalidArgumentError) as caught:
        run(torch_model(Double), ones())
    assert caught.value.message == (
        "configuration expects datatype TYPE_FP32 for output 'OUT', model provides TYPE_FP64"
    )


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (lambda self, IN: IN.mean(), "output 'OUT' of model 'm' has shape [], expected"),
        (lambda self, IN: IN[:1], "has shape [1,4], expected a first dimension of 2"),
        (lambda self, IN: 3, "output must be of type Tensor"),
        (lambda self, IN: None, "output must be of type Tensor"),
    ],
)
def test_wrong_results_are_errors(torch_model, run, forward, message):
    with pytest.raises(InternalError, match=re.escape(message)):
        run(torch_model(type("Net", (torch.nn.Module,), {"forward": forward})), ones(2))


def test_the_module_s_own_memory_and_the_caller_s_do_not_leave(torch_model, run):
    class Table(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.ones(1, 4))

        def forward(self, IN):
            return self.table, IN

    instance = torch_model(Table, config(["IN"], ["A", "B"]))
    array = ones()
    (found,) = run(instance, Request({"IN": array}, frozenset("AB")))
    found.outputs["A"] += 1
    array += 1
    (again,) = run(instance, Request({"IN": ones()}, frozenset("AB")))
    assert first(again, "A") == 1
    assert first(found, "B") == 1


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16]
)
def test_outputs_are_plain_arrays_that_may_be_changed(torch_model, run, dtype, kind):
    class Cast(torch.nn.Module):
        def forward(self, x):
            return (x + 1).to(dtype).T.contiguous().T

    names = {torch.bool: "BOOL", torch.float16: "FP16", torch.bfloat16: "BF16"}
    name = names.get(dtype, str(dtype).removeprefix("torch.").upper())
    text = DEFAULT.replace('"OUT" data_type: TYPE_FP32', f'"OUT" data_type: TYPE_{name}')
    (found,) = run(torch_model(Cast, text), to_kind(ones(2), kind))
    output = found.outputs["OUT"]
    # numpy itself has no BF16.
    assert kind_of(output) == ("torch" if dtype is torch.bfloat16 else kind)
    tensor = torch.as_tensor(output)
    assert tensor.dtype is dtype
    assert not tensor.is_inference()
    output[:] = 0
    assert tuple(output.shape) == (2, 4)
    assert not tensor.any()


def test_without_batching_tensors_pass_as_they_are(torch_model, run):
    instance = torch_model(Scale, DEFAULT.replace("max_batch_size: 8", ""))
    found = run(instance, Request({"IN": ones()[0]}), Request({"IN": ones()[0]}))
    assert [tuple(r.outputs["OUT"].shape) for r in found] == [(4,), (4,)]


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [("INFERENCE_MODE", "maybe", "boolean"), ("INTER_OP_THREAD_COUNT", "x", "integral number")],
)
def test_a_wrong_parameter_is_named(torch_model, key, value, kind):
    with pytest.raises(
        InvalidArgumentError, match=f"failed to convert '{value}' to {kind}"
    ) as caught:
        torch_model(Scale, DEFAULT + parameter(key, value))
    assert key in caught.value.hint


def test_thread_counts_are_applied_and_0_keeps_torch_s_own(torch_model, run):
    before = torch.get_num_threads()
    try:
        torch_model(Scale, DEFAULT + parameter("INTRA_OP_THREAD_COUNT", "0"))
        assert torch.get_num_threads() == before
        torch_model(Scale, DEFAULT + parameter("INTRA_OP_THREAD_COUNT", "1"))
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def openmp_threads() -> int:
    """Return the number of threads that a matrix product on this thread would take; asks torch for nothing."""
    info = pytest.importorskip("threadpoolctl").threadpool_info()
    # torch's own, or the system's, which it shares with a package that was imported before it.
    return next(
        p["num_threads"] for p in info if "torch" in p["filepath"] or "libgomp.so" in p["filepath"]
    )


class ThreadsOfModule(torch.nn.Module):
    def forward(self, IN: "INT64[1]") -> {"OUT": "INT64[1]"}:  # noqa: F821
        return torch.full_like(IN, openmp_threads())


def threads_of_function(IN: "INT64[1]") -> {"OUT": "INT64[1]"}:  # noqa: F821
    return {"OUT": np.full_like(IN, openmp_threads())}


@pytest.mark.parametrize("model", [ThreadsOfModule, threads_of_function])
def test_torch_s_number_of_threads_holds_on_the_threads_that_execute(model):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        with nt.Server() as server:
            server.load("", model, name="m")
            found = server.submit("m", {"IN": np.zeros((1,), np.int64)}).result(timeout=60)
            assert found["OUT"].tolist() == [3]
    finally:
        torch.set_num_threads(before)


def test_DISABLE_OPTIMIZED_EXECUTION_is_accepted(torch_model, run, tmp_path):
    torch.jit.script(Scale().eval()).save(tmp_path / "model.pt")
    text = DEFAULT + parameter("DISABLE_OPTIMIZED_EXECUTION", "true")
    (found,) = run(torch_model(tmp_path / "model.pt", text), ones())
    assert first(found) == 2


def test_KIND_GPU_without_a_gpu_is_refused(torch_model):
    with pytest.raises(UnsupportedError, match="wants GPU 99"):
        torch_model(Scale, kind="KIND_GPU", device_id=99)


def test_KIND_MODEL_leaves_everything_where_it_is(torch_model, run):
    (found,) = run(torch_model(Scale, kind="KIND_MODEL"), ones())
    assert first(found) == 2


def test_instances_run_side_by_side(torch_model):
    barrier = threading.Barrier(2)

    class Meet(torch.nn.Module):
        def __deepcopy__(self, memo):
            return self

        def forward(self, IN):
            barrier.wait(60)
            return IN + 1

    module = Meet()
    threads = [
        threading.Thread(target=i.execute, args=([Request({"IN": ones()})], Timer()))
        for i in (torch_model(module), torch_model(module, instance="m_0_1"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not barrier.broken


# -- auto-complete ----------------------------------------------------------------------------------


def complete(source, text="max_batch_size: 8", example=None):
    backend = find_backend("pytorch")()
    done = backend.complete_config(
        ModelContext("m", 1, normalize(as_config(text), name="m"), source, example=example)
    )
    return done, {
        t.name: (t.data_type, list(t.dims), getattr(t, "optional", False))
        for t in (*done.input, *done.output)
    }


def test_annotations_of_forward_become_inputs_and_outputs():
    _, tensors = complete(Annotated)
    assert tensors == {
        "x": (11, [1, 8, 8], False),
        "y": (9, [1], True),
        "OUT": (11, [10], False),
    }


EXAMPLE = np.zeros((2, 1, 8, 8), np.float32)


@pytest.mark.parametrize(
    "example", [EXAMPLE, (EXAMPLE,), {"x": EXAMPLE}, torch.from_numpy(EXAMPLE)]
)
def test_an_example_becomes_inputs_and_outputs(example):
    done, tensors = complete(Plain, example=example)
    assert tensors == {"x": (11, [1, 8, 8], False), "OUTPUT__0": (11, [10], False)}
    assert done.max_batch_size == 8


def test_an_example_without_batching_keeps_the_first_dimension():
    done, tensors = complete(Plain, "", EXAMPLE)
    assert tensors == {"x": (11, [-1, 1, 8, 8], False), "OUTPUT__0": (11, [-1, 10], False)}
    assert done.max_batch_size == 0


def test_several_results_of_an_example_are_numbered_or_named():
    example = (np.zeros((1, 4), np.float32), np.zeros((1, 4), np.float32))
    assert list(complete(Pair, example=example)[1]) == ["x", "y", "OUTPUT__0", "OUTPUT__1"]
    assert set(complete(Dict, example=example[0])[1]) == {"x", "A", "B", "unused"}


def test_a_scripted_module_names_its_arguments(tmp_path):
    path = tmp_path / "model.pt"
    torch.jit.script(Plain()).save(path)
    assert list(complete(path, example=EXAMPLE)[1]) == ["x", "OUTPUT__0"]


def test_configured_inputs_stay_and_the_example_fills_the_outputs():
    text = 'max_batch_size: 8 input { name: "IMAGE" data_type: TYPE_FP32 dims: [1, 8, -1] }'
    assert complete(Plain, text, EXAMPLE)[1] == {
        "IMAGE": (11, [1, 8, -1], False),
        "OUTPUT__0": (11, [10], False),
    }


def test_a_complete_configuration_needs_no_example():
    assert set(complete(Scale, DEFAULT)[1]) == {"IN", "OUT"}


@pytest.mark.parametrize(
    ("source", "text", "example", "kind", "message"),
    [
        (Plain, "", None, ConfigError, "nothing says what the inputs of model 'm' are"),
        (
            Annotated,
            config(["x"], ["OUT"]),
            None,
            ConfigError,
            (
                "model 'm', tensor 'x': the model expects dims [1, 8, 8] but the model configuration "
                "specifies dims [4]"
            ),
        ),
        (
            type("Mean", (torch.nn.Module,), {"forward": lambda self, x: x.mean(0, keepdim=True)}),
            "max_batch_size: 8",
            EXAMPLE,
            ConfigError,
            "output 'OUTPUT__0' of model 'm' has shape [1,1,8,8] for an example batch of 2",
        ),
        (
            torch.nn.Sequential(torch.nn.Linear(3, 3)),
            "max_batch_size: 8",
            EXAMPLE,
            ModelError,
            "model 'm' failed on the example batch: RuntimeError",
        ),
        (Plain, "", np.float32(1), ConfigError, "has no dimensions"),
    ],
)
def test_missing_tensors_are_named(source, text, example, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        complete(source, text, example)


# -- on a GPU ---------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_an_instance_on_a_gpu_has_its_own_stream_and_keeps_outputs_there(torch_model, run):
    seen = []

    class Spy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor(2.0))

        def forward(self, IN):
            seen.append((IN.device.type, torch.cuda.current_stream().cuda_stream))
            return IN * self.weight

    one = torch_model(Spy, kind="KIND_GPU")
    two = torch_model(Spy, kind="KIND_GPU", instance="m_0_1")
    for instance in (one, two):
        for given in (ones(), torch.ones(1, 4), torch.ones(1, 4, device="cuda")):
            (found,) = run(instance, given)
            assert found.outputs["OUT"].device.type == "cuda"
            assert first(found) == 2
    assert {device for device, _ in seen} == {"cuda"}
    assert len({stream for _, stream in seen}) == 2
    assert torch.cuda.default_stream().cuda_stream not in {stream for _, stream in seen}


@pytest.mark.gpu
def test_one_copy_of_the_weights_a_device():
    backend = find_backend("pytorch")()
    context = ModelContext("m", 1, normalize(as_config(DEFAULT), name="m"), Scale)
    backend.open(context)
    one, two, host = (
        backend.create_instance(InstanceContext(context, f"m_0_{i}", kind))
        for i, kind in enumerate(("KIND_GPU", "KIND_GPU", "KIND_CPU"))
    )
    assert one._module is two._module
    assert one._module.weight.device.type == "cuda"
    assert host._module.weight.device.type == "cpu"
