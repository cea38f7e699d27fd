"""A marimo notebook of live views: a watch while requests come, a report, a model, a result, a figure."""

import marimo

app = marimo.App()


@app.cell
def _():
    import threading

    import numpy as np

    import nbtriton as nt

    def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:  # noqa: F821, N803
        return {"OUT": IN * 2}

    server = nt.Server(gpus=())
    handle = server.load("max_batch_size: 8", double, name="double")
    handle  # noqa: B018
    return handle, np, nt, server, threading


@app.cell
def _(nt, server):
    nt.watch(server)


@app.cell
def _(np, server):
    server.infer("double", {"IN": np.ones((1, 4), np.float32)})


@app.cell
def _(nt, server):
    report = nt.perf(server, "double", concurrency=[1, 2], request_count=20)
    report  # noqa: B018
    return (report,)


@app.cell
def _(report):
    report.plot()


@app.cell
def _(nt, report):
    nt.plot(first=report, again=report)


@app.cell
def _(nt, report, server):
    assert report.points
    nt.timeline(server, "double")


@app.cell
def _(nt, server):
    nt.dag(server, "double")


@app.cell
def _(np, report, server, threading):
    assert report.points
    over = threading.Event()

    def traffic():
        while not over.wait(0.02):
            server.infer("double", {"IN": np.ones((2, 4), np.float32)})

    threading.Thread(target=traffic, daemon=True).start()


if __name__ == "__main__":
    app.run()
