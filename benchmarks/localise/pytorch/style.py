"""How a model is written down in PyTorch; none of it changes what it computes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Style:
    """Choices that the user of a framework has."""

    names: str = "hf"  #: whose module names: 'hf' (Hugging Face), 'mcore' (Megatron-core)
    fused: str = "none"  #: 'blocks': q, k, v as one matrix, per query group, and gate, up as one
    attention: str = "plain"  #: 'plain', or 'sdpa': one fused call
    order: str = "qkv"  #: in which order separate projections run
    recompute: bool = False  #: each block is run again in the backward pass
