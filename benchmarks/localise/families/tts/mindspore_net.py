"""The speech synthesizer in MindSpore, with the cell names of MindAudio's FastSpeech 2.

Phonemes are repeated by a matrix, since graph mode wants static shapes. Variant 'written': norms in
plain arithmetic, heads in the batch, scores masked by a bias, linear layers for kernels of one
step, phonemes gathered by frame, bins counted by comparisons.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.tts.architecture import (
    BATCH,
    BINS,
    EPS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    LAYERS,
    MELS,
    MOMENTUM,
    PADDING,
    POSTNET_LAYERS,
    SPEAKERS,
    TOKENS,
    VARIANCE_WEIGHT,
    VOCAB,
    Model,
)

MASKED = -1e9


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return FastSpeech2Loss(model)


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at ``path``; a kernel of one step is one."""
    weight = model.weights[f"{path}.weight"]
    weight = weight.reshape(weight.shape[:2])
    bias = Tensor(model.weights[f"{path}.bias"])
    return nn.Dense(weight.shape[1], weight.shape[0], weight_init=Tensor(weight), bias_init=bias)


def build_conv(model: Model, path: str, *, has_bias: bool = True) -> nn.Conv1d:
    """Return the convolution at ``path``, padded to as many steps."""
    weight = model.weights[f"{path}.weight"]
    bias = model.weights.get(f"{path}.bias") if has_bias else None
    n_out, n_in, kernel = weight.shape
    return nn.Conv1d(
        n_in,
        n_out,
        kernel,
        pad_mode="pad",
        padding=kernel // 2,
        has_bias=bias is not None,
        weight_init=Tensor(weight),
        bias_init=None if bias is None else Tensor(bias),
    )


def build_table(model: Model, path: str, n_rows: int) -> nn.Embedding:
    """Return the table of embeddings at ``path``."""
    table = Tensor(model.weights[f"{path}.weight"])
    padding_idx = PADDING if path == "embedding" else None
    return nn.Embedding(n_rows, HIDDEN, embedding_table=table, padding_idx=padding_idx)


class WrittenLayerNorm(nn.Cell):
    """Layer norm from reductions."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.gamma = Parameter(Tensor(model.weights[f"{path}.weight"]))
        self.beta = Parameter(Tensor(model.weights[f"{path}.bias"]))

    def construct(self, x):
        centered = x - x.mean(-1, keep_dims=True)
        variance = ops.square(centered).mean(-1, keep_dims=True)
        return self.gamma * (centered / ops.sqrt(variance + EPS)) + self.beta


def build_norm(model: Model, path: str) -> nn.Cell:
    """Return the layer norm at ``path``."""
    if model.variant == "written":
        return WrittenLayerNorm(model, path)
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    return nn.LayerNorm((len(weight),), gamma_init=weight, beta_init=bias, epsilon=EPS)


class MultiHeadAttention(nn.Cell):
    """Attention to all positions that are no padding, added and normed."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.is_masked = model.are_frames_masked or path.startswith("encoder")
        self.w_qs = build_dense(model, f"{path}.attention.q")
        self.w_ks = build_dense(model, f"{path}.attention.k")
        self.w_vs = build_dense(model, f"{path}.attention.v")
        self.fc = build_dense(model, f"{path}.attention.o")
        self.layer_norm = build_norm(model, f"{path}.norm1")
        self.is_batched = model.variant == "written"

    def split(self, x):
        """Return (batch, HEADS, steps, HEAD_DIM)."""
        return x.reshape(x.shape[0], x.shape[1], HEADS, HEAD_DIM).transpose(0, 2, 1, 3)

    def construct(self, x, is_padding):
        batch, steps, _ = x.shape
        q, k, v = self.split(self.w_qs(x)), self.split(self.w_ks(x)), self.split(self.w_vs(x))
        if self.is_batched:
            q, k, v = (
                q.reshape(-1, steps, HEAD_DIM) * HEAD_DIM**-0.5,
                k.reshape(-1, steps, HEAD_DIM),
                v.reshape(-1, steps, HEAD_DIM),
            )
            bias = is_padding.astype(x.dtype) * MASKED
            bias = ops.repeat_interleave(bias, HEADS, 0).expand_dims(1)
            scores = ops.bmm(q, k.transpose(0, 2, 1)) + bias
            y = ops.bmm(ops.softmax(scores, -1), v).reshape(batch, HEADS, steps, HEAD_DIM)
        else:
            scores = ops.matmul(q, k.transpose(0, 1, 3, 2)) / HEAD_DIM**0.5
            if self.is_masked:
                mask = is_padding.expand_dims(1).expand_dims(1)
                scores = ops.masked_fill(scores, mask, Tensor(MASKED, ms.float32))
            y = ops.matmul(ops.softmax(scores, -1), v)
        y = self.fc(y.transpose(0, 2, 1, 3).reshape(batch, steps, HIDDEN))
        return self.layer_norm(y + x)


