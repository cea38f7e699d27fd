"""Configurations as text, JSON and dict: what is accepted, what is said about the rest, no loss."""

from __future__ import annotations

import gc
import json
import math
import weakref
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message_factory import GetMessageClass
from hypothesis import example, given
from hypothesis import strategies as st

from nbtriton.common.errors import ConfigError, InvalidArgumentError
from nbtriton.model.config import (
    ModelConfig,
    as_config,
    format_pbtxt,
    from_dict,
    looks_like_pbtxt,
    normalize,
    parse_pbtxt,
    to_dict,
    to_json,
    to_reported_dict,
)
from nbtriton.model.config._proto import messages
from tests.config.texts import TEXTS


def kinds(message: Any, found: dict[str, weakref.ref[Any]]) -> dict[str, weakref.ref[Any]]:
    """Find the classes of a message and of what it may contain."""
    if message.full_name not in found:
        found[message.full_name] = weakref.ref(GetMessageClass(message))
        for field in message.fields:
            if field.message_type is not None:
                kinds(field.message_type, found)
    return found


@pytest.mark.medium
def test_the_collector_frees_no_class_of_a_message() -> None:
    """protobuf would hand it out while it is being freed, and end the process."""
    found: dict[str, weakref.ref[Any]] = {}
    for kind in (ModelConfig, *vars(messages).values()):
        kinds(kind.DESCRIPTOR, found)
    gc.collect()
    assert not [name for name, one in found.items() if one() is None]


# --- what is accepted ------------------------------------------------------------------------

F5 = {
    "comments": "# a\nname: 'm' # b\n#c",
    "single quotes": "name: 'm'",
    "adjacent strings": "name: 'm' \"\" ''",
    "adjacent strings on two lines": "name: ''\n  'm'",
    "escapes": r'name: "\x6d"',
    "octal escapes": r'name: "\155"',
    "separators": "name: 'm', max_batch_size: 0;",
    "a hash in a string": "name: 'm' platform: '#'",
}


@pytest.mark.parametrize("text", F5.values(), ids=F5.keys())
def test_F5_text_forms(text: str) -> None:
    assert parse_pbtxt(text).name == "m"


@pytest.mark.parametrize(
    "text",
    [
        "input { name: 'A' dims: 4 dims: 5 } input { name: 'B' }",
        "input [ { name: 'A' dims: [ 4, 5 ] }, { name: 'B' } ]",
        "input: [ { name: 'A' dims: [ 4, 5 ] }, { name: 'B' } ]",
        "input [ { name: 'A' dims: [ 4, 5 ] } ] input [ { name: 'B' } ]",
        "input < name: 'A' dims: 0x4 dims: 05 > input < name: 'B' >",
        "input [ { name: 'A', dims: [ 4, 5 ], }, { name: 'B', } ],",
        "input [ { name: 'A' dims: [ 4 # first\n , # or last\n 5 ]; }, { name: 'B' } ]",
        "input[{name:'A' dims:[4,5]},{name:'B'}]",
    ],
)
def test_F5_lists(text: str) -> None:
    config = parse_pbtxt(text)
    assert [(i.name, list(i.dims)) for i in config.input] == [("A", [4, 5]), ("B", [])]


@pytest.mark.parametrize("true", ["true", "t", "1", "True"])
def test_F5_booleans(true: str) -> None:
    assert parse_pbtxt(f"input {{ optional: {true} }}").input[0].optional


def test_F5_enum_by_number_and_map_entries() -> None:
    config = parse_pbtxt(
        'input { data_type: 11 } parameters: { key: "a" value: { string_value: "x", } , }\n'
        'parameters { key: "b", value { string_value: "y" } }'
    )
    assert to_dict(config)["input"] == [{"data_type": "TYPE_FP32"}]
    assert {key: value.string_value for key, value in config.parameters.items()} == {
        "a": "x",
        "b": "y",
    }


def test_one_line_instance_group() -> None:
    (group,) = parse_pbtxt("instance_group[{kind:KIND_GPU}]").instance_group
    assert to_dict(parse_pbtxt("instance_group[{kind:KIND_GPU}]")) == {
        "instance_group": [{"kind": "KIND_GPU"}]
    }
    assert group.count == 0


def test_F3_empty_text_is_an_empty_configuration() -> None:
    assert parse_pbtxt("") == parse_pbtxt(" \n# nothing\n") == ModelConfig()


