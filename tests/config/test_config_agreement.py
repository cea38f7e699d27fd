"""Every validation rule: where Triton has it, and whether the real server was seen to say the same.

``suite`` means that `test_config_reference` shows the rule to the real tritonserver 2.51 each time
it runs; ``once`` that the same text was seen there, but not as part of the suite (loading such a
model now and then ends that server); ``source`` that no server at hand can show it (it takes a GPU,
another build, or a configuration before Triton's own normalisation), so the source alone says it.
"""

from __future__ import annotations

import re

import pytest

from tests.config import ensemble_rules, rules
from tests.config.test_config_reference import NOT_SHOWN

MCU = "core/src/model_config_utils.cc"
ENU = "core/src/ensemble_scheduler/ensemble_utils.cc"
MRM = "core/src/model_repository_manager/model_repository_manager.cc"
SBS = "core/src/sequence_batch_scheduler/sequence_batch_scheduler.cc"
BM = "core/src/backend_model.cc"
BMI = "core/src/backend_model_instance.cc"

# rule: (where in Triton, how it was seen to agree)
TABLE: dict[str, tuple[str, str]] = {
    "V01": (f"{MCU} ValidateModelConfig", "source"),
    "V02": (f"{MCU} ValidateModelConfig", "suite"),
    "V03": (f"{MCU} ValidateModelConfig", "suite"),
    "V04": (f"{MCU} ValidateModelConfig", "suite"),
    "V05": (f"{MCU} ValidateModelConfig", "suite"),
    "V06": (f"{MCU} ValidateModelConfig", "source"),
    **{f"V{n}": (f"{MCU} ValidateModelConfig, dynamic batching", "suite") for n in range(10, 16)},
    **{
        f"V{n}": (f"{MCU} ValidateModelConfig, sequence batching", "suite")
        for n in (*range(20, 31), 33, 34)
    },
    "V40": (f"{MCU} ValidateInstanceGroup", "suite"),
    "V41": (f"{MCU} ValidateInstanceGroup", "suite"),
    "V42": (f"{MCU} ValidateInstanceGroup", "source"),
    "V43": (f"{MCU} ValidateInstanceGroup", "suite"),
    "V44": (f"{MCU} ValidateInstanceGroup", "source"),
    "V45": (f"{MCU} ValidateInstanceGroup", "suite"),
    "V46": (f"{BM} SetBatchingStrategy", "once"),
    **{
        f"V{n}": (f"{MCU} ValidateModelIOConfig", "suite")
        for n in (60, 61, 62, 63, 64, "65a", "65b", "65c", 67, 68, 69)
    },
    **{f"V{n}": (f"{MCU} ValidateBatchIO", "suite") for n in range(70, 75)},
    **{f"V{n}": (f"{SBS} initial state", "once") for n in (*range(75, 82), 84)},
    "V85": (f"{BMI} GenerateWarmupData", "once"),
    "V86": (f"{BMI} GenerateWarmupData", "once"),
    **{f"V{n}": (f"{MCU} ValidateEnsembleSchedulingConfig", "suite") for n in range(100, 112)},
    "V112": (f"{MRM} ConnectDependencyGraph", "suite"),
    "V116": (f"{MRM} CircularDependencyCheck", "once"),
    **{f"V{n}": (f"{ENU} ValidateEnsembleConfig", "suite") for n in range(117, 124)},
}


def rules_with_tests() -> dict[str, set[str]]:
    """Return the rules that have a test, with the classes of their rows."""
    found: dict[str, set[str]] = {}
    for rule, check, *_ in (*rules.RULES, *ensemble_rules.RULES):
        found.setdefault(rule, set()).add(check)
    for rule, *_ in ensemble_rules.MEMBER_RULES:
        found.setdefault(rule, set()).add("circle" if rule == "V116" else "E")
    return found


def test_the_table_has_every_rule_that_is_tested_and_no_other() -> None:
    assert TABLE.keys() == rules_with_tests().keys()


@pytest.mark.parametrize("rule", sorted(TABLE, key=lambda r: int(re.sub(r"\D", "", r))))
def test_the_stated_evidence_is_what_the_suite_shows(rule: str) -> None:
    shown = rules_with_tests()[rule] - NOT_SHOWN - {"circle"}
    assert (TABLE[rule][1] == "suite") == bool(shown)