class PositionwiseFeedForward(nn.Cell):
    """Two convolutions around relu, added and normed."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.is_linear = model.variant == "written"
        self.w_1 = build_conv(model, f"{path}.ffn.up")
        self.w_2 = (build_dense if self.is_linear else build_conv)(model, f"{path}.ffn.down")
        self.layer_norm = build_norm(model, f"{path}.norm2")

    def construct(self, x):
        y = ops.relu(self.w_1(x.transpose(0, 2, 1)))
        if self.is_linear:
            return self.layer_norm(self.w_2(y.transpose(0, 2, 1)) + x)
        return self.layer_norm(self.w_2(y).transpose(0, 2, 1) + x)


class FFTBlock(nn.Cell):
    """Attention and convolutions; padding is zero behind each."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.slf_attn = MultiHeadAttention(model, path)
        self.pos_ffn = PositionwiseFeedForward(model, path)

    def construct(self, x, is_padding):
        keep = ops.logical_not(is_padding).astype(x.dtype).expand_dims(-1)
        x = self.slf_attn(x, is_padding) * keep
        return self.pos_ffn(x) * keep


class Encoder(nn.Cell):
    """Encoded phonemes (batch, TOKENS, HIDDEN)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.src_word_emb = build_table(model, "embedding", VOCAB)
        self.position_enc = Tensor(model.positions())
        self.embedding_scale = model.embedding_scale
        self.layer_stack = nn.CellList([FFTBlock(model, f"encoder.{n}") for n in range(LAYERS)])

    def construct(self, tokens, is_padding):
        x = self.src_word_emb(tokens)
        if self.embedding_scale != 1:
            x = x * self.embedding_scale
        x = x + self.position_enc[:, : tokens.shape[1]]
        for layer in self.layer_stack:
            x = layer(x, is_padding)
        return x


class Decoder(nn.Cell):
    """Decoded frames (batch, frames, HIDDEN)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.position_enc = Tensor(model.positions())
        self.embedding_scale = model.embedding_scale
        self.layer_stack = nn.CellList([FFTBlock(model, f"decoder.{n}") for n in range(LAYERS)])

    def construct(self, x, is_padding):
        if self.embedding_scale != 1:
            x = x * self.embedding_scale
        x = x + self.position_enc[:, : x.shape[1]]
        for layer in self.layer_stack:
            x = layer(x, is_padding)
        return x


class VariancePredictor(nn.Cell):
    """One number for each phoneme, 0 for padding."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        has_bias = model.has_predictor_bias
        self.conv1 = build_conv(model, f"{path}.conv.0", has_bias=has_bias)
        self.layer_norm_1 = build_norm(model, f"{path}.norm.0")
        self.conv2 = build_conv(model, f"{path}.conv.1", has_bias=has_bias)
        self.layer_norm_2 = build_norm(model, f"{path}.norm.1")
        self.linear_layer = build_dense(model, f"{path}.out")
        self.is_norm_first = model.is_norm_first

    def activate(self, x, norm):
        return ops.relu(norm(x)) if self.is_norm_first else norm(ops.relu(x))

    def construct(self, x, is_padding):
        x = self.conv1(x.transpose(0, 2, 1)).transpose(0, 2, 1)
        x = self.activate(x, self.layer_norm_1)
        x = self.conv2(x.transpose(0, 2, 1)).transpose(0, 2, 1)
        x = self.activate(x, self.layer_norm_2)
        out = self.linear_layer(x).squeeze(-1)
        return out * ops.logical_not(is_padding).astype(out.dtype)


class RepeatWithFirstGradient(nn.Cell):
    """Repeated phonemes; each one gets the gradient of its first frame only."""

    def construct(self, alignment, x, starts):
        return ops.bmm(alignment, x)

    def bprop(self, alignment, x, starts, out, gradient):
        rows = ops.gather(gradient, starts.astype(ms.int32), 1, 1)
        return ops.zeros_like(alignment), rows, ops.zeros_like(starts)


class LengthRegulator(nn.Cell):
    """Each phoneme repeated for the frames of its duration; frames behind the last one are 0."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_gathered = model.variant == "written"
        self.first_rows = Tensor(np.arange(BATCH)[:, None] * TOKENS, ms.int32)
        self.repeat = RepeatWithFirstGradient() if model.has_first_gradient else None

    def construct(self, x, durations, n_frames):
        ends = ops.cumsum(durations.astype(ms.float32), 1)
        frames = ops.arange(n_frames).astype(ms.float32)
        if self.is_gathered:
            is_past = ops.less_equal(ends.expand_dims(1), frames.reshape(1, -1, 1))
            numbers = is_past.astype(ms.int32).sum(-1)
            keep = ops.less(numbers, TOKENS).astype(x.dtype).expand_dims(-1)
            rows = ops.minimum(numbers, TOKENS - 1) + self.first_rows
            return ops.gather(x.reshape(-1, HIDDEN), rows, 0) * keep
        starts = ends - durations.astype(ms.float32)
        frames = frames.reshape(1, -1, 1)
        is_behind_start = ops.greater_equal(frames, starts.expand_dims(1))
        is_before_end = ops.less(frames, ends.expand_dims(1))
        alignment = ops.logical_and(is_behind_start, is_before_end).astype(x.dtype)
        if self.repeat is not None:
            return self.repeat(alignment, x, starts)
        return ops.bmm(alignment, x)