def test_commas_and_hashes_inside_strings_stay() -> None:
    text = 'parameters { key: "a, ]" value { string_value: "x,] # y" } }'
    assert dict(to_dict(parse_pbtxt(text))["parameters"]) == {"a, ]": {"string_value": "x,] # y"}}


def test_bytes_with_foreign_comments() -> None:
    assert parse_pbtxt(b"# caf\xe9 \xff\nname: 'm' # \xfe\n").name == "m"
    assert parse_pbtxt("\ufeffname: 'm'".encode()).name == "m"


def test_bytes_with_foreign_values() -> None:
    with pytest.raises(ConfigError, match="UTF-8") as caught:
        parse_pbtxt(b"# \xff\nname: 'm\xff'\n")
    assert (caught.value.line, caught.value.column) == (2, 9)


# --- what is said about the rest ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "column", "field", "detail", "hint"),
    [
        (
            'name: "m"\nmax_batch_sise: 4\n',
            2,
            15,
            "max_batch_sise",
            'Message type "inference.ModelConfig" has no field named "max_batch_sise".',
            "did you mean 'max_batch_size'?",
        ),
        (
            "dynamic_batching {\n  preferred_batch_sizes: [ 4 ]\n}",
            2,
            24,
            "dynamic_batching.preferred_batch_sizes",
            'Message type "inference.ModelDynamicBatching" has no field named "preferred_batch_sizes".',
            "did you mean 'preferred_batch_size'?",
        ),
        (
            "priority_levels: 2",
            1,
            16,
            "priority_levels",
            'Message type "inference.ModelConfig" has no field named "priority_levels".',
            "'priority_levels' belongs elsewhere: dynamic_batching.priority_levels",
        ),
        (
            "input [ { name: 'A',\n data_type: FP32 } ]",
            2,
            18,
            "input.data_type",
            'Unknown enumeration value of "FP32" for field "data_type".',
            "did you mean 'TYPE_FP32'?",
        ),
        (
            "input { data_type: TYPE_BYTES }",
            1,
            31,
            "input.data_type",
            'Unknown enumeration value of "TYPE_BYTES" for field "data_type".',
            "did you mean 'TYPE_STRING'?",
        ),
        (
            "input { data_type: TYPE_FLOAT }",
            1,
            31,
            "input.data_type",
            'Unknown enumeration value of "TYPE_FLOAT" for field "data_type".',
            "did you mean 'TYPE_FP32'?",
        ),
        (
            "output { data_type: float64 }",
            1,
            29,
            "output.data_type",
            'Unknown enumeration value of "float64" for field "data_type".',
            "did you mean 'TYPE_FP64'?",
        ),
        (
            "output { data_type: TYPE_LONG }",
            1,
            31,
            "output.data_type",
            'Unknown enumeration value of "TYPE_LONG" for field "data_type".',
            "did you mean 'TYPE_INT64'?",
        ),
        (
            "output { data_type: 'TYPE_FP32' }",
            1,
            21,
            "output.data_type",
            "Expected integer or identifier, got: 'TYPE_FP32'",
            "write it without quotes: TYPE_FP32",
        ),
        (
            "instance_group { kind: KIND_GPUS }",
            1,
            34,
            "instance_group.kind",
            'Unknown enumeration value of "KIND_GPUS" for field "kind".',
            "did you mean 'KIND_GPU'?",
        ),
        (
            "instance_group { kind: GPU }",
            1,
            28,
            "instance_group.kind",
            'Unknown enumeration value of "GPU" for field "kind".',
            "did you mean 'KIND_GPU'?",
        ),
        (
            "name: 'a'\nname: 'b'",
            2,
            5,
            "name",
            'Non-repeated field "name" is specified multiple times.',
            "'name' is not a list: give it once",
        ),
        ("name: m", 1, 7, "name", "Expected string, got: m", 'write it in quotes: "m"'),
        (
            "name: 'm\n'",
            1,
            9,
            "name",
            "String literals cannot cross line boundaries.",
            "the quote that begins this string is not closed on its line",
        ),
        (
            "dynamic_batching {}\nsequence_batching {}",  # S1
            2,
            19,
            "sequence_batching",
            'Field "sequence_batching" is specified along with field "dynamic_batching", another member of oneof "scheduling_choice".',
            "keep either 'sequence_batching' or 'dynamic_batching'",
        ),
        (
            "max_batch_size: 4\ninput {\n name: 'a'\n",
            4,
            1,
            "input",
            "Expected identifier, got: ",
            "the '{' of 'input' in line 2 is never closed: add '}'",
        ),
        (
            "input [\n { name: 'a' dims: [ 4 } ]",
            2,
            24,
            "input.dims",
            'Expected ",", found "}".',
            "the '[' of 'dims' in line 2 is open here: close it with ']' first",
        ),
        (
            "input {\n name: 'a'\noutput { name: 'b' }",
            3,
            8,
            "input.output",
            'Message type "inference.ModelInput" has no field named "output".',
            "the '{' of 'input' in line 1 is open here: close it with '}' before 'output'",
        ),
        (
            "input [\n { name: 'a' }\n { name: 'b' }\n]",
            3,
            2,
            "input",
            'Expected ",", found "{".',
            "the '[' of 'input' in line 1 is open here: put a comma, or close it with ']'",
        ),
        (
            "input [\n { name: 'a' },\n]",
            3,
            1,
            "input",
            'Expected "{", found "]".',
            "remove the comma before ']'",
        ),
        (
            "max_batch_size: 4 }",
            1,
            19,
            "",
            "Expected identifier, got: }",
            "no bracket is open that '}' would close",
        ),
        ("max_batch_size: 'x'", 1, 17, "max_batch_size", "Expected integer, got: 'x'", ""),
        (
            "max_batch_size: 99999999999",
            1,
            17,
            "max_batch_size",
            "Integer out of range (99999999999)",
            "",
        ),
    ],
)
def test_F1_errors_have_a_place_and_a_hint(
    text: str, line: int, column: int, field: str, detail: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_pbtxt(text, source="models/m/config.pbtxt")
    error = caught.value
    assert error.message == (
        f"failed to read text proto from models/m/config.pbtxt: {line}:{column}: {detail}"
    )
    assert (error.field, error.hint) == (field, hint)
    assert isinstance(error, InvalidArgumentError)


def test_columns_count_characters_of_the_text() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_pbtxt("name: '#', input [ { dims: [ 1 ], } ]\n# x\n\té", source="f")
    # A tab goes to the next multiple of 8, as protobuf counts; for who shows the line it is one.
    assert (caught.value.line, caught.value.column) == (3, 2)
    assert caught.value.message.endswith("3:9: Interpreting non ascii codepoint 195.")


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("max_batch_size: 4\n  dynamic_baching { }", 2, 3),
        ("input { name: 'é'\tdata_type:\nTYPE_FLOAT }", 2, 1),
        ("input { name: 'é'\tdata_types: 3 }", 1, 19),
        ("name: 'a' name: 'b'", 1, 11),
        ("input { optional: yes }", 1, 19),
        ("input { dims: 4,5 }", 1, 17),
    ],
)
def test_F1_the_place_is_that_of_the_name(text: str, line: int, column: int) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_pbtxt(text)
    assert (caught.value.line, caught.value.column) == (line, column)


