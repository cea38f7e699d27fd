"""As add_sub, with a metric of its own: one family and one value for all three instances."""

import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.family = pb_utils.MetricFamily(
            name="requests_process_latency_ns",
            description="Cumulative time spent processing requests",
            kind=pb_utils.MetricFamily.COUNTER,
        )
        self.metric = self.family.Metric(
            labels={"model": args["model_name"], "version": args["model_version"]}
        )

    def execute(self, requests):
        start_ns = time.time_ns()
        responses = []
        for request in requests:
            left = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            right = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            tensors = [
                pb_utils.Tensor("OUTPUT0", left + right),
                pb_utils.Tensor("OUTPUT1", left - right),
            ]
            responses.append(pb_utils.InferenceResponse(tensors))
        self.metric.increment(max(1, time.time_ns() - start_ns))
        pb_utils.Logger.log_info(f"Cumulative processing latency: {self.metric.value()} ns")
        return responses
