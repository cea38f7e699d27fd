"""A marimo notebook of the Python interface, as marimo keeps one."""

import marimo

app = marimo.App()


@app.cell
def _():
    import numpy as np

    import nbtriton as nt

    def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:  # noqa: F821, N803
        return {"OUT": IN * 2}

    server = nt.Server(gpus=())
    handle = server.load("max_batch_size: 8", double, name="double")
    handle  # noqa: B018
    return handle, np, nt, server


@app.cell
def _(np, server):
    server.infer("double", {"IN": np.ones((1, 4), np.float32)})


@app.cell
def _(nt, server):
    report = nt.perf(server, "double", concurrency=[1, 2], request_count=20)
    report  # noqa: B018
    return (report,)


@app.cell
def _(nt, report, server):
    assert report.points
    nt.timeline(server, "double")


@app.cell
def _(nt, report, server):
    assert report.points
    nt.why(server, "double")


@app.cell
def _(nt, server):
    nt.dag(server, "double")


if __name__ == "__main__":
    app.run()