@pytest.mark.parametrize("text", TEXTS)
def test_F1_odd_texts_are_read_as_tritonserver_reads_them(text: str) -> None:
    said = ""
    try:
        parse_pbtxt(text, source="f")
    except ConfigError as error:
        said = error.message.removeprefix("failed to read text proto from f: ")
    assert said == TEXTS[text]


@pytest.mark.parametrize(
    ("text", "is_pbtxt"),
    [
        ('name: "e" platform: "ensemble"', True),
        ("# head\nensemble_scheduling {", True),
        ("input [ { name: 1 } ]", True),
        ("output: 3", True),
        ('plaform: "ensemble"', True),
        ("OUT = model(IN=x)", False),
        ("input = model(IN=x)", False),
        ("name := 3", False),
        ("", False),
    ],
)
def test_a_text_is_known_by_its_first_field(text: str, is_pbtxt: bool) -> None:
    assert looks_like_pbtxt(text) is is_pbtxt


WORDS = (
    "name : max_batch_size input output dims data_type TYPE_FP32 { } [ ] < > , ; ' \" # 0x 0 -1 1e9 "
    "nan 4 true \\ \n parameters key value string_value 1.5f [a.b] \u2028 instance_group "
    "sequence_batching state initial_state zero_data \x00 \r \ud800"
)


@pytest.mark.medium
@given(
    st.one_of(
        st.text(),
        st.lists(st.sampled_from(WORDS.split(" "))).map(" ".join),
    )
)
@example("input { dims: -  }")
@example('name: "\\ud800"')
@example('name: "\\377"')
def test_any_text_gives_a_message_or_a_config_error(text: str) -> None:
    for form in (text, text.encode("utf-8", "surrogatepass")):
        try:
            config = parse_pbtxt(form)
        except ConfigError:
            continue
        assert parse_pbtxt(format_pbtxt(config)) == config


