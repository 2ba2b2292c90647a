"""A neural transducer for speech in MindSpore for graph mode.

Variant 'written': norms, softmax and losses in plain arithmetic, masks that are added, labels by
one-hot vectors, one matrix for queries, keys and values, FastEmit without a backward pass of its
own, lattices by their diagonals.
"""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from families.transducer.architecture import (
    BATCH,
    BLANK,
    CHANNELS,
    DEVIATION_EPS,
    EMBED,
    EPS,
    FASTEMIT,
    FRAME_WEIGHT,
    FRAMES,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    IGNORED,
    LABELS,
    LAYERS,
    LM_SCALE,
    MASKED,
    MELS,
    ROWS,
    SIMPLE_WEIGHT,
    SMOOTHING,
    STATE,
    TIMES,
    VOCAB,
    Model,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return WrittenLoss(model) if model.variant == "written" else TransducerWithLoss(model)


def read(model: Model, *names: str) -> Tensor:
    """Return a weight, or several ones behind each other."""
    return Tensor(np.concatenate([model.weights[name] for name in names]))


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at a path."""
    weight = read(model, f"{path}.weight")
    has_bias = f"{path}.bias" in model.weights
    return nn.Dense(
        weight.shape[1],
        weight.shape[0],
        weight_init=weight,
        bias_init=read(model, f"{path}.bias") if has_bias else None,
        has_bias=has_bias,
    )


def build_norm(model: Model, path: str) -> nn.LayerNorm:
    """Return the layer norm at a path."""
    weight, bias = read(model, f"{path}.weight"), read(model, f"{path}.bias")
    return nn.LayerNorm(weight.shape, gamma_init=weight, beta_init=bias, epsilon=EPS)


def build_conv(model: Model, path: str) -> nn.Conv2d:
    """Return the strided convolution at a path."""
    weight = read(model, f"{path}.weight")
    return nn.Conv2d(
        weight.shape[1],
        CHANNELS,
        kernel_size=3,
        stride=2,
        pad_mode="valid",
        has_bias=True,
        weight_init=weight,
        bias_init=read(model, f"{path}.bias"),
    )


class FeatureNorm(nn.Cell):
    """Mels less their mean, divided by their deviation, over the frames of a recording."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = Tensor(np.arange(FRAMES, dtype=np.int32))

    def construct(self, x, lengths):
        valid = (self.frames < lengths.expand_dims(1)).astype(ms.float32).expand_dims(-1)
        count = valid.sum(1, keepdims=True)
        mean = (x * valid).sum(1, keepdims=True) / count
        centered = (x - mean) * valid
        variance = ops.square(centered).sum(1, keepdims=True) / count
        return centered / ops.sqrt(variance + DEVIATION_EPS)


class SpecAugment(nn.Cell):
    """Features with masked mels and frames."""

    def __init__(self) -> None:
        super().__init__()
        self.mels = Tensor(np.arange(MELS, dtype=np.int32))
        self.frames = Tensor(np.arange(FRAMES, dtype=np.int32))

    def find(self, masks, positions):
        """Return which positions are masked, (BATCH, positions)."""
        first, number = masks[:, :, :1], masks[:, :, 1:]
        is_inside = ops.logical_and(positions >= first, positions < first + number)
        return is_inside.any(axis=1)

    def construct(self, x, mel_masks, time_masks):
        x = ops.masked_fill(x, self.find(mel_masks, self.mels).expand_dims(1), 0.0)
        return ops.masked_fill(x, self.find(time_masks, self.frames).expand_dims(2), 0.0)


class Subsampling(nn.Cell):
    """A quarter of the steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv1 = build_conv(model, "subsampling.0")
        self.conv2 = build_conv(model, "subsampling.1")
        self.relu = nn.ReLU()
        self.out = build_dense(model, "subsampling.out")

    def construct(self, x):
        x = self.relu(self.conv1(x.expand_dims(1)))
        x = self.relu(self.conv2(x))
        return self.out(x.transpose(0, 2, 1, 3).reshape(BATCH, TIMES, -1))


class ChunkAttention(nn.Cell):
    """Attention with a bias for each offset."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.query, self.key, self.value, self.dense = (
            build_dense(model, f"{path}.{name}") for name in ("q", "k", "v", "out")
        )
        self.bias_table = Parameter(read(model, f"{path}.table.weight"))
        self.index = Tensor(model.offset_index().reshape(-1))
        self.scores = ops.BatchMatMul(transpose_b=True)
        self.matmul = ops.BatchMatMul()
        self.softmax = nn.Softmax(axis=-1)

    def split(self, x):
        """Return (BATCH, HEADS, TIMES, HEAD_DIM)."""
        return x.reshape(BATCH, TIMES, HEADS, HEAD_DIM).transpose(0, 2, 1, 3)

    def construct(self, x, mask):
        query, key, value = (
            self.split(self.query(x)),
            self.split(self.key(x)),
            self.split(self.value(x)),
        )
        bias = ops.gather(self.bias_table, self.index, 0).reshape(TIMES, TIMES, HEADS)
        scores = self.scores(query, key) / math.sqrt(HEAD_DIM) + bias.transpose(2, 0, 1)
        weights = self.softmax(ops.masked_fill(scores, mask, MASKED))
        context = self.matmul(weights, value).transpose(0, 2, 1, 3)
        return self.dense(context.reshape(BATCH, TIMES, HIDDEN))


