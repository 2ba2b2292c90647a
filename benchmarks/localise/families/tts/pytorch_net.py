"""The speech synthesizer in PyTorch, with the module names of ESPnet's FastSpeech 2.

Variant 'aligned': one projection for q, k and v and fused attention, phonemes repeated by a matrix,
bins counted, linear layers for kernels of one step, sums in place of selected elements.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from pytorch.gradient import scaled_gradient
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from families.tts.architecture import (
    BINS,
    EPS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    LAYERS,
    MOMENTUM,
    PADDING,
    POSTNET_LAYERS,
    SPEAKERS,
    VARIANCE_WEIGHT,
    VOCAB,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return FastSpeech2Loss(model)


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the weight and the bias at ``path`` into a module."""
    for name, parameter in module.named_parameters():
        values = torch.from_numpy(np.array(model.weights[f"{path}.{name}"]))
        parameter.data.copy_(values.reshape(parameter.shape))
    return module


def load_linear(model: Model, path: str) -> nn.Module:
    """Return the linear layer at ``path``; a kernel of one step is one."""
    n_out, n_in, *_ = model.weights[f"{path}.weight"].shape
    return load(nn.Linear(n_in, n_out), model, path)


def load_conv(model: Model, path: str, *, has_bias: bool = True) -> nn.Module:
    """Return the convolution at ``path``, padded to as many steps."""
    n_out, n_in, kernel = model.weights[f"{path}.weight"].shape
    has_bias = has_bias and f"{path}.bias" in model.weights
    conv = nn.Conv1d(n_in, n_out, kernel, padding=(kernel - 1) // 2, bias=has_bias)
    return load(conv, model, path)


def load_norm(model: Model, path: str) -> nn.Module:
    """Return the layer norm at ``path``."""
    return load(nn.LayerNorm(len(model.weights[f"{path}.weight"]), eps=EPS), model, path)


def load_table(model: Model, path: str, n_rows: int) -> nn.Module:
    """Return the table of embeddings at ``path``."""
    padding_idx = PADDING if path == "embedding" else None
    return load(nn.Embedding(n_rows, HIDDEN, padding_idx=padding_idx), model, path)


class MultiHeadedAttention(nn.Module):
    """Attention to all positions that are no padding."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.is_masked = model.are_frames_masked or path.startswith("encoder")
        self.linear_q, self.linear_k, self.linear_v, self.linear_out = (
            load_linear(model, f"{path}.{name}") for name in "qkvo"
        )

    def forward(self, x: Tensor, is_padding: Tensor) -> Tensor:
        q, k, v = (
            project(x).view(len(x), -1, HEADS, HEAD_DIM).transpose(1, 2)
            for project in (self.linear_q, self.linear_k, self.linear_v)
        )
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(HEAD_DIM)
        if self.is_masked:
            scores = scores.masked_fill(is_padding[:, None, None, :], float("-inf"))
        y = torch.matmul(torch.softmax(scores, dim=-1), v)
        return self.linear_out(y.transpose(1, 2).reshape(len(x), -1, HIDDEN))


class FusedAttention(nn.Module):
    """The same with one projection and the framework's operator."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.in_proj = nn.Linear(HIDDEN, 3 * HIDDEN)
        for name, parameter in self.in_proj.named_parameters():
            parts = [model.weights[f"{path}.{projection}.{name}"] for projection in "qkv"]
            parameter.data.copy_(torch.from_numpy(np.concatenate(parts)))
        self.out_proj = load_linear(model, f"{path}.o")

    def forward(self, x: Tensor, is_padding: Tensor) -> Tensor:
        qkv = self.in_proj(x).unflatten(-1, (3, HEADS, HEAD_DIM))
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=~is_padding[:, None, None, :])
        return self.out_proj(y.transpose(1, 2).flatten(2))


class MultiLayeredConv1d(nn.Module):
    """Two convolutions around relu."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.is_linear = model.variant == "aligned"
        self.w_1 = load_conv(model, f"{path}.up")
        self.w_2 = (load_linear if self.is_linear else load_conv)(model, f"{path}.down")

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.w_1(x.transpose(-1, 1)))
        if self.is_linear:
            return self.w_2(x.transpose(-1, 1))
        return self.w_2(x).transpose(-1, 1)


class EncoderLayer(nn.Module):
    """Attention and convolutions, each added and normed; padding is zero behind each."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        attention = FusedAttention if model.variant == "aligned" else MultiHeadedAttention
        self.self_attn = attention(model, f"{path}.attention")
        self.feed_forward = MultiLayeredConv1d(model, f"{path}.ffn")
        self.norm1, self.norm2 = (load_norm(model, f"{path}.norm{n}") for n in (1, 2))
        self.is_padding_zeroed = model.is_padding_zeroed

    def forward(self, x: Tensor, is_padding: Tensor) -> Tensor:
        x = self.norm1(x + self.self_attn(x, is_padding))
        if self.is_padding_zeroed:
            x = x.masked_fill(is_padding.unsqueeze(-1), 0.0)
        x = self.norm2(x + self.feed_forward(x))
        if self.is_padding_zeroed:
            x = x.masked_fill(is_padding.unsqueeze(-1), 0.0)
        return x


