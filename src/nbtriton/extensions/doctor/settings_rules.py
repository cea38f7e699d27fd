"""Settings that Triton accepts but that cannot work as intended, each with its rule.

The rules' names are those of ``docs/rules/``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nbtriton.model.config import ModelConfig, is_ensemble
from nbtriton.options.reading import quoted

# No client sends its next request sooner than that, once it has waited for an answer and for its thread.
_SHORT_IDLE_US = 10_000
_SEVERITIES = ("error", "warning", "hint")


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding about one model.

    Attributes
    ----------
    severity : {"error", "warning", "hint"}
        A load error or wrong results; a setting that cannot work as intended; a possible surprise.
    model : str
    subject : str
        A field of the configuration, or a test.
    text : str
        The finding; a load error in Triton's words.
    cause : str
        The rule behind it.
    fix : str
        The change that helps.
    """

    severity: str
    model: str
    subject: str
    text: str
    cause: str = ""
    fix: str = ""

    @property
    def rank(self) -> int:
        """Sort key: 0 for the most severe."""
        return _SEVERITIES.index(self.severity)


# A field and its value, and when that helps.
_FIELD = re.compile(r"(\w+): (\[[^\]]*\]|[^\s,]+)(?:, (.+))?")


def as_cell(finding: Finding) -> Finding:
    """Return a finding about a loaded model with its fix as the cell to type, where it is a value of the subject."""
    *outer, field = finding.subject.split(".")
    found = _FIELD.fullmatch(finding.fix)
    if found is None or found[1] != field:
        return finding
    fragment = "".join(f"{name} {{ " for name in outer) + f"{field}: {found[2]}" + " }" * len(outer)
    when = f"  # {found[3]}" if found[3] else ""
    return replace(finding, fix=f"%%triton_config {quoted(finding.model)}\n{fragment}{when}")


_Found = Iterator[tuple[str, str, str, str, str]]


def settings_findings(
    config: ModelConfig, members: Mapping[str, ModelConfig] | None = None
) -> list[Finding]:
    """Return the settings of a valid configuration that cannot work as intended.

    Parameters
    ----------
    config : ModelConfig
    members : mapping of str to ModelConfig, optional
        The models of an ensemble's steps.
    """
    findings = [one for rule in _RULES for one in rule(config)]
    findings += _steps(config, members or {})
    return [Finding(severity, config.name, *rest) for severity, *rest in findings]


def _batching(config: ModelConfig) -> _Found:
    if not config.HasField("dynamic_batching") or config.max_batch_size > 1:
        return
    yield (
        "warning", "dynamic_batching",
        f"max_batch_size is {config.max_batch_size}: no two requests share a batch",
        "a batch never has more rows than max_batch_size, and none with 0 (D1)",
        "max_batch_size: 8, if the model takes a batch dimension",
    )  # fmt: skip


def _preferred(config: ModelConfig) -> _Found:
    batching = config.dynamic_batching
    sizes = list(batching.preferred_batch_size)
    if sizes in ([], [config.max_batch_size]):  # written by normalization
        return
    if not batching.max_queue_delay_microseconds:
        yield (
            "hint", "dynamic_batching.preferred_batch_size",
            "without max_queue_delay_microseconds no request waits until a preferred size is reached",
            "without a delay all waiting requests leave at once (D9)",
            "max_queue_delay_microseconds: 100, or no preferred sizes",
        )  # fmt: skip
    if max(sizes) < config.max_batch_size:
        yield (
            "hint", "dynamic_batching.preferred_batch_size",
            (f"batches leave with {max(sizes)} rows: max_batch_size {config.max_batch_size} is reached "
            "only when the queue delay is exceeded"),
            "a batch leaves at the largest preferred size; an exceeded delay alone overrules it (D7, D14)",
            f"preferred_batch_size: [ {', '.join(map(str, [*sizes, config.max_batch_size]))} ]",
        )  # fmt: skip


