"""A neural transducer for speech in PyTorch.

Variant 'parallel': other names, norms as functions, fused attention, one layer for queries, keys
and values, the GRU step by step, log-softmax by its denominator, FastEmit without a backward pass
of its own, both lattices in one, where a time's row is a cumulative sum of exponentials.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from families.transducer.architecture import (
    BLANK,
    CHANNELS,
    DEVIATION_EPS,
    EMBED,
    EPS,
    FASTEMIT,
    FRAME_WEIGHT,
    HEADS,
    HIDDEN,
    IGNORED,
    LAYERS,
    LM_SCALE,
    ROWS,
    SIMPLE_WEIGHT,
    SMOOTHING,
    STATE,
    TIMES,
    VOCAB,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return ParallelLoss(model) if model.variant == "parallel" else TransducerModel(model)


def read(model: Model, *names: str) -> Tensor:
    """Return a weight, or several ones behind each other."""
    return torch.cat([torch.from_numpy(model.weights[name]) for name in names]).clone()


def load(layer: nn.Module, model: Model, path: str) -> nn.Module:
    """Return a layer with the weight at a path, and the bias if there is one."""
    names = [name for name in ("weight", "bias") if f"{path}.{name}" in model.weights]
    layer.load_state_dict({name: read(model, f"{path}.{name}") for name in names})
    return layer


def load_linear(model: Model, path: str) -> nn.Linear:
    """Return the linear layer at a path."""
    n_out, n_in = model.weights[f"{path}.weight"].shape
    return load(nn.Linear(n_in, n_out, bias=f"{path}.bias" in model.weights), model, path)


def load_norm(model: Model, path: str) -> nn.LayerNorm:
    """Return the layer norm at a path."""
    return load(nn.LayerNorm(model.weights[f"{path}.weight"].shape, eps=EPS), model, path)


def make_pad_mask(lengths: Tensor, size: int) -> Tensor:
    """Return which positions are padding, (batch, size)."""
    return torch.arange(size, device=lengths.device) >= lengths[:, None]


def count_steps(lengths: Tensor) -> Tensor:
    """Return the numbers of steps behind the convolutions."""
    return ((lengths - 1) // 2 - 1) // 2


class UtteranceCMVN(nn.Module):
    """Mels less their mean, divided by their deviation, over the frames of a recording."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        valid = ~make_pad_mask(lengths, x.size(1)).unsqueeze(-1)
        n_frames = lengths[:, None, None].to(x.dtype)
        mean = (x * valid).sum(dim=1, keepdim=True) / n_frames
        centered = (x - mean) * valid
        variance = centered.square().sum(dim=1, keepdim=True) / n_frames
        return centered / torch.sqrt(variance + DEVIATION_EPS)


class SpecAugment(nn.Module):
    """Features with masked mels and frames."""

    @staticmethod
    def mask(masks: Tensor, size: int) -> Tensor:
        """Return which positions are masked, (batch, size)."""
        positions = torch.arange(size, device=masks.device)
        start, width = masks.unbind(dim=-1)
        inside = positions >= start[..., None]
        return (inside & (positions < (start + width)[..., None])).any(dim=1)

    def forward(self, x: Tensor, mel_masks: Tensor, time_masks: Tensor) -> Tensor:
        x = x.masked_fill(self.mask(mel_masks, x.size(2))[:, None, :], 0.0)
        return x.masked_fill(self.mask(time_masks, x.size(1))[:, :, None], 0.0)


