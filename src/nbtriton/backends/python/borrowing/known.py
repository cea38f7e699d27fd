"""What functions and methods of others do with an array that they are given."""

from __future__ import annotations

import base64
import builtins
import io
import json
import math
import sys
import time
import zlib
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache

import numpy as np

__all__ = [
    "ARRAY_FACTS",
    "ARRAY_METHODS",
    "ARRAY_VIEWS",
    "DYNAMIC",
    "TEXT_METHODS",
    "Rule",
    "Then",
    "is_numeric",
    "rule_of",
]


class Then(Enum):
    """What comes out when an array goes in."""

    OTHER = auto()  # something that is no array: a number, a text
    FRESH = auto()  # an array of its own memory
    SAME = auto()  # perhaps the array, or a view of it
    PARTS = auto()  # a list of views
    WRITTEN = auto()  # nothing good


_MANY = 99


@dataclass(frozen=True, slots=True)
class Rule:
    """A function that only reads.

    Attributes
    ----------
    then : Then
    data : int
        So many arguments by position may be arrays of the caller; behind them may stand ``out``.
    most : int
        With more arguments by position it does something else.
    dtype : int
        Where the result's dtype stands among the arguments by position; -1 if it has none.
    told : Then
        What comes out if it is told whether to copy.
    numbers : bool
        Without a dtype the result is one of numbers.
    joins : bool
        It takes arrays in a list; others make an array of one first, perhaps of objects.
    """

    then: Then
    data: int = 1
    most: int = _MANY
    dtype: int = -1
    told: Then = Then.WRITTEN
    numbers: bool = False
    joins: bool = False


# Of numpy, by name. All take ``out`` by keyword or behind their data.
_FRESH_OF_ONE = """
    all any amax amin argmax argmin argpartition argsort argwhere average bincount
    copy corrcoef count_nonzero cov cumprod cumsum digitize
    flatnonzero histogram iscomplexobj isrealobj linalg.det linalg.eigh
    linalg.inv linalg.norm linalg.pinv linalg.svd max mean min nanargmax nanargmin nanmax nanmean
    nanmin nanstd nansum nanvar nonzero packbits pad partition prod ptp repeat
    resize roll sort std sum tile trace tril triu unique unpackbits var
    fft.fft fft.fft2 fft.fftn fft.ifft fft.ifft2 fft.irfft fft.rfft fft.rfft2
    char.capitalize char.decode char.encode char.lower char.lstrip char.rstrip char.str_len
    char.strip char.upper
"""
_FRESH_OF_TWO = """
    allclose append array_equal array_equiv char.add char.equal cross dot inner intersect1d
    isclose isin kron linalg.matrix_power linalg.solve outer searchsorted setdiff1d take
    take_along_axis tensordot union1d vdot
"""
_JOINED = "column_stack concatenate dstack hstack stack vstack"
_FRESH_OF_THREE = "clip interp where"
_SAME = """
    asanyarray asarray asarray_chkfinite ascontiguousarray asfortranarray atleast_1d atleast_2d
    atleast_3d around broadcast_to conjugate diagonal diff expand_dims flip fliplr flipud imag moveaxis ravel
    real require reshape rollaxis rot90 round squeeze swapaxes transpose
"""
_PARTS = "array_split hsplit split vsplit"


ARRAY_FACTS = frozenset({"dtype", "itemsize", "nbytes", "ndim", "shape", "size", "strides"})
ARRAY_VIEWS = frozenset({"T", "flat", "imag", "mT", "real"})
ARRAY_METHODS = {
    **dict.fromkeys(
        [
            "all",
            "any",
            "argmax",
            "argmin",
            "argpartition",
            "argsort",
            "compress",
            "copy",
            "cumprod",
            "cumsum",
            "dot",
            "flatten",
            "max",
            "mean",
            "min",
            "nonzero",
            "prod",
            "ptp",
            "repeat",
            "searchsorted",
            "std",
            "sum",
            "trace",
            "var",
        ],
        Rule(Then.FRESH),
    ),
    "clip": Rule(Then.FRESH, data=2),
    "take": Rule(Then.FRESH),
    "astype": Rule(Then.FRESH, most=1, dtype=0, told=Then.SAME),
    **dict.fromkeys(("item", "tobytes", "tolist"), Rule(Then.OTHER)),
    **dict.fromkeys(
        ["diagonal", "ravel", "reshape", "round", "squeeze", "swapaxes", "transpose", "view"],
        Rule(Then.SAME),  # round() of integers is the array itself
    ),
    # Real numbers are their own conjugates; the one argument is ``out``.
    **dict.fromkeys(("conj", "conjugate"), Rule(Then.SAME, data=0)),
}
# Of the elements of a BYTES tensor.
TEXT_METHODS = frozenset(
    [
        "capitalize",
        "casefold",
        "decode",
        "encode",
        "endswith",
        "find",
        "format",
        "hex",
        "index",
        "isalpha",
        "isdigit",
        "join",
        "lower",
        "lstrip",
        "partition",
        "replace",
        "rfind",
        "rpartition",
        "rsplit",
        "rstrip",
        "split",
        "splitlines",
        "startswith",
        "strip",
        "title",
        "upper",
        "zfill",
    ]
)

