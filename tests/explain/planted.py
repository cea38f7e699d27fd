"""Twenty models with a fault each, and twenty without: what the doctor has to tell apart."""

from __future__ import annotations

import itertools
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

WEIGHTS = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)


def whole(change):
    """A model that sees one array of the rows of all requests of a batch, and splits the result."""

    class Whole:
        def execute(self, requests):
            arrays = [pb_utils.get_input_tensor_by_name(r, "IN").as_numpy() for r in requests]
            out = np.asarray(change(np.concatenate(arrays)), np.float32)
            ends = np.cumsum([len(array) for array in arrays])
            parts = np.split(out, ends[:-1])
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", p)]) for p in parts]

    return Whole


def each(change):
    """A model that answers request by request; `change` gets the array and the request's index."""

    class Each:
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse([
                    pb_utils.Tensor("OUT", np.asarray(change(
                        pb_utils.get_input_tensor_by_name(r, "IN").as_numpy(), at), np.float32))
                ])
                for at, r in enumerate(requests)
            ]  # fmt: skip

    return Each


class ReversedResponses:
    def execute(self, requests):
        found = each(lambda x, _: x * 2)().execute(requests)
        return found[::-1]


class FirstAnswersAll:
    def execute(self, requests):
        first = pb_utils.get_input_tensor_by_name(requests[0], "IN").as_numpy()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", first)]) for _ in requests]


class LastAnswersAll:
    def execute(self, requests):
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x)]) for _ in requests]


class Remembers:
    """Adds what it was asked before."""

    def initialize(self, args):
        self.sum = np.zeros((1, 4), np.float32)

    def execute(self, requests):
        found = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            found.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x + self.sum)]))
            self.sum = self.sum + x.sum(axis=0, keepdims=True)
        return found


class RunningNormalisation:
    """Updates its mean while it serves, as a module left in training mode."""

    def initialize(self, args):
        self.mean = np.zeros(4, np.float32)

    def execute(self, requests):
        found = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            self.mean = 0.9 * self.mean + 0.1 * x.mean(axis=0)
            out = (x - self.mean).astype(np.float32)
            found.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]))
        return found


class SharedBuffer:
    """Two instances work in one buffer of their class."""

    buffer = np.zeros((64, 4), np.float32)

    def execute(self, requests):
        found = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            part = self.buffer[: len(x)]
            part[:] = x
            time.sleep(1e-4)
            part *= 2
            found.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", part.copy())]))
        return found


CURRENT: dict[str, np.ndarray] = {}


class GlobalVariable:
    """Hands its input from one function to the next by a global."""

    def execute(self, requests):
        found = []
        for request in requests:
            CURRENT["x"] = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            time.sleep(1e-4)
            out = CURRENT["x"] + 1
            found.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]))
        return found


class NoReentry:
    """A library that may not be entered twice."""

    inside = threading.Lock()

    def execute(self, requests):
        if not self.inside.acquire(blocking=False):
            raise RuntimeError("already running")
        try:
            time.sleep(1e-4)
            return each(lambda x, _: x)().execute(requests)
        finally:
            self.inside.release()


def _random(x):
    return x + np.random.default_rng().random(x.shape)


def _softmax(x, axis):
    e = np.exp(x - x.max())
    return e / e.sum(axis=axis, keepdims=True)


def _attend(x):
    """Rows attend to each other."""
    return _softmax(x @ x.T, 1) @ x


def _ranks(x):
    return np.argsort(np.argsort(x[:, :1], axis=0), axis=0) + x


def _quantised(x):
    """The scale is that of the whole batch."""
    scale = np.abs(x).max() / 127
    return np.round(x / scale) * scale


def _trims_padding(x):
    """Takes the rows in front of the first row of zeros for the batch, and scales by their number."""
    ends = np.flatnonzero(~x.any(axis=1))
    return x * (100 if len(ends) else 1)


def _cumulative(x):
    return np.cumsum(x, axis=0)


def _drops_last(x):
    return x[:-1] if len(x) > 1 else x


def _few_rows_only(x):
    if len(x) > 6:
        raise ValueError("at most 6 rows")
    return x


