"""A tree model on a GPU: its trees as flat arrays, which torch walks. Never run on hardware so far.

All rows walk all trees together, a level at a time, and a leaf leads to itself. The tests run the same code on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.extensions.fil.forest import ForestParameters

# Bits of a node's rule: the conditions of the left child.
_BELOW, _EQUAL, _ABOVE, _MISSING = 1, 2, 4, 8
_CATEGORICAL, _LISTED_GO_RIGHT = 16, 32
# treelite's operators by number (tree.h, `Operator`): ==, <, <=, >, >=.
_OPERATORS = np.array([0, _EQUAL, _BELOW, _BELOW | _EQUAL, _ABOVE, _ABOVE | _EQUAL])
# The categories that a float32 can represent: GTIL accepts none above.
_CATEGORIES = 2**24
_SPLIT_BY_CATEGORY = 2

_Numbers = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class FlatForest:
    """The nodes of all trees.

    Parameters
    ----------
    features, classes : int
        Numbers of inputs and of results of a row.
    depth : int
        The longest path to a leaf.
    roots, class_ids : ndarray, shape (trees,)
        The first node and the class of a tree (0 where its leaves have all classes).
    feature, left, right, rule, leaf : ndarray, shape (nodes,)
        The feature that a node tests, its children, the bits of its rule, and a leaf's row of `outputs`.
    threshold : ndarray of float32 or float64, shape (nodes,)
        The model's own values; a float32 is compared with them exactly.
    outputs : ndarray of float32 or float64, shape (leaves, 1 or classes)
    category_at, category_bits : ndarray, shape (nodes,)
        Of a split by categories the first byte of its bits in `categories`, and their number.
    categories : ndarray of uint8
        A bit for each category of each split: set for listed ones.
    scale : ndarray of float64, shape (classes,)
        Factor of the sum over the trees: one by their number where they are averaged.
    base : ndarray of float64, shape (classes,)
        Added after scaling.
    postprocessor : str
        treelite's name of the postprocessor.
    sigmoid_alpha, ratio_c : float
        Its parameters.
    """

    features: int
    classes: int
    depth: int
    roots: _Numbers
    class_ids: _Numbers
    feature: _Numbers
    left: _Numbers
    right: _Numbers
    rule: _Numbers
    leaf: _Numbers
    threshold: _Floats
    outputs: _Floats
    category_at: _Numbers
    category_bits: _Numbers
    categories: npt.NDArray[np.uint8]
    scale: npt.NDArray[np.float64]
    base: npt.NDArray[np.float64]
    postprocessor: str
    sigmoid_alpha: float
    ratio_c: float

    @property
    def nbytes(self) -> int:
        """The memory of all arrays, in bytes."""
        arrays = (getattr(self, name) for name in self.__slots__)
        return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))


def flatten(model: Any) -> FlatForest:
    """Return the trees of a ``treelite.Model`` with one target."""
    header = model.get_header_accessor()
    trees = [_tree(model.get_tree_accessor(index)) for index in range(int(model.num_tree))]
    roots = np.cumsum([0, *(len(tree["left"]) for tree in trees[:-1])])
    leaves = np.cumsum([0, *(len(tree["outputs"]) for tree in trees[:-1])])
    starts = np.cumsum([0, *(len(tree["categories"]) for tree in trees[:-1])])
    for tree, root, leaf, start in zip(trees, roots, leaves, starts, strict=True):
        firsts = {"left": root, "right": root, "leaf": leaf, "category_at": start}
        for name, first in firsts.items():
            tree[name] = tree[name] + first
    classes = int(header.get_field("num_class")[0])
    ids = np.asarray(header.get_field("class_id"), np.int64)
    return FlatForest(
        features=int(model.num_feature),
        classes=classes,
        depth=max(tree.pop("depth") for tree in trees),
        roots=roots,
        class_ids=np.maximum(ids, 0),
        scale=_scale(header, ids, classes),
        base=np.asarray(header.get_field("base_scores"), np.float64).reshape(-1)[:classes],
        postprocessor=str(header.get_field("postprocessor")),
        sigmoid_alpha=float(header.get_field("sigmoid_alpha")[0]),
        ratio_c=float(header.get_field("ratio_c")[0]),
        **{name: np.concatenate([tree[name] for tree in trees]) for name in trees[0]},
    )


def _scale(header: Any, ids: _Numbers, classes: int) -> npt.NDArray[np.float64]:
    if not int(header.get_field("average_tree_output")[0]):
        return np.ones(classes)
    counts = [int(((ids == one) | (ids < 0)).sum()) for one in range(classes)]
    return 1.0 / np.maximum(counts, 1)


def _tree(tree: Any) -> dict[str, Any]:
    """Return the arrays of one tree; its nodes, leaves and bytes are numbered from 0."""
    left = np.asarray(tree.get_field("cleft"), np.int64)
    right = np.asarray(tree.get_field("cright"), np.int64)
    nodes = np.arange(len(left))
    is_leaf = left < 0
    rule = _OPERATORS[np.asarray(tree.get_field("cmp"), np.int64)]
    rule |= np.where(np.asarray(tree.get_field("default_left")) != 0, _MISSING, 0)
    by_category = np.asarray(tree.get_field("node_type")) == _SPLIT_BY_CATEGORY
    to_right = np.asarray(tree.get_field("category_list_right_child")) != 0
    rule |= np.where(by_category, _CATEGORICAL, 0) | np.where(to_right, _LISTED_GO_RIGHT, 0)
    starts, bits, categories = _categories(tree, np.flatnonzero(by_category), len(nodes))
    return {
        "left": np.where(is_leaf, nodes, left),
        "right": np.where(is_leaf, nodes, right),
        "feature": np.where(is_leaf, 0, tree.get_field("split_index")).astype(np.int64),
        "rule": np.where(is_leaf, 0, rule),
        "leaf": np.where(is_leaf, np.cumsum(is_leaf) - 1, 0),
        "threshold": np.array(tree.get_field("threshold")),
        "outputs": _outputs(tree, np.flatnonzero(is_leaf)),
        "category_at": starts,
        "category_bits": bits,
        "categories": categories,
        "depth": _depth(left, right),
    }


def _outputs(tree: Any, leaves: npt.NDArray[np.intp]) -> _Floats:
    """Return the outputs of the leaves: one number each, or one for each class."""
    vectors = np.array(tree.get_field("leaf_vector"))
    if not len(vectors):
        return np.array(tree.get_field("leaf_value"))[leaves, None]
    begins = np.asarray(tree.get_field("leaf_vector_begin"), np.int64)[leaves]
    ends = np.asarray(tree.get_field("leaf_vector_end"), np.int64)[leaves]
    outputs: _Floats = vectors[begins[:, None] + np.arange(int((ends - begins)[0]))]
    return outputs


def _categories(
    tree: Any, nodes: npt.NDArray[np.intp], count: int
) -> tuple[_Numbers, _Numbers, npt.NDArray[np.uint8]]:
    starts, bits = np.zeros(count, np.int64), np.zeros(count, np.int64)
    listed = np.asarray(tree.get_field("category_list"), np.int64)
    begins = np.asarray(tree.get_field("category_list_begin"), np.int64)
    ends = np.asarray(tree.get_field("category_list_end"), np.int64)
    parts: list[npt.NDArray[np.uint8]] = []
    filled = 0
    for node in nodes:
        members = listed[begins[node] : ends[node]]
        members = members[members <= _CATEGORIES]
        mask = np.zeros(int(members.max(initial=-1)) + 1, bool)
        mask[members] = True
        starts[node], bits[node] = filled, len(mask)
        parts.append(np.packbits(mask, bitorder="little"))
        filled += len(parts[-1])
    # One byte more: what is looked up where there are no categories.
    return starts, bits, np.concatenate([*parts, np.zeros(1, np.uint8)])


def _depth(left: _Numbers, right: _Numbers) -> int:
    """Return the number of splits on the longest path from the root to a leaf."""
    depth = 0
    level = np.zeros(1, np.int64)
    while True:
        level = level[left[level] >= 0]
        if not len(level):
            return depth
        depth += 1
        level = np.concatenate((left[level], right[level]))


class GpuForest:
    """A flat forest in the memory of a device, shared by all instances there.

    Sums are always float64, and so differ from GTIL's by GTIL's own rounding.

    Parameters
    ----------
    flat : FlatForest
    parameters : ForestParameters
    device : torch.device
    """

    def __init__(self, flat: FlatForest, parameters: ForestParameters, device: Any) -> None:
        import torch

        self._torch: Any = torch
        self._flat = flat
        self._parameters = parameters
        arrays = {name: getattr(flat, name) for name in FlatForest.__slots__}
        self._on_device: dict[str, Any] = {
            name: torch.from_numpy(array).to(device)
            for name, array in arrays.items()
            if isinstance(array, np.ndarray)
        }
        classes = torch.nn.functional.one_hot(self._on_device["class_ids"], flat.classes)
        self._classes = classes.double()
        self._by_category = bool((flat.rule & _CATEGORICAL).any())
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
        sums = self._sums(rows) * self._on_device["scale"] + self._on_device["base"]
        results = self._finish(sums.float())
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
        torch, trees = self._torch, self._on_device
        node = trees["roots"].expand(len(rows), -1)
        for _ in range(self._flat.depth):
            rule, limit = trees["rule"][node], trees["threshold"][node]
            value = rows.gather(1, trees["feature"][node])
            goes_left = (
                ((value < limit) & (rule & _BELOW).bool())
                | ((value == limit) & (rule & _EQUAL).bool())
                | ((value > limit) & (rule & _ABOVE).bool())
            )
            if self._by_category:
                to_left = self._listed(node, value) ^ (rule & _LISTED_GO_RIGHT).bool()
                goes_left = torch.where((rule & _CATEGORICAL).bool(), to_left, goes_left)
            goes_left = torch.where(value.isnan(), (rule & _MISSING).bool(), goes_left)
            node = torch.where(goes_left, trees["left"][node], trees["right"][node])
        reached = trees["outputs"][trees["leaf"][node]].double()
        return reached.sum(1) if reached.shape[2] > 1 else reached[:, :, 0] @ self._classes

    def _listed(self, node: Any, value: Any) -> Any:
        """Return whether the split of a node lists a value's category."""
        torch, trees = self._torch, self._on_device
        # As in GTIL: truncated to a whole number within a float32's exact range.
        can_be = (value >= 0) & (value <= _CATEGORIES)
        category = torch.where(can_be, value, 0).long()
        inside = can_be & (category < trees["category_bits"][node])
        byte = trees["categories"][
            torch.where(inside, trees["category_at"][node] + category // 8, 0)
        ]
        return inside & ((byte >> (category % 8)) & 1).bool()


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
