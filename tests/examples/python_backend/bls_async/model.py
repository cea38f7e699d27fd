"""Calls two models at once and takes one output of each."""

import asyncio

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        responses = []
        for request in requests:
            calls = [
                pb_utils.InferenceRequest(
                    model_name=name,
                    requested_output_names=["OUTPUT0", "OUTPUT1"],
                    inputs=request.inputs(),
                ).async_exec()
                for name in ("pytorch", "add_sub")
            ]
            answers = await asyncio.gather(*calls)
            for answer in answers:
                if answer.has_error():
                    raise pb_utils.TritonModelException(answer.error().message())
            tensors = [
                pb_utils.get_output_tensor_by_name(answers[0], "OUTPUT0"),
                pb_utils.get_output_tensor_by_name(answers[1], "OUTPUT1"),
            ]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
