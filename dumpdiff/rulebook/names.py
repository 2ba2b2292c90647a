"""Split the names of modules and parameters in dumps into the segments of a dotted path."""

from __future__ import annotations

import re

#: ``Module.model.norm.LayerNorm.forward.0`` (msprobe), ``norm.RMSNorm.0.forward`` (ptdbg_ascend
#: 6.0)
_CALL = re.compile(
    r"\.\w+\.(?:(?:forward|backward)\.\d+|parameters_grad(?:\.\d+)?"
    r"|(?:\d+|abnormal)\.(?:forward|backward))(?:\.|$).*"
)
_OPERATOR = re.compile(r".+-op\d+(?:#\d+)?")
_ROOTS = frozenset({"Default", "Gradients", "recompute_Default"})


def split_segments(name: str) -> tuple[str, ...]:
    """Return the attribute names from the outermost module inward; () if the name has none.

    >>> split_segments("Default/net-WithLoss/model-Llama/layers-CellList/0-Block/norm-RMSNorm")
    ('net', 'model', 'layers', '0', 'norm')
    >>> split_segments("Gradients/Default/net-Llama/lm_head-Dense/Grad_MatMul/MatMul-op3")
    ('net', 'lm_head')
    >>> split_segments("Module.model.layers.0.self_attn.q_proj.Linear.forward.0")
    ('model', 'layers', '0', 'self_attn', 'q_proj')

    Graph-mode segments are ``attribute-Class``. Operators that a compiler pass expanded
    (``Expand/_SiLU/Mul-op0``) have no scope.
    """
    if "/" not in name and "-" not in name:
        return _split_dotted_name(name)
    return _split_graph_name(name)


def _split_dotted_name(name: str) -> tuple[str, ...]:
    path = _CALL.sub("", name)
    if path != name:
        path = path.removeprefix("Module.").removeprefix("Cell.")
    segments = filter(None, path.split("."))
    return tuple(segment for segment in segments if segment not in _ROOTS)


def _split_graph_name(name: str) -> tuple[str, ...]:
    parts = name.split("/")
    if parts[0] == "Expand":
        return ()
    if _OPERATOR.fullmatch(parts[-1]):
        parts.pop()
    segments: list[str] = []
    for part in parts:
        if part not in _ROOTS and not part.startswith("Grad_"):
            attributes = part.partition("-")[0].split(".")
            segments += [attribute for attribute in attributes if attribute]
    return tuple(segments)
