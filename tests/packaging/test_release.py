"""What a release needs: the source distribution, addresses, absolute links, notes, lowest versions."""

from __future__ import annotations

import os
import subprocess
import tarfile
from email import message_from_bytes
from pathlib import Path

import pytest

from scripts.lowest import TARGET, lowest
from scripts.metadata import absolute
from scripts.release_notes import notes, own_version
from tests.children import run_python

ROOT = Path(__file__).parents[2]
ADDRESS = "https://example.org/somebody/nbtriton"


@pytest.mark.slow
def test_the_source_distribution_holds_the_repository(tmp_path: Path) -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if tracked.returncode:
        pytest.skip("this is no checkout: the distribution's own tests run from what it holds")
    run_python(
        "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path,
        cwd=ROOT, env={**os.environ, "NBTRITON_REPOSITORY": ADDRESS}, check=True,
    )  # fmt: skip
    (built,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        (info,) = [name for name in archive.getnames() if name.endswith("/PKG-INFO")]
        member = archive.extractfile(info)
        assert member is not None
        metadata = message_from_bytes(member.read())
    wanted = {name for name in tracked.stdout.splitlines() if (ROOT / name).exists()}
    assert wanted - names == {"bench/history.jsonl"}
    assert f"Source, {ADDRESS}" in (metadata.get_all("Project-URL") or ())
    assert f"({ADDRESS}/blob/main/docs/differences.md)" in str(metadata.get_payload())


def test_links_become_absolute() -> None:
    text = "[a](docs/a.md#b) [c](#c) [d](https://d.org) ![e](docs/e.png)"
    assert absolute(text, ADDRESS) == (
        f"[a]({ADDRESS}/blob/main/docs/a.md#b) [c](#c) [d](https://d.org) "
        f"![e]({ADDRESS}/raw/main/docs/e.png)"
    )


def test_the_notes_of_a_release_are_its_section() -> None:
    text = "# Changelog\n\n## 0.2.0 (2027-01-01)\n\n- new\n\n## 0.1.0 (unreleased)\n\n- old\n"
    assert notes("0.2.0", text) == "- new\n"
    with pytest.raises(ValueError, match="unreleased"):
        notes("0.1.0", text)
    with pytest.raises(ValueError, match=r"no section '## 0.3.0'"):
        notes("0.3.0", text)
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"\n## {own_version()}" in changelog


def test_the_lowest_versions_are_those_of_the_project() -> None:
    assert TARGET.read_text() == lowest(), "run scripts/lowest.py"
