"""The same faults, shown to the real server: it must say what we say, word for word."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nbtriton.common.errors import ConfigError
from nbtriton.model.config import (
    ModelConfig,
    as_config,
    format_pbtxt,
    normalize,
    normalize_instance_groups,
    parse_pbtxt,
    validate,
    validate_ensemble,
    validate_instance_groups,
    validate_io,
)
from tests.config import ensemble_rules, rules
from tests.config.texts import TEXTS
from tests.differential.servers import COMPLETE, kill

pytestmark = [pytest.mark.reference, pytest.mark.slow]

MODEL = """
class TritonPythonModel:
    def execute(self, requests):
        return []
"""

# The server has no GPU and always normalises, so these cannot be shown to it. A load that fails
# after its instances exist (L) now and then ends the server of 2.51 altogether.
NOT_SHOWN = {"raw", "G 0", "G 0 1", "G none", "L"}


@dataclass(frozen=True)
class Case:
    """One faulty model of the repository and what we say about it."""

    rule: str
    name: str
    ours: str


def put(repository: Path, name: str, text: str, *, has_file: bool = False) -> None:
    """Write a model; one without a file fails once its configuration was taken, and starts no process."""
    folder = repository / name / "1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder.parent / "config.pbtxt").write_text(text)
    if has_file:
        (folder / "model.py").write_text(MODEL)


def said(text: str, name: str) -> str:
    """Check as a server without GPUs does when it loads, and return the first error."""
    try:
        config = normalize(parse_pbtxt(text), name=name)
        validate(config)
        config = normalize_instance_groups(config, gpus=())
        validate_instance_groups(config, gpus=())
        validate_io(config)
    except ConfigError as error:
        return error.message
    return ""


def put_models(repository: Path) -> list[Case]:
    cases = []
    for index, (rule, check, text, _) in enumerate((*rules.RULES, *ensemble_rules.RULES)):
        # An empty configuration would let the server deduce the backend.
        if check in NOT_SHOWN or not text:
            continue
        name = f"m{index}"
        shown = (text if check == "P" else rules.PY + text).replace("name: 'e' ", "")
        put(repository, name, shown)
        cases.append(Case(rule, name, said(shown, name)))
    return cases


def put_ensembles(repository: Path) -> list[Case]:
    cases = []
    # The name of the model that has a configuration: one for all rules.
    placed: dict[str, str] = {}
    for index, (rule, text, members, _) in enumerate(ensemble_rules.MEMBER_RULES):
        if rule == "V116":
            continue  # a circle makes the server itself end
        names = {
            member.name: placed.setdefault(format_pbtxt(member), f"member{len(placed)}")
            for member in members
        }
        models = [renamed(member, names, index) for member in members]
        for model in models:
            put(repository, model.name, format_pbtxt(model), has_file=True)
        config = renamed(normalize(parse_pbtxt(text), name="e"), names, index)
        put(repository, config.name, format_pbtxt(config))
        with pytest.raises(ConfigError) as caught:
            validate_ensemble(config, {model.name: model for model in models})
        cases.append(Case(rule, config.name, caught.value.message))
    return cases


def renamed(config: ModelConfig, names: dict[str, str], index: int) -> ModelConfig:
    """Give every rule names of its own but for its members, so that one repository holds them all."""
    config = as_config(config)
    config.name = names.get(config.name, f"e{index}_{config.name}")
    for step in config.ensemble_scheduling.step:
        step.model_name = names.get(step.model_name, f"e{index}_{step.model_name}")
    return config


@pytest.fixture(scope="module")
def shown(reference: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Case], set[str]]:
    """Return what we say about each faulty model, and everything that the server said."""
    folder = tmp_path_factory.mktemp("rules")
    repository, log = folder / "models", folder / "log"
    cases = put_models(repository) + put_ensembles(repository)
    flags = ("--exit-on-error=false", "--strict-readiness=false", COMPLETE)
    with reference.server(repository, *flags, log=log, timeout_s=100) as server:
        kill(server)  # it is ready once it has tried them all
    text = log.read_text(errors="replace").replace('\\"', '"')
    return cases, set(
        re.findall(
            r"(?m)(?:Poll failed for model directory '\w+': |"
            r"\] \"(?:failed to load '\w+' version 1: )?(?:Invalid argument|Internal): )(.*?)\"?$",
            text,
        )
    )


def test_the_real_server_says_the_same(shown: tuple[list[Case], set[str]]) -> None:
    cases, texts = shown
    assert len(cases) > 80
    differ = [case for case in cases if case.ours not in texts]
    assert not differ, sorted(texts)


def test_the_real_server_s_parser_says_the_same(reference: Any, tmp_path: Path) -> None:
    repository, log = tmp_path / "models", tmp_path / "log"
    for index, text in enumerate(TEXTS):
        put(repository, f"t{index}", text)
    flags = ("--exit-on-error=false", "--strict-readiness=false", COMPLETE)
    with reference.server(repository, *flags, log=log, timeout_s=100):
        pass
    written = log.read_text(errors="replace")
    said: dict[str, str] = {}
    # The parser logs its sentences, of which the first is ours, and then the poll fails.
    sentences: list[str] = []
    for kind, found in re.findall(
        r"(text-format inference.ModelConfig: |text proto from )(.*)", written
    ):
        if kind.startswith("text-format"):
            sentences.append(found)
        else:
            said[found.split("/")[-2]] = sentences[0]
            sentences = []
    assert {text: said.get(f"t{i}", "") for i, text in enumerate(TEXTS)} == TEXTS
