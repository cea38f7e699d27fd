"""Make a mel spectrogram of sound: SciPy, on a GPU PyTorch."""

import numpy as np
from scipy import fft

from .shared.parameters import read_parameters
from .shared.tensors import device_of, give, refuse, take

PARAMETERS = {
    "sample_rate": ("16000", (1, 1000000), "samples a second"),
    "n_fft": ("400", (2, 65536), "samples of a window"),
    "hop_length": ("160", (1, 65536), "samples from one window to the next"),
    "n_mels": ("80", (1, 1024), "bands, from 0 Hz to half the sample rate"),
    "scale": ("db", ("db", "power"), "decibels, of at least 1e-10, or power"),
}


class TritonPythonModel:
    def initialize(self, args):
        values = read_parameters(args["model_config"], PARAMETERS)
        self.device = device_of(args)
        rate, self.size, self.hop, bands, self.scale = values.values()
        self.window = np.hanning(self.size + 1)[:-1].astype(np.float32)
        mels = np.linspace(0, 2595 * np.log10(1 + rate / 2 / 700), bands + 2)
        edges = (700 * (10 ** (mels / 2595) - 1))[:, None]
        slopes, gaps = edges - np.linspace(0, rate / 2, self.size // 2 + 1), np.diff(edges, axis=0)
        filters = np.minimum(-slopes[:-2] / gaps[:-1], slopes[2:] / gaps[1:])
        self.filters = np.maximum(filters, 0).astype(np.float32)

    def execute(self, requests):
        return [self.respond(take(request, "AUDIO", self.device)) for request in requests]

    def respond(self, sound):
        if sound.shape[1] <= self.size // 2:
            text = f"AUDIO has {sound.shape[1]} samples, more than {self.size // 2} are needed"
            return refuse(text)
        if self.device is None:
            mel = self.filters @ self.by_scipy(sound)
            return give(MEL=10 * np.log10(mel.clip(1e-10)) if self.scale == "db" else mel)
        window, filters = map(sound.new_tensor, (self.window, self.filters))
        found = sound.stft(self.size, self.hop, window=window, return_complex=True)
        mel = filters @ found.abs() ** 2
        return give(MEL=10 * mel.clip(1e-10).log10() if self.scale == "db" else mel)

    def by_scipy(self, sound):
        sound = np.pad(sound, ((0, 0), (self.size // 2,) * 2), mode="reflect")
        windows = np.lib.stride_tricks.sliding_window_view(sound, self.size, axis=1)[:, :: self.hop]
        return abs(fft.rfft(windows * self.window).transpose(0, 2, 1)) ** 2