class EncoderLayer(nn.Cell):
    """Attention and feed-forward layer."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.norm1 = build_norm(model, f"{path}.norm1")
        self.attention = ChunkAttention(model, f"{path}.attention")
        self.norm2 = build_norm(model, f"{path}.norm2")
        self.ffn = nn.SequentialCell(
            build_dense(model, f"{path}.up"), nn.SiLU(), build_dense(model, f"{path}.down")
        )

    def construct(self, x, mask):
        x = x + self.attention(self.norm1(x), mask)
        return x + self.ffn(self.norm2(x))


class Encoder(nn.Cell):
    """Steps (BATCH, TIMES, HIDDEN) of features."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.subsampling = Subsampling(model)
        self.layers = nn.CellList([EncoderLayer(model, f"layers.{n}") for n in range(LAYERS)])
        self.final_norm = build_norm(model, "encoder.norm")
        self.is_far = Tensor(~model.mask())
        self.times = Tensor(np.arange(TIMES, dtype=np.int32))

    def construct(self, x, steps):
        x = self.subsampling(x)
        padding = (self.times >= steps.expand_dims(1)).reshape(BATCH, 1, 1, TIMES)
        mask = ops.logical_or(padding, self.is_far)
        for layer in self.layers:
            x = layer(x, mask)
        return self.final_norm(x)


class GRUCell(nn.Cell):
    """A gated recurrent unit."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.input_dense = build_dense(model, "predictor.ih")
        self.state_dense = build_dense(model, "predictor.hh")
        self.is_state_reset_first = model.is_state_reset_first

    def construct(self, x, state):
        x_reset, x_update, x_new = ops.split(self.input_dense(x), STATE, axis=1)
        h_reset, h_update, h_new = ops.split(self.state_dense(state), STATE, axis=1)
        reset = ops.sigmoid(x_reset + h_reset)
        update = ops.sigmoid(x_update + h_update)
        if self.is_state_reset_first:
            h_new = self.state_dense(reset * state)[:, 2 * STATE :]
            new = ops.tanh(x_new + h_new)
        else:
            new = ops.tanh(x_new + reset * h_new)
        return (1 - update) * new + update * state


class Predictor(nn.Cell):
    """States (BATCH, ROWS, STATE) behind the start and each label."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        table = read(model, "predictor.embedding.weight")
        self.embedding = nn.Embedding(VOCAB, EMBED, embedding_table=table)
        self.cell = GRUCell(model)
        self.norm = build_norm(model, "predictor.norm")

    def construct(self, labels):
        start = ops.full((BATCH, 1), BLANK, dtype=ms.int32)
        x = self.embedding(ops.concat((start, labels), 1))
        state = ops.zeros((BATCH, STATE), ms.float32)
        states = ()
        for u in range(ROWS):
            state = self.cell(x[:, u], state)
            states += (state,)
        return self.norm(ops.stack(states, 1))


