"""The LSTM language model as a MindSpore user writes it for graph mode: cells, step by step."""

from __future__ import annotations

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.lstm.architecture import LAYERS, VOCAB, WIDTH, Model


class ClippedGradient(nn.Cell):
    """What comes in goes out; the gradient is clipped on its way back."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit

    def construct(self, x):
        return ops.identity(x)

    def bprop(self, x, out, gradient):
        return (ops.clamp(gradient, -self.limit, self.limit),)


class LSTMCell(nn.Cell):
    """One step of one layer."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        weights = model.weights
        self.weight_ih = Parameter(Tensor(weights[f"layers.{n}.weight_ih"]))
        self.weight_hh = Parameter(Tensor(weights[f"layers.{n}.weight_hh"]))
        self.bias_ih = Parameter(Tensor(weights[f"layers.{n}.bias_ih"]))
        self.has_hidden_bias = model.has_hidden_bias or n < LAYERS - 1
        if self.has_hidden_bias:
            self.bias_hh = Parameter(Tensor(weights[f"layers.{n}.bias_hh"]))
        self.matmul = ops.MatMul(transpose_b=True)
        self.split = ops.Split(axis=1, output_num=4)
        self.i, self.f, self.g, self.o = model.gate_order
        self.forget_bias = model.forget_bias
        self.is_hard = model.gate_activation == "hard"
        self.is_cell_activated = model.is_cell_activated or n < LAYERS - 1
        self.cell_limit = model.cell_limit if n == LAYERS - 1 else 0.0
        self.is_hidden_stopped = model.is_hidden_stopped and n == LAYERS - 1
        self.clipped_gradient = None
        if model.gradient_limit and n == LAYERS - 1:
            self.clipped_gradient = ClippedGradient(model.gradient_limit)

    def gate(self, x):
        if self.is_hard:
            return ops.clamp(0.2 * x + 0.5, 0.0, 1.0)
        return ops.sigmoid(x)

    def project(self, x):
        return self.matmul(x, self.weight_ih) + self.bias_ih

    def construct(self, projected, hidden, cell):
        if self.is_hidden_stopped:
            hidden = ops.stop_gradient(hidden)
        from_hidden = self.matmul(hidden, self.weight_hh)
        if self.has_hidden_bias:
            from_hidden = from_hidden + self.bias_hh
        gates = projected + from_hidden
        if self.clipped_gradient is not None:
            gates = self.clipped_gradient(gates)
        parts = self.split(gates)
        forget = parts[self.f]
        if self.forget_bias != 0:
            forget = forget + self.forget_bias
        cell = self.gate(forget) * cell + self.gate(parts[self.i]) * ops.tanh(parts[self.g])
        if self.cell_limit:
            cell = ops.clamp(cell, -self.cell_limit, self.cell_limit)
        activated = ops.tanh(cell) if self.is_cell_activated else cell
        hidden = self.gate(parts[self.o]) * activated
        return hidden, cell


class JoinedLSTMCell(nn.Cell):
    """The same with one product of input and state together."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        weights = [Tensor(model.weights[f"layers.{n}.weight_{name}"]) for name in ("ih", "hh")]
        self.weight = Parameter(ops.concat(weights, 1))
        self.bias_ih = Parameter(Tensor(model.weights[f"layers.{n}.bias_ih"]))
        self.bias_hh = Parameter(Tensor(model.weights[f"layers.{n}.bias_hh"]))

    def construct(self, x, hidden, cell):
        joined = ops.concat((x, hidden), 1)
        gates = ops.matmul(joined, self.weight.T) + (self.bias_ih + self.bias_hh)
        sigmoids = ops.sigmoid(gates)
        candidate = ops.tanh(gates[:, 2 * WIDTH : 3 * WIDTH])
        cell = sigmoids[:, WIDTH : 2 * WIDTH] * cell + sigmoids[:, :WIDTH] * candidate
        return sigmoids[:, 3 * WIDTH :] * ops.tanh(cell), cell


class JoinedLSTMLayer(nn.Cell):
    """All steps of one layer: (seq, batch, width) from and to."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        self.cell = JoinedLSTMCell(model, n)

    def construct(self, x, hidden, cell):
        outputs = ()
        for step in range(x.shape[0]):
            hidden, cell = self.cell(x[step], hidden, cell)
            outputs = (*outputs, hidden)
        return ops.stack(outputs, 0)