class Conv2dSubsampling4(nn.Module):
    """A quarter of the steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            load(nn.Conv2d(1, CHANNELS, 3, 2), model, "subsampling.0"),
            nn.ReLU(),
            load(nn.Conv2d(CHANNELS, CHANNELS, 3, 2), model, "subsampling.1"),
            nn.ReLU(),
        )
        self.out = load_linear(model, "subsampling.out")
        self.is_transpose_forgotten = model.is_transpose_forgotten

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x.unsqueeze(1))
        b, c, t, f = x.size()
        if not self.is_transpose_forgotten:
            x = x.transpose(1, 2).contiguous()
        return self.out(x.view(b, t, c * f))


class ChunkAttention(nn.Module):
    """Attention with a bias for each offset."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.linear_q = load_linear(model, f"{path}.q")
        self.linear_k = load_linear(model, f"{path}.k")
        self.linear_v = load_linear(model, f"{path}.v")
        self.linear_out = load_linear(model, f"{path}.out")
        self.relative_bias = nn.Embedding.from_pretrained(
            read(model, f"{path}.table.weight"), freeze=False
        )
        index = torch.from_numpy(model.offset_index()).long()
        self.register_buffer("index", index, persistent=False)

    def split(self, x: Tensor) -> Tensor:
        """Return (batch, HEADS, steps, features of a head)."""
        return x.view(x.size(0), x.size(1), HEADS, -1).transpose(1, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (self.split(f(x)) for f in (self.linear_q, self.linear_k, self.linear_v))
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
        scores = scores + self.relative_bias(self.index).permute(2, 0, 1)
        attn = torch.softmax(scores.masked_fill(~mask, -math.inf), dim=-1)
        x = torch.matmul(attn, v).transpose(1, 2).contiguous()
        return self.linear_out(x.view(x.size(0), x.size(1), HIDDEN))


class EncoderLayer(nn.Module):
    """Attention and feed-forward layer."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.norm1 = load_norm(model, f"{path}.norm1")
        self.self_attn = ChunkAttention(model, f"{path}.attention")
        self.norm2 = load_norm(model, f"{path}.norm2")
        up, down = load_linear(model, f"{path}.up"), load_linear(model, f"{path}.down")
        self.feed_forward = nn.Sequential(up, nn.SiLU(), down)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.norm1(x), mask)
        return x + self.feed_forward(self.norm2(x))


class StreamingEncoder(nn.Module):
    """Steps (batch, TIMES, HIDDEN) of features."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embed = Conv2dSubsampling4(model)
        self.encoders = nn.ModuleList(EncoderLayer(model, f"layers.{n}") for n in range(LAYERS))
        self.after_norm = load_norm(model, "encoder.norm")
        self.register_buffer("chunk_mask", torch.from_numpy(model.mask()), persistent=False)

    def forward(self, x: Tensor, steps: Tensor) -> Tensor:
        x = self.embed(x)
        mask = ~make_pad_mask(steps, x.size(1))[:, None, None, :] & self.chunk_mask
        for layer in self.encoders:
            x = layer(x, mask)
        return self.after_norm(x)


class RNNPredictor(nn.Module):
    """States (batch, ROWS, STATE) behind the start and each label."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embed = nn.Embedding.from_pretrained(
            read(model, "predictor.embedding.weight"),
            freeze=False,
            padding_idx=model.padding_index,
        )
        self.rnn = nn.GRU(EMBED, STATE, batch_first=True)
        state = {
            f"{kind}_{name}_l0": read(model, f"predictor.{name}.{kind}")
            for kind in ("weight", "bias")
            for name in ("ih", "hh")
        }
        self.rnn.load_state_dict(state)
        self.norm = load_norm(model, "predictor.norm")

    def forward(self, labels: Tensor) -> Tensor:
        states, _ = self.rnn(self.embed(F.pad(labels, (1, 0), value=BLANK)))
        return self.norm(states)


class FusedJoint(Function):
    """The sum of steps and rows with its own backward pass, which has a mean over rows."""

    @staticmethod
    def forward(context, encoder_out: Tensor, predictor_out: Tensor) -> Tensor:
        return encoder_out.unsqueeze(2) + predictor_out.unsqueeze(1)

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient.mean(dim=2), gradient.sum(dim=1)


class TransducerJoint(nn.Module):
    """Logits (batch, TIMES, ROWS, VOCAB)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.enc_ffn = load_linear(model, "joiner.encoder")
        self.pred_ffn = load_linear(model, "joiner.predictor")
        self.ffn_out = load_linear(model, "joiner.out")
        self.is_gradient_mean = model.is_joint_gradient_mean

    def forward(self, encoder_out: Tensor, predictor_out: Tensor) -> Tensor:
        encoder_out, predictor_out = self.enc_ffn(encoder_out), self.pred_ffn(predictor_out)
        if self.is_gradient_mean:
            out = FusedJoint.apply(encoder_out, predictor_out)
        else:
            out = encoder_out.unsqueeze(2) + predictor_out.unsqueeze(1)
        return self.ffn_out(torch.tanh(out))


class FastEmit(Function):
    """Log-probabilities of labels as they are, with a larger gradient."""

    @staticmethod
    def forward(context, label: Tensor, weight: float) -> Tensor:
        context.weight = weight
        return label.view_as(label)

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, None]:
        return (1 + context.weight) * gradient, None


