"""``async def execute``: calls that are awaited side by side."""

import asyncio
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        responses = []
        for request in requests:
            program = json.loads(request.parameters())["program"]
            responses.append(await getattr(self, program)(request))
        return responses

    def call(self, request, name="target"):
        tensor = pb_utils.get_input_tensor_by_name(request, "IN")
        return pb_utils.InferenceRequest(
            model_name=name, requested_output_names=["OUT"], inputs=[tensor]
        )

    async def side_by_side(self, request):
        found = await asyncio.gather(*(self.call(request).async_exec() for _ in range(4)))
        arrays = [pb_utils.get_output_tensor_by_name(one, "OUT").as_numpy() for one in found]
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.concatenate(arrays))])

    async def streams(self, request):
        responses = await self.call(request, "stream").async_exec(decoupled=True)
        arrays = []
        for response in responses:
            tensor = pb_utils.get_output_tensor_by_name(response, "OUT")
            if tensor is not None:
                arrays.append(tensor.as_numpy())
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.concatenate(arrays))])

    async def itself(self, request):
        response = await self.call(request, "coroutine").async_exec()
        return pb_utils.InferenceResponse(error=response.error())

    async def raising(self, request):
        await asyncio.sleep(0)
        raise ValueError("in a coroutine")
