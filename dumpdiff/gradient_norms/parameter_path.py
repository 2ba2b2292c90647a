"""What the canonical name of a parameter says: its layer, its depth in the model, its kind."""

from __future__ import annotations

import re

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")

#: Depth of the head and the final norm: the backward pass reaches them before every layer.
FIRST_IN_BACKWARD = 1 << 30
#: Depth of the embeddings: the backward pass reaches them after layer 0.
LAST_IN_BACKWARD = -1


def find_layer(path: str) -> int | None:
    """Return the number of the layer, or None for a parameter outside of the layers.

    >>> find_layer("layers.3.attention.q.weight")
    3
    """
    match = _LAYER.search(path)
    return int(match[1]) if match else None


def compute_depth(path: str) -> int | None:
    """Return the position of a parameter in the model, or None if it is unknown.

    This is the layer number, FIRST_IN_BACKWARD or LAST_IN_BACKWARD. The backward pass runs from
    the largest depth to the smallest.
    """
    layer = find_layer(path)
    if layer is not None:
        return layer
    if "embedding" in path:
        return LAST_IN_BACKWARD
    if path.startswith(("head.", "final_norm.")):
        return FIRST_IN_BACKWARD
    return None


def strip_layer(path: str) -> str:
    """Return the name without its layer: the kind of the parameter.

    >>> strip_layer("layers.3.attention.q.weight")
    'attention.q.weight'
    """
    return _LAYER.sub(lambda match: "" if match.start() == 0 else ".", path)


def is_vector(path: str) -> bool:
    """Whether a parameter has one axis: a bias or the weight of a norm."""
    module, _, leaf = path.rpartition(".")
    return leaf == "bias" or module.endswith("norm")
