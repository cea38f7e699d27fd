"""Write docs/configuration.md, the effect of every setting, from the code.

    python scripts/configuration.py            # write it
    python scripts/configuration.py --check    # exit status 1 if it is not current

Each section is a function in `SECTIONS` that returns lines of Markdown.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from nbtriton.model.config import field_effects
from nbtriton.serving.frontends.serve.flags import Flag, groups

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


def _row(flag: Flag) -> str:
    value = f"`{flag.kind.shown}`".replace("|", "\\|") if flag.kind.shown else ""
    notes = [flag.help]
    if flag.default not in (None, "", False, True):
        notes.append(f"`{flag.default}` by default")
    if flag.kind.shown == "true|false" and flag.default is not None:
        notes.append(f"`{str(flag.default).lower()}` by default")
    if flag.repeated:
        notes.append("may be repeated")
    if flag.ours:
        notes.append("not in 2.51")
    return f"| `--{flag.name}` | {value} | {_effect_of(flag)} | {'; '.join(notes)} |"


def _effect_of(flag: Flag) -> str:
    if flag.effect:
        return "has effect"
    return "checked only" if flag.kind.checks else "reported as ignored"


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


SECTIONS: Sequence[Callable[[], list[str]]] = (server_flags, model_configuration)


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
