"""The LSTM language model as a MindSpore user writes it for graph mode: cells, step by step."""

from __future__ import annotations

from mindspore import Parameter, Tensor, nn, ops

from families.lstm.architecture import LAYERS, VOCAB, WIDTH, Model


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

    def gate(self, x):
        if self.is_hard:
            return ops.clamp(0.2 * x + 0.5, 0.0, 1.0)
        return ops.sigmoid(x)

    def project(self, x):
        return self.matmul(x, self.weight_ih) + self.bias_ih

    def construct(self, projected, hidden, cell):
        from_hidden = self.matmul(hidden, self.weight_hh)
        if self.has_hidden_bias:
            from_hidden = from_hidden + self.bias_hh
        parts = self.split(projected + from_hidden)
        forget = parts[self.f]
        if self.forget_bias != 0:
            forget = forget + self.forget_bias
        cell = self.gate(forget) * cell + self.gate(parts[self.i]) * ops.tanh(parts[self.g])
        hidden = self.gate(parts[self.o]) * ops.tanh(cell)
        return hidden, cell


class LSTMLayer(nn.Cell):
    """All steps of one layer: (batch, seq, width) from and to."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        self.cell = LSTMCell(model, n)
        self.is_projected_at_once = model.variant == "projected"
        self.detached_step = model.detached_step
        self.is_state_carried = model.is_state_carried
        self.is_reversed = model.is_reversed

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
            outputs = (hidden, *outputs) if self.is_reversed else (*outputs, hidden)
        return ops.stack(outputs, 1)


class LanguageModel(nn.Cell):
    """Logits (batch, seq, vocab) of tokens, from a state."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        weights = model.weights
        self.embedding = nn.Embedding(
            VOCAB, WIDTH, embedding_table=Tensor(weights["embedding.weight"])
        )
        self.layers = nn.CellList([LSTMLayer(model, n) for n in range(LAYERS)])
        self.head = nn.Dense(
            WIDTH,
            VOCAB,
            weight_init=Tensor(weights["head.weight"]),
            bias_init=Tensor(weights["head.bias"]),
        )

    def construct(self, tokens, hidden, cell):
        x = self.embedding(tokens)
        for n in range(LAYERS):
            x = self.layers[n](x, hidden[n], cell[n])
        return self.head(x)


class TokenLoss(nn.Cell):
    """Cross entropy of the next tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = LanguageModel(model)

    def construct(self, tokens, labels, hidden, cell):
        logits = self.network(tokens, hidden, cell)
        return ops.cross_entropy(logits.reshape(-1, VOCAB), labels.reshape(-1))


def build_loss(model: Model) -> nn.Cell:
    """Return the loss with the weights and knobs of the model."""
    if model.dropout or model.padding_row >= 0:
        raise SystemExit("dropout and padding_row are knobs of the PyTorch net")
    return TokenLoss(model)
