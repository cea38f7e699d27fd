"""The walk through the trees in the Triton language: a program for each block of rows and of trees.

With ``TRITON_INTERPRET=1``, before triton is imported, its interpreter runs it on the host.
"""

# The compiler reads annotations, and takes constants alone.
# ruff: noqa: ANN001, ANN201, N803

from __future__ import annotations

import triton
import triton.language as tl

from nbtriton.extensions.fil import flatten

__all__ = ["ROWS", "TREES", "walk"]

# Rows and trees of a program: 256 walks for the 128 threads of four warps. 512 rows and 100 trees then make
# 208 programs, more than any GPU has multiprocessors. Not measured.
ROWS = 32
TREES = 8

_BELOW = tl.constexpr(flatten.BELOW)
_EQUAL = tl.constexpr(flatten.EQUAL)
_ABOVE = tl.constexpr(flatten.ABOVE)
_MISSING = tl.constexpr(flatten.MISSING)
_CATEGORICAL = tl.constexpr(flatten.CATEGORICAL)
_LISTED_GO_RIGHT = tl.constexpr(flatten.LISTED_GO_RIGHT)


@triton.jit(do_not_specialize=["row_count"])
def walk(
    rows, row_count, feature_count,
    roots, depths, class_ids, tree_count,
    feature, threshold, left, right, rule, leaf, outputs,
    category_at, category_bits, categories,
    sums, classes,
    WIDTH: tl.constexpr, BY_CATEGORY: tl.constexpr, ROWS: tl.constexpr, TREES: tl.constexpr,
):  # fmt: skip
    """Sum the leaves that a block of rows reaches in a block of trees.

    `rows` is (row_count, feature_count) of float32, `sums` (blocks of trees, row_count, classes) of float64;
    the others are those of `FlatForest`, WIDTH the second dimension of its outputs.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tree = tl.program_id(1) * TREES + tl.arange(0, TREES)
    is_row = row < row_count
    is_tree = tree < tree_count
    node = tl.load(roots + tree, mask=is_tree, other=0)[None, :] + tl.zeros((ROWS, TREES), tl.int32)
    begin = row.to(tl.int64)[:, None] * feature_count
    deepest = tl.max(tl.load(depths + tree, mask=is_tree, other=0), axis=0)
    for _ in range(deepest):
        bits = tl.load(rule + node)
        value = tl.load(rows + begin + tl.load(feature + node), mask=is_row[:, None], other=0.0)
        limit = tl.load(threshold + node)
        goes_left = (
            ((value < limit) & ((bits & _BELOW) != 0))
            | ((value == limit) & ((bits & _EQUAL) != 0))
            | ((value > limit) & ((bits & _ABOVE) != 0))
        )
        if BY_CATEGORY:
            # As in GTIL: truncated to a whole number within a float32's exact range.
            by_category = (bits & _CATEGORICAL) != 0
            can_be = by_category & (value >= 0.0) & (value <= 16777216.0)
            category = tl.where(can_be, value, 0.0).to(tl.int32)
            inside = can_be & (category < tl.load(category_bits + node))
            word = tl.load(
                categories + tl.load(category_at + node) + category // 32, mask=inside, other=0
            )
            listed = inside & (((word >> (category % 32)) & 1) != 0)
            to_left = listed ^ ((bits & _LISTED_GO_RIGHT) != 0)
            goes_left = tl.where(by_category, to_left, goes_left)
        goes_left = tl.where(value != value, (bits & _MISSING) != 0, goes_left)  # noqa: PLR0124 - NaN
        node = tl.where(goes_left, tl.load(left + node), tl.load(right + node))
    reached = tl.load(leaf + node).to(tl.int64) * WIDTH
    of_class = tl.load(class_ids + tree, mask=is_tree, other=-1)[None, :]
    into = sums + (tl.program_id(1).to(tl.int64) * row_count + row) * classes
    for one in range(classes):
        if WIDTH == 1:
            value = tl.load(outputs + reached).to(tl.float64)
            value = tl.where(of_class == one, value, 0.0)
        else:
            value = tl.load(outputs + reached + one).to(tl.float64)
            value = tl.where(is_tree[None, :], value, 0.0)
        tl.store(into + one, tl.sum(value, axis=1), mask=is_row)
