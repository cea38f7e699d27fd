"""As add_sub, computed by a torch module that gets tensors by DLPack."""

import torch
import triton_python_backend_utils as pb_utils
from torch.utils.dlpack import from_dlpack, to_dlpack


class AddSub(torch.nn.Module):
    def forward(self, left, right):
        return left + right, left - right


class TritonPythonModel:
    def initialize(self, args):
        self.network = AddSub().eval()

    def execute(self, requests):
        responses = []
        for request in requests:
            inputs = [
                from_dlpack(pb_utils.get_input_tensor_by_name(request, name).to_dlpack())
                for name in ("INPUT0", "INPUT1")
            ]
            with torch.no_grad():
                outputs = self.network(*inputs)
            tensors = [
                pb_utils.Tensor.from_dlpack(f"OUTPUT{index}", to_dlpack(output))
                for index, output in enumerate(outputs)
            ]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