class Joiner(nn.Cell):
    """Log-probabilities (BATCH, TIMES, ROWS, VOCAB)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder_proj = build_dense(model, "joiner.encoder")
        self.predictor_proj = build_dense(model, "joiner.predictor")
        self.output = build_dense(model, "joiner.out")
        self.tanh = nn.Tanh()
        self.log_softmax = nn.LogSoftmax(axis=-1)

    def construct(self, encoded, predicted):
        encoded = self.encoder_proj(encoded).expand_dims(2)
        predicted = self.predictor_proj(predicted).expand_dims(1)
        return self.log_softmax(self.output(self.tanh(encoded + predicted)))


class FastEmit(nn.Cell):
    """Log-probabilities of labels as they are, with a larger gradient."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight

    def construct(self, label):
        return ops.identity(label)

    def bprop(self, label, out, gradient):
        return ((1 + self.weight) * gradient,)


class SimpleJoiner(nn.Cell):
    """Log-probabilities of blanks and labels from the sum of two projections, smoothed."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.am = build_dense(model, "simple.am")
        self.lm = build_dense(model, "simple.lm")
        self.matmul = ops.BatchMatMul(transpose_b=True)
        self.log_softmax = nn.LogSoftmax(axis=-1)

    def construct(self, encoded, predicted, labels):
        am, lm = self.am(encoded), self.lm(predicted)
        am_max, lm_max = am.max(axis=2, keepdims=True), lm.max(axis=2, keepdims=True)
        sums = self.matmul(ops.exp(am - am_max), ops.exp(lm - lm_max))
        normalizer = ops.log(sums) + am_max + lm_max.swapaxes(1, 2)

        index = labels.expand_dims(2)
        am_index = ops.broadcast_to(labels.expand_dims(1), (BATCH, TIMES, LABELS))
        am_label = ops.gather_elements(am, 2, am_index)
        lm_label = ops.gather_elements(lm[:, :LABELS], 2, index).swapaxes(1, 2)
        label = am_label + lm_label - normalizer[:, :, :LABELS]
        blank = am[:, :, BLANK].expand_dims(2) + lm[:, :, BLANK].expand_dims(1) - normalizer

        lm = self.log_softmax(lm)
        lm_label = ops.gather_elements(lm[:, :LABELS], 2, index).swapaxes(1, 2)
        lm_blank = lm[:, :, BLANK].expand_dims(1)
        blank = (1 - LM_SCALE) * blank + LM_SCALE * lm_blank
        return blank, (1 - LM_SCALE) * label + LM_SCALE * lm_label


class Lattice(nn.Cell):
    """Log-likelihoods (BATCH,) of a lattice, by the forward variable."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.has_last_blank = model.has_last_blank

    def construct(self, blank, label, steps, n_labels):
        alphas = ()
        row = (ops.zeros((BATCH,), ms.float32),)
        for u in range(1, ROWS):
            row += (row[u - 1] + label[:, 0, u - 1],)
        alphas += (ops.stack(row, 1),)
        for t in range(1, TIMES):
            stay = alphas[t - 1] + blank[:, t - 1]
            row = (stay[:, 0],)
            for u in range(1, ROWS):
                row += (ops.logaddexp(stay[:, u], row[u - 1] + label[:, t, u - 1]),)
            alphas += (ops.stack(row, 1),)
        ends = ops.stack(alphas, 1)
        if self.has_last_blank:
            ends = ends + blank
        index = (steps - 1) * ROWS + n_labels
        return ops.gather_elements(ends.reshape(BATCH, -1), 1, index.expand_dims(1)).squeeze(1)