# What these do depends on more than their arguments.
DYNAMIC = frozenset(
    getattr(builtins, name)
    for name in (
        "__import__", "compile", "delattr", "eval", "exec", "globals", "locals", "setattr", "vars",
    )
)  # fmt: skip


def _numpy(name: str) -> object:
    found: object = np
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


@cache
def _rules() -> dict[int, tuple[object, Rule]]:
    rules: list[tuple[object, Rule]] = []
    for names, rule in (
        (_FRESH_OF_ONE, Rule(Then.FRESH)),
        (_FRESH_OF_TWO, Rule(Then.FRESH, data=2)),
        (_FRESH_OF_THREE, Rule(Then.FRESH, data=3)),
        (_JOINED, Rule(Then.FRESH, joins=True)),
        (_SAME, Rule(Then.SAME, told=Then.SAME)),
        (_PARTS, Rule(Then.PARTS)),
    ):
        rules += [(_numpy(name), rule) for name in names.split()]
    rules += [
        (np.array, Rule(Then.FRESH, dtype=1, told=Then.SAME)),
        (np.asarray, Rule(Then.SAME, dtype=1, told=Then.SAME)),
        (np.full, Rule(Then.FRESH, dtype=2)),
        (np.empty_like, Rule(Then.FRESH, dtype=1)),
        (np.zeros_like, Rule(Then.FRESH, dtype=1)),
        (np.ones_like, Rule(Then.FRESH, dtype=1)),
        (np.full_like, Rule(Then.FRESH, data=2, dtype=2)),
        (np.einsum, Rule(Then.SAME, data=_MANY)),
        (np.frombuffer, Rule(Then.SAME)),
        # Behind these stands what lets them work in place.
        (np.nan_to_num, Rule(Then.FRESH, most=1)),
        (np.median, Rule(Then.FRESH, most=2)),
        (np.nanmedian, Rule(Then.FRESH, most=2)),
        (np.percentile, Rule(Then.FRESH, most=3)),
        (np.quantile, Rule(Then.FRESH, most=3)),
        *((made, Rule(Then.FRESH, dtype=1, numbers=True)) for made in (np.empty, np.ones, np.zeros)),
        *((function, Rule(Then.OTHER)) for function in (np.shape, np.ndim, np.size)),
        *((function, Rule(Then.OTHER, data=2)) for function in (np.shares_memory, np.may_share_memory)),
        *(
            (function, Rule(Then.OTHER, data=_MANY))
            for function in (
                bool, bytearray, bytes, complex, float, format, hasattr, id, int, isinstance, len,
                print, range, repr, slice, str, type, any, all,
                base64.b64decode, base64.b64encode, io.BytesIO, json.loads, zlib.compress,
                zlib.decompress, time.sleep,
                *(f for f in vars(math).values() if callable(f)),
            )
        ),
        *((function, Rule(Then.FRESH, data=2)) for function in (abs, divmod, pow)),
        (round, Rule(Then.SAME)),
    ]  # fmt: skip
    return {id(function): (function, rule) for function, rule in rules if function is not None}


def rule_of(function: object) -> Rule | None:
    """Return what a function does; None if that is not known.

    A function is known as the object that it is, whatever it is called: what somebody has put in
    its place is not.
    """
    if type(function) is np.ufunc:
        return Rule(Then.FRESH, data=function.nin)
    if isinstance(function, type) and issubclass(function, np.generic):
        return Rule(Then.SAME)  # np.float32(x) is x itself where x is of that type
    torch = sys.modules.get("torch")
    if torch is not None and function is getattr(torch, "tensor", None):
        return Rule(Then.OTHER)  # it always copies
    found = _rules().get(id(function))
    return None if found is None else found[1]


def is_numeric(dtype: object) -> bool:
    """Return whether elements of a dtype are numbers: no objects, which could be arrays again."""
    try:
        return np.dtype(dtype).kind in "biufc"  # type: ignore[call-overload]
    except TypeError:
        return False
