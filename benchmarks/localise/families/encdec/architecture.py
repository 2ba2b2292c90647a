"""The encoder-decoder in NumPy: sizes, knobs, weights and batch.

As T5 1.1, but with a tied head: RMS norm before each sublayer, gated gelu, no biases, scores that
are not scaled, a position bias by buckets of distances that all layers of a stack share. Weights:

    embedding                                 of both stacks and of the head
    encoder.position_bias, decoder.position_bias     (buckets, heads)
    encoder.N.: norm1, attention.{q,k,v,o}, norm2, mlp.{gate,up,down}
    decoder.N.: norm1, attention.{q,k,v,o}, norm2, cross.{q,k,v,o}, norm3, mlp.{gate,up,down}
    encoder.norm, decoder.norm
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

PADDING = 0  #: token of source sequences, and the decoder's first token
IGNORED = -100  #: label of padding


@dataclass(frozen=True)
class Model:
    """Everything a net needs. Knobs say what one place computes beyond its weights."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: 'names', 'fused', 'rms_norm' (PyTorch) or 'decomposition' (both), see the nets
    variant: str = ""
    vocab: int = 64
    hidden: int = 32
    heads: int = 4
    ffn: int = 48
    n_layers: int = 2  #: of each stack
    source_lengths: tuple[int, ...] = (10, 7)
    target_lengths: tuple[int, ...] = (8, 6)
    n_buckets: int = 16
    label_smoothing: float = 0.1

    max_distance: int = 20  #: of the encoder's buckets
    is_decoder_bidirectional: bool = False  #: half of the decoder's buckets are for the future
    unbiased_layer: int = -1  #: layer of the decoder whose self attention has no position bias
    is_cross_masked: bool = True  #: the decoder does not attend to padding
    is_encoder_masked: bool = True  #: the encoder neither
    cross_scale: float = 1.0  #: of the scores of the last cross attention
    norm_eps: float = 1e-6  #: of the first norm of the encoder's last layer
    cross_norm: str = "rms"  #: of the last cross attention's norm: 'rms' or 'layer' (no bias)
    activation: str = "gelu_tanh"  #: of the encoder's last layer: 'gelu_tanh' or 'gelu_erf'
    head_scale: float = 32**-0.5  #: of the hidden state before the tied head
    is_encoder_detached: bool = False  #: no gradient from the last cross attention to the encoder
    is_padding_ignored: bool = True  #: padding does not count in the loss
    n_later: int = 0  #: later tokens that a token of the decoder sees
    is_padding_divided: bool = False  #: the sum of losses is divided by all labels, with padding
    has_encoder_norm: bool = True  #: behind the last layer
    is_cross_softmax_half: bool = False  #: softmax in float16, in the last cross attention
    is_encoder_bias_transposed: bool = False  #: queries and keys exchanged in its position bias
    is_cross_parallel: bool = False  #: the last cross attention reads what the self attention reads
    is_residual_normed: bool = False  #: the decoder's last feed-forward joins its normed input
    source_gradient: float = 1.0  #: the gradient of the encoder's output is multiplied by it
    #: factor of the squared logarithm of the partition function in the loss, as Mesh TensorFlow's
    z_loss: float = 0.0
    are_labels_shifted: bool = False  #: in the loss, too, as for a model of a decoder only
    is_encoder_causal: bool = False  #: a token of the encoder does not see later ones
    is_shared_bias_stopped: bool = False  #: only the encoder's first layer trains its position bias
    is_cross_mask_inverted: bool = False  #: the decoder attends to nothing but padding
    is_source_normed: bool = False  #: the norm of the last cross attention is that of its keys, too
    is_padding_row_fixed: bool = False  #: the embedding of PADDING gets no gradient from tokens

    @property
    def head_dim(self) -> int:
        """Return the size of one head."""
        return self.hidden // self.heads

    def buckets(self, stack: str) -> np.ndarray:
        """Return (queries, keys) int32: the bucket of each distance, as T5 has them."""
        length = max(self.source_lengths if stack == "encoder" else self.target_lengths)
        positions = np.arange(length)
        distance = positions[None, :] - positions[:, None]
        is_bidirectional = stack == "encoder" or self.is_decoder_bidirectional
        n_buckets = self.n_buckets // 2 if is_bidirectional else self.n_buckets
        offset = n_buckets * (distance > 0) if is_bidirectional else 0
        distance = np.abs(distance) if is_bidirectional else np.maximum(-distance, 0)
        n_exact = n_buckets // 2
        far = np.log(np.maximum(distance, 1) / n_exact) / np.log(
            self.get_max_distance(stack) / n_exact
        )
        far_bucket = np.minimum(n_exact + (far * (n_buckets - n_exact)).astype(int), n_buckets - 1)
        return (offset + np.where(distance < n_exact, distance, far_bucket)).astype(np.int32)

    def get_max_distance(self, stack: str) -> int:
        """Return the distance from which on all keys share a bucket."""
        return self.max_distance if stack == "encoder" else 20

    def batch(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return source tokens and their mask, tokens of the decoder, and labels, all int32.

        The mask is 1 for tokens and 0 for padding. The decoder's tokens are the labels, one later.
        """
        rng = np.random.default_rng(32)
        source = self._draw_tokens(rng, self.source_lengths)
        target = self._draw_tokens(rng, self.target_lengths)
        decoder_tokens = np.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=PADDING)
        labels = np.where(target == PADDING, IGNORED, target) if self.is_padding_ignored else target
        mask = (source != PADDING).astype(np.int32)
        return source, mask, decoder_tokens.astype(np.int32), labels.astype(np.int32)

    def _draw_tokens(self, rng: np.random.Generator, lengths: tuple[int, ...]) -> np.ndarray:
        tokens = rng.integers(1, self.vocab, (len(lengths), max(lengths))).astype(np.int32)
        for row, length in zip(tokens, lengths, strict=True):
            row[length:] = PADDING
        return tokens


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(31)
    model = Model("encdec", weights)
    hidden = model.hidden

    def add_attention(path: str) -> None:
        for name in "qkvo":
            weights.add_matrix(f"{path}.{name}", hidden, hidden)
        weights[f"{path}.q.weight"] *= np.float32(model.head_dim**-0.5)  # scores are not scaled

    weights.add_table("embedding", model.vocab, hidden)
    for stack, sublayers in (("encoder", ("attention",)), ("decoder", ("attention", "cross"))):
        weights.add_table(f"{stack}.position_bias", model.n_buckets, model.heads)
        for n in range(model.n_layers):
            for number, sublayer in enumerate(sublayers, 1):
                weights.add_norm(f"{stack}.{n}.norm{number}", hidden, has_bias=False)
                add_attention(f"{stack}.{n}.{sublayer}")
            weights.add_norm(f"{stack}.{n}.norm{len(sublayers) + 1}", hidden, has_bias=False)
            weights.add_matrix(f"{stack}.{n}.mlp.gate", model.ffn, hidden)
            weights.add_matrix(f"{stack}.{n}.mlp.up", model.ffn, hidden)
            weights.add_matrix(f"{stack}.{n}.mlp.down", hidden, model.ffn)
        weights.add_norm(f"{stack}.norm", hidden, has_bias=False)
    return model
