"""Sequence slots and resources of the rate limiter as strips of a timeline."""

from __future__ import annotations

import numpy as np
import pytest

import nbtriton as nt

ROW = np.ones((1, 4), np.float32)


def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:  # noqa: F821, N803, UP037
    return {"OUT": IN * 2}


@pytest.fixture(scope="module")
def timeline():
    with nt.Server(gpus=(), rate_limit="execution_count") as server:
        server.load(
            "max_batch_size: 2 sequence_batching { max_sequence_idle_microseconds: 60000000 }"
            "instance_group [{ count: 1 kind: KIND_CPU rate_limiter"
            '  { resources [{ name: "R" count: 2 global: true }] } }]',
            model=double,
            name="s",
        )
        for at in range(3):
            sent = [
                server.submit(
                    "s", {"IN": ROW}, sequence_id=who,
                    sequence_start=at == 0, sequence_end=at == 2,
                )
                for who in (7, "eight")
            ]  # fmt: skip
            for future in sent:
                future.result()
        # The identifier of a sequence that has ended begins another one.
        for who in (9, 9):
            server.infer("s", {"IN": ROW}, sequence_id=who, sequence_start=True, sequence_end=True)
        since = max(batch.end_ns for batch in server.batches("s"))
        assert server.batches("s", since_ns=since) == ()
        assert 0 < len(server.requests("s", since_ns=since - 1)) < len(server.requests("s"))
        assert [r.sequence for r in server.requests("s")].count(7) == 3
        yield nt.timeline(server, "s")


def test_slots_hold_their_sequences(timeline):
    (model, _) = timeline.timeline.models
    assert [strip.name for strip in model.strips] == ["s_0_0 slot 0", "s_0_0 slot 1"]
    held = [[span.label for span in strip.spans] for strip in model.strips]
    assert sorted(label for strip in held for label in strip) == ["7", "9", "9", "eight"]
    for strip in model.strips:
        for one, other in zip(strip.spans, strip.spans[1:], strict=False):
            assert one.end_ms <= other.begin_ms


def test_a_resource_is_held_while_its_batches_run(timeline):
    (model, limiter) = timeline.timeline.models
    (strip,) = limiter.strips
    assert strip.name == "resource R"
    held = sum(span.end_ms - span.begin_ms for span in strip.spans)
    ran = sum(bar.end_ms - bar.begin_ms for bar in model.bars)
    assert held == pytest.approx(ran)
    assert {span.label for span in strip.spans} == {"2/2"}


def test_strips_are_in_the_picture_and_in_the_text(timeline):
    for form in (timeline.svg, timeline.text):
        assert "s_0_0 slot 1" in form
        assert "resource R" in form


def test_the_strategy_oldest_has_candidates_and_no_slots():
    with nt.Server(gpus=()) as server:
        server.load(
            "max_batch_size: 2 sequence_batching { oldest { max_candidate_sequences: 4 } }",
            model=double,
            name="s",
        )
        server.infer("s", {"IN": ROW}, sequence_id=7, sequence_start=True, sequence_end=True)
        (model,) = nt.timeline(server, "s").timeline.models
    assert [strip.name for strip in model.strips] == ["s_0 candidate 0"]
