"""Every row of the error table and every rule that one request can show."""

from __future__ import annotations

import json

import pytest

from tests.frontends.cases import CASES, Case, ask
from tests.frontends.models import MODELS

SERVED = tuple(MODELS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_KS3_KS5_answer(case: Case, port: int) -> None:
    seen = ask(port, case)
    assert seen.status == case.status, seen.body[:500]
    if case.error is not None:
        assert (
            seen.body
            == json.dumps({"error": case.error}, ensure_ascii=False, separators=(",", ":")).encode()
        )
    if case.text is not None:
        assert seen.body == case.text
    if case.outputs is not None:
        found = {output["name"]: output["data"] for output in seen.json["outputs"]}
        assert found == case.outputs


@pytest.mark.medium
def test_cases_have_names_of_their_own() -> None:
    assert len({case.id for case in CASES}) == len(CASES)
