"""The encoder-decoder in MindSpore, with cell names like those of MindSpore Transformers' T5.

Variant 'decomposition': norm from other operators, batched attention, loss from one-hot labels.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.encdec.architecture import IGNORED, Model

MASKED = -1e9


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    if not model.has_encoder_norm or model.is_cross_parallel:
        raise SystemExit("has_encoder_norm and is_cross_parallel are knobs of the PyTorch net")
    if model.is_padding_row_fixed:
        raise SystemExit("is_padding_row_fixed is a knob of the PyTorch net")
    return EncoderDecoderLoss(model)


def build_linear(model: Model, path: str) -> nn.Dense:
    """Return a linear layer without bias."""
    weight = Tensor(model.weights[f"{path}.weight"])
    return nn.Dense(weight.shape[1], weight.shape[0], weight_init=weight, has_bias=False)


class Norm(nn.Cell):
    """RMS norm, or layer norm without bias."""

    def __init__(self, model: Model, path: str, eps: float = 1e-6, kind: str = "rms") -> None:
        super().__init__()
        self.weight = Parameter(Tensor(model.weights[f"{path}.weight"]))
        self.eps, self.is_centered = eps, kind == "layer"
        self.is_norm_divided = model.variant == "decomposition"

    def construct(self, x):
        if self.is_centered:
            x = x - ops.mean(x, -1, True)
        if self.is_norm_divided:
            variance = ops.sum(x * x, -1, True) / x.shape[-1]
            return self.weight * (x / ops.sqrt(variance + self.eps))
        return x * ops.rsqrt(ops.mean(ops.square(x), -1, True) + self.eps) * self.weight


class PositionBias(nn.Cell):
    """The position bias of a stack, (1, heads, queries, keys)."""

    def __init__(self, model: Model, stack: str) -> None:
        super().__init__()
        values = model.weights[f"{stack}.position_bias.weight"]
        self.embedding = nn.Embedding(*values.shape, embedding_table=Tensor(values))
        self.buckets = Tensor(model.buckets(stack))
        self.is_transposed = stack == "encoder" and model.is_encoder_bias_transposed

    def construct(self):
        if self.is_transposed:
            return self.embedding(self.buckets).transpose(2, 1, 0).expand_dims(0)
        return self.embedding(self.buckets).transpose(2, 0, 1).expand_dims(0)


class Attention(nn.Cell):
    """Attention of unscaled scores and a bias."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.heads, self.head_dim = model.heads, model.head_dim
        self.scale = model.cross_scale if path == "decoder.1.cross" else 1.0
        self.is_softmax_half = model.is_cross_softmax_half and path == "decoder.1.cross"
        self.is_batched = model.variant == "decomposition"
        self.is_mask_inverted = model.is_cross_mask_inverted and path.endswith("cross")
        self.wq = build_linear(model, f"{path}.q")
        self.wk = build_linear(model, f"{path}.k")
        self.wv = build_linear(model, f"{path}.v")
        self.wo = build_linear(model, f"{path}.o")

    def split(self, x):
        return x.reshape(x.shape[0], -1, self.heads, self.head_dim).transpose(0, 2, 1, 3)

    def construct(self, x, source, bias):
        q, k, v = self.split(self.wq(x)), self.split(self.wk(source)), self.split(self.wv(source))
        if self.is_batched:
            y = self.attend_batched(q, k, v, bias)
        else:
            scores = ops.matmul(q, k.transpose(0, 1, 3, 2))
            if self.scale != 1:
                scores = scores * self.scale
            if self.is_mask_inverted:
                scores = ops.masked_fill(scores, ops.equal(bias, 0), MASKED)
            elif bias is not None:
                scores = scores + bias
            if self.is_softmax_half:
                probabilities = ops.softmax(scores.astype(ms.float16), -1).astype(ms.float32)
            else:
                probabilities = ops.softmax(scores, -1)
            y = ops.matmul(probabilities, v)
        return self.wo(y.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[1], -1))

    def attend_batched(self, q, k, v, bias):
        """Batch and heads merged."""
        batch, heads, queries, dim = q.shape
        keys = k.shape[2]
        q = q.reshape(batch * heads, queries, dim)
        k = k.reshape(batch * heads, keys, dim)
        scores = ops.bmm(q, k.swapaxes(1, 2)).reshape(batch, heads, queries, keys)
        if self.scale != 1:
            scores = scores * self.scale
        if bias is not None:
            scores = scores + bias
        probabilities = ops.softmax(scores, -1).reshape(batch * heads, queries, keys)
        y = ops.bmm(probabilities, v.reshape(batch * heads, keys, dim))
        return y.reshape(batch, heads, queries, dim)


