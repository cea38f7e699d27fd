"""Make a mel spectrogram of sound: SciPy, on a GPU PyTorch."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils
from scipy import fft, signal

PARAMETERS = {
    "sample_rate": ("16000", (1, 1000000), "samples a second"),
    "n_fft": ("400", (2, 65536), "samples of a window"),
    "hop_length": ("160", (1, 65536), "samples from one window to the next"),
    "n_mels": ("80", (1, 1024), "bands, from 0 Hz to half the sample rate"),
    "scale": ("db", ("db", "power"), "decibels, of at least 1e-10, or power"),
}


def read_parameters(config):
    """Return the values of each of PARAMETERS: what the configuration says, checked, or the default."""
    given = {key: one["string_value"] for key, one in json.loads(config)["parameters"].items()}
    if unknown := {key for key in given if key.islower()} - PARAMETERS.keys():
        raise ValueError(f"unknown parameter '{min(unknown)}', known are {', '.join(PARAMETERS)}")
    values = {}
    for name, (default, allowed, _) in PARAMETERS.items():
        text = given.get(name, default)
        try:
            found = [type(allowed[0])(word) for word in text.split(",")] if allowed else [text]
        except ValueError:
            found = []
        words = not allowed or isinstance(allowed[0], str)
        valid = [x in (allowed or found) if words else allowed[0] <= x <= allowed[1] for x in found]
        if not all(valid) or len(valid) != len(default.split(",")):
            raise ValueError(f"{name} is '{text}', allowed is {allowed}, as in '{default}'")
        values[name] = found
    return values


def device_of(args):
    """Return torch's device of an instance on a GPU; None for one on the CPU."""
    if args["model_instance_kind"] != "GPU":
        return None
    import torch

    return f"cuda:{args['model_instance_device_id']}" if torch.cuda.is_available() else "cpu"


def take(request, name, device):
    """Return an input: NumPy's array, or torch's tensor on a device."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    if device is None and tensor.is_cpu():
        return tensor.as_numpy()
    import torch

    found = torch.from_dlpack(tensor.to_dlpack()).to(device or "cpu")
    return found if device else found.numpy()


def give(**outputs):
    """Return a response with these arrays or tensors."""
    pack, share = pb_utils.Tensor, pb_utils.Tensor.from_dlpack
    pairs = outputs.items()
    made = [pack(k, v) if isinstance(v, np.ndarray) else share(k, v.contiguous()) for k, v in pairs]
    return pb_utils.InferenceResponse(made)


class TritonPythonModel:
    def initialize(self, args):
        values = read_parameters(args["model_config"])
        self.device = device_of(args)
        (rate,), (self.size,), (self.hop,), (bands,), (self.scale,) = values.values()
        self.window = signal.get_window("hann", self.size).astype(np.float32)
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
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(text))
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
