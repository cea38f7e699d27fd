"""Write docs/configuration.md, the effect of every setting, from the code.

    python scripts/configuration.py            # write it
    python scripts/configuration.py --check    # exit status 1 if it is not current

Each section is a function in `SECTIONS` that returns lines of Markdown.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nbtriton.extensions.tuning import TUNE
from nbtriton.lab.perf.settings import PERF
from nbtriton.lab.simulate.settings import PROFILE
from nbtriton.model.config import ModelConfig, ignored
from nbtriton.model.config._proto import is_map
from nbtriton.options.repository import EXPORT, REPOSITORY
from nbtriton.options.server import SERVER
from nbtriton.options.table import Option
from nbtriton.serving.frontends.flags import NO_EFFECT, groups
from nbtriton.serving.settings import ENDPOINTS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"

_HEAD = """\
<!-- Made by scripts/configuration.py: change the code, then run it. -->

# Settings and their effect

No setting is ignored silently. A setting

- **has effect**: it does what it does in Triton 2.51;
- is **checked only**: a wrong value is refused as Triton refuses it; a right one changes nothing,
  which is reported;
- is **reported as ignored**: any value is accepted, and reported to change nothing.
"""


# Where the options of a table are given.
TABLES: Mapping[str, Mapping[str, Option]] = {
    "Options of a server: `nt.server(…)`, `%triton_server`, `nbtriton serve`, `c.NBTriton`": SERVER,
    "Options of a repository: `server.load_repository(…)`, `%triton_load`, `nbtriton serve`": REPOSITORY,
    "Options of an export: `server.export(…)`, `%triton_export`, `nbtriton export`": EXPORT,
    "Options of endpoints: `server.serve(…)`, `%triton_serve`, `nbtriton serve`": ENDPOINTS,
    "Options of a measurement: `nt.perf(…)`, `%triton_perf`, `nbtriton perf`; of a prediction: `nt.whatif(…)`, `%triton_whatif`": PERF,
    "Options of a profile: `nt.profile(…)`, `%triton_profile`": PROFILE,
    "Options of a search: `nt.tune(…)`, `%triton_tune`": TUNE,
}


def python_options() -> list[str]:
    """Return the tables of the options that Python, the magics and ``nbtriton serve`` share."""
    lines = []
    for title, table in TABLES.items():
        lines += [
            f"## {title}",
            "",
            "| Python | on a line | value | default | |",
            "|---|---|---|---|---|",
        ]
        for name, one in table.items():
            value = one.value or "|".join(one.choices)
            flags = ", ".join(f"`{flag}`" for flag in one.flags.split())
            shown = (
                one.unset
                if one.default in (None, ())
                else f"`{one.default}`"
                if one.default != ""
                else ""
            )
            lines.append(f"| `{name}` | {flags} | {_code(value)} | {shown} | {_text(one)} |")
        lines.append("")
    return lines[:-1]


def _code(value: str) -> str:
    return f"`{value}`".replace("|", "\\|") if value else ""


def _text(option: Option) -> str:
    return option.help.replace("%%", "%").replace("|", "\\|")


def server_flags() -> list[str]:
    """Return the table of the flags of ``nbtriton serve``."""
    lines = [
        "## Server flags",
        "",
        "`nbtriton serve` takes every flag of tritonserver 2.51. The log reports those without effect.",
        "",
        "| flag | value | effect | |",
        "|---|---|---|---|",
    ]
    for title, flags in groups().items():
        if title:
            lines.append(f"| **{title}** | | | |")
        lines += [_row(flag) for flag in flags]
    return lines


def _row(flag: Option) -> str:
    notes, default = [_text(flag)], flag.default
    if flag.value == "true|false" and default is not None:
        default = str(default).lower()
    told = default in (None, "", (), False, True) or f"({default})" in flag.help
    if not told:
        notes.append(f"`{default}` by default")
    if flag.action == "append":
        notes.append("may be repeated")
    if flag.ours:
        notes.append("not in 2.51")
    (name,) = flag.long
    return f"| `--{name}` | {_code(flag.value)} | {_effect_of(flag)} | {'; '.join(notes)} |"


def _effect_of(flag: Option) -> str:
    if flag.long[0] not in NO_EFFECT:
        return "has effect"
    return "reported as ignored" if flag.read is str else "checked only"


_RUNTIME = "refused unless it names the backend's own library, such as libtriton_python.so"
# Refused where it is set, as Triton does: only its TensorRT backend has it.
_CHECKED = ("input.is_shape_tensor", "input.is_non_linear_format_io",
            "output.is_shape_tensor", "output.is_non_linear_format_io",
            "instance_group.profile")  # fmt: skip
# Since 2.51.
_NEWER = ("model_metrics", "ensemble_scheduling.max_inflight_requests")


class FieldEffect(NamedTuple):
    """A field of ModelConfig and its effect, one of `EFFECTS`."""

    path: str
    effect: str
    note: str


EFFECTS = ("has effect", "checked only", "reported as ignored")


def field_effects() -> list[FieldEffect]:
    """Return the effect of every field of ModelConfig, in the order of the message."""
    found = list(_effects(ModelConfig.DESCRIPTOR, (), None))
    after = next(i for i, one in enumerate(found) if one.path.startswith("parameters"))
    for key, reason in sorted(ignored.PARAMETERS.items()):
        found.insert(after + 1, FieldEffect(f"parameters[{key}]", "checked only", reason))
    note = f"of python; else ignored: {ignored.NO_ENVIRONMENT}"
    found.insert(
        after + 1, FieldEffect(f"parameters[{ignored.EXECUTION_ENV_PATH}]", "has effect", note)
    )
    return found


def _effects(
    message: Any, above: tuple[str, ...], outer: FieldEffect | None
) -> Iterator[FieldEffect]:
    """Yield every field that holds a value; a field without an entry has the entry of the message around it."""
    for field in message.fields:
        at = (*above, field.name)
        own = _effect(".".join(at))
        effect = outer._replace(path=own.path) if outer is not None and not own.note else own
        inner = field.message_type
        if inner is not None and is_map(field):
            inner = inner.fields_by_name["value"].message_type
        if inner is not None and inner.fields:
            yield from _effects(inner, at, effect)
        else:
            yield effect


def _effect(path: str) -> FieldEffect:
    has, checked, unused = EFFECTS
    if path in _CHECKED:
        return FieldEffect(path, checked, "only TensorRT has it: refused where it is set")
    if path == "runtime":
        return FieldEffect(path, checked, _RUNTIME)
    if path == "optimization.cuda.graphs":
        return FieldEffect(
            path, has, f"of pytorch on a GPU; else ignored: {ignored.NEVER['optimization.cuda']}"
        )
    if path in ignored.ONNXRUNTIME:
        return FieldEffect(path, has, f"of onnxruntime; else ignored: {ignored.NEVER[path]}")
    newer = ("not in 2.51",) if path in _NEWER else ()
    if path in ignored.NEVER or path.endswith("put_pinned_memory"):
        return FieldEffect(
            path, unused, "; ".join((ignored.NEVER.get(path, ignored.PINNED), *newer))
        )
    elsewhere = {**ignored.PYTHON, **dict(ignored.WITHOUT.values())}
    if path in elsewhere:
        return FieldEffect(path, has, f"else ignored: {elsewhere[path]}")
    return FieldEffect(path, has, "; ".join(newer))


def model_configuration() -> list[str]:
    """Return the table of the fields of ModelConfig."""
    return [
        "## Model configuration",
        "",
        "Every field of `config.pbtxt`. A field without effect is reported when a model is loaded: under the",
        "cell, as a `ConfigWarning` in Python, in `nbtriton validate`, in the log, and in the column",
        "`ignored` of `%triton_status`.",
        "",
        "| field | effect | |",
        "|---|---|---|",
        *(f"| `{field.path}` | {field.effect} | {field.note} |" for field in field_effects()),
    ]


SECTIONS: Sequence[Callable[[], list[str]]] = (python_options, server_flags, model_configuration)


def page() -> str:
    """Return the text of the page."""
    return "\n".join([_HEAD, *("\n".join(section()) + "\n" for section in SECTIONS)])


def main(argv: Sequence[str]) -> int:
    """Write the page, or with ``--check`` compare it."""
    if argv[1:] == ["--check"]:
        if PAGE.read_text() == page():
            return 0
        print(f"{PAGE.name} is not what the code says: run python scripts/configuration.py")
        return 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
