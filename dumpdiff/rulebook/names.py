"""What dumps call a module or a parameter, as the segments of a dotted path."""

from __future__ import annotations

import re

#: ``Module.model.norm.LayerNorm.forward.0`` (msprobe), ``norm.RMSNorm.0.forward`` (ptdbg_ascend 6.0)
_CALL = re.compile(
    r"\.\w+\.(?:(?:forward|backward)\.\d+|parameters_grad(?:\.\d+)?|(?:\d+|abnormal)\.(?:forward|backward))(?:\.|$).*"
)
_OPERATOR = re.compile(r".+-op\d+(?:#\d+)?")
_ROOTS = frozenset({"Default", "Gradients", "recompute_Default"})


def split_segments(name: str) -> tuple[str, ...]:
    """The attribute names from the outermost module down; () where the name says nothing.

    >>> segments("Default/net-WithLoss/model-Llama/layers-CellList/0-Block/norm-RMSNorm/Add-op0")
    ('net', 'model', 'layers', '0', 'norm')
    >>> segments("Gradients/Default/net-Llama/lm_head-Dense/Grad_MatMul/MatMul-op3")
    ('net', 'lm_head')
    >>> segments("Module.model.layers.0.self_attn.q_proj.Linear.forward.0")
    ('model', 'layers', '0', 'self_attn', 'q_proj')

    Graph-mode segments are ``attribute-Class``; operators that a compiler pass expanded (``Expand/_SiLU/Mul-op0``)
    have lost their scope.
    """
    if "/" not in name and "-" not in name:
        called = _CALL.sub("", name)
        if called != name:
            called = called.removeprefix("Module.").removeprefix("Cell.")
        return tuple(segment for segment in called.split(".") if segment and segment not in _ROOTS)
    parts = name.split("/")
    if parts[0] == "Expand":
        return ()
    if _OPERATOR.fullmatch(parts[-1]):
        parts.pop()
    return tuple(
        attribute
        for part in parts
        if part not in _ROOTS and not part.startswith("Grad_")
        for attribute in part.partition("-")[0].split(".")
        if attribute
    )
