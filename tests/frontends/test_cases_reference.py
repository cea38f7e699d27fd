"""The real server answers the same cases with the same status and body, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.frontends.cases import CASES, Case, Seen, ask
from tests.frontends.models import MODELS

SERVED = tuple(MODELS)

pytestmark = [pytest.mark.reference, pytest.mark.slow]

# What the two may say in orders or numbers of their own.
_KEYS_IN_ANY_ORDER = {
    "KS50 parameters",
    "KS50 the first of equal parameters counts",
    "KS34 custom parameters",
}


@pytest.fixture(scope="module")
def real(reference, repository: Path) -> Iterator[Any]:
    with reference.server(repository, timeout_s=180) as server:
        yield server


def _comparable(case: Case, seen: Seen) -> Any:
    body: Any = seen.body
    if case.id in _KEYS_IN_ANY_ORDER:
        found = json.loads(body)
        text = found["OUT"] if "OUT" in found else found["outputs"][0].pop("data")[0]
        body = json.loads(text)
    elif case.id.startswith("KS10"):
        body = json.loads(body)
    headers = {
        name: seen.headers.get(name)
        for name in (
            "content-type", "inference-header-content-length", "content-encoding",
            "accept-encoding", "transfer-encoding",
        )
    }  # fmt: skip
    return seen.status, seen.reason, body, headers


@pytest.mark.parametrize(
    "case", [case for case in CASES if not case.ours_only], ids=lambda case: case.id
)
def test_KS4_KS7_same_answer(case: Case, port: int, real: Any) -> None:
    assert _comparable(case, ask(port, case)) == _comparable(case, ask(real.http_port, case))
