"""The text-line recognizer in MindSpore for graph mode, with cells named as in MindOCR.

Variant 'written': norms, pooling, LSTMs and losses in plain arithmetic, the inputs of an LSTM
joined with its hidden state, sums of products where vectors are joined.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.crnn.architecture import (
    BATCH,
    BLANK,
    CHANNELS,
    CLASSES,
    COLUMNS,
    CTC_WEIGHT,
    DECODER,
    EMBED,
    EPS,
    FILTERS,
    HIDDEN,
    INPUT,
    KERNEL,
    LENGTH_WEIGHT,
    LSTM_NAMES,
    PAD,
    POOLS,
    STEPS,
    VOCAB,
    Model,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return NetWithLoss(model)


def read(model: Model, name: str) -> Tensor:
    """Return a weight."""
    return Tensor(model.weights[name])


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at ``path``, with the bias if there is one."""
    weight = read(model, f"{path}.weight")
    has_bias = f"{path}.bias" in model.weights
    bias = read(model, f"{path}.bias") if has_bias else None
    return nn.Dense(
        weight.shape[1], weight.shape[0], weight_init=weight, bias_init=bias, has_bias=has_bias
    )


class WrittenBatchNorm(nn.Cell):
    """Batch norm from means."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        shape = (1, -1, 1, 1)
        self.scale = Parameter(weight.reshape(shape), name="scale")
        self.shift = Parameter(bias.reshape(shape), name="shift")

    def construct(self, x):
        centered = x - x.mean((0, 2, 3), keep_dims=True)
        variance = ops.square(centered).mean((0, 2, 3), keep_dims=True)
        return centered * ops.rsqrt(variance + EPS) * self.scale + self.shift


class WrittenPool(nn.Cell):
    """The largest of each window, from an axis for the windows' pixels."""

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        self.height, self.width = size

    def construct(self, x):
        n, channels, height, width = x.shape
        x = x.reshape(n, channels, height // self.height, self.height, width)
        x = ops.amax(x, axis=3)
        if self.width == 1:
            return x
        x = x.reshape(n, channels, height // self.height, width // self.width, self.width)
        return ops.amax(x, axis=4)


class ConvBlock(nn.Cell):
    """Convolution, batch norm, rectifier, pooling; padding becomes zero."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"stages.{n}"
        weight = read(model, f"{path}.weight")
        self.conv = nn.Conv2d(
            weight.shape[1], weight.shape[0], 3, pad_mode="pad", padding=1, weight_init=weight
        )
        gamma, beta = read(model, f"{path}.norm.weight"), read(model, f"{path}.norm.bias")
        if model.variant == "written":
            self.norm = WrittenBatchNorm(gamma, beta)
            self.pool = WrittenPool(POOLS[n])
        else:
            self.norm = nn.BatchNorm2d(
                weight.shape[0], eps=EPS, momentum=0.9, gamma_init=gamma, beta_init=beta
            )
            self.pool = nn.MaxPool2d(POOLS[n], stride=POOLS[n])
        self.relu = nn.ReLU()
        self.is_norm_last = model.is_norm_last and n == len(CHANNELS) - 1

    def construct(self, x, mask):
        x = self.conv(x)
        x = self.norm(self.relu(x)) if self.is_norm_last else self.relu(self.norm(x))
        return self.pool(x) * mask


class Img2Seq(nn.Cell):
    """Vectors of the columns, (batch, COLUMNS, INPUT), of features (batch, channels, ROWS, ...)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.dense = build_dense(model, "sequence")

    def construct(self, x):
        return self.dense(x.transpose(0, 3, 1, 2).reshape(x.shape[0], COLUMNS, -1))


class WrittenLSTMCell(nn.Cell):
    """One step in plain arithmetic, with one product."""

    def __init__(self, model: Model, path: str, n_hidden: int) -> None:
        super().__init__()
        weights = [model.weights[f"{path}.{name}"] for name in LSTM_NAMES]
        self.kernel = Parameter(Tensor(np.concatenate(weights[:2], 1).T.copy()), name="kernel")
        self.bias = Parameter(Tensor(weights[2] + weights[3]), name="bias")
        self.n_hidden = n_hidden

    def construct(self, x, state):
        hidden, cell = state
        gates = ops.matmul(ops.concat((x, hidden), 1), self.kernel) + self.bias
        i, f, g, o = ops.split(gates, self.n_hidden, axis=1)
        cell = ops.sigmoid(f) * cell + ops.sigmoid(i) * ops.tanh(g)
        return ops.sigmoid(o) * ops.tanh(cell), cell


def build_lstm_cell(model: Model, path: str, n_in: int, n_hidden: int) -> nn.Cell:
    """Return the cell at ``path``."""
    if model.variant == "written":
        return WrittenLSTMCell(model, path, n_hidden)
    cell = nn.LSTMCell(n_in, n_hidden)
    for name in LSTM_NAMES:
        getattr(cell, name).set_data(read(model, f"{path}.{name}"))
    return cell


class DirectedLSTM(nn.Cell):
    """All steps of one direction; padding leaves the state as it is."""

    def __init__(self, model: Model, direction: str) -> None:
        super().__init__()
        self.cell = build_lstm_cell(model, f"lstm.{direction}", INPUT, HIDDEN)
        self.is_backward = direction == "backward"
        self.is_selected = model.variant == "written"

    def construct(self, x, mask):
        """Return the states of all columns, zero in padding, and the last one."""
        hidden = cell = ops.zeros((x.shape[0], HIDDEN), ms.float32)
        outputs = ()
        for number in range(COLUMNS):
            column = COLUMNS - 1 - number if self.is_backward else number
            keep = mask[:, column : column + 1]
            new_hidden, new_cell = self.cell(x[:, column], (hidden, cell))
            if self.is_selected:
                hidden = ops.where(keep > 0, new_hidden, hidden)
                cell = ops.where(keep > 0, new_cell, cell)
            else:
                hidden = keep * new_hidden + (1 - keep) * hidden
                cell = keep * new_cell + (1 - keep) * cell
            output = hidden * keep
            outputs = (output, *outputs) if self.is_backward else (*outputs, output)
        return ops.stack(outputs, 1), hidden


class RNNEncoder(nn.Cell):
    """States of both directions, and the last ones."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.forward_lstm = DirectedLSTM(model, "forward")
        self.backward_lstm = DirectedLSTM(model, "backward")

    def construct(self, x, mask):
        states, last = self.forward_lstm(x, mask)
        backward_states, backward_last = self.backward_lstm(x, mask)
        return ops.concat((states, backward_states), -1), ops.concat((last, backward_last), -1)


class LocationAttention(nn.Cell):
    """Weights of the columns from their states, the decoder's state and the weights so far."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.key, self.query, self.location, self.energy = (
            build_dense(model, f"attention.{name}")
            for name in ("key", "query", "location", "energy")
        )
        self.conv = nn.Conv1d(
            1,
            FILTERS,
            KERNEL,
            pad_mode="pad",
            padding=KERNEL // 2,
            weight_init=read(model, "attention.conv.weight"),
        )
        self.masked_score = model.masked_score
        self.are_keys_stopped = model.are_keys_stopped
        self.is_written = model.variant == "written"

    def project(self, states):
        """Return the keys, which are the same in all steps."""
        return self.key(ops.stop_gradient(states) if self.are_keys_stopped else states)

    def construct(self, keys, mask, hidden, past):
        locations = self.location(self.conv(past.expand_dims(1)).transpose(0, 2, 1))
        sums = keys + self.query(hidden).expand_dims(1) + locations
        scores = self.energy(ops.tanh(sums)).squeeze(-1)
        if self.is_written:
            top = ops.stop_gradient(scores.max(axis=1, keepdims=True))
            powers = ops.exp(scores - top) * mask
            return powers / powers.sum(1, keepdims=True)
        scores = ops.masked_fill(scores, mask == 0, self.masked_score)
        return ops.softmax(scores, -1)


class AttentionHead(nn.Cell):
    """Logits of each next character, (batch, STEPS, VOCAB)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.start = build_dense(model, "decoder.start")
        table = read(model, "decoder.embedding.weight")
        self.embedding = nn.Embedding(VOCAB, EMBED, embedding_table=table)
        self.attention = LocationAttention(model)
        self.cell = build_lstm_cell(model, "decoder", EMBED + 2 * HIDDEN, DECODER)
        self.generator = build_dense(model, "decoder.out")
        self.is_written = model.variant == "written"

    def read_context(self, weights, states):
        """Return the weighted sum of the states."""
        if self.is_written:
            return (weights.expand_dims(2) * states).sum(1)
        return ops.bmm(weights.expand_dims(1), states).squeeze(1)

    def construct(self, states, last, mask, inputs):
        hidden = ops.tanh(self.start(last))
        cell = ops.zeros_like(hidden)
        past = ops.zeros_like(mask)
        keys = self.attention.project(states)
        embedded = self.embedding(inputs)
        outputs = ()
        for step in range(STEPS):
            weights = self.attention(keys, mask, hidden, past)
            past = past + weights
            context = self.read_context(weights, states)
            hidden, cell = self.cell(ops.concat((embedded[:, step], context), 1), (hidden, cell))
            outputs += (ops.concat((hidden, context), 1),)
        return self.generator(ops.stack(outputs, 1))


class LengthHead(nn.Cell):
    """The number of characters, (batch,), of the columns' mean."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.dense = build_dense(model, "length")

    def construct(self, states, mask):
        mean = (states * mask.expand_dims(2)).sum(1) / mask.sum(1, keepdims=True)
        return self.dense(mean).squeeze(1)


class RecModel(nn.Cell):
    """What the three heads return: logits of columns, logits of characters, lengths."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.backbone = nn.CellList([ConvBlock(model, n) for n in range(len(CHANNELS))])
        self.reshape = Img2Seq(model)
        self.encoder = RNNEncoder(model)
        self.ctc_fc = build_dense(model, "ctc")
        self.attn_head = AttentionHead(model)
        self.length_head = LengthHead(model)
        self.columns = Tensor(np.arange(COLUMNS, dtype=np.int32)[None])

    def construct(self, images, n_columns, inputs):
        mask = ops.less(self.columns, n_columns.expand_dims(1)).astype(ms.float32)
        x = images
        for block in self.backbone:
            x = block(x, mask.reshape(-1, 1, 1, COLUMNS))
        states, last = self.encoder(self.reshape(x), mask)
        logits = self.attn_head(states, last, mask, inputs)
        return self.ctc_fc(states), logits, self.length_head(states, mask)


class CTCLoss(nn.Cell):
    """CTC of logits (batch, COLUMNS, CLASSES)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_written = model.variant == "written"
        self.is_text_divided = model.is_text_divided
        is_mean = self.is_text_divided and not self.is_written
        self.loss = nn.CTCLoss(blank=BLANK, reduction="mean" if is_mean else "none")
        self.are_steps_reshaped = model.are_steps_reshaped
        self.scaled_gradient = None
        if model.ctc_gradient != 1:
            self.scaled_gradient = ScaledGradient(model.ctc_gradient)

    def construct(self, logits, n_columns, labels, lengths):
        log_probs = ops.log_softmax(logits, -1)
        if self.are_steps_reshaped:
            log_probs = log_probs.reshape(COLUMNS, BATCH, CLASSES)
        else:
            log_probs = log_probs.transpose(1, 0, 2)
        if self.scaled_gradient is not None:
            log_probs = self.scaled_gradient(log_probs)
        loss = self.loss(log_probs, labels, n_columns, lengths)
        if not self.is_text_divided:
            return loss.mean()
        return (loss / lengths.astype(ms.float32)).mean() if self.is_written else loss


class NetWithLoss(nn.Cell):
    """The weighted sum of the losses of the heads."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.network = RecModel(model)
        self.ctc_loss = CTCLoss(model)
        self.is_written = model.variant == "written"

    def compute_attention_loss(self, logits, targets):
        """Return the mean loss of all characters and ends of texts."""
        if self.is_written:
            keep = (targets != PAD).astype(ms.float32)
            one_hot = ops.one_hot(targets, VOCAB, Tensor(1.0), Tensor(0.0))
            losses = ops.logsumexp(logits, -1) - (one_hot * logits).sum(-1)
            return (losses * keep).sum() / keep.sum()
        return ops.cross_entropy(logits.reshape(-1, VOCAB), targets.reshape(-1), ignore_index=PAD)

    def compute_length_loss(self, predicted, lengths):
        """Return the mean loss of the numbers of characters."""
        lengths = lengths.astype(ms.float32)
        if self.is_written:
            errors = ops.abs(predicted - lengths)
            return ops.where(errors < 1, 0.5 * ops.square(errors), errors - 0.5).mean()
        return ops.smooth_l1_loss(predicted, lengths, reduction="mean")

    def construct(self, images, widths, labels, lengths, inputs, targets):
        n_columns = (widths + 1) // 2
        column_logits, logits, predicted = self.network(images, n_columns, inputs)
        ctc = self.ctc_loss(column_logits, n_columns, labels, lengths)
        attention = self.compute_attention_loss(logits, targets)
        length = self.compute_length_loss(predicted, lengths)
        return CTC_WEIGHT * ctc + (1 - CTC_WEIGHT) * attention + LENGTH_WEIGHT * length