# Name: the model, and the tests that may name its fault.
FAULTY = {
    "normalises over the batch": (whole(lambda x: x - x.mean(axis=0)), {"neighbours"}),
    "softmax over everything": (whole(lambda x: _softmax(x, None)), {"neighbours"}),
    "rows attend to each other": (whole(_attend), {"neighbours"}),
    "rank within the batch": (whole(_ranks), {"neighbours", "order", "padding"}),
    "scale of the whole batch": (whole(_quantised), {"neighbours", "padding"}),
    "maximum of the batch": (whole(lambda x: x / np.abs(x).max()), {"neighbours"}),
    "cumulative sum over rows": (whole(_cumulative), {"neighbours", "order"}),
    "rows reversed": (whole(lambda x: x[::-1]), {"alignment", "neighbours", "order"}),
    "index of the row added": (whole(lambda x: x + np.arange(len(x))[:, None]), {"order"}),
    "number of rows added": (whole(lambda x: x + len(x)), {"batch size"}),
    "rows of zeros trimmed": (whole(_trims_padding), {"padding"}),
    "last row dropped": (each(lambda x, _: _drops_last(x)), {"shape"}),
    "fails on many rows": (each(lambda x, _: _few_rows_only(x)), {"runs"}),
    "responses reversed": (ReversedResponses, {"alignment"}),
    "first request answers all": (FirstAnswersAll, {"alignment"}),
    "last request answers all": (LastAnswersAll, {"alignment"}),
    "index of the request added": (each(lambda x, at: x + at), {"alignment"}),
    "random numbers": (each(lambda x, _: _random(x)), {"repeatable"}),
    "remembers": (Remembers, {"repeatable"}),
    "training mode": (RunningNormalisation, {"repeatable"}),
    "wrong width": (each(lambda x, _: x[:, :2]), {"shape"}),
    "shared buffer": (SharedBuffer, {"threads"}),
    "global variable": (GlobalVariable, {"threads"}),
    "no reentry": (NoReentry, {"threads"}),
}


class OwnBuffer:
    """Works in a buffer of its own."""

    def initialize(self, args):
        self.buffer = np.zeros((64, 4), np.float32)

    def execute(self, requests):
        found = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            self.buffer[: len(x)] = x
            time.sleep(1e-4)
            out = self.buffer[: len(x)] * 2
            found.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]))
        return found


class Locked:
    """A shared buffer behind a lock."""

    buffer = np.zeros((64, 4), np.float32)
    lock = threading.Lock()

    def execute(self, requests):
        with self.lock:
            return SharedBuffer.execute(self, requests)


class Cached:
    """Remembers answers by their inputs, which changes none."""

    cache: dict[bytes, np.ndarray] = {}

    def execute(self, requests):
        def answer(x, _):
            return np.concatenate(
                [self.cache.setdefault(row.tobytes(), row * 3)[None] for row in x]
            )

        return each(answer)().execute(requests)


class Counting:
    """Counts its calls, and says so nowhere."""

    calls = itertools.count()

    def execute(self, requests):
        next(self.calls)
        return each(lambda x, _: x)().execute(requests)


class OutOfOrderInside:
    """Works from the last request to the first, and answers in order."""

    def execute(self, requests):
        found = {}
        for request in reversed(requests):
            x = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            found[request] = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x - 1)])
        return [found[request] for request in requests]


class SeededNoise:
    """Noise that depends on the input alone."""

    def execute(self, requests):
        def noisy(x, _):
            seeds = [int(abs(row.sum()) * 1e4) for row in x]
            noise = [np.random.default_rng(seed).random(4) for seed in seeds]
            return x + np.asarray(noise)

        return each(noisy)().execute(requests)


def _padded_to_eight(x):
    """Pads the batch to a fixed size, as compiled models want it, and cuts the rows off again."""
    wide = np.zeros((-(-len(x) // 8) * 8, 4), np.float32)
    wide[: len(x)] = x
    return (wide @ WEIGHTS)[: len(x)]


def _half(x):
    return (x.astype(np.float16) @ WEIGHTS.astype(np.float16)).astype(np.float32)


GOOD = {
    "identity": each(lambda x, _: x),
    "double": whole(lambda x: x * 2),
    "linear": whole(lambda x: x @ WEIGHTS),
    "linear row by row": each(lambda x, _: np.stack([row @ WEIGHTS for row in x])),
    "two layers": whole(lambda x: np.tanh(x @ WEIGHTS) @ WEIGHTS.T),
    "softmax over features": whole(lambda x: _softmax(x, 1)),
    "normalises over features": whole(
        lambda x: (x - x.mean(axis=1, keepdims=True)) / (x.std(axis=1, keepdims=True) + 1e-3)
    ),
    "half precision inside": whole(_half),
    "sorts its features": whole(lambda x: np.sort(x, axis=1)),
    "class as a number": whole(lambda x: np.eye(4)[x.argmax(axis=1)]),
    "constant": whole(np.ones_like),
    "pads the batch": whole(_padded_to_eight),
    "infinities": whole(lambda x: np.where(x > 0, np.inf, x)),
    "not a number": whole(lambda x: np.where(x > 0, np.nan, x)),
    "large numbers": whole(lambda x: np.exp(x * 8) @ np.abs(WEIGHTS)),
    "own buffer": OwnBuffer,
    "shared buffer behind a lock": Locked,
    "cache": Cached,
    "counter": Counting,
    "out of order inside": OutOfOrderInside,
    "noise by the input": SeededNoise,
}
