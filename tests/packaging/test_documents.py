"""The documents name files, make targets and modules that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    "README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/architecture.md", "docs/compiled.md",
]  # fmt: skip
SOURCES = ROOT / "src" / "nbtriton"
LINK = r"\]\(([^)\s]+)\)"
NAMED_PATH = r"`([\w./-]+(?:\.py|/))`"
COMMAND = r"python -m ((?:bench|tests|nbtriton)[\w.]*)"


@pytest.fixture(params=DOCUMENTS)
def document(request) -> tuple[Path, str]:
    path = ROOT / request.param
    return path, path.read_text()


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings, as code hosts make them."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("pattern", [LINK, NAMED_PATH, COMMAND])
def test_there_is_something_to_look_for(pattern: str) -> None:
    assert any(re.search(pattern, (ROOT / name).read_text()) for name in DOCUMENTS)


def test_links_lead_somewhere(document) -> None:
    path, text = document
    for link in re.findall(LINK, text):
        if link.startswith("http"):
            continue
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text()), link


@pytest.mark.medium
def test_named_paths_exist(document) -> None:
    _, text = document
    fence = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    packages = [name.name for name in SOURCES.iterdir() if name.is_dir()]
    for name in re.findall(NAMED_PATH, fence):
        if name.split("/")[0] in {"build", ".venv", "core", "model.py"}:
            continue
        inside = [ROOT, SOURCES, *(SOURCES / package for package in packages), *core_folders()]
        assert any((base / name).exists() for base in inside), name


def core_folders() -> list[Path]:
    return [path for depth in ("*/*", "*/*/*") for path in SOURCES.glob(depth) if path.is_dir()]


def test_make_targets_exist(document) -> None:
    _, text = document
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([\w./ -]+):", makefile, re.MULTILINE)
    made = {name for line in targets for name in line.split()}
    names = re.findall(r"(?:`|^)make ([\w./-]+)", text, re.MULTILINE)
    (benches,) = re.findall(r"^BENCHES := (.+)$", makefile, re.MULTILINE)
    assert set(names) - made - {f"bench-{name}" for name in benches.split()} == set()


def test_commands_name_modules_that_exist(document) -> None:
    _, text = document
    for module in re.findall(COMMAND, text):
        base = ROOT / "src" if module.startswith("nbtriton") else ROOT
        path = base / module.rstrip(".").replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module


def test_the_workflows_are_read_and_run_what_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        jobs = yaml.safe_load(path.read_text())["jobs"]
        for job in jobs.values():
            for target in job.get("strategy", {}).get("matrix", {}).get("make", ()):
                assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    assert (ROOT / ".ci" / "run").exists()


def test_the_classifiers_are_the_pythons_of_the_matrix_and_of_the_wheels() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    said = re.findall(r"Python :: (3\.\d+)", "\n".join(settings["project"]["classifiers"]))
    built = settings["tool"]["cibuildwheel"]["build"]
    assert built == [f"cp{python.replace('.', '')}-*" for python in said]
    tested = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    assert said == tested["jobs"]["fast"]["strategy"]["matrix"]["python"]


def test_the_walks_name_files_and_functions_that_exist() -> None:
    walks = re.split(r"^## ", (ROOT / "docs" / "architecture.md").read_text(), flags=re.MULTILINE)
    stations = [
        re.findall(r"`([^`]+)`", cell)
        for walk in walks
        if walk.startswith("Walk ")
        for cell in re.findall(r"^\| (`.+?) \|", walk, re.MULTILINE)
    ]
    assert len(stations) > 30
    for names in stations:
        place = SOURCES  # a path may begin in a folder of the one before it in its cell
        for name in names:
            if name.endswith((".py", "/")):
                found = [
                    base / name for base in (SOURCES, *place.parents) if (base / name).exists()
                ]
                assert found, (names, name)
                place = found[0]
            else:
                defined = rf"^\s*(?:async )?(?:def|class) {name}\b"
                assert re.search(defined, place.read_text(), re.MULTILINE), (names, name)


def test_the_classes_of_the_architecture_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`([A-Z]\w*[a-z]\w*)`", text))
    defined: set[str] = set()
    for path in SOURCES.rglob("*.py"):
        defined |= set(re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE))
    assert named - defined == {"ModelInfer"}  # of Triton's protocol
