"""What is found by entry points and nothing else of nbtriton imports: each folder can be left unread, or out."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["ENTRY_POINTS"]

# As in pyproject.toml, which a source tree on PYTHONPATH does not have: by kind and name.
ENTRY_POINTS: Mapping[str, Mapping[str, str]] = {
    "backends": {
        "pytorch": "nbtriton.extensions.pytorch:PyTorchBackend",
        "onnxruntime": "nbtriton.extensions.onnxruntime:OnnxRuntimeBackend",
        "fil": "nbtriton.extensions.fil:FilBackend",
        "openvino": "nbtriton.extensions.openvino:OpenVinoBackend",
        "remote": "nbtriton.extensions.remote:RemoteBackend",
        "identity": "nbtriton.extensions.demonstration:IdentityBackend",
        "repeat": "nbtriton.extensions.demonstration:RepeatBackend",
    },
    "commands": {
        "env": "nbtriton.extensions.environments:add_env",
        "export": "nbtriton.extensions.verify:add_export",
        "validate": "nbtriton.extensions.doctor.validation:add_validate",
    },
    "devices": {"simulated": "nbtriton.extensions.simulated_gpus:SimulatedDevice"},
    "endpoints": {
        "grpc": "nbtriton.extensions.grpc.endpoint:GrpcEndpoint",
        "openai": "nbtriton.extensions.openai:OpenAiEndpoint",
    },
    "isolations": {"ray": "nbtriton.extensions.ray:RayBackend"},
    "magics": {
        "autoscale": "nbtriton.extensions.autoscale.magics:AutoscaleMagics",
        "capacity": "nbtriton.extensions.capacity.magics:CapacityMagics",
        "chaos": "nbtriton.extensions.chaos.magics:ChaosMagics",
        "copies": "nbtriton.extensions.copies.magics:CopiesMagics",
        "doctor": "nbtriton.extensions.doctor.magics:DoctorMagics",
        "environments": "nbtriton.extensions.environments.magics:EnvironmentMagics",
        "lessons": "nbtriton.extensions.lessons.magics:TeachMagics",
        "recordings": "nbtriton.extensions.recordings.magics:RecordingMagics",
        "remote": "nbtriton.extensions.remote.magics:RemoteMagics",
        "show": "nbtriton.extensions.show.magics:ShowMagics",
        "steps": "nbtriton.extensions.steps.magics:StepMagics",
        "tuning": "nbtriton.extensions.tuning.magics:TuneMagics",
        "twin": "nbtriton.extensions.twin.magics:TwinMagics",
    },
    "models": {"steps": "nbtriton.extensions.steps:STEPS"},
    "platforms": {
        "kubernetes": "nbtriton.extensions.platforms:kubernetes",
        "ray_serve": "nbtriton.extensions.platforms:ray_serve",
    },
    "stand_ins": {"zeros": "nbtriton.extensions.stand_in:stand_in_for"},
    "tracers": {"opentelemetry": "nbtriton.extensions.opentelemetry:SpanExport"},
    "verifiers": {"tritonserver": "nbtriton.extensions.verify:verifier"},
    "views": {
        "autoscale": "nbtriton.extensions.autoscale:autoscale",
        "capacity": "nbtriton.extensions.capacity:capacity",
        "chaos": "nbtriton.extensions.chaos:chaos",
        "compare": "nbtriton.extensions.comparison:compare",
        "copies": "nbtriton.extensions.copies:copies",
        "doctor": "nbtriton.extensions.doctor:doctor",
        "environment": "nbtriton.extensions.environments:environment",
        "lessons": "nbtriton.extensions.lessons",
        "record": "nbtriton.extensions.recordings:record",
        "remote": "nbtriton.extensions.remote:remote",
        "replay": "nbtriton.extensions.recordings:replay",
        "show": "nbtriton.extensions.show.view:show",
        "step": "nbtriton.extensions.steps:step",
        "tune": "nbtriton.extensions.tuning:tune",
        "twin": "nbtriton.extensions.twin:twin",
    },
}
