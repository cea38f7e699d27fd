"""A picture file as a normalized image, channels first."""

import io
import json

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image

MEAN = np.array([0.485, 0.456, 0.406], np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)


class TritonPythonModel:
    def initialize(self, args):
        output = pb_utils.get_output_config_by_name(json.loads(args["model_config"]), "OUTPUT_0")
        self.dtype = pb_utils.triton_string_to_numpy(output["data_type"])

    def execute(self, requests):
        responses = []
        for request in requests:
            file = pb_utils.get_input_tensor_by_name(request, "INPUT_0").as_numpy()
            picture = Image.open(io.BytesIO(file.tobytes())).convert("RGB").resize((224, 224))
            image = (np.asarray(picture, np.float32) / 255 - MEAN) / DEVIATION
            image = image.transpose(2, 0, 1)[np.newaxis].astype(self.dtype)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT_0", image)]))
        return responses
