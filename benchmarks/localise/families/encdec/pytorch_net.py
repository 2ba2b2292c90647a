"""The encoder-decoder in PyTorch, with the module names of Hugging Face's T5.

Variant 'names': those of BART. Variant 'decomposition': fused attention, norm and loss from other
operators. Variant 'fused': one layer for keys and values, one for gate and up, products by einsum.
Variant 'rms_norm': PyTorch's operator for the norm, and scores that begin with the bias.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from pytorch.gradient import scaled_gradient
from pytorch.naming import rename
from torch import Tensor, nn

from families.encdec.architecture import IGNORED, PADDING, Model

T5_NAMES: Mapping[str, str] = {
    "self_attention": "layer.0",
    "cross_attention": "layer.1",
    "encoder_mlp": "layer.1",
    "decoder_mlp": "layer.2",
    "attention": "SelfAttention",
    "cross": "EncDecAttention",
    "mlp": "DenseReluDense",
    "norm": "layer_norm",
    "gate": "wi_0",
    "up": "wi_1",
    "down": "wo",
}
BART_NAMES: Mapping[str, str] = {
    "shared": "model.shared",
    "encoder": "model.encoder",
    "decoder": "model.decoder",
    "block": "layers",
    "self_attention": "self_attn_block",
    "cross_attention": "encoder_attn_block",
    "encoder_mlp": "mlp_block",
    "decoder_mlp": "mlp_block",
    "attention": "self_attn",
    "cross": "encoder_attn",
    "mlp": "ffn",
    "q": "q_proj",
    "k": "k_proj",
    "v": "v_proj",
    "o": "out_proj",
    "gate": "fc_gate",
    "up": "fc1",
    "down": "fc2",
    "norm": "norm",
    "final_layer_norm": "layernorm_out",
}


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    if model.is_cross_softmax_half or model.is_encoder_bias_transposed:
        raise SystemExit("a fault of the MindSpore net")
    net = EncoderDecoder(model)
    rename(net, BART_NAMES if model.variant == "names" else T5_NAMES)
    return net


def build_linear(model: Model, path: str) -> nn.Linear:
    """Return a linear layer without bias."""
    weight = torch.from_numpy(model.weights[f"{path}.weight"].copy())
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight = nn.Parameter(weight)
    return linear


def build_fused_linear(model: Model, paths: list[str]) -> nn.Linear:
    """Return a linear layer without bias that has the rows of several."""
    weight = torch.cat([torch.from_numpy(model.weights[f"{path}.weight"]) for path in paths])
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight = nn.Parameter(weight)
    return linear


def build_table(model: Model, path: str, fixed_row: int | None = None) -> nn.Embedding:
    """Return an embedding, of which one row may get no gradient."""
    weight = torch.from_numpy(model.weights[f"{path}.weight"].copy())
    return nn.Embedding.from_pretrained(weight, freeze=False, padding_idx=fixed_row)


class Norm(nn.Module):
    """RMS norm, or layer norm without bias."""

    def __init__(self, model: Model, path: str, eps: float = 1e-6, kind: str = "rms") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.from_numpy(model.weights[f"{path}.weight"].copy()))
        self.eps, self.is_centered = eps, kind == "layer"
        self.is_root_divided = model.variant == "decomposition"
        self.is_operator = model.variant == "rms_norm" and kind == "rms"

    def forward(self, x: Tensor) -> Tensor:
        if self.is_operator:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        if self.is_centered:
            x = x - x.mean(-1, keepdim=True)
        variance = x.pow(2).mean(-1, keepdim=True)
        if self.is_root_divided:
            return x / torch.sqrt(variance + self.eps) * self.weight
        x = x * torch.rsqrt(variance + self.eps)
        return self.weight * x


class Attention(nn.Module):
    """Attention of unscaled scores and a bias; the first of a stack has the table of the bias."""

    def __init__(self, model: Model, path: str, stack: str = "") -> None:
        super().__init__()
        self.model, self.stack = model, stack
        self.scale = model.cross_scale if path == "decoder.1.cross" else 1.0
        self.q, self.o = (build_linear(model, f"{path}.{name}") for name in "qo")
        self.is_mask_inverted = model.is_cross_mask_inverted and path.endswith("cross")
        self.is_fused = model.variant == "fused"
        if self.is_fused:
            self.kv = build_fused_linear(model, [f"{path}.k", f"{path}.v"])
        else:
            self.k, self.v = (build_linear(model, f"{path}.{name}") for name in "kv")
        if stack:
            self.relative_attention_bias = build_table(model, f"{stack}.position_bias")

    def compute_bias(self, length: int) -> Tensor:
        """Return the position bias, (1, heads, length, length)."""
        model = self.model
        is_bidirectional = self.stack == "encoder" or model.is_decoder_bidirectional
        positions = torch.arange(length)
        distance = positions[None, :] - positions[:, None]
        n_buckets = model.n_buckets
        buckets = torch.zeros_like(distance)
        if is_bidirectional:
            n_buckets //= 2
            buckets = buckets + (distance > 0).long() * n_buckets
            distance = torch.abs(distance)
        else:
            distance = -torch.min(distance, torch.zeros_like(distance))
        n_exact = n_buckets // 2
        far = torch.log(distance.float() / n_exact)
        far = far / math.log(model.get_max_distance(self.stack) / n_exact) * (n_buckets - n_exact)
        far_buckets = torch.clamp(n_exact + far.long(), max=n_buckets - 1)
        buckets = buckets + torch.where(distance < n_exact, distance, far_buckets)
        return self.relative_attention_bias(buckets).permute(2, 0, 1).unsqueeze(0)

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], -1, self.model.heads, self.model.head_dim).transpose(1, 2)

    def attend_batched(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        """Return (batch, heads, queries, dim) from products that begin with the bias."""
        bias = bias.expand(len(q), self.model.heads, -1, k.shape[2])
        bias = bias.expand(-1, -1, q.shape[2], -1).flatten(0, 1)
        scores = torch.baddbmm(
            bias, q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), alpha=self.scale
        )
        return torch.bmm(scores.softmax(dim=-1), v.flatten(0, 1)).view(q.shape)

    def attend_fused(self, x: Tensor, source: Tensor, bias: Tensor | None) -> Tensor:
        """Return the result for keys and values from one layer, in (batch, length, heads, dim)."""
        shape = (x.shape[0], -1, self.model.heads, self.model.head_dim)
        keys, values = self.kv(source).chunk(2, dim=-1)
        scores = torch.einsum("bqhd,bkhd->bhqk", self.q(x).view(shape), keys.reshape(shape))
        if self.scale != 1:
            scores = scores * self.scale
        if bias is not None:
            scores = scores + bias
        y = torch.einsum("bhqk,bkhd->bqhd", torch.softmax(scores, dim=-1), values.reshape(shape))
        return self.o(y.reshape(x.shape[0], -1, self.model.hidden))

    def forward(self, x: Tensor, source: Tensor, bias: Tensor | None) -> Tensor:
        if self.is_fused:
            return self.attend_fused(x, source, bias)
        q, k, v = self.split(self.q(x)), self.split(self.k(source)), self.split(self.v(source))
        if self.model.variant == "decomposition":
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=self.scale)
        elif self.model.variant == "rms_norm":
            y = self.attend_batched(q, k, v, bias)
        else:
            scores = torch.matmul(q, k.transpose(3, 2))
            if self.scale != 1:
                scores = scores * self.scale
            if self.is_mask_inverted:
                scores = scores.masked_fill(bias == 0, torch.finfo(scores.dtype).min)
            elif bias is not None:
                scores = scores + bias
            y = torch.matmul(F.softmax(scores.float(), dim=-1).type_as(scores), v)
        return self.o(y.transpose(1, 2).contiguous().view(x.shape[0], -1, self.model.hidden))


class SelfAttentionLayer(nn.Module):
    """Norm, attention to the same sequence, residual sum."""

    def __init__(self, model: Model, stack: str, n: int) -> None:
        super().__init__()
        is_last_of_encoder = stack == "encoder" and n == 1
        eps = model.norm_eps if is_last_of_encoder else 1e-6
        self.norm = Norm(model, f"{stack}.{n}.norm1", eps)
        self.attention = Attention(model, f"{stack}.{n}.attention", stack if n == 0 else "")

    def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
        y = self.norm(x)
        return x + self.attention(y, y, bias)


class CrossAttentionLayer(nn.Module):
    """Norm, attention to the encoder's output, residual sum."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        kind = model.cross_norm if n == 1 else "rms"
        self.norm = Norm(model, f"decoder.{n}.norm2", kind=kind)
        self.cross = Attention(model, f"decoder.{n}.cross")
        self.is_detached = model.is_encoder_detached and n == 1
        self.is_source_normed = model.is_source_normed and n == 1

    def forward(
        self, x: Tensor, source: Tensor, bias: Tensor | None, queried: Tensor | None = None
    ) -> Tensor:
        if self.is_detached:
            source = source.detach()
        if self.is_source_normed:
            source = self.norm(source)
        return x + self.cross(self.norm(x if queried is None else queried), source, bias)