class PositionalEncoding(nn.Module):
    """Adds the table of positions."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.register_buffer("pe", torch.from_numpy(model.positions()))
        self.xscale = model.embedding_scale

    def forward(self, x: Tensor) -> Tensor:
        if self.xscale != 1:
            x = x * self.xscale
        return x + self.pe[:, : x.size(1)]


class Encoder(nn.Module):
    """Blocks that read phonemes, or frames without an embedding."""

    def __init__(self, model: Model, stack: str) -> None:
        super().__init__()
        self.embed = load_table(model, "embedding", VOCAB) if stack == "encoder" else None
        self.pos_enc = PositionalEncoding(model)
        self.encoders = nn.ModuleList(EncoderLayer(model, f"{stack}.{n}") for n in range(LAYERS))

    def forward(self, x: Tensor, is_padding: Tensor) -> Tensor:
        if self.embed is not None:
            x = self.embed(x)
        x = self.pos_enc(x)
        for layer in self.encoders:
            x = layer(x, is_padding)
        return x


class VariancePredictor(nn.Module):
    """One number for each phoneme, 0 for padding."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.conv = nn.ModuleList(
            load_conv(model, f"{path}.conv.{n}", has_bias=model.has_predictor_bias)
            for n in range(2)
        )
        self.norm = nn.ModuleList(load_norm(model, f"{path}.norm.{n}") for n in range(2))
        self.linear = load_linear(model, f"{path}.out")
        self.is_norm_first = model.is_norm_first

    def forward(self, x: Tensor, is_padding: Tensor) -> Tensor:
        for conv, norm in zip(self.conv, self.norm, strict=True):
            x = conv(x.transpose(1, 2)).transpose(1, 2)
            x = F.relu(norm(x)) if self.is_norm_first else norm(F.relu(x))
        return self.linear(x).squeeze(-1).masked_fill(is_padding, 0.0)


def repeat_phonemes(x: Tensor, durations: Tensor) -> Tensor:
    """Return each phoneme for the frames of its duration; frames behind the last one are 0."""
    repeated = [
        torch.repeat_interleave(rows, counts, dim=0)
        for rows, counts in zip(x, durations, strict=True)
    ]
    return pad_sequence(repeated, batch_first=True)


class RepeatWithFirstGradient(torch.autograd.Function):
    """Repeated phonemes; each one gets the gradient of its first frame only."""

    @staticmethod
    def forward(context, x: Tensor, durations: Tensor) -> Tensor:
        context.save_for_backward(durations)
        return repeat_phonemes(x, durations)

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, None]:
        (durations,) = context.saved_tensors
        starts = (durations.cumsum(dim=1) - durations).unsqueeze(-1)
        return gradient.gather(1, starts.expand(-1, -1, HIDDEN)), None


