"""Write docs/configuration.md, the effect of every setting, from the code.

    python scripts/configuration.py            # write it
    python scripts/configuration.py --check    # exit status 1 if it is not current

Each section is a function in `SECTIONS` that returns lines of Markdown.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from nbtriton.extensions.tuning.options import TUNE
from nbtriton.lab.perf.settings import PERF
from nbtriton.lab.simulate.settings import PROFILE
from nbtriton.model.config import field_effects
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