class GatedMlp(nn.Module):
    """Gated gelu."""

    def __init__(self, model: Model, path: str, activation: str) -> None:
        super().__init__()
        self.is_fused = model.variant == "fused"
        if self.is_fused:
            self.gate_up = build_fused_linear(model, [f"{path}.gate", f"{path}.up"])
        else:
            self.gate = build_linear(model, f"{path}.gate")
            self.up = build_linear(model, f"{path}.up")
        self.down = build_linear(model, f"{path}.down")
        self.approximation = "tanh" if activation == "gelu_tanh" else "none"

    def forward(self, x: Tensor) -> Tensor:
        if self.is_fused:
            gate, up = self.gate_up(x).chunk(2, dim=-1)
            return self.down(F.gelu(gate, approximate=self.approximation) * up)
        return self.down(F.gelu(self.gate(x), approximate=self.approximation) * self.up(x))


class MlpLayer(nn.Module):
    """Norm, gated gelu, residual sum."""

    def __init__(self, model: Model, stack: str, n: int) -> None:
        super().__init__()
        is_last_of_encoder = stack == "encoder" and n == 1
        self.is_residual_normed = stack == "decoder" and n == 1 and model.is_residual_normed
        activation = model.activation if is_last_of_encoder else "gelu_tanh"
        self.norm = Norm(model, f"{stack}.{n}.norm{2 if stack == 'encoder' else 3}")
        self.mlp = GatedMlp(model, f"{stack}.{n}.mlp", activation)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return (y if self.is_residual_normed else x) + self.mlp(y)


