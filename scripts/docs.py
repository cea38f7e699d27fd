"""Build the documentation site: ``make docs``, or ``scripts/docs.py [--sources DIR]``.

The repository's pages are copied unchanged, so that their links are valid, with a page for every magic (from its
help), every module of the Python interface (from its docstrings) and every notebook. Warnings are errors.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "docs"
LITE = ROOT / "build" / "lite" / "html"
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
# Public modules.
MODULES = {
    "nbtriton": "What a notebook or a program uses.",
    "nbtriton.types": "What calls return and take.",
    "nbtriton.errors": "Errors, by Triton's status.",
    "nbtriton.extensions.lessons": "Figures and exercises.",
    "nbtriton.model.config": "Configurations: read, completed, checked, written.",
    "nbtriton.serving.frontends": "Endpoints for clients.",
    "nbtriton.backends": "What a backend of your own extends.",
}
# Names in `__all__` for use within nbtriton only.
OWN = {
    "nbtriton.model.config": {
        "Dumpable", "STRATEGY_PATH", "all_input_specs", "all_output_specs", "apply_options",
        "complete_from", "control_types", "copy_config", "enum_name", "equal_but_for_instances",
        "is_ensemble", "is_whole", "isolation_of", "looks_like_pbtxt", "mark_stand_in",
        "normalize_instance_groups", "output_types", "reads_only", "runs_as_graph", "scheduling_choice",
        "stand_in_reason", "state_inputs", "state_outputs", "to_reported_dict",
        "validate_ensemble", "validate_instance_groups", "validate_io", "validate_load",
        "without_stand_in",
    },
    "nbtriton.serving.frontends": {"Service"},
    "nbtriton.extensions.lessons": {
        "Arrival", "Exercise", "MachineBusyError", "Mark", "Overview", "Progress", "Scenario", "SCENARIOS",
    },
    "nbtriton.backends": {"check_runtime"},
}  # fmt: skip


def public_names(module: str) -> list[str]:
    """Return the public names of a module."""
    found = importlib.import_module(module)
    names = set(found.__all__) - OWN.get(module, set())
    return sorted(name for name in names if not inspect.ismodule(getattr(found, name)))


def lay_out(target: Path) -> None:
    """Write the sources for Sphinx into a folder."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(ROOT / "docs" / "site", target)
    shutil.copytree(ROOT / "docs", target / "docs", ignore=shutil.ignore_patterns("site"))
    for page in PAGES:
        shutil.copy(ROOT / page, target)
    # Not pages, but linked to by pages.
    shutil.copytree(ROOT / "notebooks", target / "notebooks")
    _write_notebooks(target / "notebooks")
    _write_magics(target / "magics")
    _write_api(target / "api")


def _title(text: str, line: str = "=") -> str:
    return f"{text}\n{line * len(text)}\n\n"


def _toctree(names: list[str]) -> str:
    return ".. toctree::\n   :maxdepth: 1\n\n" + "".join(f"   {name}\n" for name in names)


def _write_notebooks(folder: Path) -> None:
    names = sorted(path.stem for path in folder.glob("*.ipynb"))
    (folder / "index.rst").write_text(
        _title("Notebooks")
        + "In the repository's folder ``notebooks``; ``make lab`` opens them.\n\n"
        + _toctree(names)
    )


def _write_magics(folder: Path) -> None:
    from nbtriton.magics import magic_methods

    folder.mkdir()
    methods = magic_methods()
    for name, method in methods.items():
        (folder / f"{name}.rst").write_text(magic_page(name, method))
    first = {name: _first_sentence(method) for name, method in methods.items()}
    rows = "".join(f"   * - :doc:`{name}`\n     - {first[name]}\n" for name in sorted(first))
    (folder / "index.rst").write_text(
        _title("Magics")
        + "After ``%load_ext nbtriton``. ``%triton_infer?`` shows the same help in a notebook.\n\n"
        + f".. list-table::\n   :widths: 25 75\n\n{rows}\n"
        + _toctree(sorted(methods)).replace("1\n", "1\n   :hidden:\n", 1)
    )


