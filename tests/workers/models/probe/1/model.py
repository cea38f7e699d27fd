"""A model whose requests say what it does: the function of the program named by a request."""

import json

import triton_python_backend_utils as pb_utils

import programs


class TritonPythonModel:
    def initialize(self, args):
        self.args = args
        self.kept = []

    def execute(self, requests):
        responses = []
        for request in requests:
            name = json.loads(request.parameters())["program"]
            responses.append(getattr(programs, name)(self, request))
        return responses

    def finalize(self):
        pb_utils.Logger.log_warn("finalized")