class EncoderBlock(nn.Module):
    """Self attention and feed-forward."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        self.self_attention = SelfAttentionLayer(model, "encoder", n)
        self.encoder_mlp = MlpLayer(model, "encoder", n)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        return self.encoder_mlp(self.self_attention(x, bias))


class DecoderBlock(nn.Module):
    """Self attention, cross attention and feed-forward."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        self.self_attention = SelfAttentionLayer(model, "decoder", n)
        self.cross_attention = CrossAttentionLayer(model, n)
        self.decoder_mlp = MlpLayer(model, "decoder", n)
        self.is_parallel = model.is_cross_parallel and n == 1

    def forward(
        self, x: Tensor, bias: Tensor | None, source: Tensor, source_bias: Tensor | None
    ) -> Tensor:
        queried = x if self.is_parallel else None
        x = self.self_attention(x, bias)
        return self.decoder_mlp(self.cross_attention(x, source, source_bias, queried))


class Encoder(nn.Module):
    """The encoder's stack."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.block = nn.ModuleList(EncoderBlock(model, n) for n in range(model.n_layers))
        self.final_layer_norm = Norm(model, "encoder.norm") if model.has_encoder_norm else None
        self.is_masked, self.is_causal = model.is_encoder_masked, model.is_encoder_causal
        self.is_shared_bias_stopped = model.is_shared_bias_stopped

    def forward(self, x: Tensor, mask_bias: Tensor) -> Tensor:
        bias = self.block[0].self_attention.attention.compute_bias(x.shape[1])
        if self.is_masked:
            bias = bias + mask_bias
        if self.is_causal:
            bias = bias + torch.full(bias.shape[-2:], torch.finfo(x.dtype).min).triu(1)
        for n, block in enumerate(self.block):
            if n == 1 and self.is_shared_bias_stopped:
                bias = bias.detach()
            x = block(x, bias)
        return x if self.final_layer_norm is None else self.final_layer_norm(x)


class Decoder(nn.Module):
    """The decoder's stack."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.block = nn.ModuleList(DecoderBlock(model, n) for n in range(model.n_layers))
        self.final_layer_norm = Norm(model, "decoder.norm")
        self.n_later = model.n_later
        self.unbiased_layer, self.is_cross_masked = model.unbiased_layer, model.is_cross_masked

    def forward(self, x: Tensor, source: Tensor, source_bias: Tensor) -> Tensor:
        length = x.shape[1]
        is_visible = torch.tril(torch.ones(length, length), self.n_later)[None, None]
        mask_bias = (1.0 - is_visible) * torch.finfo(x.dtype).min
        bias = self.block[0].self_attention.attention.compute_bias(length) + mask_bias
        for n, block in enumerate(self.block):
            self_bias = mask_bias if n == self.unbiased_layer else bias
            x = block(x, self_bias, source, source_bias if self.is_cross_masked else None)
        return self.final_layer_norm(x)


