"""The speech encoder in PyTorch, with the modules of Hugging Face's Wav2Vec2.

Variant 'fairseq': its modules, the older form of weight norm, time before the batch in the encoder,
batched products over the heads, codewords and logits of masked frames only.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from pytorch.gradient import scaled_gradient
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from families.wav2vec.architecture import (
    BOOKS,
    CHANNELS,
    CODE_DIM,
    CODES,
    DIVERSITY_WEIGHT,
    EPS,
    FRAMES,
    GUMBEL_TEMPERATURE,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KERNELS,
    LAYERS,
    MASKED,
    POSITION_GROUPS,
    POSITION_KERNEL,
    SMALLEST_PROBABILITY,
    STRIDES,
    Model,
)

IGNORED = -100  #: label of frames that are not masked


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    is_changed = (
        model.norm_groups != CHANNELS
        or model.magnitude_axes != (0, 1)
        or model.gelu != "erf"
        or not model.has_position_bias
        or not model.are_equal_negatives_masked
        or model.are_all_frames_counted
        or not model.is_padding_hidden
    )
    if is_changed:
        raise SystemExit("a fault of the MindSpore net")
    if model.variant == "fairseq":
        return FairseqCriterion(model)
    return Wav2Vec2ForPreTraining(model)


def copy_parameter(values: np.ndarray) -> nn.Parameter:
    """Return a parameter with these values."""
    return nn.Parameter(torch.from_numpy(np.array(values)))


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the weight and the bias at ``path`` into a module."""
    for name, parameter in module.named_parameters():
        parameter.data.copy_(copy_parameter(model.weights[f"{path}.{name}"]))
    return module


def load_linear(model: Model, path: str) -> nn.Module:
    """Return the linear layer at ``path``."""
    n_out, n_in = model.weights[f"{path}.weight"].shape
    return load(nn.Linear(n_in, n_out), model, path)


def load_norm(model: Model, path: str) -> nn.Module:
    """Return the layer norm at ``path``."""
    return load(nn.LayerNorm(len(model.weights[f"{path}.weight"]), eps=EPS), model, path)


def load_conv(model: Model, n: int) -> nn.Module:
    """Return a convolution over the waveform."""
    n_out, n_in, kernel = model.weights[f"conv.{n}.weight"].shape
    conv = nn.Conv1d(n_in, n_out, kernel, stride=STRIDES[n], bias=False)
    return load(conv, model, f"conv.{n}")


def compute_frame_lengths(lengths: Tensor) -> Tensor:
    """Return how many frames the convolutions make of so many samples."""
    for kernel, stride in zip(KERNELS, STRIDES, strict=True):
        lengths = torch.div(lengths - kernel, stride, rounding_mode="floor") + 1
    return lengths


class Wav2Vec2ConvLayer(nn.Module):
    """Convolution and gelu, the first one with a norm in between."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        self.conv = load_conv(model, n)
        self.activation = nn.GELU()
        self.layer_norm = None
        if n == 0:
            self.layer_norm = load(nn.GroupNorm(CHANNELS, CHANNELS, eps=EPS), model, "conv.norm")

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden_states = self.conv(hidden_states)
        if self.layer_norm is not None:
            hidden_states = self.layer_norm(hidden_states)
        return self.activation(hidden_states)


class Wav2Vec2FeatureEncoder(nn.Module):
    """(batch, samples) to (batch, CHANNELS, frames)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv_layers = nn.ModuleList(Wav2Vec2ConvLayer(model, n) for n in range(len(KERNELS)))

    def forward(self, input_values: Tensor) -> Tensor:
        hidden_states = input_values[:, None]
        for conv_layer in self.conv_layers:
            hidden_states = conv_layer(hidden_states)
        return hidden_states


class Wav2Vec2FeatureProjection(nn.Module):
    """Normed features, and their projection."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.layer_norm = load_norm(model, "projection.norm")
        self.projection = load_linear(model, "projection")

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        norm_features = self.layer_norm(features)
        return self.projection(norm_features), norm_features


class Wav2Vec2SamePadLayer(nn.Module):
    """Cuts the frame that an even kernel adds."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states[:, :, :-1]


