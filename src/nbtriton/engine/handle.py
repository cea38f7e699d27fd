"""What `Server.load` returns: one model by name, whatever version serves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbtriton.config import ModelConfig, scheduling_choice

if TYPE_CHECKING:
    from nbtriton.engine.core.result import InferenceResult
    from nbtriton.engine.server import Server

__all__ = ["ModelHandle"]


class ModelHandle:
    """A loaded model: call it with its inputs by name.

    The handle stays valid when the model is replaced; after an unload its methods raise.
    """

    __slots__ = ("name", "server")

    def __init__(self, server: Server, name: str) -> None:
        self.server = server
        self.name = name

    def __call__(self, **inputs: Any) -> InferenceResult:
        """Send one request; see `Server.infer`."""
        return self.server.infer(self.name, inputs)

    @property
    def config(self) -> ModelConfig:
        """A copy of the completed configuration."""
        return self.server.config(self.name)

    @property
    def statistics(self) -> dict[str, Any]:
        """Triton's statistics of all versions."""
        return self.server.statistics(self.name)

    def unload(self) -> bool:
        """Unload the model; see `Server.unload`."""
        return self.server.unload(self.name)

    def __repr__(self) -> str:
        if not self.server.is_ready(self.name):
            return f"<model '{self.name}': not ready>"
        config = self.server.config(self.name)
        inputs = ", ".join(tensor.name for tensor in config.input)
        outputs = ", ".join(tensor.name for tensor in config.output)
        facts = [
            config.backend or "ensemble",
            f"max_batch_size {config.max_batch_size}",
            scheduling_choice(config) or "default scheduler",
        ]
        return f"<model '{self.name}': {inputs} -> {outputs} | {', '.join(facts)}>"
