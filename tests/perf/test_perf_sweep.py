"""Configurations of a sweep: combinations of options, and options on a normalised model."""

from __future__ import annotations

import pytest

import nbtriton as nt
from nbtriton.common.errors import UnavailableError
from nbtriton.lab.perf.sweep import Configurator, combinations, with_options
from nbtriton.model.config import normalize, parse_pbtxt


def test_no_option_is_one_configuration_that_changes_nothing():
    assert combinations() == ({},)


def test_combinations_are_a_cross_product_the_last_changing_fastest():
    found = combinations(instances=[1, 2], max_queue_delay_us=[0, 100])
    assert found == (
        {"instances": 1, "max_queue_delay_us": 0},
        {"instances": 1, "max_queue_delay_us": 100},
        {"instances": 2, "max_queue_delay_us": 0},
        {"instances": 2, "max_queue_delay_us": 100},
    )
    assert combinations(instances=2) == ({"instances": 2},)


def test_without_the_dynamic_batcher_its_options_fall_together():
    found = combinations(dynamic_batching=[False, True], max_queue_delay_us=[0, 100])
    assert found == (
        {"dynamic_batching": False},
        {"dynamic_batching": True, "max_queue_delay_us": 0},
        {"dynamic_batching": True, "max_queue_delay_us": 100},
    )


def test_preferred_is_one_list_or_several():
    assert combinations(preferred=4) == ({"preferred": (4,)},)
    assert combinations(preferred=[4, 8]) == ({"preferred": (4, 8)},)
    assert combinations(preferred=[[4], [4, 8]]) == ({"preferred": (4,)}, {"preferred": (4, 8)})


def model(batching: str):
    text = (
        f"name:'m' backend:'python' max_batch_size:8 {batching} "
        "input[{name:'X' data_type:TYPE_FP32 dims:[4]}] "
        "output[{name:'Y' data_type:TYPE_FP32 dims:[4]}]"
    )
    return normalize(parse_pbtxt(text), name="m")


def preferred(config):
    return list(config.dynamic_batching.preferred_batch_size)


def test_the_preferred_size_that_normalising_set_follows_max_batch_size():
    config = model("dynamic_batching{}")
    assert preferred(config) == [8]
    assert preferred(with_options(config, {"max_batch_size": 16})) == [16]
    assert preferred(with_options(config, {"max_batch_size": 4})) == [4]


def test_preferred_sizes_that_no_longer_fit_are_left_out():
    config = model("dynamic_batching{preferred_batch_size:[2,4,6]}")
    assert preferred(with_options(config, {"max_batch_size": 4})) == [2, 4]
    assert preferred(with_options(config, {"max_batch_size": 16})) == [2, 4, 6]
    assert preferred(with_options(config, {"max_batch_size": 1})) == [1]
    chosen = {"max_batch_size": 4, "preferred": (3,)}
    assert preferred(with_options(config, chosen)) == [3]


def test_a_model_without_the_batcher_does_not_get_one_from_a_batch_size():
    changed = with_options(model(""), {"max_batch_size": 4})
    assert not changed.HasField("dynamic_batching")
    off = with_options(
        model("dynamic_batching{}"), {"max_batch_size": 4, "dynamic_batching": False}
    )
    assert not off.HasField("dynamic_batching")


def test_a_model_that_somebody_loads_meanwhile_stays_as_it_is():
    """A sweep in the background, and the model's cell is run again."""
    config = """max_batch_size: 8 instance_group {{ count: {} kind: KIND_CPU }}
        input {{ name: "IN" data_type: TYPE_FP32 dims: 1 }}
        output {{ name: "OUT" data_type: TYPE_FP32 dims: 1 }}"""
    two, three = {"instances": 2}, {"instances": 3}
    with nt.Server(gpus=()) as server:
        server.load(config.format(1), lambda IN: {"OUT": IN}, name="m")  # noqa: N803
        undisturbed = Configurator(server, "m", [two])
        undisturbed.apply(two)
        undisturbed.restore()
        assert server.config("m").instance_group[0].count == 1
        configurator = Configurator(server, "m", [two, three])
        configurator.apply(two)
        server.load(config.format(5), lambda IN: {"OUT": IN}, name="m")  # noqa: N803
        with pytest.raises(UnavailableError, match="'m' was loaded or unloaded while"):
            configurator.apply(three)
        configurator.restore()
        assert server.config("m").instance_group[0].count == 5
        configurator = Configurator(server, "m", [two])
        configurator.apply(two)
        server.unload("m", timeout_s=60)
        configurator.restore()
        assert not server.is_ready("m")
