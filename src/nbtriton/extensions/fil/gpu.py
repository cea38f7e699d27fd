"""A tree model on a GPU: the flat trees in its memory, walked by a kernel. Never run on hardware so far."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.extensions.fil.flatten import CATEGORICAL, FlatForest
from nbtriton.extensions.fil.parameters import ForestParameters

__all__ = ["GpuForest"]

_ARRAYS = (
    "feature", "threshold", "left", "right", "rule", "leaf", "outputs",
    "category_at", "category_bits", "categories",
)  # fmt: skip


class GpuForest:
    """A flat forest in the memory of a device, shared by all instances there.

    Sums are always float64, and so differ from GTIL's by GTIL's own rounding.

    Parameters
    ----------
    flat : FlatForest
    parameters : ForestParameters
    device : torch.device
        The host for Triton's interpreter.
    """

    def __init__(self, flat: FlatForest, parameters: ForestParameters, device: Any) -> None:
        import torch

        from nbtriton.extensions.fil import kernel

        def on_device(array: Any) -> Any:
            # A pointer needs a target, even without categories.
            array = array if array.size else np.zeros(1, array.dtype)
            return torch.from_numpy(np.ascontiguousarray(array)).to(device)

        self._torch: Any = torch
        self._kernel: Any = kernel
        self._flat = flat
        self._parameters = parameters
        self._trees = [on_device(one) for one in (flat.roots, flat.depths, flat.class_ids)]
        self._nodes = [on_device(getattr(flat, name)) for name in _ARRAYS]
        self._scale, self._base = on_device(flat.scale), on_device(flat.base)
        self._by_category = bool((flat.rule & CATEGORICAL).any())
        self._finish = _postprocessor(torch, flat)

    def predict(self, rows: Any, width: int) -> Any:
        """Return the output of rows, in the current stream.

        Parameters
        ----------
        rows : torch.Tensor of float32, shape (rows, features)
            On the device.
        width : int
            Of the configured output; with 1, probabilities are those of class 1 alone.

        Returns
        -------
        torch.Tensor of float32, shape (rows, width)
        """
        flat, parameters, torch = self._flat, self._parameters, self._torch
        if rows.ndim != 2 or rows.shape[1] != flat.features:
            raise InvalidArgumentError(
                f"rows of {rows.shape[-1]} features, the model has {flat.features}"
            )
        results = self._finish((self._sums(rows) * self._scale + self._base).float())
        if flat.classes == 1:
            if parameters.predict_proba:
                return results if width == 1 else torch.cat((1 - results, results), 1)
            if parameters.output_class:
                return (results > parameters.threshold).float()
        elif parameters.output_class and not parameters.predict_proba:
            return results.argmax(1, keepdim=True).float()
        return results

    def _sums(self, rows: Any) -> Any:
        """Return the sums of the leaves, (rows, classes) of float64."""
        flat, kernel, torch = self._flat, self._kernel, self._torch
        count, trees = len(rows), len(flat.roots)
        blocks = -(-trees // kernel.TREES)
        sums = torch.empty((blocks, count, flat.classes), dtype=torch.float64, device=rows.device)
        if count:
            kernel.walk[-(-count // kernel.ROWS), blocks](
                rows.contiguous(), count, flat.features, *self._trees, trees, *self._nodes,
                sums, flat.classes, WIDTH=flat.outputs.shape[1], BY_CATEGORY=self._by_category,
                ROWS=kernel.ROWS, TREES=kernel.TREES,
            )  # fmt: skip
        return sums.sum(0)


def _postprocessor(torch: Any, flat: FlatForest) -> Callable[[Any], Any]:
    """Return treelite's postprocessor of this name as a function of float32 results."""
    alpha, ratio = flat.sigmoid_alpha, flat.ratio_c

    def sigmoid(x: Any) -> Any:
        return 1 / (1 + torch.exp(-alpha * x))

    functions: dict[str, Callable[[Any], Any]] = {
        "identity": lambda x: x,
        "identity_multiclass": lambda x: x,
        "signed_square": lambda x: torch.copysign(x * x, x),
        "hinge": lambda x: (x > 0).float(),
        "sigmoid": sigmoid,
        "multiclass_ova": sigmoid,
        "exponential": torch.exp,
        "exponential_standard_ratio": lambda x: torch.exp2(-x / ratio),
        "logarithm_one_plus_exp": lambda x: torch.log1p(torch.exp(x)),
        "softmax": lambda x: torch.softmax(x, 1),
    }
    return functions[flat.postprocessor]
