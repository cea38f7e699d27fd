"""Search for writes of a TorchScript program to its inputs: without any they need not be copied for it."""

from __future__ import annotations

from typing import Any

__all__ = ["writes_nothing"]

# Nodes of TorchScript's own that compute or pass on values. Its others may do anything: set an attribute, call a
# method, Python or another thread.
_HARMLESS = frozenset(
    f"prim::{kind}"
    for kind in (
        "Constant", "DictConstruct", "GetAttr", "If", "ListConstruct", "ListUnpack", "Loop", "NumToTensor",
        "RaiseException", "TupleConstruct", "TupleIndex", "TupleSlice", "TupleUnpack", "Uninitialized", "device",
        "dtype", "max", "min", "unchecked_cast",
    )
)  # fmt: skip
# Operators whose schemas are torch's, and say what they write to.
_OPERATORS = "aten::"


def writes_nothing(module: Any) -> bool:
    """Return True for TorchScript without any operation that writes to memory or to an attribute.

    It can neither change a tensor that it gets nor keep it. That an operation writes is part of its schema:
    ``aten::relu_(Tensor(a!) self)``. (READ_ONLY_INPUTS would say the same, in every configuration that was written for
    the real server, which hands over the request's own memory.) One that writes to a tensor of the module's own counts as well, as what its
    tensors share is not looked into; so does a hook.

    Parameters
    ----------
    module : torch.nn.Module
        False for what is not TorchScript, whose code can do anything.
    """
    import torch

    if not isinstance(module, torch.jit.ScriptModule):
        return False
    if module._forward_pre_hooks or module._forward_hooks:  # noqa: SLF001 - not in the graph
        return False
    return _only_reads(module.inlined_graph)


def _only_reads(block: Any) -> bool:
    """Return True if no node of a graph or a block writes, nor one of the blocks inside."""
    for node in block.nodes():
        kind = node.kind()
        reads = kind.startswith(_OPERATORS) and "!" not in node.schema()
        if not reads and kind not in _HARMLESS:
            return False
        if not all(_only_reads(inner) for inner in node.blocks()):
            return False
    return True
