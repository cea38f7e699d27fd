"""``%triton_remote``: the same as the Python call."""

from __future__ import annotations

import numpy as np

import nbtriton as nt


def test_a_model_of_another_server_is_a_model_here(notebook):
    with nt.Server(gpus=()) as far:
        far.load(
            'max_batch_size: 8 input { name: "IN" data_type: TYPE_FP32 dims: 4 } '
            'output { name: "OUT" data_type: TYPE_FP32 dims: 4 }',
            lambda IN: {"OUT": IN * 2},  # noqa: N803
            name="double",
        )
        with far.serve(http_port=0, grpc_port=None, metrics_port=None) as ports:
            place = f"127.0.0.1:{ports.http_port}"
            ran = notebook.ok(f"%triton_remote far {place} --model double --timeout-s 60 -o made")
            assert notebook.names["made"] is ran.value
            found = notebook.ok("%triton_infer far IN=[[1, 2, 3, 4]]").value
            np.testing.assert_array_equal(found["OUT"], [[2, 4, 6, 8]])
            assert nt.server().config("far").parameters["REMOTE_TIMEOUT_S"].string_value == "60.0"
            failed = notebook(f"%triton_remote none {place} --model nope")
            assert "Request for unknown model: 'nope'" in str(failed.error)
            notebook.ok("%triton_unload far")
