"""Fragments of configurations, laid over whole ones."""

from __future__ import annotations

import pytest

from nbtriton.common.errors import ConfigError
from nbtriton.model.config import amend, as_config, is_whole, parse_pbtxt

BASE = """
max_batch_size: 8
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
instance_group [ { count: 2 kind: KIND_CPU } ]
dynamic_batching { preferred_batch_size: [ 2, 4 ] max_queue_delay_microseconds: 100
                   preserve_ordering: true }
parameters { key: "A" value { string_value: "1" } }
parameters { key: "B" value { string_value: "2" } }
"""


@pytest.mark.parametrize(
    ("fragment", "replaced", "by"),
    [
        ("max_batch_size: 0", "max_batch_size: 8", "max_batch_size: 0"),
        ("max_batch_size: 16", "max_batch_size: 8", "max_batch_size: 16"),
        ("instance_group { count: 3 }", "{ count: 2 kind: KIND_CPU }", "{ count: 3 }"),
        ("dynamic_batching { preferred_batch_size: 8 }", "[ 2, 4 ]", "[ 8 ]"),
        (
            "dynamic_batching { max_queue_delay_microseconds: 0 preserve_ordering: false }",
            "max_queue_delay_microseconds: 100\n                   preserve_ordering: true",
            "",
        ),
        ('parameters { key: "B" value { string_value: "3" } }', '"2"', '"3"'),
        ('{"instance_group": [{"count": 3}]}', "{ count: 2 kind: KIND_CPU }", "{ count: 3 }"),
        ('{"max_batch_size": 0}', "max_batch_size: 8", ""),
    ],
)
def test_a_fragment_changes_what_it_names(fragment, replaced, by):
    assert replaced in BASE
    assert amend(parse_pbtxt(BASE), fragment) == parse_pbtxt(BASE.replace(replaced, by))


def test_of_fields_that_exclude_each_other_the_named_one_stays():
    base = parse_pbtxt(BASE + "version_policy { latest { num_versions: 2 } }")
    changed = amend(base, "sequence_batching { } version_policy { specific { versions: [1, 3] } }")
    assert changed.WhichOneof("scheduling_choice") == "sequence_batching"
    assert list(changed.version_policy.specific.versions) == [1, 3]
    assert list(changed.input) == list(base.input)


@pytest.mark.parametrize(
    "text",
    [
        'name: "m"',
        'platform: "pytorch_libtorch"',
        'backend: "python"',
        BASE,
    ],
)
def test_a_whole_configuration_replaces(text):
    assert is_whole(parse_pbtxt(text))
    assert amend(parse_pbtxt("max_batch_size: 99 dynamic_batching { }"), text) == parse_pbtxt(text)


def test_a_bad_fragment_changes_nothing():
    base = parse_pbtxt(BASE)
    with pytest.raises(ConfigError, match="dynamic_baching"):
        amend(base, "dynamic_baching { }")
    assert base == parse_pbtxt(BASE)


def test_an_object_with_model_dump_is_a_configuration():
    class Config:
        """The one method of pydantic's models that is used."""

        def model_dump(self, *, mode: str, exclude_none: bool) -> dict[str, object]:
            assert (mode, exclude_none) == ("json", True)
            return {"name": "m", "max_batch_size": 8}

    assert as_config(Config()) == parse_pbtxt('name: "m" max_batch_size: 8')
    with pytest.raises(ConfigError, match="cannot be read from a type"):
        as_config(Config)
