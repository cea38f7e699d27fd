"""The rules of docs/rules and the citations of their ids agree, in both directions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import rules

ROOT = Path(__file__).parents[2]

KNOWN = rules.rules()


@pytest.fixture(scope="module")
def cited() -> rules.Citations:
    return rules.citations(rule.id for rule in KNOWN)


@pytest.mark.medium
def test_every_cited_id_stands_in_docs_rules_once(cited: rules.Citations) -> None:
    assert rules.problems(KNOWN, cited) == []
    assert len(KNOWN) > 400


@pytest.mark.medium
def test_the_lists_of_tests_are_current(cited: rules.Citations) -> None:
    pages = list((ROOT / "docs" / "rules").glob("*.md"))
    assert pages
    for page in pages:
        current = rules.page(page.read_text(), cited)
        assert page.read_text() == current, "run python scripts/rules.py"


def test_every_item_of_a_page_is_a_rule_or_nothing_like_one() -> None:
    """An id that is written in another way would be no rule, unnoticed."""
    pages = (ROOT / "docs" / "rules").glob("*.md")
    bold = [
        found
        for page in pages
        for found in re.findall(r"^- \*\*.*", page.read_text(), re.MULTILINE)
    ]
    assert len(bold) == len(KNOWN)


def test_differences_that_rules_name_exist() -> None:
    names = set(
        re.findall(r"^### `([\w-]+)`", (ROOT / "docs" / "differences.md").read_text(), re.MULTILINE)
    )
    named = {name for rule in KNOWN for name in re.findall(r"differences\.md#([\w-]+)", rule.text)}
    assert named - names == set()
    assert len(named) > 40


def test_every_rule_has_a_test_or_a_reason_why_it_has_none() -> None:
    assert [rule.id for rule in KNOWN if rule.is_untested] == []
    assert len([rule.id for rule in KNOWN if not rule.is_testable]) < 5


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "docs" / "rules").mkdir(parents=True)
    (tmp_path / "docs" / "rules" / "one.md").write_text(
        "- **D1** The first.\n  *Source:* a file.\n  *Tests:* none yet.\n"
        "- **D2** The second.\n  *Source:* a file.\n  *Not tested here:* no GPU.\n"
    )
    (tmp_path / "tests").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    "source",
    [
        "def test_D1_something(): ...",
        "# D1: a comment",
        "def check():\n    'Hold D1.'",
        "CASES = ['D1 a case']",
        "def test_E1_D1_both(): ...",
    ],
)
def test_what_cites_an_id(tree: Path, source: str) -> None:
    (tree / "tests" / "test_it.py").write_text(source)
    assert rules.citations(["D1"], tree) == {"D1": {"tests/test_it.py": True}}


@pytest.mark.parametrize(
    "source", ["x = 1  # noqa: D1 - that", "RESOURCE = 'D1'", "x = 'D1:4'", "# MD1, D1.5"]
)
def test_what_cites_none(tree: Path, source: str) -> None:
    (tree / "tests" / "test_it.py").write_text(source)
    assert rules.citations(["D1"], tree) == {}


def test_a_header_cites_and_holds_nothing(tree: Path) -> None:
    (tree / "tests" / "test_it.py").write_text('"""The rules D1 to D3."""')
    cited = rules.citations(["D1"], tree)
    assert set(cited) == {"D1", "D2", "D3"}
    assert "none yet" in rules.page((tree / "docs" / "rules" / "one.md").read_text(), cited)


def test_what_is_wrong_is_said(tree: Path) -> None:
    (tree / "tests" / "test_it.py").write_text("def test_D2_D3_it(): ...")
    page = tree / "docs" / "rules" / "one.md"
    page.write_text(page.read_text() + "- **D1** Again.\n")
    known = rules.rules(tree)
    assert rules.problems(known, rules.citations(["D1"], tree)) == [
        "D1 stands more than once in docs/rules",
        "D3 stands nowhere in docs/rules: tests/test_it.py",
        "D2 is not tested here, says one.md, but test_it.py cites it",
        "D1 has no source",
    ]


def test_lists_are_written(tree: Path) -> None:
    (tree / "tests" / "test_it.py").write_text("# D1")
    page = tree / "docs" / "rules" / "one.md"
    written = rules.page(page.read_text(), rules.citations(["D1"], tree))
    assert written.splitlines()[2] == "  *Tests:* `test_it.py`."
    assert rules.page(written, rules.citations(["D1"], tree)) == written
