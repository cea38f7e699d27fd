"""The application of an export on a Ray of this machine: requests by a handle and over HTTP."""

from __future__ import annotations

import json

import pytest

from tests.children import run_python
from tests.repository.models import add, ensemble, times

# Four requests make a batch; fewer wait longer than a busy machine takes to send the next.
CONFIG = """
max_batch_size: 8
dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 60000000 }
input { name: "IN" data_type: TYPE_FP32 dims: 4 }
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
"""
PROGRAM = """
import json, socket, urllib.request
import numpy as np, ray, tritonclient.http
from ray import serve

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
ray.init("local", num_cpus=2, include_dashboard=False)
serve.start(http_options={"host": "127.0.0.1", "port": port})
try:
    from ray_serve import app

    handle = serve.run(app)
    x = np.arange(4, dtype=np.float32)[None]
    several = [handle.infer.remote("twice", {"IN": x + n}) for n in range(4)]
    by_handle = [one.result()["OUT"].tolist() for one in several]
    client = tritonclient.http.InferenceServerClient(f"127.0.0.1:{port}")
    tensor = tritonclient.http.InferInput("IN", x.shape, "FP32")
    tensor.set_data_from_numpy(x)
    over_http = client.infer("outer", [tensor]).as_numpy("OUT").tolist()
    statistics = client.get_inference_statistics("twice")["model_stats"][0]
    unknown = urllib.request.Request(f"http://127.0.0.1:{port}/v2/models/none/infer", b"{}")
    try:
        urllib.request.urlopen(unknown)
    except urllib.error.HTTPError as error:
        refused = [error.code, json.load(error)["error"]]
    counts = [statistics["inference_count"], statistics["execution_count"]]
    print("SAID", json.dumps([by_handle, over_http, counts, refused]))
finally:
    serve.shutdown()
    ray.shutdown()
"""


@pytest.mark.slow
def test_the_application_answers_by_handle_and_over_http_as_triton_does(tmp_path):
    pytest.importorskip("ray.serve", reason="needs Ray Serve: pip install 'ray[serve]'")
    from nbtriton.extensions.platforms import ray_serve

    add(tmp_path, "twice", config=CONFIG, source=times(2))
    add(tmp_path, "thrice", config="", source=times(3))
    add(tmp_path, "outer", config=ensemble("thrice"), source=None)
    for name, text in ray_serve(tmp_path, ["twice", "thrice", "outer"], True).items():
        (tmp_path / name).write_text(text)
    done = run_python("-c", PROGRAM, check=True, cwd=tmp_path)
    said = next(line for line in done.stdout.splitlines() if line.startswith("SAID "))
    by_handle, over_http, counts, refused = json.loads(said.removeprefix("SAID "))
    assert by_handle == [[[2.0 * (value + n) for value in range(4)]] for n in range(4)]
    assert over_http == [[0.0, 3.0, 6.0, 9.0]]
    assert counts == [4, 1]  # requests, batches
    assert refused == [404, "Request for unknown model: 'none' is not found"]