class VarianceAdaptor(nn.Cell):
    """Durations, pitch and energy, and the frames that have them."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.duration_predictor = VariancePredictor(model, "duration")
        self.pitch_predictor = VariancePredictor(model, "pitch")
        self.energy_predictor = VariancePredictor(model, "energy")
        self.length_regulator = LengthRegulator(model)
        self.pitch_embedding = build_table(model, "pitch.table", BINS)
        self.energy_embedding = build_table(model, "energy.table", BINS)
        self.bins = Tensor(model.boundaries())
        self.is_counted = model.variant == "written"
        self.first_bin, self.is_energy_early = model.first_bin, model.is_energy_early
        self.is_speaker_late = model.is_speaker_late
        self.is_pitch_stopped = model.is_pitch_stopped
        self.scaled_gradient = None
        if model.duration_gradient != 1:
            self.scaled_gradient = ScaledGradient(model.duration_gradient)

    def quantize(self, values):
        """Return the number of each value's bin."""
        if self.is_counted:
            rows = ops.greater(values.expand_dims(-1), self.bins).astype(ms.int32).sum(-1)
        else:
            rows = ops.searchsorted(self.bins, values)
        return rows + self.first_bin if self.first_bin != 0 else rows

    def construct(self, x, speaker, is_padding, durations, pitch, energy, n_frames):
        read = x if self.scaled_gradient is None else self.scaled_gradient(x)
        log_durations = self.duration_predictor(read, is_padding)
        read = ops.stop_gradient(x) if self.is_pitch_stopped else x
        pitch_prediction = self.pitch_predictor(read, is_padding)
        before_pitch = x
        x = x + self.pitch_embedding(self.quantize(pitch))
        read = before_pitch if self.is_energy_early else x
        energy_prediction = self.energy_predictor(read, is_padding)
        x = x + self.energy_embedding(self.quantize(energy))
        if self.is_speaker_late:
            x = x + speaker
        frames = self.length_regulator(x, durations, n_frames)
        return frames, log_durations, pitch_prediction, energy_prediction


class WrittenBatchNorm(nn.Cell):
    """Batch norm of (batch, channels, frames) from reductions."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.gamma = Parameter(Tensor(model.weights[f"{path}.weight"]))
        self.beta = Parameter(Tensor(model.weights[f"{path}.bias"]))
        self.eps = model.postnet_eps

    def construct(self, x):
        centered = x - x.mean((0, 2), keep_dims=True)
        variance = ops.square(centered).mean((0, 2), keep_dims=True)
        normalized = centered * ops.rsqrt(variance + self.eps)
        return normalized * self.gamma.reshape(1, -1, 1) + self.beta.reshape(1, -1, 1)


class BatchNorm(nn.Cell):
    """The framework's batch norm, which wants an image."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
        self.bn2d = nn.BatchNorm2d(
            len(weight),
            eps=model.postnet_eps,
            momentum=1 - MOMENTUM,
            gamma_init=weight,
            beta_init=bias,
            use_batch_statistics=False if model.has_running_statistics else None,
        )

    def construct(self, x):
        return self.bn2d(x.expand_dims(2)).squeeze(2)


