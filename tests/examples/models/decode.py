"""IMAGE is a picture file of any kind as pixels of the size that its configuration says."""

import io
import json

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        height, width, _ = pb_utils.get_output_config_by_name(config, "IMAGE")["dims"]
        self.size = (int(width), int(height))

    def execute(self, requests):
        responses = []
        for request in requests:
            files = pb_utils.get_input_tensor_by_name(request, "FILE").as_numpy()
            images = np.stack([self.pixels(file) for file in files.flat])
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("IMAGE", images)]))
        return responses

    def pixels(self, file):
        image = Image.open(io.BytesIO(file)).convert("RGB").resize(self.size, Image.BILINEAR)
        return np.asarray(image, np.float32) / 127.5 - 1