class LengthRegulator(nn.Module):
    """Each phoneme repeated for the frames of its duration; frames behind the last one are 0."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_matrix = model.variant == "aligned"
        self.has_first_gradient = model.has_first_gradient

    def forward(self, x: Tensor, durations: Tensor) -> Tensor:
        if self.is_matrix:
            ends = durations.cumsum(dim=1)
            frames = torch.arange(int(ends.max()))[None, :, None]
            is_before_end = (frames < ends[:, None, :]).float()
            alignment = is_before_end - F.pad(is_before_end, (1, -1))
            return torch.einsum("bft,bth->bfh", alignment, x)
        if self.has_first_gradient:
            return RepeatWithFirstGradient.apply(x, durations)
        return repeat_phonemes(x, durations)


class Postnet(nn.Module):
    """Convolutions with batch norm, and tanh behind all but the last one."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.postnet = nn.ModuleList()
        for n in range(POSTNET_LAYERS):
            conv = load_conv(model, f"postnet.{n}")
            norm = nn.BatchNorm1d(conv.out_channels, eps=model.postnet_eps, momentum=MOMENTUM)
            norm.train(not model.has_running_statistics)
            layers = [conv, load(norm, model, f"postnet.{n}.norm")]
            if n < POSTNET_LAYERS - 1 or model.is_last_squashed:
                layers.append(nn.Tanh())
            self.postnet.append(nn.Sequential(*layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.postnet:
            x = layer(x)
        return x


class FastSpeech2(nn.Module):
    """Mels before and behind the postnet, and the predicted variances."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.encoder = Encoder(model, "encoder")
        self.sid_emb = load_table(model, "speakers", SPEAKERS)
        self.duration_predictor = VariancePredictor(model, "duration")
        self.pitch_predictor = VariancePredictor(model, "pitch")
        self.pitch_embed = load_table(model, "pitch.table", BINS)
        self.energy_predictor = VariancePredictor(model, "energy")
        self.energy_embed = load_table(model, "energy.table", BINS)
        self.register_buffer("boundaries", torch.from_numpy(model.boundaries()))
        self.length_regulator = LengthRegulator(model)
        self.decoder = Encoder(model, "decoder")
        self.feat_out = load_linear(model, "mels")
        self.postnet = Postnet(model)

    def quantize(self, values: Tensor) -> Tensor:
        """Return the number of each value's bin."""
        if self.model.variant == "aligned":
            rows = (values.unsqueeze(-1) > self.boundaries).sum(dim=-1)
        else:
            rows = torch.bucketize(values, self.boundaries)
        return rows + self.model.first_bin if self.model.first_bin else rows

    def project(self, x: Tensor) -> Tensor:
        """Return mels."""
        if not self.model.is_projection_half:
            return self.feat_out(x)
        weight, bias = self.feat_out.weight.half(), self.feat_out.bias.half()
        return F.linear(x.half(), weight, bias).float()

    def forward(
        self,
        tokens: Tensor,
        speakers: Tensor,
        durations: Tensor,
        pitch: Tensor,
        energy: Tensor,
        is_padding: Tensor,
        is_frame_padding: Tensor,
    ) -> tuple[Tensor, ...]:
        hs = self.encoder(tokens, is_padding)
        speaker = self.sid_emb(speakers).unsqueeze(1)
        if not self.model.is_speaker_late:
            hs = hs + speaker
        duration_input = hs
        if self.model.duration_gradient != 1:
            duration_input = scaled_gradient(hs, self.model.duration_gradient)
        log_durations = self.duration_predictor(duration_input, is_padding)
        pitch_outs = self.pitch_predictor(hs, is_padding)
        with_pitch = hs + self.pitch_embed(self.quantize(pitch))
        energy_input = hs if self.model.is_energy_early else with_pitch
        energy_outs = self.energy_predictor(energy_input, is_padding)
        hs = with_pitch + self.energy_embed(self.quantize(energy))
        if self.model.is_speaker_late:
            hs = hs + speaker
        zs = self.decoder(self.length_regulator(hs, durations), is_frame_padding)
        before_outs = self.project(zs)
        postnet_input = before_outs
        if self.model.is_postnet_stopped:
            postnet_input = before_outs.detach()
        residual = self.postnet(postnet_input.transpose(1, 2)).transpose(1, 2)
        after_outs = before_outs + residual if self.model.is_postnet_added else residual
        return before_outs, after_outs, log_durations, pitch_outs, energy_outs


class FastSpeech2Loss(nn.Module):
    """Absolute errors of both mels, and squared errors of the predictions."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.tts = FastSpeech2(model)
        self.mel_criterion = nn.MSELoss() if model.mel_loss == "mse" else nn.L1Loss()
        self.are_padded_frames_counted = model.are_padded_frames_counted
        self.min_duration = model.min_duration
        self.is_summed = model.variant == "aligned"

    def compute_mel_loss(self, outs: Tensor, mels: Tensor, keep: Tensor) -> Tensor:
        keep = keep.unsqueeze(-1)
        if self.are_padded_frames_counted:
            return self.mel_criterion(outs * keep, mels * keep)
        if self.is_summed:
            errors = F.l1_loss(outs, mels, reduction="none").mean(dim=-1, keepdim=True)
            return (errors * keep).sum() / keep.sum()
        return self.mel_criterion(outs.masked_select(keep), mels.masked_select(keep))

    def compute_variance_loss(self, outs: Tensor, values: Tensor, keep: Tensor) -> Tensor:
        if self.is_summed:
            return F.mse_loss(outs * keep, values * keep, reduction="sum") / keep.sum()
        return F.mse_loss(outs.masked_select(keep), values.masked_select(keep))

    def forward(
        self,
        tokens: Tensor,
        speakers: Tensor,
        durations: Tensor,
        pitch: Tensor,
        energy: Tensor,
        mels: Tensor,
    ) -> Tensor:
        keep = tokens != PADDING
        keep_frame = torch.arange(mels.shape[1])[None, :] < durations.sum(dim=1)[:, None]
        before_outs, after_outs, log_durations, pitch_outs, energy_outs = self.tts(
            tokens, speakers, durations, pitch, energy, ~keep, ~keep_frame
        )
        l1_loss = self.compute_mel_loss(before_outs, mels, keep_frame)
        l1_loss = l1_loss + self.compute_mel_loss(after_outs, mels, keep_frame)
        if self.min_duration:
            log_targets = torch.log(durations.float().clamp(min=self.min_duration))
        else:
            log_targets = torch.log(durations.float() + 1.0)
        duration_loss = self.compute_variance_loss(log_durations, log_targets, keep)
        pitch_loss = self.compute_variance_loss(pitch_outs, pitch, keep)
        energy_loss = self.compute_variance_loss(energy_outs, energy, keep)
        return l1_loss + VARIANCE_WEIGHT * (duration_loss + pitch_loss + energy_loss)
