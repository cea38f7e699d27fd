"""Make sound of another sample rate: SciPy, on a GPU PyTorch with its filter."""

import math

from scipy import signal

from .shared.parameters import read_parameters
from .shared.tensors import device_of, give, take

PARAMETERS = {
    "rate_in": ("44100", (1, 1000000), "samples a second of what comes in"),
    "rate_out": ("16000", (1, 1000000), "samples a second of what goes out"),
}


class TritonPythonModel:
    def initialize(self, args):
        values = read_parameters(args["model_config"], PARAMETERS)
        self.device = device_of(args)
        rate_in, rate_out = values.values()
        common = math.gcd(rate_in, rate_out)
        self.up, self.down = rate_out // common, rate_in // common

    def execute(self, requests):
        resample = self.by_scipy if self.device is None else self.by_torch
        return [give(AUDIO=resample(take(request, "AUDIO", self.device))) for request in requests]

    def by_scipy(self, sound):
        return signal.resample_poly(sound, self.up, self.down, axis=-1)

    def by_torch(self, sound):
        if self.up == self.down:
            return sound
        half = 10 * max(self.up, self.down)  # the filter of resample_poly
        taps = signal.firwin(2 * half + 1, 1 / max(self.up, self.down), window=("kaiser", 5.0))
        taps = sound.new_tensor(taps * self.up)[None, None]
        from torch.nn.functional import conv_transpose1d

        filtered = conv_transpose1d(sound[:, None], taps, stride=self.up)[:, 0]
        return filtered[:, half :: self.down][:, : -(-sound.shape[1] * self.up // self.down)]
