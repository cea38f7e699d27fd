"""``%triton_twin``: the same as the Python call, and a profile for ``%triton_whatif``."""

from __future__ import annotations

import numpy as np
import pytest

import nbtriton as nt


@pytest.mark.medium
def test_a_running_server_is_a_profile_and_its_models_run_here(notebook):
    with nt.Server(stand_in=True, gpus=()) as far:
        far.load(
            'backend: "tensorrt" max_batch_size: 8 input { name: "IN" data_type: TYPE_FP32 dims: 4 } '
            'output { name: "OUT" data_type: TYPE_FP32 dims: 4 } '
            'parameters { key: "STAND_IN_COST_US" value { string_value: "2000" } }',
            name="bert",
        )
        far.infer("bert", {"IN": np.zeros((1, 4), np.float32)})
        with far.serve(http_port=0, grpc_port=None, metrics_port=None) as ports:
            place = f"127.0.0.1:{ports.http_port}"
            notebook.ok("%triton_server --stand-in on")
            ran = notebook.ok(f"%triton_twin {place} --duration-s 0.2 --load -o copy")
            assert notebook.names["copy"] is ran.value
            assert ran.value.models["bert"].points[0].mean_us >= 2000
            report = notebook.ok("%triton_whatif bert --profile copy --concurrency 1").value
            assert report.simulated
            assert report.points[0].infer_per_s <= 500
            found = notebook.ok("%triton_infer bert IN=[[1, 2, 3, 4]]").value
            np.testing.assert_array_equal(found["OUT"], [[0, 0, 0, 0]])
            assert "'nope'" in str(
                notebook(f"%triton_twin {place} --model nope --duration-s 0.1").error
            )
            notebook.ok("%triton_unload bert")
            notebook.ok("%triton_server --stand-in off")
