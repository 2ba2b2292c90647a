"""The vision transformer in NumPy: sizes, knobs, weights and batch.

Weights:

    patch                                     convolution of kernel and stride 4, with bias
    class_token.weight (1, 1, hidden), positions.weight (1, tokens, hidden)
    layers.N.: norm1, attention.{q,k,v,o}, norm2, mlp.{up,down}      all with bias
    norm, head
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

EPS = 1e-6


@dataclass(frozen=True)
class Model:
    """Everything a net needs. Knobs are those of the last layer, and of what follows it."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: 'names', 'einsum' (PyTorch), 'unfolded' (MindSpore) or 'decomposition' (both), see the nets
    variant: str = ""
    batch_size: int = 4
    image: int = 16  #: pixels along an edge
    patch: int = 4
    hidden: int = 32
    heads: int = 4
    ffn: int = 64
    n_layers: int = 2
    classes: int = 10
    label_smoothing: float = 0.1

    norm_eps: float = EPS  #: of the second norm
    attention_scale: float = 1.0  #: on top of 1 / sqrt(head_dim)
    is_softmax_half: bool = False  #: softmax in float16
    has_value_bias: bool = True
    activation: str = "gelu_erf"  #: or 'gelu_tanh', or 'quick_gelu', which is x * sigmoid(1.702 x)
    residual: str = "before"  #: 'after': the mlp is added to the normed hidden state
    is_attention_detached: bool = False  #: no gradient through the attention
    pooling: str = "class"  #: 'class': the class token; 'mean': all tokens
    softmax_axis: int = -1  #: of the scores (batch, heads, queries, keys)
    dropout: float = 0.0  #: of the embedded patches
    has_final_norm: bool = True
    branch_scale: float = 1.0  #: of the attention in its residual sum
    are_patches_by_column: bool = False  #: patches column by column, not row by row
    has_class_position: bool = True  #: the class token's position is added to it
    n_output_biases: int = 1  #: how many times the attention's output bias is added
    embedding_gradient: float = 1.0  #: the gradient of the embedded tokens is multiplied by it
    is_split_by_head: bool = False  #: rows of the fused projection are read head by head
    is_norm_shared: bool = False  #: the mlp's norm is the attention's
    loss_reduction: str = "mean"  #: over the images; or 'sum'
    is_norm_late: bool = False  #: norms behind the residual sums, not in front of both parts
    #: as in fine-tuning, https://arxiv.org/abs/2010.11929, appendix B.1.1
    optimizer: Optimizer = field(
        default_factory=lambda: Optimizer(kind="momentum", weight_decay=0.0, clip=1.0)
    )

    @property
    def head_dim(self) -> int:
        """Return the size of one head."""
        return self.hidden // self.heads

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        """Return images, float32 (batch, 3, image, image), and labels, int32 (batch,)."""
        rng = np.random.default_rng(42)
        shape = (self.batch_size, 3, self.image, self.image)
        images = rng.standard_normal(shape).astype(np.float32)
        return images, rng.integers(0, self.classes, self.batch_size).astype(np.int32)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(41)
    model = Model("vit", weights)
    hidden = model.hidden
    n_tokens = (model.image // model.patch) ** 2 + 1
    weights.add_linear("patch", hidden, 3, model.patch, model.patch)
    weights.add_table("class_token", 1, 1, hidden, deviation=0.3)
    weights.add_table("positions", 1, n_tokens, hidden, deviation=0.3)
    for n in range(model.n_layers):
        weights.add_norm(f"layers.{n}.norm1", hidden)
        for projection in "qkvo":
            weights.add_linear(f"layers.{n}.attention.{projection}", hidden, hidden)
        weights.add_norm(f"layers.{n}.norm2", hidden)
        weights.add_linear(f"layers.{n}.mlp.up", model.ffn, hidden)
        weights.add_linear(f"layers.{n}.mlp.down", hidden, model.ffn)
    weights.add_norm("norm", hidden)
    weights.add_linear("head", model.classes, hidden)
    return model
