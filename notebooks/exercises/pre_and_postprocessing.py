"""Exercises of ``08_pre_and_postprocessing.ipynb``; reading on spoils them."""

import nbtriton as nt


def requests_since_the_last(server, model):
    """Count the requests that the newest one for a model led to, itself included."""
    requests = server.requests(model)
    assert requests, f"Send a picture by `{model}` first."
    return by_number(server, requests[-1].number)


def by_number(server, number):
    """Count a request and those that it led to."""
    return 1 + int((nt.events(server, by="request")["caller"] == number).sum())


@nt.lessons.exercise(
    example="[1, 1, 1]",
    solution="[1, 4, 4]",
    hint="One from outside in each way. How many more does the server send to itself?",
    mistakes={
        "[3, 1, 1]": "In the first way the client does the work of two models itself, and asks for one.",
        "[1, 3, 3]": "The request for `by_ensemble` or `by_bls` itself is one, too.",
        "[1, 1, 1]": "From outside it is one in each way. The server sends some more to itself.",
    },
)
def requests_in_the_server(answer, server):
    """How many requests does the server handle for one picture: by the client, by the ensemble, by BLS?

    Those that it sends to itself count.
    """
    by_client = [one for one in server.requests("network") if not one.caller]
    assert by_client, "Send a picture by the client first."
    names = ("by_ensemble", "by_bls")
    happened = [
        by_number(server, by_client[-1].number),
        *(requests_since_the_last(server, name) for name in names),
    ]
    assert answer == happened, "The recorder counts other numbers."
    return (
        "One from outside, and one for each step: what the server sends to itself never leaves it."
    )


@nt.lessons.exercise(
    example="[1, 1]",
    solution="[10, 6]",
    hint="An ensemble always takes the same way. What does the BLS model do with a dark picture?",
    mistakes={
        "[10, 10]": "The BLS model looks at the picture first: there is an `if` in it.",
        "[6, 6]": "An ensemble cannot decide: it has no code.",
    },
)
def executions_of_the_network(answer, server):
    """Ten pictures, four of them dark. How often is `network` executed: by the ensemble, by BLS?"""
    frame = nt.events(server, by="request")
    happened = []
    for name in ("by_ensemble", "by_bls"):
        callers = [one.number for one in server.requests(name)[-10:]]
        assert len(callers) == 10, "Send the ten pictures first."
        happened.append(int(((frame["model"] == "network") & frame["caller"].isin(callers)).sum()))
    assert answer == happened, "The recorder counts other numbers."
    return "BLS skipped four executions: that is why one writes logic."


@nt.lessons.exercise(
    solution="""
        %%triton_config network
        dynamic_batching { }
    """,
    hint="Which model do all pictures wait for? Nothing in the ensemble has to change, only that model's configuration.",
)
def pictures_in_company(server):
    """Eight clients send one picture each to `by_ensemble` at the same time. Let the network see several of them at once.

    The check sends them and counts the executions of `network`.
    """
    from zlib import compress

    import numpy as np

    picture = np.full((224, 224, 3), 200, np.uint8)
    file = np.array([[compress(picture.tobytes())]], object)
    for future in [server.submit("by_ensemble", {"FILE": file}) for _ in range(8)]:
        future.result()
    batches = nt.lessons.last_batches(server, "network", request_count=8, within_ms=60)
    sizes = [batch.batch_size for batch in batches]
    assert len(sizes) < 8, f"`network` was executed for {sizes} pictures: one after the other."
    return f"`network` was executed for {sizes} pictures."