class EncoderDecoder(nn.Module):
    """Smoothed cross entropy of the labels."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        fixed_row = PADDING if model.is_padding_row_fixed else None
        self.shared = build_table(model, "embedding", fixed_row)
        self.encoder = Encoder(model)
        self.decoder = Decoder(model)
        self.lm_head = nn.Linear(model.hidden, model.vocab, bias=False)
        self.lm_head.weight = self.shared.weight

    def forward(self, source: Tensor, mask: Tensor, tokens: Tensor, labels: Tensor) -> Tensor:
        model = self.model
        mask_bias = (1.0 - mask[:, None, None, :].float()) * torch.finfo(torch.float32).min
        encoded = self.encoder(self.shared(source), mask_bias)
        if model.source_gradient != 1:
            encoded = scaled_gradient(encoded, model.source_gradient)
        hidden = self.decoder(self.shared(tokens), encoded, mask_bias)
        if model.head_scale != 1:
            hidden = hidden * model.head_scale
        logits = self.lm_head(hidden)
        if model.are_labels_shifted:
            logits, labels = logits[:, :-1].contiguous(), labels[:, 1:].contiguous()
        logits, labels = logits.view(-1, model.vocab), labels.view(-1)
        if model.variant == "decomposition":
            return self.smoothed_loss(F.log_softmax(logits, dim=-1), labels)
        if model.is_padding_divided:
            losses = F.cross_entropy(
                logits,
                labels,
                ignore_index=IGNORED,
                reduction="sum",
                label_smoothing=model.label_smoothing,
            )
            return losses / labels.numel()
        loss = F.cross_entropy(
            logits, labels, ignore_index=IGNORED, label_smoothing=model.label_smoothing
        )
        if model.z_loss:
            log_z = torch.logsumexp(logits[labels != IGNORED], dim=-1)
            loss = loss + model.z_loss * log_z.pow(2).mean()
        return loss

    def smoothed_loss(self, log_probabilities: Tensor, labels: Tensor) -> Tensor:
        """Return the loss as fairseq writes it."""
        smoothing = self.model.label_smoothing
        is_counted = labels != IGNORED
        labels = labels.clamp(min=0)
        of_label = -log_probabilities.gather(1, labels[:, None]).squeeze(1)
        of_all = -log_probabilities.mean(dim=-1)
        losses = (1 - smoothing) * of_label + smoothing * of_all
        return losses.masked_fill(~is_counted, 0.0).sum() / is_counted.sum()