@given(st.binary())
def test_any_bytes_give_a_message_or_a_config_error(data: bytes) -> None:
    for form in (data, b"{" + data):
        try:
            assert isinstance(as_config(form), ModelConfig)
        except ConfigError:
            continue


@pytest.mark.parametrize(
    "text",
    [
        "{name: 'a\"b', backend: \"c'd\"}",
        "{name: 'a\\\"b', \"backend\": 'c\\'d',}",
        "{ name:'a\\u0022b' , backend : 'c\\u0027d' , input: [ ], }",
    ],
)
def test_json_may_have_the_forms_that_protobuf_takes(text: str) -> None:
    config = as_config(text)
    assert (config.name, config.backend) == ('a"b', "c'd")
    assert as_config("{input: [{name: 'true: 1, ]', dims: [1, 2,],},]}").input[0].dims == [1, 2]
    assert (
        as_config('{parameters: {a: {string_value: "x\ny"}}}').parameters["a"].string_value
        == "x\ny"
    )


@pytest.mark.parametrize(
    "text", ["{name: a}", "{// c\nname: 'a'}", "{parameters: {true: {}}}", "{2: 1}", "{name: 'a}", "{name: 'a'} x"]
)  # fmt: skip
def test_other_json_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        as_config(text)
    assert caught.value.line


# --- round trips ---------------------------------------------------------------------------------

_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


def _scalars(field: Any) -> st.SearchStrategy[Any]:
    if field.enum_type is not None:
        return st.sampled_from([value.number for value in field.enum_type.values])
    if field.cpp_type in _INTEGERS:
        return st.integers(*_INTEGERS[field.cpp_type])
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return st.text(max_size=6)
    is_float32 = field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT
    return st.floats(allow_nan=False, width=32 if is_float32 else 64)


@st.composite
def _fill(draw: st.DrawFn, message: Any) -> None:
    fields = list(message.DESCRIPTOR.fields)
    chosen = st.lists(st.sampled_from(fields), max_size=6, unique_by=lambda field: field.name)
    for field in draw(chosen) if fields else ():
        value = getattr(message, field.name)
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if is_map:
            keys = draw(st.lists(_scalars(field.message_type.fields_by_name["key"]), max_size=2))
            item = field.message_type.fields_by_name["value"]
            for key in keys:
                if item.message_type is not None:
                    draw(_fill(value[key]))
                else:
                    value[key] = draw(_scalars(item))
        elif hasattr(value, "add"):
            for _ in range(draw(st.integers(0, 2))):
                draw(_fill(value.add()))
        elif hasattr(value, "append"):
            value.extend(draw(st.lists(_scalars(field), max_size=3)))
        elif field.message_type is not None:
            value.SetInParent()
            draw(_fill(value))
        else:
            setattr(message, field.name, draw(_scalars(field)))


@st.composite
def configs(draw: st.DrawFn) -> ModelConfig:
    config = ModelConfig()
    draw(_fill(config))
    return config


def same(one: ModelConfig, other: ModelConfig) -> bool:
    """Compare by bytes: presence counts, and so does the sign of zero."""
    return one.SerializeToString(deterministic=True) == other.SerializeToString(deterministic=True)


@pytest.mark.medium
@given(configs())
def test_every_form_gives_the_same_message_back(config: ModelConfig) -> None:
    assert same(parse_pbtxt(format_pbtxt(config)), config)
    assert same(from_dict(to_dict(config)), config)
    assert same(as_config(to_json(config)), config)
    assert same(as_config(config), config)
    assert same(from_dict(json.loads(json.dumps(to_reported_dict(config)))), config)


def test_floats_without_a_json_form() -> None:
    config = parse_pbtxt("sequence_batching { direct { minimum_slot_utilization: inf } }")
    assert same(as_config(to_json(config)), config)
    config.sequence_batching.direct.minimum_slot_utilization = math.nan
    back = as_config(to_json(config)).sequence_batching.direct.minimum_slot_utilization
    assert math.isnan(back)


def test_floats_are_written_short() -> None:
    config = parse_pbtxt("sequence_batching { direct { minimum_slot_utilization: 0.1 } }")
    assert to_dict(config)["sequence_batching"]["direct"]["minimum_slot_utilization"] == 0.1
    assert "minimum_slot_utilization: 0.1\n" in format_pbtxt(config)