class LSTMLayer(nn.Cell):
    """All steps of one layer: (batch, seq, width) from and to."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        self.cell = LSTMCell(model, n)
        self.is_projected_at_once = model.variant == "projected"
        self.detached_step = model.detached_step
        self.is_state_carried = model.is_state_carried
        self.is_reversed = model.is_reversed
        self.are_cells_read = model.are_cells_read and n == LAYERS - 1

    def construct(self, x, hidden, cell):
        batch, seq, width = x.shape
        if not self.is_state_carried:
            hidden, cell = ops.zeros_like(hidden), ops.zeros_like(cell)
        at_once = x
        if self.is_projected_at_once:
            at_once = self.cell.project(x.reshape(batch * seq, width)).reshape(batch, seq, -1)
        outputs = ()
        for number in range(seq):
            step = seq - 1 - number if self.is_reversed else number
            if self.detached_step > 0 and number == self.detached_step:
                hidden, cell = ops.stop_gradient(hidden), ops.stop_gradient(cell)
            if self.is_projected_at_once:
                projected = at_once[:, step]
            else:
                projected = self.cell.project(x[:, step])
            hidden, cell = self.cell(projected, hidden, cell)
            output = cell if self.are_cells_read else hidden
            outputs = (output, *outputs) if self.is_reversed else (*outputs, output)
        return ops.stack(outputs, 1)


class LanguageModel(nn.Cell):
    """Logits (batch, seq, vocab) of tokens, from a state."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        weights = model.weights
        self.embedding = nn.Embedding(
            VOCAB, WIDTH, embedding_table=Tensor(weights["embedding.weight"])
        )
        self.is_joined = model.variant == "joined"
        layer_class = JoinedLSTMLayer if self.is_joined else LSTMLayer
        self.layers = nn.CellList([layer_class(model, n) for n in range(LAYERS)])
        self.head = nn.Dense(
            WIDTH,
            VOCAB,
            weight_init=Tensor(weights["head.weight"]),
            bias_init=Tensor(weights["head.bias"]),
        )
        self.embedding_scale = model.embedding_scale
        self.scaled_gradient = None
        if model.embedding_gradient != 1:
            self.scaled_gradient = ScaledGradient(model.embedding_gradient)
        self.is_head_half = model.is_head_half
        if self.is_head_half:
            self.head.to_float(ms.float16)

    def construct(self, tokens, hidden, cell):
        x = self.embedding(tokens)
        if self.embedding_scale != 1:
            x = x * self.embedding_scale
        if self.scaled_gradient is not None:
            x = self.scaled_gradient(x)
        if self.is_joined:
            x = x.transpose(1, 0, 2)
        for n in range(LAYERS):
            x = self.layers[n](x, hidden[n], cell[n])
        if self.is_joined:
            x = x.transpose(1, 0, 2)
        return self.head(x).astype(ms.float32) if self.is_head_half else self.head(x)


class TokenLoss(nn.Cell):
    """Cross entropy of the next tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = LanguageModel(model)
        self.ignored_label = model.ignored_label
        self.smoothing = model.label_smoothing
        self.are_logits_by_step = model.are_logits_by_step

    def construct(self, tokens, labels, hidden, cell):
        logits = self.network(tokens, hidden, cell)
        if self.are_logits_by_step:
            logits = logits.swapaxes(0, 1)
        logits, labels = logits.reshape(-1, VOCAB), labels.reshape(-1)
        if self.ignored_label >= 0:
            return ops.cross_entropy(logits, labels, ignore_index=self.ignored_label)
        return ops.cross_entropy(logits, labels, label_smoothing=self.smoothing)


def build_loss(model: Model) -> nn.Cell:
    """Return the loss with the weights and knobs of the model."""
    if model.dropout or model.padding_row >= 0:
        raise SystemExit("dropout and padding_row are knobs of the PyTorch net")
    if model.is_gradient_averaged:
        raise SystemExit("is_gradient_averaged is a knob of the PyTorch net")
    if model.loss_reduction != "tokens" or model.are_states_exchanged:
        raise SystemExit("loss_reduction and are_states_exchanged are knobs of the PyTorch net")
    return TokenLoss(model)
