"""Both servers, once per module, over the same repository."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.differential.harness import OurSide, RealSide, write
from tests.differential.scenarios import MODELS
from tests.differential.servers import COMPLETE


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    write(folder, MODELS)
    return folder


@pytest.fixture(scope="module")
def real(
    reference, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealSide]:
    log = tmp_path_factory.mktemp("log") / "server.log"
    with reference.server(repository, *RealSide.FLAGS, COMPLETE, log=log, timeout_s=180) as server:
        side = RealSide(server, tmp_path_factory.mktemp("gates"))
        yield side
        side.close()


@pytest.fixture(scope="module")
def ours(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurSide]:
    side = OurSide(repository, MODELS, tmp_path_factory.mktemp("gates"))
    yield side
    side.close()