def test_as_config_copies_a_message() -> None:
    config = ModelConfig(name="m")
    as_config(config).name = "other"
    assert config.name == "m"


def test_dicts_may_hold_any_sequence_mapping_and_integer() -> None:
    np = pytest.importorskip("numpy")
    config = as_config(
        {
            "name": "m",
            "max_batch_size": np.int64(8),
            "input": ({"name": "IN", "data_type": "TYPE_FP32", "dims": (np.int32(4), -1)},),
            "dynamic_batching": {"priority_queue_policy": {1: {"timeout_action": "DELAY"}}},
        }
    )
    assert config.max_batch_size == 8
    assert list(config.input[0].dims) == [4, -1]
    assert list(config.dynamic_batching.priority_queue_policy) == [1]


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ({"max_batch_sise": 4}, "did you mean 'max_batch_size'?"),
        ('{"max_batch_sise": 4}', "did you mean 'max_batch_size'?"),
        ({"input": [{"data_type": "FP32"}]}, "did you mean 'TYPE_FP32'?"),
        ({"max_batch_size": "many"}, ""),
        ({"input": 3}, ""),
        ({"name": object()}, ""),
        ('{"name": ', "text that starts with '{' is read as JSON"),
        (17, "give pbtxt text, JSON text, a dict, a pydantic model or a ModelConfig"),
    ],
)
def test_other_forms_that_cannot_be_read(value: Any, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        as_config(value)
    assert caught.value.hint == hint
    assert "\n" not in caught.value.message


# --- merging and reporting -----------------------------------------------------------------------


def test_J1_numbers_as_the_real_server_writes_them() -> None:
    reported = to_reported_dict(
        parse_pbtxt(
            """
            optimization { cuda { graph_spec { input { key: "IN" value { dim: [ 4 ] } } } } }
            sequence_batching {
              state { dims: [ 4 ] initial_state { dims: [ 4 ] } }
              control_input { control { fp32_false_true: [ 0, 0.1, 1000000, 16777216, 0.33333334 ] } }
            }
            instance_group { secondary_devices { device_id: 3 } }
            """
        )
    )
    graph_spec = reported["optimization"]["cuda"]["graph_spec"][0]
    assert graph_spec["input"] == {"IN": {"dim": ["4"]}}
    state = reported["sequence_batching"]["state"][0]
    assert (state["dims"], state["initial_state"][0]["dims"]) == ([4], ["4"])
    assert reported["instance_group"][0]["secondary_devices"][0]["device_id"] == "3"
    (control,) = reported["sequence_batching"]["control_input"][0]["control"]
    assert repr(control["fp32_false_true"]) == "[0, 0.1, 1000000.0, 16777216, 0.333333343]"


def test_J1_J5_reported_configuration() -> None:
    config = normalize(
        parse_pbtxt(
            "backend: 'python' max_batch_size: 8 dynamic_batching { priority_levels: 2 "
            "default_priority_level: 1 priority_queue_policy { key: 2 value { } } }\n"
            "input { name: 'IN' data_type: TYPE_FP32 dims: -1 }"
        ),
        name="m",
    )
    reported = to_reported_dict(config)
    assert list(reported) == [
        "name",
        "platform",
        "backend",
        "runtime",
        "version_policy",
        "max_batch_size",
        "input",
        "output",
        "batch_input",
        "batch_output",
        "optimization",
        "dynamic_batching",
        "instance_group",
        "default_model_filename",
        "cc_model_filenames",
        "metric_tags",
        "parameters",
        "model_warmup",
    ]
    assert reported["input"] == [
        {
            "name": "IN",
            "data_type": "TYPE_FP32",
            "format": "FORMAT_NONE",
            "dims": [-1],
            "is_shape_tensor": False,
            "allow_ragged_batch": False,
            "optional": False,
            "is_non_linear_format_io": False,
        }
    ]
    assert reported["dynamic_batching"] == {
        "preferred_batch_size": [8],
        "max_queue_delay_microseconds": 0,
        "preserve_ordering": False,
        "priority_levels": 2,
        "default_priority_level": 1,
        "priority_queue_policy": {
            "2": {
                "timeout_action": "REJECT",
                "default_timeout_microseconds": 0,
                "allow_timeout_override": False,
                "max_queue_size": 0,
            }
        },
    }
    assert reported["version_policy"] == {"latest": {"num_versions": 1}}
