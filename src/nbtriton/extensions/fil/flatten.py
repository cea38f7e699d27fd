"""A tree model as flat arrays with all trees in a row, for a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nbtriton.common.errors import UnsupportedError

__all__ = [
    "ABOVE",
    "BELOW",
    "CATEGORICAL",
    "EQUAL",
    "LISTED_GO_RIGHT",
    "MISSING",
    "FlatForest",
    "flatten",
]  # fmt: skip

# Bits of a node's rule: the conditions of the left child.
BELOW, EQUAL, ABOVE, MISSING = 1, 2, 4, 8
CATEGORICAL, LISTED_GO_RIGHT = 16, 32
# treelite's operators by number (tree.h, `Operator`): ==, <, <=, >, >=.
_OPERATORS = np.array([0, EQUAL, BELOW, BELOW | EQUAL, ABOVE, ABOVE | EQUAL], np.int32)
# The categories that a float32 can represent: GTIL accepts none above.
_CATEGORIES = 2**24
_SPLIT_BY_CATEGORY = 2


@dataclass(frozen=True, slots=True)
class FlatForest:
    """The nodes of all trees.

    A leaf is its own child on both sides, so that a walk may continue while other trees are deeper.

    Parameters
    ----------
    features, classes : int
        Numbers of inputs and of results of a row.
    roots, depths, class_ids : ndarray of int32, shape (trees,)
        The first node, the longest path to a leaf, and the class of a tree (0 where its leaves have all
        classes).
    feature, left, right, rule, leaf : ndarray of int32, shape (nodes,)
        The feature that a node tests, its children, the bits of its rule, and a leaf's row of `outputs`.
    threshold : ndarray of float32 or float64, shape (nodes,)
        The model's own values; a float32 is compared with them exactly.
    outputs : ndarray of float32 or float64, shape (leaves, 1 or classes)
    category_at, category_bits : ndarray of int32, shape (nodes,)
        Of a split by categories the first word of its bits in `categories`, and their number.
    categories : ndarray of int32
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
    roots: npt.NDArray[np.int32]
    depths: npt.NDArray[np.int32]
    class_ids: npt.NDArray[np.int32]
    feature: npt.NDArray[np.int32]
    left: npt.NDArray[np.int32]
    right: npt.NDArray[np.int32]
    rule: npt.NDArray[np.int32]
    leaf: npt.NDArray[np.int32]
    threshold: npt.NDArray[np.floating[Any]]
    outputs: npt.NDArray[np.floating[Any]]
    category_at: npt.NDArray[np.int32]
    category_bits: npt.NDArray[np.int32]
    categories: npt.NDArray[np.int32]
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
    """Return the trees of a ``treelite.Model`` with one target.

    Raises
    ------
    UnsupportedError
        It has more than 2**31 nodes.
    """
    header = model.get_header_accessor()
    trees = [_tree(model.get_tree_accessor(index)) for index in range(int(model.num_tree))]
    sizes = [len(tree["left"]) for tree in trees]
    if sum(sizes) >= 2**31:
        raise UnsupportedError(f"{sum(sizes)} nodes are more than a GPU's numbers of nodes can say")
    roots = np.cumsum([0, *sizes[:-1]])
    leaves = np.cumsum([0, *(len(tree["outputs"]) for tree in trees[:-1])])
    words = np.cumsum([0, *(len(tree["categories"]) for tree in trees[:-1])])
    for tree, root, leaf, word in zip(trees, roots, leaves, words, strict=True):
        for name, first in (("left", root), ("right", root), ("leaf", leaf), ("category_at", word)):
            tree[name] = tree[name] + np.int32(first)
    classes = int(header.get_field("num_class")[0])
    ids = np.asarray(header.get_field("class_id"), np.int32)
    joined = {
        name: np.concatenate([tree[name] for tree in trees]) for name in trees[0] if name != "depth"
    }
    return FlatForest(
        features=int(model.num_feature),
        classes=classes,
        roots=roots.astype(np.int32),
        depths=np.array([tree["depth"] for tree in trees], np.int32),
        class_ids=np.maximum(ids, 0),
        scale=_scale(header, ids, classes),
        base=np.asarray(header.get_field("base_scores"), np.float64).reshape(-1)[:classes],
        postprocessor=str(header.get_field("postprocessor")),
        sigmoid_alpha=float(header.get_field("sigmoid_alpha")[0]),
        ratio_c=float(header.get_field("ratio_c")[0]),
        **joined,
    )


