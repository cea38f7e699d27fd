"""Exercises of ``02_concurrent_execution.ipynb``; reading on spoils them."""

import nbtriton as nt
from nbtriton.extensions.lessons import MachineBusyError


def most_at_once(batches):
    """Return the largest number of executions that overlap, each from when an instance got it: it may begin later."""
    return max(
        sum(other.formed_ns <= one.formed_ns < other.end_ns for other in batches) for one in batches
    )


def count_at_once(answer, server, resource, *, on_gpus):
    """Assert that so many of the last four executions ran at once; the question's configuration has to be there."""
    (group,) = server.config("compute_model_1").instance_group
    needed = [one.name for one in group.rate_limiter.resources]
    assert needed == [resource] and bool(group.gpus) == on_gpus, (
        "`compute_model_1` has another configuration: run the cells of this question, then this one."
    )
    batches = nt.lessons.last_batches(server, "compute_model_1", request_count=4, within_ms=30)
    assert answer == most_at_once(batches), (
        "The recorder saw another number: the timeline below shows each."
    )


@nt.lessons.exercise(
    example="2",
    solution="4",
    hint="The model has one instance and no batching. What can an instance do at a time?",
    mistakes={
        "1": "One execution holds one request here: without dynamic_batching requests share no batch.",
    },
)
def executions_of_four(answer, server):
    """Four requests for `compute_model_1` arrive at the same time. How many executions does it take?"""
    batches = nt.lessons.last_batches(server, "compute_model_1", request_count=4)
    assert answer == len(batches), "The recorder saw another number: the timeline below shows each."
    return f"One after the other: at most {most_at_once(batches)} at once."


@nt.lessons.exercise(
    example="0",
    solution="1",
    hint="Three instances begin at once. Which one is free first?",
    mistakes={
        "0": "Request 0 began first, but it takes longest: an instance is free when it has ended.",
        "2": "Request 2 ends after another one of the three.",
    },
)
def the_fourth_waits_for(answer, server):
    """Three instances, and four requests (numbers 0 to 3) that take 80, 20, 60 and 50 ms.

    For the end of which one does number 3 wait?
    """
    batches = nt.lessons.last_batches(
        server, "compute_model_1", request_count=4, within_ms=15, took_ms=(80, 20, 60, 50)
    )
    *others, last = sorted(batches, key=lambda batch: batch.requests[0])
    begins = [one.start_ns for one in others]
    late_ms = (max(begins) - min(begins)) / 1e6
    if late_ms > 15:
        raise MachineBusyError(
            f"of three executions that begin at once one began {late_ms:.0f} ms late"
        )
    before = [one for one in others if one.instance == last.instance]
    assert before, f"It did not wait: {last.instance} was free. Run the three instances first."
    numbers = sorted(batch.requests[0] for batch in batches)
    happened = numbers.index(before[-1].requests[0])
    assert answer == happened, f"It ran on {last.instance}: which request had it before?"
    return f"Its instance, {last.instance}, was the first to be free."


@nt.lessons.exercise(
    example="1",
    solution="2",
    hint="How often does what one execution needs go into what there is?",
    mistakes={
        "3": "There are three instances, but the third finds nothing of R left.",
        "4": "There are 4 of R, and an execution takes two of them.",
        "1": "Two of R are left when the first has begun.",
    },
)
def at_once_with_resources(answer, server):
    """Three instances, each execution needs 2 of the resource R, and there are 4. How many run at once?"""
    count_at_once(answer, server, "R", on_gpus=False)
    return "An instance without its resources waits like a busy one."


@nt.lessons.exercise(
    example="3",
    solution="2",
    hint="A resource that is not global is counted on each device. How many instances has each GPU?",
    mistakes={
        "1": "That is for a resource that the GPUs share. Of R each of them has 4.",
        "4": "A GPU has one instance here, and that runs one execution at a time.",
    },
)
def at_once_on_gpus(answer, server):
    """Two GPUs with an instance each, an execution takes 4 of R, and each device has 4. How many run at once?"""
    count_at_once(answer, server, "R", on_gpus=True)
    return "Each GPU has its own."


@nt.lessons.exercise(
    example="3",
    solution="1",
    hint="A global resource exists once in the server.",
    mistakes={"2": "That is for a resource of each device. LINK is global: there are 4 in all."},
)
def at_once_globally(answer, server):
    """The same two instances, but an execution takes 4 of the global LINK, and there are 4. How many run at once?"""
    count_at_once(answer, server, "LINK", on_gpus=True)
    return "The second GPU is idle, and waits for what the first one uses."
