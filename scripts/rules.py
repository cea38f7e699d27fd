"""Check docs/rules and the citations of its ids against each other.

    python scripts/rules.py            # write the lists of test files
    python scripts/rules.py --check    # exit status 1 if a list is not current, or an id is unknown

A rule is an item of a list in docs/rules/*.md: its id in bold, the rule, then three labelled parts,
``*Source:*``, where nbtriton differs ``*Differs:*``, and ``*Tests:*``, which this script writes. A rule
that no test can check here has ``*Not tested here:*`` and the reason instead.

Python files cite an id in a comment, a docstring, a test's name (``test_D7_...``) or at the start of a
case's name (``"D7 preferred 4"``); ``D1 to D10`` cites all between them. Pages cite it in their text.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import textwrap
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "tests", "bench", "scripts", "docs")
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")
WIDTH = 110

_ITEM = re.compile(r"^- \*\*([A-Z]{1,2}\d{1,3}[a-z]?)\*\* .*(?:\n  .*)*", re.MULTILINE)
_TESTS = re.compile(r"\n  \*Tests:\*.*(?:\n  .*)*")
_UNTESTED = "none yet."
# A case's name begins with its rules' ids; in the tables of validation it has only ids.
_CASE = re.compile(r"(?:[A-Z]{1,2}\d{1,3}[a-c]?(?: to |, | ))+(?=\S)|V\d{2,3}[a-c]?$")

# By id, the files that cite it, and whether each has a test that checks it.
Citations = Mapping[str, Mapping[str, bool]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of docs/rules: its place and its text."""

    id: str
    page: str
    text: str

    @property
    def is_testable(self) -> bool:
        """False for a rule with a reason why no test can check it here."""
        return "*Not tested here:*" not in self.text

    @property
    def is_untested(self) -> bool:
        """True if a test could check the rule, and none cites it."""
        return self.text.endswith(f"*Tests:* {_UNTESTED}")


def rules(root: Path = ROOT) -> list[Rule]:
    """Return the rules of all pages in order."""
    return [
        Rule(found[1], page.name, found[0])
        for page in _pages(root)
        for found in _ITEM.finditer(page.read_text())
    ]


def citations(ids: Iterable[str], root: Path = ROOT) -> Citations:
    """Return the files that cite each id, known or not, with a rule's prefix."""
    an_id, pattern = _patterns(ids)
    loose = re.compile(rf"(?<![A-Za-z0-9]){an_id}(?![A-Za-z0-9])")
    found: dict[str, dict[str, bool]] = defaultdict(dict)
    for path in _files(root):
        name = path.relative_to(root).as_posix()
        source = path.read_text()
        if not loose.search(source):
            continue  # parsing such files takes as long as all others
        for text, holds in _texts(source, path.suffix, is_test=name.startswith("tests/")):
            for one in _ids(pattern, text):
                found[one][name] = found[one].get(name, False) or holds
    return found


def problems(known: Sequence[Rule], cited: Citations) -> list[str]:
    """Return the errors: ids that are repeated, unknown, or tested though marked as not testable."""
    names = [rule.id for rule in known]
    repeated = sorted({name for name in names if names.count(name) > 1})
    return [
        *(f"{name} stands more than once in docs/rules" for name in repeated),
        *(
            f"{name} stands nowhere in docs/rules: {', '.join(files)}"
            for name, files in sorted(cited.items())
            if name not in names
        ),
        *(
            f"{rule.id} is not tested here, says {rule.page}, but {tests[0]} cites it"
            for rule in known
            if not rule.is_testable and (tests := _tests(cited.get(rule.id, {})))
        ),
        *(f"{rule.id} has no source" for rule in known if "*Source:*" not in rule.text),
    ]


def page(text: str, cited: Citations) -> str:
    """Return the page with current lists of test files."""
    return _ITEM.sub(lambda found: _item(found[1], found[0], cited), text)


def main(argv: Sequence[str]) -> int:
    """Write the lists, or with ``--check`` compare them; print the errors of ids."""
    known = rules()
    cited = citations(rule.id for rule in known)
    found = problems(known, cited)
    for path in _pages(ROOT):
        current = page(path.read_text(), cited)
        if argv[1:] != ["--check"]:
            path.write_text(current)
        elif path.read_text() != current:
            found.append(f"docs/rules/{path.name} is not current: run python scripts/rules.py")
    print("".join(f"{line}\n" for line in found), end="")
    if argv[1:] != ["--check"]:
        untested = [rule.id for rule in rules() if rule.is_untested]
        print(f"{len(known)} rules, {len(untested)} of them without a test: {' '.join(untested)}")
    return 1 if found else 0


def _pages(root: Path) -> list[Path]:
    return sorted((root / "docs" / "rules").glob("*.md"))


def _files(root: Path) -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in {".py", ".md"} and path.parent != root / "docs" / "rules":
                yield path
    yield from (root / name for name in PAGES if (root / name).exists())


def _patterns(ids: Iterable[str]) -> tuple[str, re.Pattern[str]]:
    """Return the patterns of an id, and of a citation: an id, or the first and last of a range."""
    prefixes = sorted({one.rstrip("abcdefg").rstrip("0123456789") for one in ids}, key=len)
    one = rf"(?:{'|'.join(reversed(prefixes))})\d{{1,3}}[a-c]?"
    return one, re.compile(rf"(?<![\w./:%#'\"-])({one})(?: to ({one}))?(?![\w-]|[.:]\d)")


def _ids(pattern: re.Pattern[str], text: str) -> Iterator[str]:
    for first, last in pattern.findall(re.sub(r"noqa: [^-]*", "", text)):
        prefix = first.rstrip("abc").rstrip("0123456789")
        if not last or not last.startswith(prefix):
            yield from filter(None, (first, last))
            continue
        numbers = [int(one.rstrip("abc")[len(prefix) :]) for one in (first, last)]
        yield from (f"{prefix}{number}" for number in range(numbers[0], numbers[1] + 1))


def _texts(source: str, suffix: str, *, is_test: bool) -> Iterator[tuple[str, bool]]:
    """Return the texts of a file that may cite, and whether a citation there is by a test of the rule."""
    if suffix != ".py":
        yield source, False
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string, is_test
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module):
            # The subject of the whole file: the tests in it cite the rules that they check.
            yield ast.get_docstring(node, clean=False) or "", False
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield ast.get_docstring(node, clean=False) or "", is_test
            if node.name.startswith("test_"):
                yield node.name.replace("_", " "), is_test
        elif is_test and isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from ((case[0], True) for case in [_CASE.match(node.value)] if case)


def _tests(files: Mapping[str, bool]) -> list[str]:
    return [file.removeprefix("tests/") for file, holds in files.items() if holds]


def _item(name: str, text: str, cited: Citations) -> str:
    if "*Not tested here:*" in text:
        return text
    tests = ", ".join(f"`{file}`" for file in _tests(cited.get(name, {})))
    line = textwrap.fill(
        f"*Tests:* {tests}." if tests else f"*Tests:* {_UNTESTED}",
        width=WIDTH,
        initial_indent="  ",
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return f"{_TESTS.sub('', text)}\n{line}"


if __name__ == "__main__":
    sys.exit(main(sys.argv))
