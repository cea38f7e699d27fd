"""The documentation site: every page is reached, every link leads somewhere, and the recipes run."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from nbtriton.magics import magic_methods
from scripts.docs import MODULES, lay_out

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What Sphinx reads; `make docs` then builds it with warnings as errors."""
    folder = tmp_path_factory.mktemp("site") / "sources"
    lay_out(folder)
    return folder


def listed(page: Path) -> set[Path]:
    """The pages in the tables of contents of a page."""
    text = page.read_text()
    blocks = re.findall(r"```\{toctree\}\n(.*?)```", text, re.DOTALL)
    blocks += re.findall(r"\.\. toctree::\n((?:\s+.*\n|\n)*)", text)
    names = [line.strip() for block in blocks for line in block.splitlines()]
    names = [name for name in names if name and not name.startswith(":")]
    names = [re.sub(r".*<(.*)>", r"\1", name) for name in names]  # Title <name>
    return {path for name in names for path in page.parent.glob(f"{name}.*")}


@pytest.mark.medium
def test_every_page_is_in_a_table_of_contents(site: Path) -> None:
    reached, waiting = set(), {site / "index.md"}
    while waiting:
        page = waiting.pop()
        reached.add(page)
        if page.suffix in (".md", ".rst"):
            waiting |= listed(page) - reached
    pages = {path for kind in ("md", "rst", "ipynb") for path in site.rglob(f"*.{kind}")}
    assert reached == pages


@pytest.mark.medium
def test_each_magic_has_its_page(site: Path) -> None:
    for name, method in magic_methods().items():
        text = (site / "magics" / f"{name}.rst").read_text()
        for action in method.parser._actions:
            assert all(option in text for option in action.option_strings), (name, action.dest)
    assert {path.stem for path in (site / "api").glob("*.rst")} == {*MODULES, "index"}


def test_links_lead_somewhere(site: Path) -> None:
    pages = list(site.rglob("*.md"))
    assert pages
    for page in pages:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            target = link.partition("#")[0]
            if target and not link.startswith(("http", "mailto:")):
                assert (page.parent / target).exists(), f"{page.name}: {link}"


@pytest.mark.slow
def test_the_recipes_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    text = (ROOT / "docs" / "site" / "howto.md").read_text()
    names: dict[str, object] = {"__name__": "howto"}
    said = []
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL)):
        (tmp_path / f"recipe{number}.py").write_text(block)
        with redirect_stdout(StringIO()) as out:
            # From a file, as export wants to read the source of functions.
            exec(compile(block, str(tmp_path / f"recipe{number}.py"), "exec"), names)
        said.append(out.getvalue())
    assert said[1] == "[[2. 2. 2. 2.]]\n"
    assert "[[3. 3. 3. 3.]]" in said[4]
    assert "[3, 2, 1]" in said[6]
    assert "'double'" in said[-1]