def magic_page(name: str, method: Any) -> str:
    """Return the page of a magic from its parser: description, usage, options."""
    parser = method.parser
    signs = "%%" if f"%%{name}" in parser.description else "%"
    usage = parser.format_usage().removeprefix("usage: ").replace("::\n\n", "").strip("\n")
    usage = inspect.cleandoc(f"  {usage.lstrip()}").lstrip("%")
    page = _title(f"{signs}{name}") + inspect.cleandoc(parser.description) + "\n\n"
    page += _title("Usage", "-") + ".. code-block:: text\n\n"
    page += "".join(f"    {line}\n" for line in f"{signs}{usage}".splitlines()) + "\n"
    page += _title("Options", "-")
    for action in parser._actions:  # noqa: SLF001 - argparse has no public list of them
        given = action.metavar or (action.dest if not action.option_strings else "")
        if action.choices and not action.metavar:
            given = "{" + ",".join(map(str, action.choices)) + "}"
        value = "" if action.nargs == 0 else given
        names = [f"{option} {value}".strip() for option in action.option_strings] or [given]
        page += "\n".join(f"``{one}``" for one in [", ".join(names)])
        page += f"\n    {_plain(action.help or '')}\n\n"
    return page


def _plain(text: str) -> str:
    """Return a text with reStructuredText's markup escaped."""
    return re.sub(r"([*|`_\\])", r"\\\1", text.replace("%%", "%")) or "\\ "


def _first_sentence(method: Any) -> str:
    text = inspect.cleandoc(method.parser.description).partition("\n\n")[0]
    return " ".join(text.split()).partition(". ")[0].rstrip(".:")


def _write_api(folder: Path) -> None:
    folder.mkdir()
    for name, what in MODULES.items():
        (folder / f"{name}.rst").write_text(api_page(name, what))
    (folder / "index.rst").write_text(
        _title("Python") + "Each magic is one call of these.\n\n" + _toctree(list(MODULES))
    )


def api_page(name: str, what: str) -> str:
    """Return the page of a module: the docstrings of all public names."""
    module = importlib.import_module(name)
    page = _title(name) + f"{what}\n\n"
    for public in public_names(name):
        value = getattr(module, public)
        # One target for links, where two pages have the name.
        again = any(public in public_names(one) for one in MODULES if one > name)
        index = "   :no-index:\n" if again else ""
        if inspect.isclass(value):
            members = ""
            # Without members inherited from matplotlib and protobuf, which document them.
            tops = {str(one.__module__).partition(".")[0] for one in value.__mro__}
            if tops <= {"nbtriton", *sys.stdlib_module_names}:
                members = "   :members:\n   :inherited-members: Exception, Mapping, tuple\n"
            page += f".. autoclass:: {name}.{public}\n{members}{index}\n"
        elif inspect.isroutine(value):
            page += f".. autofunction:: {name}.{public}\n{index}\n"
        else:
            page += f".. py:data:: {name}.{public}\n   :value: {value!r:.60}\n{index}\n"
    return page


def main() -> int:
    """Lay out and build the site; return Sphinx's exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sources", type=Path, help="only lay out what Sphinx reads, there")
    arguments = parser.parse_args()
    lay_out(arguments.sources or BUILD / "sources")
    if arguments.sources:
        return 0
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-j", "auto",
         "-d", BUILD / "doctrees", BUILD / "sources", BUILD / "html"],
        check=False,
    )  # fmt: skip
    if done.returncode == 0:
        target = BUILD / "html" / "lite"
        shutil.rmtree(target, ignore_errors=True)
        if LITE.is_dir():  # of `make lite`
            shutil.copytree(LITE, target)
        print(f"Look at {BUILD / 'html' / 'index.html'}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