class SimpleJoint(nn.Module):
    """Log-probabilities of blanks and labels from the sum of two projections, smoothed."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.am_proj = load_linear(model, "simple.am")
        self.lm_proj = load_linear(model, "simple.lm")

    def forward(
        self, encoder_out: Tensor, predictor_out: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        am, lm = self.am_proj(encoder_out), self.lm_proj(predictor_out)
        am_max = am.max(dim=2, keepdim=True).values
        lm_max = lm.max(dim=2, keepdim=True).values
        sums = torch.matmul((am - am_max).exp(), (lm - lm_max).exp().transpose(1, 2))
        normalizers = sums.log() + am_max + lm_max.transpose(1, 2)

        symbols = labels[:, None, :].expand(-1, am.size(1), -1)
        am_label = am.gather(2, symbols)
        lm_label = lm[:, :-1].gather(2, labels.unsqueeze(2)).transpose(1, 2)
        label = am_label + lm_label - normalizers[:, :, :-1]
        blank = am[:, :, BLANK].unsqueeze(2) + lm[:, :, BLANK].unsqueeze(1) - normalizers

        lm_only = torch.log_softmax(lm, dim=2)
        lm_label = lm_only[:, :-1].gather(2, labels.unsqueeze(2)).transpose(1, 2)
        lm_blank = lm_only[:, :, BLANK].unsqueeze(1)
        blank = (1 - LM_SCALE) * blank + LM_SCALE * lm_blank
        return blank, (1 - LM_SCALE) * label + LM_SCALE * lm_label


class Lattice(nn.Module):
    """Log-likelihoods (batch,) of a lattice, by the forward variable."""

    def forward(self, blank: Tensor, label: Tensor, steps: Tensor, n_labels: Tensor) -> Tensor:
        alphas = []
        for t in range(TIMES):
            stay = alphas[-1] + blank[:, t - 1] if t > 0 else None
            row = [stay[:, 0] if t > 0 else torch.zeros_like(blank[:, 0, 0])]
            for u in range(1, ROWS):
                emit = row[-1] + label[:, t, u - 1]
                row.append(torch.logaddexp(stay[:, u], emit) if t > 0 else emit)
            alphas.append(torch.stack(row, dim=1))
        ends = torch.stack(alphas, dim=1) + blank
        index = (steps - 1) * ROWS + n_labels
        return ends.flatten(1).gather(1, index.unsqueeze(1)).squeeze(1)


class TransducerModel(nn.Module):
    """The loss of a batch."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.cmvn, self.spec_augment = UtteranceCMVN(), SpecAugment()
        self.encoder = StreamingEncoder(model)
        self.predictor = RNNPredictor(model)
        self.joint = TransducerJoint(model)
        self.simple_joint = SimpleJoint(model)
        self.lattice = Lattice()
        self.frame_head = load_linear(model, "frames.out")
        self.frame_loss = nn.CrossEntropyLoss(ignore_index=IGNORED, label_smoothing=SMOOTHING)
        self.is_mean_of_labels = model.is_mean_of_labels

    def reduce(self, likelihoods: Tensor, n_labels: Tensor) -> Tensor:
        """Return the mean over recordings of the loss per label."""
        if self.is_mean_of_labels:
            return -likelihoods.sum() / n_labels.sum()
        return -(likelihoods / n_labels).mean()

    def forward(
        self,
        features: Tensor,
        lengths: Tensor,
        mel_masks: Tensor,
        time_masks: Tensor,
        labels: Tensor,
        n_labels: Tensor,
        alignments: Tensor,
    ) -> Tensor:
        x = self.spec_augment(self.cmvn(features, lengths), mel_masks, time_masks)
        steps = count_steps(lengths)
        encoder_out = self.encoder(x, steps)
        predictor_out = self.predictor(labels)

        log_probs = self.joint(encoder_out, predictor_out).log_softmax(dim=-1)
        symbols = labels[:, None, :, None].expand(-1, log_probs.size(1), -1, -1)
        label = log_probs[:, :, :-1].gather(3, symbols).squeeze(3)
        label = FastEmit.apply(label, FASTEMIT)
        likelihoods = self.lattice(log_probs[..., BLANK], label, steps, n_labels)
        loss = self.reduce(likelihoods, n_labels)

        blank, label = self.simple_joint(encoder_out, predictor_out, labels)
        simple_likelihoods = self.lattice(blank, label, steps, n_labels)
        simple_loss = self.reduce(simple_likelihoods, n_labels)
        logits = self.frame_head(encoder_out)
        frame_loss = self.frame_loss(logits.flatten(0, 1), alignments.flatten())
        return loss + SIMPLE_WEIGHT * simple_loss + FRAME_WEIGHT * frame_loss