class Wav2Vec2PositionalConvEmbedding(nn.Module):
    """Grouped convolution with weight norm over all but the taps, gelu."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        is_same = model.position_padding == "behind"
        conv = nn.Conv1d(
            HIDDEN,
            HIDDEN,
            POSITION_KERNEL,
            padding="same" if is_same else POSITION_KERNEL // 2,
            groups=POSITION_GROUPS,
        )
        conv.bias = copy_parameter(model.weights["position.bias"])
        self.conv = parametrizations.weight_norm(conv, name="weight", dim=2)
        weight = self.conv.parametrizations.weight
        weight.original0 = copy_parameter(model.weights["position.magnitude"])
        weight.original1 = copy_parameter(model.weights["position.direction"])
        self.padding = nn.Identity() if is_same else Wav2Vec2SamePadLayer()
        self.activation = nn.GELU()

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden_states = self.conv(hidden_states.transpose(1, 2))
        return self.activation(self.padding(hidden_states)).transpose(1, 2)


class Wav2Vec2Attention(nn.Module):
    """Attention of frames to all frames but padding."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.k_proj = load_linear(model, f"{path}.k")
        self.v_proj = load_linear(model, f"{path}.v")
        self.q_proj = load_linear(model, f"{path}.q")
        self.out_proj = load_linear(model, f"{path}.o")

    def forward(self, hidden_states: Tensor, attention_mask: Tensor) -> Tensor:
        batch, frames, _ = hidden_states.shape
        query, key, value = (
            projection(hidden_states).view(batch, frames, HEADS, HEAD_DIM).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        scores = torch.matmul(query, key.transpose(2, 3)) * HEAD_DIM**-0.5 + attention_mask
        attended = torch.matmul(F.softmax(scores, dim=-1), value)
        return self.out_proj(attended.transpose(1, 2).reshape(batch, frames, HIDDEN))


class Wav2Vec2FeedForward(nn.Module):
    """Two linear layers around gelu."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.intermediate_dense = load_linear(model, f"{path}.up")
        self.intermediate_act_fn = nn.GELU()
        self.output_dense = load_linear(model, f"{path}.down")

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.output_dense(self.intermediate_act_fn(self.intermediate_dense(hidden_states)))


class Wav2Vec2EncoderLayer(nn.Module):
    """Attention and feed-forward, each with a norm behind its sum."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"layers.{n}"
        self.attention = Wav2Vec2Attention(model, f"{path}.attention")
        self.layer_norm = load_norm(model, f"{path}.norm1")
        self.feed_forward = Wav2Vec2FeedForward(model, f"{path}.ffn")
        self.final_layer_norm = load_norm(model, f"{path}.norm2")

    def forward(self, hidden_states: Tensor, attention_mask: Tensor) -> Tensor:
        attended = self.attention(hidden_states, attention_mask)
        hidden_states = self.layer_norm(hidden_states + attended)
        return self.final_layer_norm(hidden_states + self.feed_forward(hidden_states))


class Wav2Vec2Encoder(nn.Module):
    """Positions, norm, layers."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.pos_conv_embed = Wav2Vec2PositionalConvEmbedding(model)
        self.layer_norm = load_norm(model, "norm")
        self.layers = nn.ModuleList(Wav2Vec2EncoderLayer(model, n) for n in range(LAYERS))
        self.is_norm_behind = model.is_norm_behind_layers

    def forward(self, hidden_states: Tensor, attention_mask: Tensor) -> Tensor:
        hidden_states[~attention_mask] = 0
        bias = 1.0 - attention_mask[:, None, None, :].to(hidden_states.dtype)
        bias = bias * torch.finfo(hidden_states.dtype).min
        hidden_states = hidden_states + self.pos_conv_embed(hidden_states)
        if not self.is_norm_behind:
            hidden_states = self.layer_norm(hidden_states)
        for layer in self.layers:
            hidden_states = layer(hidden_states, bias)
        return self.layer_norm(hidden_states) if self.is_norm_behind else hidden_states


class Wav2Vec2GumbelVectorQuantizer(nn.Module):
    """One codeword of each book for each frame, and how many are used."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        codewords = model.weights["codewords"].reshape(1, BOOKS * CODES, -1)
        self.codevectors = copy_parameter(codewords)
        self.weight_proj = load_linear(model, "quantizer")
        self.temperature = GUMBEL_TEMPERATURE
        self.is_straight_through = model.is_straight_through

    @staticmethod
    def compute_perplexity(probs: Tensor, mask: Tensor) -> Tensor:
        """Return the sum of the books' perplexities in masked frames."""
        probs = torch.where(mask.flatten()[:, None, None], probs, torch.zeros_like(probs))
        marginal_probs = probs.sum(dim=0) / mask.sum()
        logs = torch.log(marginal_probs + SMALLEST_PROBABILITY)
        return torch.exp(-torch.sum(marginal_probs * logs, dim=-1)).sum()

    def forward(self, hidden_states: Tensor, mask: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        batch, frames, _ = hidden_states.shape
        logits = self.weight_proj(hidden_states).view(batch * frames * BOOKS, -1)
        gumbels = (logits + noise.view(logits.shape)) / self.temperature
        y_soft = gumbels.softmax(dim=-1)
        index = y_soft.argmax(dim=-1, keepdim=True)
        probs = torch.zeros_like(logits).scatter_(-1, index, 1.0)
        if self.is_straight_through:
            probs = probs - y_soft.detach() + y_soft
        soft_dist = torch.softmax(logits.view(batch * frames, BOOKS, -1), dim=-1)
        perplexity = self.compute_perplexity(soft_dist, mask)
        per_group = probs.view(batch * frames, -1).unsqueeze(-1) * self.codevectors
        codevectors = per_group.view(batch * frames, BOOKS, CODES, -1).sum(-2)
        return codevectors.view(batch, frames, -1), index.view(batch, frames, BOOKS), perplexity


class Wav2Vec2Model(nn.Module):
    """Hidden states and features of waveforms."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.feature_extractor = Wav2Vec2FeatureEncoder(model)
        self.feature_projection = Wav2Vec2FeatureProjection(model)
        self.masked_spec_embed = copy_parameter(model.weights["masked"])
        self.encoder = Wav2Vec2Encoder(model)
        self.feature_gradient = model.feature_gradient

    def forward(
        self, input_values: Tensor, lengths: Tensor, mask_time_indices: Tensor
    ) -> tuple[Tensor, Tensor]:
        extract_features = self.feature_extractor(input_values)
        if self.feature_gradient != 1:
            extract_features = scaled_gradient(extract_features, self.feature_gradient)
        extract_features = extract_features.transpose(1, 2)
        frame_lengths = compute_frame_lengths(lengths)
        attention_mask = torch.arange(FRAMES)[None, :] < frame_lengths[:, None]
        hidden_states, extract_features = self.feature_projection(extract_features)
        hidden_states[mask_time_indices] = self.masked_spec_embed
        return self.encoder(hidden_states, attention_mask), extract_features


class Wav2Vec2ForPreTraining(nn.Module):
    """Contrastive and diversity loss."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.wav2vec2 = Wav2Vec2Model(model)
        self.quantizer = Wav2Vec2GumbelVectorQuantizer(model)
        self.project_hid = load_linear(model, "project_hidden")
        self.project_q = load_linear(model, "project_codes")
        self.temperature = model.temperature

    def forward(
        self, input_values: Tensor, lengths: Tensor, mask: Tensor, negatives: Tensor, noise: Tensor
    ) -> Tensor:
        mask = mask.bool()
        hidden_states, extract_features = self.wav2vec2(input_values, lengths, mask)
        transformer_features = self.project_hid(hidden_states)
        quantized, codes, perplexity = self.quantizer(extract_features, mask, noise)
        quantized_features = self.project_q(quantized)
        batch, frames, width = quantized_features.shape
        flat_negatives = negatives.view(-1)
        negative_features = quantized_features.view(-1, width)[flat_negatives]
        negative_features = negative_features.view(batch, frames, -1, width).permute(2, 0, 1, 3)
        negative_codes = codes.view(-1, BOOKS)[flat_negatives].view(batch, frames, -1, BOOKS)
        neg_is_pos = (negative_codes == codes.unsqueeze(2)).all(-1).permute(2, 0, 1)

        targets = torch.cat([quantized_features.unsqueeze(0), negative_features], dim=0)
        logits = torch.cosine_similarity(transformer_features.unsqueeze(0), targets, dim=-1)
        logits = logits / self.temperature
        logits[1:][neg_is_pos] = float("-inf")
        logits = logits.permute(1, 2, 0).reshape(batch * frames, -1)
        labels = ((1 - mask.long()) * IGNORED).flatten()
        contrastive_loss = F.cross_entropy(logits, labels, ignore_index=IGNORED)
        num_codevectors = BOOKS * CODES
        diversity_loss = (num_codevectors - perplexity) / num_codevectors
        return contrastive_loss + DIVERSITY_WEIGHT * diversity_loss


class FairseqConvLayers(nn.Module):
    """Convolutions over the waveform as sequences of modules."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv_layers = nn.ModuleList()
        for n in range(len(KERNELS)):
            block = nn.Sequential(load_conv(model, n), nn.Dropout(p=0.0))
            if n == 0:
                block.append(load(nn.GroupNorm(CHANNELS, CHANNELS, EPS), model, "conv.norm"))
            self.conv_layers.append(block.append(nn.GELU()))

    def forward(self, source: Tensor) -> Tensor:
        x = source.unsqueeze(1)
        for conv in self.conv_layers:
            x = conv(x)
        return x


class SamePad(nn.Module):
    """Cuts the frame that an even kernel adds."""

    def forward(self, x: Tensor) -> Tensor:
        return x.narrow(2, 0, x.size(2) - 1)


class MultiheadAttention(nn.Module):
    """Attention over (time, batch, HIDDEN), with batch and heads on one axis."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.k_proj = load_linear(model, f"{path}.k")
        self.v_proj = load_linear(model, f"{path}.v")
        self.q_proj = load_linear(model, f"{path}.q")
        self.out_proj = load_linear(model, f"{path}.o")
        self.scaling = HEAD_DIM**-0.5

    def forward(self, x: Tensor, key_padding_mask: Tensor) -> Tensor:
        time, batch, width = x.shape
        q = self.q_proj(x) * self.scaling
        q, k, v = (
            part.contiguous().view(time, batch * HEADS, HEAD_DIM).transpose(0, 1)
            for part in (q, self.k_proj(x), self.v_proj(x))
        )
        weights = torch.bmm(q, k.transpose(1, 2)).view(batch, HEADS, time, time)
        weights = weights.masked_fill(key_padding_mask[:, None, None], float("-inf"))
        probs = F.softmax(weights.view(batch * HEADS, time, time), dim=-1)
        attended = torch.bmm(probs, v).transpose(0, 1).reshape(time, batch, width)
        return self.out_proj(attended)


class TransformerSentenceEncoderLayer(nn.Module):
    """Attention and feed-forward, each with a norm behind its sum."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"layers.{n}"
        self.self_attn = MultiheadAttention(model, f"{path}.attention")
        self.self_attn_layer_norm = load_norm(model, f"{path}.norm1")
        self.fc1 = load_linear(model, f"{path}.ffn.up")
        self.fc2 = load_linear(model, f"{path}.ffn.down")
        self.final_layer_norm = load_norm(model, f"{path}.norm2")

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        residual = x
        x = self.self_attn_layer_norm(residual + self.self_attn(x, padding_mask))
        residual = x
        x = self.fc2(F.gelu(self.fc1(x)))
        return self.final_layer_norm(residual + x)


class TransformerEncoder(nn.Module):
    """Positions, norm and layers, time before the batch in the layers."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        padding = POSITION_KERNEL // 2
        conv = nn.Conv1d(HIDDEN, HIDDEN, POSITION_KERNEL, 1, padding, groups=POSITION_GROUPS)
        conv.bias = copy_parameter(model.weights["position.bias"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            conv = nn.utils.weight_norm(conv, name="weight", dim=2)
        conv.weight_g = copy_parameter(model.weights["position.magnitude"])
        conv.weight_v = copy_parameter(model.weights["position.direction"])
        self.pos_conv = nn.Sequential(conv, SamePad(), nn.GELU())
        self.layers = nn.ModuleList(
            TransformerSentenceEncoderLayer(model, n) for n in range(LAYERS)
        )
        self.layer_norm = load_norm(model, "norm")

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        x = x.masked_fill(padding_mask.unsqueeze(-1), 0)
        x = x + self.pos_conv(x.transpose(1, 2)).transpose(1, 2)
        x = self.layer_norm(x).transpose(0, 1)
        for layer in self.layers:
            x = layer(x, padding_mask)
        return x.transpose(0, 1)


class GumbelVectorQuantizer(nn.Module):
    """One codeword of each book for each masked frame, and how many are used."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.vars = copy_parameter(model.weights["codewords"].reshape(1, BOOKS * CODES, -1))
        self.weight_proj = load_linear(model, "quantizer")

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, time, width = x.shape
        x = self.weight_proj(x.reshape(-1, width)).view(batch * time, BOOKS, CODES)
        avg_probs = torch.softmax(x, dim=-1).mean(dim=0)
        entropy = -torch.sum(avg_probs * torch.log(avg_probs + SMALLEST_PROBABILITY), dim=-1)
        prob_perplexity = torch.exp(entropy).sum()

        soft = F.softmax((x + noise.reshape(x.shape)) / GUMBEL_TEMPERATURE, dim=-1)
        codes = soft.max(dim=-1).indices
        chosen = soft + (F.one_hot(codes, CODES) - soft).detach()
        words = self.vars.view(BOOKS, CODES, -1)
        x = torch.einsum("ngv,gvd->ngd", chosen, words)
        return x.reshape(batch, time, CODE_DIM), codes.view(batch, time, BOOKS), prob_perplexity


class FairseqModel(nn.Module):
    """Logits of masked frames, and the perplexity of their codewords."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.feature_extractor = FairseqConvLayers(model)
        self.layer_norm = load_norm(model, "projection.norm")
        self.post_extract_proj = load_linear(model, "projection")
        self.mask_emb = copy_parameter(model.weights["masked"])
        self.quantizer = GumbelVectorQuantizer(model)
        self.project_q = load_linear(model, "project_codes")
        self.encoder = TransformerEncoder(model)
        self.final_proj = load_linear(model, "project_hidden")
        self.logit_temp = model.temperature

    def forward(
        self, source: Tensor, lengths: Tensor, mask: Tensor, negatives: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        batch = len(source)
        features = self.layer_norm(self.feature_extractor(source).transpose(1, 2))
        padding_mask = torch.arange(FRAMES) >= compute_frame_lengths(lengths).unsqueeze(1)
        unmasked_features = features[mask].view(batch, MASKED, CHANNELS)
        x = self.post_extract_proj(features)
        x = torch.where(mask.unsqueeze(-1), self.mask_emb, x)
        x = self.final_proj(self.encoder(x, padding_mask)[mask].view(batch, MASKED, HIDDEN))

        y, codes, perplexity = self.quantizer(unmasked_features, noise[mask])
        y = self.project_q(y)
        rows = (mask.flatten().cumsum(0) - 1)[negatives[mask]]  # among masked frames
        negs = y.flatten(0, 1).index_select(0, rows.flatten())
        negs = negs.view(batch, MASKED, -1, y.shape[-1]).permute(2, 0, 1, 3)
        neg_codes = codes.flatten(0, 1)[rows].view(batch, MASKED, -1, BOOKS).permute(2, 0, 1, 3)
        return self.compute_preds(x, y, negs, (neg_codes == codes).all(-1)), perplexity

    def compute_preds(self, x: Tensor, y: Tensor, negatives: Tensor, neg_is_pos: Tensor) -> Tensor:
        """Return the logits (1 + NEGATIVES, batch, MASKED)."""
        targets = torch.cat([y.unsqueeze(0), negatives], dim=0)
        similarities = (F.normalize(x, dim=-1) * F.normalize(targets, dim=-1)).sum(dim=-1)
        is_left_out = F.pad(neg_is_pos, (0, 0, 0, 0, 1, 0))
        return (similarities / self.logit_temp).masked_fill(is_left_out, -math.inf)


class FairseqCriterion(nn.Module):
    """Cross entropy of the logits, and the codewords that are not used."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = FairseqModel(model)

    def forward(
        self, source: Tensor, lengths: Tensor, mask: Tensor, negatives: Tensor, noise: Tensor
    ) -> Tensor:
        logits, perplexity = self.model(source, lengths, mask.bool(), negatives, noise)
        logits = logits.transpose(0, 2).reshape(-1, logits.size(0))
        target = logits.new_zeros(len(logits), dtype=torch.long)
        sample_size = target.numel()
        loss = F.cross_entropy(logits, target, reduction="sum")
        extra_loss = (BOOKS * CODES - perplexity) / (BOOKS * CODES)
        return (loss + DIVERSITY_WEIGHT * sample_size * extra_loss) / sample_size
