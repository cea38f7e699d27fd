"""MLServer's program: a job on rows of numbers, batched.

``python mlserver_server.py JOB PORT GRPC METRICS``
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse

from bench.jobs import BATCH, JOBS


class Served(MLModel):
    async def load(self) -> bool:
        self._run = JOBS[self.name].make()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        x = NumpyCodec.decode_input(payload.inputs[0])
        return InferenceResponse(
            model_name=self.name, outputs=[NumpyCodec.encode_output("OUT", self._run(x))]
        )


if __name__ == "__main__":
    job = sys.argv[1]
    http, grpc, metrics = map(int, sys.argv[2:5])
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "mlserver_server.py").write_text(Path(__file__).read_text())
        Path(folder, "settings.json").write_text(
            json.dumps(
                {
                    "host": "127.0.0.1", "http_port": http, "grpc_port": grpc,
                    "metrics_port": metrics, "debug": False,
                }
            )
        )  # fmt: skip
        Path(folder, "model-settings.json").write_text(
            json.dumps(
                {
                    "name": job, "implementation": "mlserver_server.Served",
                    # 1 ms: the longest useless wait of a single request.
                    "max_batch_size": BATCH, "max_batch_time": 0.001,
                }
            )
        )  # fmt: skip
        subprocess.run([Path(sys.executable).with_name("mlserver"), "start", folder], check=True)