class PostNet(nn.Cell):
    """Convolutions with batch norm, and tanh behind all but the last one."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        build = WrittenBatchNorm if model.variant == "written" else BatchNorm
        layers = range(POSTNET_LAYERS)
        self.convolutions = nn.CellList([build_conv(model, f"postnet.{n}") for n in layers])
        self.norms = nn.CellList([build(model, f"postnet.{n}.norm") for n in layers])
        self.n_squashed = POSTNET_LAYERS - (0 if model.is_last_squashed else 1)

    def construct(self, x):
        x = x.transpose(0, 2, 1)
        for n in range(POSTNET_LAYERS):
            x = self.norms[n](self.convolutions[n](x))
            if n < self.n_squashed:
                x = ops.tanh(x)
        return x.transpose(0, 2, 1)


class FastSpeech2(nn.Cell):
    """Mels before and behind the postnet, and the predicted variances."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder, self.decoder = Encoder(model), Decoder(model)
        self.speaker_emb = build_table(model, "speakers", SPEAKERS)
        self.variance_adaptor = VarianceAdaptor(model)
        self.mel_linear = build_dense(model, "mels")
        self.postnet = PostNet(model)
        self.is_projection_half = model.is_projection_half
        if self.is_projection_half:
            self.mel_linear.to_float(ms.float16)
        self.is_postnet_stopped = model.is_postnet_stopped
        self.is_postnet_added = model.is_postnet_added
        self.is_speaker_late = model.is_speaker_late

    def construct(self, tokens, speakers, durations, pitch, energy, is_padding, is_frame_padding):
        x = self.encoder(tokens, is_padding)
        speaker = self.speaker_emb(speakers).expand_dims(1)
        if not self.is_speaker_late:
            x = x + speaker
        x, log_durations, pitch_prediction, energy_prediction = self.variance_adaptor(
            x, speaker, is_padding, durations, pitch, energy, is_frame_padding.shape[1]
        )
        mels = self.mel_linear(self.decoder(x, is_frame_padding))
        if self.is_projection_half:
            mels = mels.astype(ms.float32)
        read = ops.stop_gradient(mels) if self.is_postnet_stopped else mels
        refined = self.postnet(read)
        if self.is_postnet_added:
            refined = mels + refined
        return mels, refined, log_durations, pitch_prediction, energy_prediction


class FastSpeech2Loss(nn.Cell):
    """Absolute errors of both mels, and squared errors of the predictions."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = FastSpeech2(model)
        self.is_mel_squared = model.mel_loss == "mse"
        self.are_padded_frames_counted = model.are_padded_frames_counted
        self.min_duration = model.min_duration

    def compute_mel_loss(self, predicted, mels, keep):
        errors = predicted - mels
        errors = ops.square(errors) if self.is_mel_squared else ops.abs(errors)
        errors = errors * keep.expand_dims(-1)
        if self.are_padded_frames_counted:
            return errors.mean()
        return errors.sum() / (keep.sum() * MELS)

    def compute_variance_loss(self, predicted, values, keep):
        return (ops.square(predicted - values) * keep).sum() / keep.sum()

    def compute_log_targets(self, durations):
        if self.min_duration > 0:
            return ops.log(ops.clamp(durations.astype(ms.float32), min=self.min_duration))
        return ops.log(durations.astype(ms.float32) + 1)

    def construct(self, tokens, speakers, durations, pitch, energy, mels):
        is_padding = ops.equal(tokens, PADDING)
        frames = ops.arange(mels.shape[1]).astype(ms.int32).expand_dims(0)
        is_frame_padding = ops.greater_equal(frames, durations.sum(1).expand_dims(1))
        predicted, refined, log_durations, pitch_prediction, energy_prediction = self.network(
            tokens, speakers, durations, pitch, energy, is_padding, is_frame_padding
        )
        keep = ops.logical_not(is_padding).astype(ms.float32)
        keep_frame = ops.logical_not(is_frame_padding).astype(ms.float32)
        mel_loss = self.compute_mel_loss(predicted, mels, keep_frame)
        postnet_loss = self.compute_mel_loss(refined, mels, keep_frame)
        log_targets = self.compute_log_targets(durations)
        duration_loss = self.compute_variance_loss(log_durations, log_targets, keep)
        pitch_loss = self.compute_variance_loss(pitch_prediction, pitch, keep)
        energy_loss = self.compute_variance_loss(energy_prediction, energy, keep)
        variance_loss = duration_loss + pitch_loss + energy_loss
        return mel_loss + postnet_loss + VARIANCE_WEIGHT * variance_loss