def normalize(x: Tensor, norm: nn.ParameterDict) -> Tensor:
    """Return the layer norm of the last axis."""
    return F.layer_norm(x, x.shape[-1:], norm["scale"], norm["shift"], EPS)


def load_parameters(model: Model, path: str) -> nn.ParameterDict:
    """Return scale and shift of a norm."""
    return nn.ParameterDict(
        {
            "scale": nn.Parameter(read(model, f"{path}.weight")),
            "shift": nn.Parameter(read(model, f"{path}.bias")),
        }
    )


class FusedLayer(nn.Module):
    """A layer of the encoder with one matrix for queries, keys and values."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.attn_norm = load_parameters(model, f"{path}.norm1")
        self.in_proj = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        names = (f"{path}.attention.{name}.weight" for name in "qkv")
        self.in_proj.load_state_dict({"weight": read(model, *names)})
        self.out_proj = load_linear(model, f"{path}.attention.out")
        self.offsets = nn.Parameter(read(model, f"{path}.attention.table.weight"))
        self.ffn_norm = load_parameters(model, f"{path}.norm2")
        self.w1, self.w2 = load_linear(model, f"{path}.up"), load_linear(model, f"{path}.down")

    def forward(self, x: Tensor, index: Tensor, hidden: Tensor) -> Tensor:
        qkv = self.in_proj(normalize(x, self.attn_norm)).unflatten(-1, (3, HEADS, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        bias = self.offsets.t()[:, index].masked_fill(hidden, -math.inf)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        x = self.out_proj(y.transpose(1, 2).flatten(2)) + x
        y = self.w1(normalize(x, self.ffn_norm))
        return self.w2(y * torch.sigmoid(y)) + x


class UnrolledGRU(nn.Module):
    """The predictor's states, step by step."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.table = nn.Parameter(read(model, "predictor.embedding.weight"))
        self.i2h = load_linear(model, "predictor.ih")
        self.h2h = load_linear(model, "predictor.hh")
        self.out_norm = load_parameters(model, "predictor.norm")

    def forward(self, labels: Tensor) -> Tensor:
        start = torch.full_like(labels[:, :1], BLANK)
        inputs = self.i2h(self.table[torch.cat([start, labels], dim=1)])
        state, states = inputs.new_zeros(len(inputs), STATE), []
        for x in inputs.unbind(dim=1):
            x_gates, x_new = x.split([2 * STATE, STATE], dim=1)
            h_gates, h_new = self.h2h(state).split([2 * STATE, STATE], dim=1)
            reset, update = torch.sigmoid(x_gates + h_gates).chunk(2, dim=1)
            new = torch.tanh(torch.addcmul(x_new, reset, h_new))
            state = torch.lerp(new, state, update)
            states.append(state)
        return normalize(torch.stack(states, dim=1), self.out_norm)