def _scale(header: Any, ids: npt.NDArray[np.int32], classes: int) -> npt.NDArray[np.float64]:
    if not int(header.get_field("average_tree_output")[0]):
        return np.ones(classes)
    counts = [int(((ids == one) | (ids < 0)).sum()) for one in range(classes)]
    return 1.0 / np.maximum(counts, 1)


def _tree(tree: Any) -> dict[str, Any]:
    """Return the arrays of one tree; its nodes, leaves and words are numbered from 0."""
    left = np.asarray(tree.get_field("cleft"), np.int32)
    right = np.asarray(tree.get_field("cright"), np.int32)
    nodes = np.arange(len(left), dtype=np.int32)
    is_leaf = left < 0
    rule = _OPERATORS[np.asarray(tree.get_field("cmp"), np.int64)]
    rule |= np.where(np.asarray(tree.get_field("default_left")) != 0, MISSING, 0)
    by_category = np.asarray(tree.get_field("node_type")) == _SPLIT_BY_CATEGORY
    to_right = np.asarray(tree.get_field("category_list_right_child")) != 0
    rule |= np.where(by_category, CATEGORICAL, 0) | np.where(to_right, LISTED_GO_RIGHT, 0)
    starts, bits, words = _categories(tree, np.flatnonzero(by_category), len(nodes))
    return {
        "left": np.where(is_leaf, nodes, left).astype(np.int32),
        "right": np.where(is_leaf, nodes, right).astype(np.int32),
        "feature": np.where(is_leaf, 0, tree.get_field("split_index")).astype(np.int32),
        "rule": np.where(is_leaf, 0, rule).astype(np.int32),
        "leaf": np.where(is_leaf, np.cumsum(is_leaf) - 1, 0).astype(np.int32),
        "threshold": np.array(tree.get_field("threshold")),
        "outputs": _outputs(tree, np.flatnonzero(is_leaf)),
        "category_at": starts,
        "category_bits": bits,
        "categories": words,
        "depth": _depth(left, right),
    }


def _outputs(tree: Any, leaves: npt.NDArray[np.intp]) -> npt.NDArray[np.floating[Any]]:
    """Return the outputs of the leaves: one number each, or one for each class."""
    vectors = np.array(tree.get_field("leaf_vector"))
    if not len(vectors):
        return np.array(tree.get_field("leaf_value"))[leaves, None]
    begins = np.asarray(tree.get_field("leaf_vector_begin"), np.int64)[leaves]
    ends = np.asarray(tree.get_field("leaf_vector_end"), np.int64)[leaves]
    outputs: npt.NDArray[np.floating[Any]] = vectors[
        begins[:, None] + np.arange(int((ends - begins)[0]))
    ]
    return outputs


def _categories(
    tree: Any, nodes: npt.NDArray[np.intp], count: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    starts, bits = np.zeros(count, np.int32), np.zeros(count, np.int32)
    listed = np.asarray(tree.get_field("category_list"), np.int64)
    begins = np.asarray(tree.get_field("category_list_begin"), np.int64)
    ends = np.asarray(tree.get_field("category_list_end"), np.int64)
    words: list[npt.NDArray[np.uint32]] = []
    filled = 0
    for node in nodes:
        members = listed[begins[node] : ends[node]]
        members = members[members <= _CATEGORIES]
        size = int(members.max(initial=-1)) + 1
        mask = np.zeros(-(-size // 32), np.uint32)
        np.bitwise_or.at(mask, members // 32, np.uint32(1) << (members % 32).astype(np.uint32))
        starts[node], bits[node] = filled, size
        filled += len(mask)
        words.append(mask)
    joined = np.concatenate([np.zeros(0, np.uint32), *words])
    return starts, bits, joined.view(np.int32)


def _depth(left: npt.NDArray[np.int32], right: npt.NDArray[np.int32]) -> int:
    """Return the number of splits on the longest path from the root to a leaf."""
    depth = 0
    level = np.zeros(1, np.int64)
    while True:
        level = level[left[level] >= 0]
        if not len(level):
            return depth
        depth += 1
        level = np.concatenate((left[level], right[level]))
