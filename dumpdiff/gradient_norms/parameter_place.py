"""Where in a model a parameter stands, and what it is, by its canonical name."""

from __future__ import annotations

import re

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
FIRST_BACK, LAST_BACK = 1 << 30, -1  #: depth of the head and the final norm, and of the embeddings


def layer_of(path: str) -> int | None:
    """The number of the layer, None if it is in none.

    >>> layer_of("layers.3.attention.q.weight")
    3
    """
    match = _LAYER.search(path)
    return int(match[1]) if match else None


def depth_of(path: str) -> int | None:
    """The layer, or what stands for one before and behind all layers; None if nobody knows.

    The backward pass goes from the largest to the least.
    """
    layer = layer_of(path)
    if layer is not None:
        return layer
    if "embedding" in path:
        return LAST_BACK
    return FIRST_BACK if path.startswith(("head.", "final_norm.")) else None


def kind_of(path: str) -> str:
    """The name without its layer.

    >>> kind_of("layers.3.attention.q.weight")
    'attention.q.weight'
    """
    return _LAYER.sub(lambda match: "" if match.start() == 0 else ".", path)


def is_vector(path: str) -> bool:
    """Whether it is a bias or the weight of a norm, which have one axis."""
    module, _, leaf = path.rpartition(".")
    return leaf == "bias" or module.endswith("norm")