class GatedMlp(nn.Cell):
    """Gated gelu."""

    def __init__(self, model: Model, path: str, activation: str) -> None:
        super().__init__()
        self.w1 = build_linear(model, f"{path}.gate")
        self.w3 = build_linear(model, f"{path}.up")
        self.w2 = build_linear(model, f"{path}.down")
        self.approximation = "tanh" if activation == "gelu_tanh" else "none"

    def construct(self, x):
        return self.w2(ops.gelu(self.w1(x), approximate=self.approximation) * self.w3(x))


class EncoderLayer(nn.Cell):
    """Self attention and feed-forward."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path, is_last = f"encoder.{n}", n == 1
        self.attention_norm = Norm(model, f"{path}.norm1", model.norm_eps if is_last else 1e-6)
        self.attention = Attention(model, f"{path}.attention")
        self.ffn_norm = Norm(model, f"{path}.norm2")
        activation = model.activation if is_last else "gelu_tanh"
        self.feed_forward = GatedMlp(model, f"{path}.mlp", activation)

    def construct(self, x, bias):
        y = self.attention_norm(x)
        x = x + self.attention(y, y, bias)
        return x + self.feed_forward(self.ffn_norm(x))


class DecoderLayer(nn.Cell):
    """Self attention, cross attention and feed-forward."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path, is_last = f"decoder.{n}", n == 1
        self.attention_norm = Norm(model, f"{path}.norm1")
        self.attention = Attention(model, f"{path}.attention")
        kind = model.cross_norm if is_last else "rms"
        self.cross_attention_norm = Norm(model, f"{path}.norm2", kind=kind)
        self.cross_attention = Attention(model, f"{path}.cross")
        self.ffn_norm = Norm(model, f"{path}.norm3")
        self.feed_forward = GatedMlp(model, f"{path}.mlp", "gelu_tanh")
        self.is_source_detached = is_last and model.is_encoder_detached
        self.is_residual_normed = is_last and model.is_residual_normed
        self.is_source_normed = is_last and model.is_source_normed

    def construct(self, x, bias, source, source_bias):
        y = self.attention_norm(x)
        x = x + self.attention(y, y, bias)
        if self.is_source_detached:
            source = ops.stop_gradient(source)
        if self.is_source_normed:
            source = self.cross_attention_norm(source)
        x = x + self.cross_attention(self.cross_attention_norm(x), source, source_bias)
        y = self.ffn_norm(x)
        return (y if self.is_residual_normed else x) + self.feed_forward(y)


