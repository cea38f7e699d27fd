"""Weighted mean of both scores: BERT_WEIGHT for BERT's, the rest for the trees'."""

import triton_python_backend_utils as pb_utils

INPUTS = ("BERT_WEIGHT_INPUT", "BERT_LARGE_SCORE", "CUML_SCORE")


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        tensors = [pb_utils.get_input_tensor_by_name(request, name) for name in INPUTS]
        if tensors[0].shape()[1] != 1:
            error = pb_utils.TritonError(
                "a row of BERT_WEIGHT_INPUT is one weight: its shape is [ROWS, 1]",
                pb_utils.TritonError.INVALID_ARG,
            )
            return pb_utils.InferenceResponse(error=error)
        if all(tensor.is_cpu() for tensor in tensors):
            score = mean(*(tensor.as_numpy() for tensor in tensors))
            output = pb_utils.Tensor("OUTPUT0", score)
        else:
            score = mean(*on_one_device(tensors))
            output = pb_utils.Tensor.from_dlpack("OUTPUT0", score)
        return pb_utils.InferenceResponse([output])


def mean(weight, bert, trees):
    return weight * bert + (1 - weight) * trees


def on_one_device(tensors):
    """Return torch tensors, on the GPU if any tensor is on a GPU."""
    import torch

    values = [torch.from_dlpack(tensor.to_dlpack()) for tensor in tensors]
    device = next(value.device for value in values if value.device.type != "cpu")
    return [value.to(device) for value in values]