class ParallelLoss(nn.Module):
    """The same loss; both lattices are one batch."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv1 = load(nn.Conv2d(1, CHANNELS, 3, 2), model, "subsampling.0")
        self.conv2 = load(nn.Conv2d(CHANNELS, CHANNELS, 3, 2), model, "subsampling.1")
        self.in_proj = load_linear(model, "subsampling.out")
        self.blocks = nn.ModuleList(FusedLayer(model, f"layers.{n}") for n in range(LAYERS))
        self.last_norm = load_parameters(model, "encoder.norm")
        self.decoder = UnrolledGRU(model)
        self.acoustic, self.linguistic, self.output = (
            load_linear(model, f"joiner.{name}") for name in ("encoder", "predictor", "out")
        )
        self.acoustic_logits, self.linguistic_logits, self.alignment_logits = (
            load_linear(model, name) for name in ("simple.am", "simple.lm", "frames.out")
        )
        self.register_buffer("visible", torch.from_numpy(model.mask()), persistent=False)
        index = torch.from_numpy(model.offset_index()).long()
        self.register_buffer("index", index, persistent=False)

    def augment(self, x: Tensor, lengths: Tensor, masks: tuple[Tensor, Tensor]) -> Tensor:
        """Return features that are normalized and masked."""
        padding = make_pad_mask(lengths, x.size(1)).unsqueeze(-1)
        kept = ~padding
        for axis, ranges in zip((2, 1), masks, strict=True):
            offsets = torch.arange(x.size(axis)) - ranges[..., :1]
            hidden = (offsets >= 0) & (offsets < ranges[..., 1:])
            kept = kept & ~hidden.any(dim=1).unsqueeze(3 - axis)
        share = (1 / lengths.to(x.dtype))[:, None, None]
        x = x.masked_fill(padding, 0.0)
        mean = x.sum(dim=1, keepdim=True) * share
        deviation = (x - mean).masked_fill(padding, 0.0)
        variance = deviation.pow(2).sum(dim=1, keepdim=True) * share
        return torch.where(kept, deviation * torch.rsqrt(variance + DEVIATION_EPS), 0.0)

    def encode(self, x: Tensor, steps: Tensor) -> Tensor:
        """Return the encoder's steps."""
        x = self.conv2(self.conv1(x.unsqueeze(1)).relu()).relu()
        x = self.in_proj(x.permute(0, 2, 1, 3).flatten(2))
        hidden = make_pad_mask(steps, TIMES)[:, None, None, :] | ~self.visible
        for block in self.blocks:
            x = block(x, self.index, hidden)
        return normalize(x, self.last_norm)

    def arcs(self, x: Tensor, y: Tensor, one_hot: Tensor) -> tuple[Tensor, Tensor]:
        """Return blanks and labels of the joiner's lattice."""
        z = self.output((self.acoustic(x)[:, :, None] + self.linguistic(y)[:, None]).tanh())
        total = z.logsumexp(dim=-1)
        label = torch.einsum("btuv,buv->btu", z[:, :, :-1], one_hot) - total[:, :, :-1]
        label = label + FASTEMIT * (label - label.detach())
        return z[..., BLANK] - total, label

    def simple_arcs(self, x: Tensor, y: Tensor, one_hot: Tensor) -> tuple[Tensor, Tensor]:
        """Return blanks and labels of the simple lattice."""
        am, lm = self.acoustic_logits(x), self.linguistic_logits(y)
        total = torch.logsumexp(am[:, :, None] + lm[:, None], dim=-1)
        lm_total = lm.logsumexp(dim=-1, keepdim=True).transpose(1, 2)
        total = (1 - LM_SCALE) * total + LM_SCALE * lm_total
        am = (1 - LM_SCALE) * am
        blank = am[..., :1] + lm[..., BLANK].unsqueeze(1) - total
        lm_label = (lm[:, :-1] * one_hot).sum(dim=-1).unsqueeze(1)
        return blank, am @ one_hot.transpose(1, 2) + lm_label - total[:, :, :-1]

    def score(self, blank: Tensor, label: Tensor, steps: Tensor, n_labels: Tensor) -> Tensor:
        """Return log-likelihoods; rows of a time are sums of labels and of what came before."""
        row, ends = None, []
        for t in range(TIMES):
            path = F.pad(label[:, t].cumsum(dim=1), (1, 0))
            row = path if t == 0 else path + torch.logcumsumexp(row - path, dim=1)
            row = row + blank[:, t]
            ends.append(row)
        last = F.one_hot(steps - 1, TIMES)[:, :, None] * F.one_hot(n_labels, ROWS)[:, None]
        return (torch.stack(ends, dim=1) * last).sum(dim=(1, 2))

    def forward(
        self,
        features: Tensor,
        lengths: Tensor,
        mel_masks: Tensor,
        time_masks: Tensor,
        labels: Tensor,
        n_labels: Tensor,
        alignments: Tensor,
    ) -> Tensor:
        steps = (lengths - 3) // 4
        x = self.encode(self.augment(features, lengths, (mel_masks, time_masks)), steps)
        y = self.decoder(labels)
        one_hot = F.one_hot(labels, VOCAB).to(x.dtype)
        pairs = zip(self.arcs(x, y, one_hot), self.simple_arcs(x, y, one_hot), strict=True)
        blank, label = (torch.cat(arcs) for arcs in pairs)
        likelihoods = self.score(blank, label, steps.repeat(2), n_labels.repeat(2))
        likelihoods = likelihoods.unflatten(0, (2, -1)) / n_labels
        loss, simple_loss = -likelihoods.mean(dim=1)

        log_probs = F.log_softmax(self.alignment_logits(x), dim=-1)
        is_step = (alignments != IGNORED).to(x.dtype)
        hit = log_probs.gather(2, alignments.clamp(min=0).unsqueeze(2)).squeeze(2)
        hit = (1 - SMOOTHING) * hit + SMOOTHING * log_probs.mean(dim=-1)
        frame_loss = -(hit * is_step).sum() / is_step.sum()
        return loss + SIMPLE_WEIGHT * simple_loss + FRAME_WEIGHT * frame_loss