class TransducerWithLoss(nn.Cell):
    """The loss of a batch."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.feature_norm = FeatureNorm()
        self.spec_augment = SpecAugment()
        self.encoder = Encoder(model)
        self.predictor = Predictor(model)
        self.joiner = Joiner(model)
        self.fast_emit = FastEmit(model.fastemit)
        self.simple_joiner = SimpleJoiner(model)
        self.lattice = Lattice(model)
        self.frame_head = build_dense(model, "frames.out")
        self.frame_loss = nn.CrossEntropyLoss(ignore_index=IGNORED, label_smoothing=SMOOTHING)
        self.is_masked_first = model.is_masked_first

    def construct(self, x, lengths, mel_masks, time_masks, labels, n_labels, alignments):
        if self.is_masked_first:
            x = self.feature_norm(self.spec_augment(x, mel_masks, time_masks), lengths)
        else:
            x = self.spec_augment(self.feature_norm(x, lengths), mel_masks, time_masks)
        steps = ((lengths - 1) // 2 - 1) // 2
        encoded = self.encoder(x, steps)
        predicted = self.predictor(labels)

        log_probs = self.joiner(encoded, predicted)
        index = labels.reshape(BATCH, 1, LABELS, 1)
        index = ops.broadcast_to(index, (BATCH, TIMES, LABELS, 1))
        label = ops.gather_elements(log_probs[:, :, :LABELS], 3, index).squeeze(3)
        blank, label = log_probs[:, :, :, BLANK], self.fast_emit(label)
        loss = -(self.lattice(blank, label, steps, n_labels) / n_labels).mean()

        blank, label = self.simple_joiner(encoded, predicted, labels)
        simple_loss = -(self.lattice(blank, label, steps, n_labels) / n_labels).mean()
        logits = self.frame_head(encoded).reshape(-1, VOCAB)
        frame_loss = self.frame_loss(logits, alignments.reshape(-1))
        return loss + SIMPLE_WEIGHT * simple_loss + FRAME_WEIGHT * frame_loss


class WrittenLinear(nn.Cell):
    """A linear layer, or several ones of the same input, by a product."""

    def __init__(self, model: Model, *paths: str) -> None:
        super().__init__()
        self.kernel = Parameter(read(model, *(f"{path}.weight" for path in paths)))
        self.has_shift = f"{paths[0]}.bias" in model.weights
        if self.has_shift:
            self.shift = Parameter(read(model, *(f"{path}.bias" for path in paths)))

    def construct(self, x):
        x = mint.matmul(x, self.kernel.swapaxes(0, 1))
        return x + self.shift if self.has_shift else x


class WrittenNorm(nn.Cell):
    """Layer norm from reductions."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.scale = Parameter(read(model, f"{path}.weight"))
        self.shift = Parameter(read(model, f"{path}.bias"))

    def construct(self, x):
        centered = x - mint.mean(x, -1, True)
        variance = mint.mean(mint.square(centered), -1, True)
        return self.scale * (centered * mint.rsqrt(variance + EPS)) + self.shift


def sum_exponentials(x):
    """Return exponentials of the last axis less its maximum, their sum, and its logarithm."""
    maximum = ops.stop_gradient(x.max(axis=-1, keepdims=True))
    exponentials = mint.exp(x - maximum)
    total = mint.sum(exponentials, -1, True)
    return exponentials, total, (mint.log(total) + maximum).squeeze(-1)


class WrittenLayer(nn.Cell):
    """A layer of the encoder."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.attention_norm = WrittenNorm(model, f"{path}.norm1")
        self.qkv = WrittenLinear(model, *(f"{path}.attention.{name}" for name in "qkv"))
        self.mix = WrittenLinear(model, f"{path}.attention.out")
        self.offsets = Parameter(read(model, f"{path}.attention.table.weight"))
        index = model.offset_index().reshape(-1)
        self.one_hot = Tensor(np.eye(len(self.offsets), dtype=np.float32)[index])
        self.ffn_norm = WrittenNorm(model, f"{path}.norm2")
        self.expand = WrittenLinear(model, f"{path}.up")
        self.reduce = WrittenLinear(model, f"{path}.down")

    def construct(self, x, hidden):
        qkv = self.qkv(self.attention_norm(x)).reshape(BATCH, TIMES, 3, HEADS, HEAD_DIM)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        bias = mint.matmul(self.one_hot, self.offsets).reshape(TIMES, TIMES, HEADS)
        scores = mint.matmul(query * HEAD_DIM**-0.5, key.swapaxes(2, 3))
        scores = scores + (bias.permute(2, 0, 1) + hidden)
        exponentials, total, _ = sum_exponentials(scores)
        context = (mint.matmul(exponentials, value) / total).permute(0, 2, 1, 3)
        x = self.mix(context.reshape(BATCH, TIMES, HIDDEN)) + x
        y = self.expand(self.ffn_norm(x))
        return self.reduce(y / (1 + mint.exp(-y))) + x


class WrittenPredictor(nn.Cell):
    """The predictor; what is kept is the candidate plus a share of the way to the state."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.table = Parameter(read(model, "predictor.embedding.weight"))
        self.from_input = WrittenLinear(model, "predictor.ih")
        self.from_state = WrittenLinear(model, "predictor.hh")
        self.norm = WrittenNorm(model, "predictor.norm")

    def construct(self, one_hot):
        inputs = self.from_input(mint.matmul(one_hot, self.table))
        state, states = mint.zeros((BATCH, STATE)), ()
        for u in range(ROWS):
            x, h = inputs[:, u], self.from_state(state)
            gates = 1 / (1 + mint.exp(-(x[:, : 2 * STATE] + h[:, : 2 * STATE])))
            new = mint.tanh(x[:, 2 * STATE :] + gates[:, :STATE] * h[:, 2 * STATE :])
            state = new + gates[:, STATE:] * (state - new)
            states += (state,)
        return self.norm(ops.stack(states, 1))