def _delay(config: ModelConfig) -> _Found:
    delay = config.dynamic_batching.max_queue_delay_microseconds
    if delay >= 1_000_000:
        yield (
            "warning", "dynamic_batching.max_queue_delay_microseconds",
            f"a lone request waits {delay / 1e6:g} s for others",
            "the field is in microseconds (D6)",
            f"max_queue_delay_microseconds: {delay // 1000}, if milliseconds were meant",
        )  # fmt: skip
    policy = config.dynamic_batching.default_queue_policy
    timeout = policy.default_timeout_microseconds
    if 0 < timeout <= delay and config.max_batch_size > 1:
        yield (
            "warning", "dynamic_batching.default_queue_policy.default_timeout_microseconds",
            (f"requests time out after {timeout} µs, before the delay of {delay} µs lets a batch that is "
            "not full leave"),
            "a timeout runs from the arrival, also while a request waits for the delay (Q6, D6)",
            f"a timeout of several times {delay} µs, or a shorter delay",
        )  # fmt: skip


def _sequences(config: ModelConfig) -> _Found:
    idle_us = config.sequence_batching.max_sequence_idle_microseconds
    if config.HasField("sequence_batching") and 0 < idle_us < _SHORT_IDLE_US:
        yield (
            "warning", "sequence_batching.max_sequence_idle_microseconds",
            f"a sequence is dropped {idle_us} µs after its last request, and its next request is refused",
            "the field is in microseconds, and its default is 1000000",
            f"max_sequence_idle_microseconds: {idle_us * 1000}, if milliseconds were meant",
        )  # fmt: skip


def _queue(config: ModelConfig) -> _Found:
    size = config.dynamic_batching.default_queue_policy.max_queue_size
    if 0 < size < config.max_batch_size:
        yield (
            "warning", "dynamic_batching.default_queue_policy.max_queue_size",
            (f"at most {size} requests wait, so requests of one row never fill a batch of "
            f"{config.max_batch_size}"),
            "with such a policy batches are formed only of what waits when an instance is idle (Q10)",
            f"max_queue_size: {2 * config.max_batch_size}",
        )  # fmt: skip


def _ordering(config: ModelConfig) -> _Found:
    batching = config.dynamic_batching
    active = [group for group in config.instance_group if not group.passive]
    count = sum(max(1, group.count) * max(1, len(group.gpus)) for group in active)
    if batching.preserve_ordering and count == 1 and not batching.priority_levels:
        yield (
            "hint", "dynamic_batching.preserve_ordering",
            "a single instance answers in order anyway",
            "one batch runs after the other, in order of arrival (P5)",
            "remove it, or set more instances",
        )  # fmt: skip


def _dims(config: ModelConfig) -> _Found:
    tensors: list[Any] = [*config.input, *config.output]
    if config.max_batch_size <= 0 or not tensors or is_ensemble(config):
        return
    if all(len(tensor.dims) > 1 and tensor.dims[0] == -1 for tensor in tensors):
        dims = list(tensors[0].dims)
        yield (
            "hint", "max_batch_size",
            (f"the batch dimension comes in front of dims: '{tensors[0].name}' has the shape "
            f"{[-1, *dims]}"),
            "with max_batch_size above 0 a shape is [ -1 ] + dims",
            f"dims: [ {', '.join(map(str, dims[1:]))} ], if the first -1 was meant as the batch",
        )  # fmt: skip


def _steps(
    config: ModelConfig, members: Mapping[str, ModelConfig]
) -> list[tuple[str, str, str, str, str]]:
    found = []
    for name in dict.fromkeys(step.model_name for step in config.ensemble_scheduling.step):
        member = members.get(name)
        if member is None or is_ensemble(member) or member.max_batch_size <= 1:
            continue
        if not member.HasField("dynamic_batching") and not member.HasField("sequence_batching"):
            found.append((
                "hint", f"ensemble_scheduling.step[{name}]",
                (f"requests to the ensemble never share a batch in its step '{name}', which batches up to "
                f"{member.max_batch_size} rows"),
                "the default scheduler runs every request alone (S2); an ensemble adds no batching (E1)",
                f"%%triton_config {quoted(name)}\ndynamic_batching {{ }}",
            ))  # fmt: skip
    return found


_RULES: tuple[Callable[[ModelConfig], _Found], ...] = (
    _batching, _preferred, _delay, _sequences, _queue, _ordering, _dims,
)  # fmt: skip