class Encoder(nn.Cell):
    """The encoder's stack."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.position_bias = PositionBias(model, "encoder")
        self.layers = nn.CellList([EncoderLayer(model, n) for n in range(model.n_layers)])
        self.norm = Norm(model, "encoder.norm")
        self.is_masked, self.is_causal = model.is_encoder_masked, model.is_encoder_causal
        length = max(model.source_lengths)
        fill = np.full((length, length), MASKED, dtype=np.float32)
        self.causal_bias = Tensor(np.triu(fill, 1))
        self.is_shared_bias_stopped = model.is_shared_bias_stopped

    def construct(self, x, mask_bias):
        bias = self.position_bias()
        if self.is_masked:
            bias = bias + mask_bias
        if self.is_causal:
            bias = bias + self.causal_bias
        for n in range(len(self.layers)):
            if n == 1 and self.is_shared_bias_stopped:
                bias = ops.stop_gradient(bias)
            x = self.layers[n](x, bias)
        return self.norm(x)


class Decoder(nn.Cell):
    """The decoder's stack."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.position_bias = PositionBias(model, "decoder")
        self.layers = nn.CellList([DecoderLayer(model, n) for n in range(model.n_layers)])
        self.norm = Norm(model, "decoder.norm")
        length = max(model.target_lengths)
        fill = np.full((length, length), MASKED, dtype=np.float32)
        mask_bias = np.triu(fill, 1 + model.n_later)
        self.mask_bias = Tensor(mask_bias)
        self.unbiased_layer, self.is_cross_masked = model.unbiased_layer, model.is_cross_masked

    def construct(self, x, source, source_bias):
        bias = self.position_bias() + self.mask_bias
        if not self.is_cross_masked:
            source_bias = None
        for n in range(len(self.layers)):
            self_bias = self.mask_bias if n == self.unbiased_layer else bias
            x = self.layers[n](x, self_bias, source, source_bias)
        return self.norm(x)


class EncoderDecoder(nn.Cell):
    """Logits, (batch, targets, vocab)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        values = model.weights["embedding.weight"]
        self.tok_embeddings = nn.Embedding(*values.shape, embedding_table=Tensor(values))
        self.encoder, self.decoder = Encoder(model), Decoder(model)
        self.head_scale = model.head_scale
        self.scaled_gradient = None
        if model.source_gradient != 1:
            self.scaled_gradient = ScaledGradient(model.source_gradient)
        self.head = ops.MatMul(transpose_b=True)

    def construct(self, source, mask, tokens):
        source_bias = (1.0 - mask.expand_dims(1).expand_dims(1).astype(ms.float32)) * MASKED
        encoded = self.encoder(self.tok_embeddings(source), source_bias)
        if self.scaled_gradient is not None:
            encoded = self.scaled_gradient(encoded)
        hidden = self.decoder(self.tok_embeddings(tokens), encoded, source_bias)
        if self.head_scale != 1:
            hidden = hidden * self.head_scale
        return self.head(hidden.reshape(-1, hidden.shape[-1]), self.tok_embeddings.embedding_table)


class EncoderDecoderLoss(nn.Cell):
    """Smoothed cross entropy of the labels."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = EncoderDecoder(model)
        self.smoothing, self.vocab = model.label_smoothing, model.vocab
        self.is_written_out = model.variant == "decomposition"
        self.is_padding_divided = model.is_padding_divided
        self.z_loss, self.are_labels_shifted = model.z_loss, model.are_labels_shifted

    def construct(self, source, mask, tokens, labels):
        logits = self.network(source, mask, tokens)
        if self.are_labels_shifted:
            logits = logits.reshape(*labels.shape, self.vocab)[:, :-1].reshape(-1, self.vocab)
            labels = labels[:, 1:]
        labels = labels.reshape(-1)
        if self.is_padding_divided:
            losses = ops.cross_entropy(
                logits,
                labels,
                ignore_index=IGNORED,
                reduction="none",
                label_smoothing=self.smoothing,
            )
            return losses.mean()
        if self.is_written_out:
            return self.compute_smoothed_loss(logits, labels)
        loss = ops.cross_entropy(
            logits, labels, ignore_index=IGNORED, label_smoothing=self.smoothing
        )
        if self.z_loss:
            is_counted = ops.not_equal(labels, IGNORED).astype(ms.float32)
            squares = ops.square(ops.logsumexp(logits, -1)) * is_counted
            loss = loss + self.z_loss * squares.sum() / is_counted.sum()
        return loss

    def compute_smoothed_loss(self, logits, labels):
        """Return the loss from one-hot labels."""
        is_counted = ops.not_equal(labels, IGNORED).astype(ms.float32)
        one_hot = nn.OneHot(depth=self.vocab)(ops.maximum(labels, 0))
        smoothed = one_hot * (1 - self.smoothing) + self.smoothing / self.vocab
        losses = -(smoothed * ops.log_softmax(logits, -1)).sum(-1)
        return (losses * is_counted).sum() / is_counted.sum()
