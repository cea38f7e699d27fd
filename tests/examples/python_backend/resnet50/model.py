"""A small convolutional network of a ResNet's signature, on the device of its instance."""

import torch
import triton_python_backend_utils as pb_utils
from torch.utils.dlpack import to_dlpack


class TritonPythonModel:
    def initialize(self, args):
        kind = "cuda" if args["model_instance_kind"] == "GPU" else "cpu"
        self.device = f"{kind}:{args['model_instance_device_id']}"
        torch.manual_seed(0)
        self.network = (
            torch.nn.Sequential(
                torch.nn.Conv2d(3, 8, kernel_size=7, stride=8),
                torch.nn.ReLU(),
                torch.nn.AdaptiveAvgPool2d(4),
                torch.nn.Flatten(),
                torch.nn.Linear(128, 1000),
            )
            .to(self.device)
            .eval()
        )

    def execute(self, requests):
        responses = []
        for request in requests:
            images = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            with torch.no_grad():
                result = self.network(torch.as_tensor(images, device=self.device))
            tensor = pb_utils.Tensor.from_dlpack("OUTPUT", to_dlpack(result))
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses
