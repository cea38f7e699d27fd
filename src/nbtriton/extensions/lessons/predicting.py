"""Batch predictions: exercises whose answers the schedulers compute."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.extensions.lessons.definition import Exercise, lesson_of, one_line_paragraphs
from nbtriton.extensions.lessons.running import ScenarioRun, run
from nbtriton.extensions.lessons.scenarios import SCENARIOS, Scenario, preferred_of
from nbtriton.extensions.lessons.sentences import labels_of, listed, why
from nbtriton.model.config import is_ensemble
from nbtriton.runtime.engine import BatchRecord


def predict_batches(function: Callable[[], object]) -> Exercise:
    """Make an exercise from a function that returns a scenario: the reader predicts the batches.

    The answer lists the rows of each batch in the order in which they leave; of two simultaneous batches the
    one with the earlier request is first. The engine's schedulers run the scenario and so mark the answer.
    The feedback on a wrong answer names its first wrong batch and the reason of the right one.

    Parameters
    ----------
    function : callable
        Returns what `nbtriton.lessons.scenario` made, or the name of a scenario. Its docstring begins the question.

    Raises
    ------
    InvalidArgumentError
        No question, or a return value that is no scenario.

    Examples
    --------
    >>> @nt.lessons.predict_batches
    ... def three_in_a_row():
    ...     "Three requests come while the instance is busy with the first. Which batches leave?"
    ...     return nt.lessons.scenario(
    ...         'name: "m" max_batch_size: 2 dynamic_batching { }', "0 1 2 3"
    ...     )
    >>> nt.lessons.check(None, three_in_a_row, [1, 3]).feedback  # doctest: +ELLIPSIS
    'Batch 2 left with 2 rows (requests 2 and 3), not 3: because it was full...'
    >>> nt.lessons.check(None, three_in_a_row, [1, 2, 1]).correct
    True
    """
    name = function.__name__
    question = inspect.getdoc(function) or ""
    if not question:
        raise InvalidArgumentError(
            f"exercise '{name}' has no question", hint="its docstring begins the question"
        )
    scenario = function()
    if isinstance(scenario, str) and scenario in SCENARIOS:
        scenario = SCENARIOS[scenario]()
    if not isinstance(scenario, Scenario):
        raise InvalidArgumentError(
            f"exercise '{name}' returns {scenario!r:.80}, which is no scenario",
            hint=f"nt.lessons.scenario(config, arrivals), or one of {', '.join(SCENARIOS)}",
        )
    scenario_run = run(scenario)
    sizes = sizes_of(scenario_run)
    # Typical mistakes: all requests in one batch, each request alone.
    rows = sum(sizes)
    guesses = [[rows], [one.rows for one in scenario.arrivals]]

    def check(answer: list[int], _server: object) -> str:
        assert answer == sizes, _first_difference(scenario_run, answer)
        return _story(scenario_run)

    return Exercise(
        name=name,
        lesson=lesson_of(function),
        question=f"{one_line_paragraphs(question)}\n\n{_what_comes(scenario)}",
        hint=_hint(scenario),
        solution=str(sizes),
        example="[1, 1]",
        mistakes={
            str(one): _first_difference(scenario_run, one) for one in guesses if one != sizes
        },
        check=check,
        scenario=scenario,
        line=function.__code__.co_firstlineno,
    )


def sizes_of(scenario_run: ScenarioRun) -> list[int]:
    """Return the rows of each batch in the order in which they left, without padding."""
    return [_rows(scenario_run, batch) for batch in scenario_run.batches]


def _rows(scenario_run: ScenarioRun, batch: BatchRecord) -> int:
    return sum(
        request.size
        for one in scenario_run.records
        if one.name == batch.model
        for request in one.requests
        if request.number in batch.requests
    )


def _first_difference(scenario_run: ScenarioRun, answer: list[int]) -> str:
    batches, sizes = scenario_run.batches, sizes_of(scenario_run)
    rows = sum(sizes)
    remark = f" In all they carry {rows} rows, yours {sum(answer)}." if sum(answer) != rows else ""
    for index, batch in enumerate(batches):
        if index < len(answer) and answer[index] == sizes[index]:
            continue
        text = f"Batch {index + 1} left with {_who(scenario_run, batch)}"
        text += f", not {answer[index]}" if index < len(answer) else ", which is missing in yours"
        return f"{text}: {why(scenario_run, batch)}.{remark}"
    last = _who(scenario_run, batches[-1])
    return f"Batch {len(batches)} was the last one; it left with {last}.{remark}"


def _who(scenario_run: ScenarioRun, batch: BatchRecord) -> str:
    labels, rows = labels_of(scenario_run), _rows(scenario_run, batch)
    requests = listed([labels[batch.model, number] for number in batch.requests])
    noun = "request" if len(batch.requests) == 1 else "requests"
    return f"{rows} {'row' if rows == 1 else 'rows'} ({noun} {requests})"


def _story(scenario_run: ScenarioRun) -> str:
    return "\n".join(
        f"Batch {index} had {_who(scenario_run, batch)}: {why(scenario_run, batch)}."
        for index, batch in enumerate(scenario_run.batches, 1)
    )


def _what_comes(scenario: Scenario) -> str:
    said = []
    for model in scenario.models:
        if is_ensemble(model.config):
            continue
        config = model.config
        count = sum(group.count for group in config.instance_group)
        parts = [f"max_batch_size {config.max_batch_size}", f"{count} instance{'s' * (count > 1)}"]
        if config.HasField("dynamic_batching"):
            batching = config.dynamic_batching
            parts.append("dynamic_batching")
            if batching.max_queue_delay_microseconds:
                parts.append(f"a queue delay of {batching.max_queue_delay_microseconds} µs")
            if preferred_of(config):
                sizes = listed([str(size) for size in preferred_of(config)])
                parts.append(f"preferred sizes {sizes}")
        elif config.HasField("sequence_batching"):
            parts.append("sequence_batching")
        times = listed(
            [f"{ms:g} ms" + f" ({rows} rows)" * (rows > 1) for rows, ms in model.times_ms]
        )
        said.append(f"`{model.name}` has {', '.join(parts)}; an execution takes {times}.")
    form = " (`5x2` is one of 2 rows at 5 ms)" if "x" in scenario.arrivals_text else ""
    said.append(f"Requests come at {scenario.arrivals_text} ms{form}.")
    said.append("The answer is the rows of each batch, in the order in which they leave.")
    return " ".join(said)


def _hint(scenario: Scenario) -> str:
    config = next(one.config for one in scenario.models if not is_ensemble(one.config))
    batching = config.dynamic_batching
    if config.HasField("sequence_batching"):
        return "A sequence needs a slot, and each slot gives at most one request to a batch."
    if not config.HasField("dynamic_batching"):
        return "Without dynamic_batching every request runs alone."
    if batching.max_queue_delay_microseconds:
        return (
            "A batch leaves when it is full, when it has a preferred size, or when its oldest request has "
            "waited for the delay; and not before an instance is free."
        )
    return "Without a delay an idle instance takes at once what is there. What comes while it runs?"