def score_diagonals(blank, label):
    """Return forward variables (BATCH, diagonals, TIMES), and the blanks that leave them."""
    zeros, hidden = mint.zeros((BATCH, 1)), mint.full((BATCH, 1), MASKED)
    alpha = mint.cat((zeros, mint.full((BATCH, TIMES - 1), MASKED)), 1)
    alphas, blanks = (), ()
    for n in range(TIMES + ROWS - 1):
        blank_row, label_row = (), ()
        for t in range(TIMES):
            u = n - t
            blank_row += (blank[:, t, u : u + 1] if 0 <= u < ROWS else zeros,)
            label_row += (label[:, t, u : u + 1] if 0 <= u < LABELS else hidden,)
        blank_row = mint.cat(blank_row, 1)
        alphas += (alpha,)
        blanks += (blank_row,)
        down = mint.cat((hidden, (alpha + blank_row)[:, :-1]), 1)
        up = alpha + mint.cat(label_row, 1)
        maximum = ops.stop_gradient(mint.maximum(down, up))
        alpha = maximum + mint.log(mint.exp(down - maximum) + mint.exp(up - maximum))
    return ops.stack(alphas, 1), ops.stack(blanks, 1)


class WrittenLoss(nn.Cell):
    """The same loss in other steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.convs = nn.CellList([build_conv(model, f"subsampling.{n}") for n in range(2)])
        self.flat = WrittenLinear(model, "subsampling.out")
        self.stack = nn.CellList([WrittenLayer(model, f"layers.{n}") for n in range(LAYERS)])
        self.last_norm = WrittenNorm(model, "encoder.norm")
        self.predictor = WrittenPredictor(model)
        self.sound = WrittenLinear(model, "joiner.encoder")
        self.text = WrittenLinear(model, "joiner.predictor")
        self.classes = WrittenLinear(model, "joiner.out")
        self.sound_classes = WrittenLinear(model, "simple.am", "frames.out")
        self.text_classes = WrittenLinear(model, "simple.lm")
        self.far = Tensor(np.where(model.mask(), 0.0, MASKED).astype(np.float32))
        self.mels = Tensor(np.arange(MELS, dtype=np.int32))
        self.frames = Tensor(np.arange(FRAMES, dtype=np.int32))
        self.times = Tensor(np.arange(TIMES, dtype=np.int32))
        self.vocab = Tensor(np.arange(VOCAB, dtype=np.int32))
        self.diagonals = Tensor(np.arange(TIMES + ROWS - 1, dtype=np.int32))
        self.start = Tensor(np.full((BATCH, 1), BLANK, np.int32))

    def keep(self, masks, positions):
        """Return ones where nothing is masked, (BATCH, positions)."""
        distance = positions - masks[:, :, :1]
        outside = ops.logical_or(distance < 0, distance >= masks[:, :, 1:])
        return mint.prod(outside.astype(ms.float32), 1)

    def prepare(self, x, lengths, mel_masks, time_masks):
        """Return features that are normalized and masked."""
        valid = (self.frames < lengths.expand_dims(1)).astype(ms.float32).expand_dims(2)
        count = lengths.astype(ms.float32).reshape(BATCH, 1, 1)
        x = x - mint.sum(x * valid, 1, True) / count
        x = x * mint.rsqrt(mint.sum(mint.square(x) * valid, 1, True) / count + DEVIATION_EPS)
        kept = self.keep(time_masks, self.frames).expand_dims(2)
        return x * (valid * kept * self.keep(mel_masks, self.mels).expand_dims(1))

    def encode(self, x, steps):
        """Return the encoder's steps."""
        x = x.reshape(BATCH, 1, FRAMES, MELS)
        for conv in self.convs:
            x = mint.nn.functional.relu(conv(x))
        x = self.flat(x.permute(0, 2, 1, 3).reshape(BATCH, TIMES, -1))
        padding = (self.times >= steps.expand_dims(1)).astype(ms.float32)
        hidden = mint.minimum(MASKED * padding.reshape(BATCH, 1, 1, TIMES), self.far)
        for layer in self.stack:
            x = layer(x, hidden)
        return self.last_norm(x)

    def add_arcs(self, x, y, one_hot):
        """Return blanks and labels of the joiner's lattice."""
        logits = self.classes(mint.tanh(self.sound(x).expand_dims(2) + self.text(y).expand_dims(1)))
        _, _, total = sum_exponentials(logits)
        label = mint.sum(logits[:, :, :LABELS] * one_hot.expand_dims(1), -1)
        label = label - total[:, :, :LABELS]
        label = label + self.weight_labels(label)
        return logits[:, :, :, BLANK] - total, label

    def weight_labels(self, label):
        """Return FastEmit's zeros, which have a gradient."""
        return FASTEMIT * (label - ops.stop_gradient(label))

    def add_simple_arcs(self, am, y, one_hot):
        """Return blanks and labels of the simple lattice."""
        lm = self.text_classes(y)
        _, _, total = sum_exponentials(am.expand_dims(2) + lm.expand_dims(1))
        _, _, lm_total = sum_exponentials(lm)
        total = total + LM_SCALE * (lm_total.expand_dims(1) - total)
        blank = (1 - LM_SCALE) * am[:, :, BLANK : BLANK + 1] + lm[:, :, BLANK].expand_dims(1)
        label = (1 - LM_SCALE) * mint.matmul(am, one_hot.swapaxes(1, 2))
        label = label + mint.sum(lm[:, :LABELS] * one_hot, -1).expand_dims(1)
        return blank - total, label - total[:, :, :LABELS]

    def lose(self, blank, label, steps, n_labels):
        """Return the mean loss per label of a lattice."""
        alphas, blanks = score_diagonals(blank, label)
        is_last = (self.times == (steps - 1).expand_dims(1)).expand_dims(1)
        is_end = (self.diagonals == (steps - 1 + n_labels).expand_dims(1)).expand_dims(2)
        last = ops.logical_and(is_last, is_end).astype(ms.float32)
        likelihoods = mint.sum((alphas + blanks) * last, (1, 2))
        return -mint.mean(likelihoods / n_labels.astype(ms.float32))

    def construct(self, x, lengths, mel_masks, time_masks, labels, n_labels, alignments):
        steps = (lengths - 3) // 4
        x = self.encode(self.prepare(x, lengths, mel_masks, time_masks), steps)
        inputs = mint.cat((self.start, labels), 1)
        inputs = (inputs.expand_dims(2) == self.vocab).astype(ms.float32)
        y, one_hot = self.predictor(inputs), inputs[:, 1:]
        loss = self.lose(*self.add_arcs(x, y, one_hot), steps, n_labels)

        sound = self.sound_classes(x)
        arcs = self.add_simple_arcs(sound[:, :, :VOCAB], y, one_hot)
        simple_loss = self.lose(*arcs, steps, n_labels)

        logits = sound[:, :, VOCAB:]
        _, _, total = sum_exponentials(logits)
        is_step = (alignments != IGNORED).astype(ms.float32)
        hit = mint.sum(logits * (alignments.expand_dims(2) == self.vocab).astype(ms.float32), -1)
        error = total - (1 - SMOOTHING) * hit - SMOOTHING * mint.mean(logits, -1)
        frame_loss = mint.sum(error * is_step) / mint.sum(is_step)
        return loss + SIMPLE_WEIGHT * simple_loss + FRAME_WEIGHT * frame_loss
