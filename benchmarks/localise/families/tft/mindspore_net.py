"""The Temporal Fusion Transformer in MindSpore for graph mode.

Variant 'written': norms and inputs of numbers in plain arithmetic, two layers for value and gate of
a gated unit, LSTMs in plain arithmetic, selected variables added one by one, the heads' maps
averaged before they meet the values, losses by where.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.tft.architecture import (
    CODES,
    CONTEXTS,
    EPS,
    FUTURE,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    HISTORY,
    HORIZON,
    LSTM_NAMES,
    PAST,
    QUANTILES,
    STATIC,
    Model,
)

MASKED = -1e9


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return QuantileLoss(model)


def make_dense(weight: np.ndarray, bias: np.ndarray | None) -> nn.Dense:
    """Return a linear layer with these weights."""
    return nn.Dense(
        weight.shape[1],
        weight.shape[0],
        weight_init=Tensor(weight),
        bias_init=None if bias is None else Tensor(bias),
        has_bias=bias is not None,
    )


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at ``path``, with the bias if there is one."""
    return make_dense(model.weights[f"{path}.weight"], model.weights.get(f"{path}.bias"))


class WrittenNorm(nn.Cell):
    """Layer norm from means."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.gamma, self.beta = Parameter(weight, name="gamma"), Parameter(bias, name="beta")

    def construct(self, x):
        centered = x - x.mean(-1, keep_dims=True)
        variance = ops.square(centered).mean(-1, keep_dims=True)
        return centered * ops.rsqrt(variance + EPS) * self.gamma + self.beta


def build_norm(model: Model, path: str) -> nn.Cell:
    """Return the layer norm at ``path``."""
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    if model.variant == "written":
        return WrittenNorm(weight, bias)
    return nn.LayerNorm(weight.shape, gamma_init=weight, beta_init=bias, epsilon=EPS)


class NumberInput(nn.Cell):
    """A linear layer of one number, as a product with its only column."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.direction = Parameter(Tensor(model.weights[f"{path}.weight"][:, 0].copy()))
        self.offset = Parameter(Tensor(model.weights[f"{path}.bias"]))

    def construct(self, x):
        return x * self.direction + self.offset


def build_input(model: Model, name: str) -> nn.Cell:
    """Return the layer that makes a vector of a variable."""
    path = f"embeddings.{name}"
    if name in CODES:
        table = Tensor(model.weights[f"{path}.weight"])
        return nn.Embedding(CODES[name], HIDDEN, embedding_table=table)
    return NumberInput(model, path) if model.variant == "written" else build_dense(model, path)


class GatedLinearUnit(nn.Cell):
    """Value times sigmoid, both of one layer."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.dense = build_dense(model, path)
        self.width = self.dense.out_channels // 2

    def construct(self, x):
        value, gate = ops.split(self.dense(x), self.width, axis=-1)
        return value * ops.sigmoid(gate)


class SeparateLinearUnit(nn.Cell):
    """The same with a layer for each of them."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        weights, biases = (
            np.split(model.weights[f"{path}.{name}"], 2) for name in ("weight", "bias")
        )
        self.value, self.gate = (make_dense(weights[n], biases[n]) for n in range(2))

    def construct(self, x):
        return ops.sigmoid(self.gate(x)) * self.value(x)


class GateAddNorm(nn.Cell):
    """A gated unit, added to a skip, and its norm."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        kind = SeparateLinearUnit if model.variant == "written" else GatedLinearUnit
        self.glu = kind(model, f"{path}.gate")
        self.layer_norm = build_norm(model, f"{path}.norm")

    def construct(self, x, skip):
        return self.layer_norm(skip + self.glu(x))


class GatedResidualNetwork(nn.Cell):
    """Two layers with ELU, a gate and a skip; a context is added to the first layer's output."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.linear1 = build_dense(model, f"{path}.first")
        self.linear2 = build_dense(model, f"{path}.second")
        self.elu = nn.ELU()
        self.gate = GateAddNorm(model, path)
        self.context = None
        if f"{path}.context.weight" in model.weights:
            self.context = build_dense(model, f"{path}.context")
        self.skip = None
        if f"{path}.skip.weight" in model.weights:
            self.skip = build_dense(model, f"{path}.skip")
        self.is_context_late = model.is_context_late

    def construct(self, x, context=None):
        y = self.linear1(x)
        if self.context is None:
            y = self.elu(y)
        elif self.is_context_late:
            y = self.elu(y) + self.context(context)
        else:
            y = self.elu(y + self.context(context))
        skip = x if self.skip is None else self.skip(x)
        return self.gate(self.linear2(y), skip)


class VariableSelection(nn.Cell):
    """A weighted sum of the variables, each behind its own network."""

    def __init__(self, model: Model, path: str, names: tuple[str, ...]) -> None:
        super().__init__()
        self.weight_network = GatedResidualNetwork(model, f"{path}.weights")
        self.networks = nn.CellList(
            [GatedResidualNetwork(model, f"{path}.networks.{name}") for name in names]
        )
        self.softmax = nn.Softmax(axis=-1)
        self.n = len(names)
        self.is_written = model.variant == "written"

    def construct(self, variables, context=None):
        weights = self.softmax(self.weight_network(ops.concat(variables, -1), context))
        transformed = ()
        for n in range(self.n):
            transformed += (self.networks[n](variables[n]),)
        if self.is_written:
            y = weights[..., :1] * transformed[0]
            for n in range(1, self.n):
                y = y + weights[..., n : n + 1] * transformed[n]
            return y
        return ops.matmul(weights.expand_dims(-2), ops.stack(transformed, -2)).squeeze(-2)


class SteppedLSTM(nn.Cell):
    """An LSTM of (batch, steps, HIDDEN), cell by cell."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(HIDDEN, HIDDEN)
        for name in LSTM_NAMES:
            getattr(self.cell, name).set_data(Tensor(model.weights[f"{path}.{name}"]))

    def construct(self, x, state):
        outputs = ()
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
            outputs += (state[0],)
        return ops.stack(outputs, 1), state


class ProjectedLSTM(nn.Cell):
    """The same in plain arithmetic, with the inputs of all steps projected at once."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh = (
            Parameter(Tensor(model.weights[f"{path}.{name}"]), name=name) for name in LSTM_NAMES
        )

    def construct(self, x, state):
        projected = ops.matmul(x, self.weight_ih.T) + (self.bias_ih + self.bias_hh)
        hidden, cell = state
        outputs = ()
        for step in range(x.shape[1]):
            gates = projected[:, step] + ops.matmul(hidden, self.weight_hh.T)
            i, f, g, o = ops.split(gates, HIDDEN, axis=1)
            cell = ops.sigmoid(f) * cell + ops.sigmoid(i) * ops.tanh(g)
            hidden = ops.sigmoid(o) * ops.tanh(cell)
            outputs += (hidden,)
        return ops.stack(outputs, 1), (hidden, cell)


class InterpretableAttention(nn.Cell):
    """Attention of the future steps with values that all heads share."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (
            build_dense(model, f"attention.{name}") for name in "qkvo"
        )
        self.softmax = nn.Softmax(axis=-1)
        self.hidden_steps = Tensor(model.mask())
        self.are_maps_averaged = model.variant == "written"
        self.scaled_gradient = None
        if model.value_gradient != 1:
            self.scaled_gradient = ScaledGradient(model.value_gradient)

    def split_heads(self, x):
        """Return (batch, HEADS, steps, HEAD_DIM)."""
        return x.reshape(x.shape[0], -1, HEADS, HEAD_DIM).transpose(0, 2, 1, 3)

    def construct(self, x):
        query = self.split_heads(self.query(x[:, HISTORY:]))
        key, value = self.split_heads(self.key(x)), self.value(x)
        if self.scaled_gradient is not None:
            value = self.scaled_gradient(value)
        scores = ops.matmul(query, key.swapaxes(2, 3)) * HEAD_DIM**-0.5
        weights = self.softmax(ops.masked_fill(scores, self.hidden_steps, MASKED))
        if self.are_maps_averaged:
            return self.out(ops.matmul(weights.mean(1), value))
        return self.out(ops.matmul(weights, value.expand_dims(1)).mean(1))


class StaticEncoder(nn.Cell):
    """Selected static variables, and the contexts that they give."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.shop, self.area, self.age = (build_input(model, name) for name in STATIC)
        self.selection = VariableSelection(model, "static", STATIC)
        self.for_selection, self.for_enrichment, self.for_hidden, self.for_cell = (
            GatedResidualNetwork(model, f"contexts.{name}") for name in CONTEXTS
        )

    def construct(self, shops, static_reals):
        """Return two contexts (batch, 1, HIDDEN) and the first state of the LSTM."""
        area, age = self.area(static_reals[:, :1]), self.age(static_reals[:, 1:])
        x = self.selection((self.shop(shops), area, age))
        contexts = self.for_selection(x).expand_dims(1), self.for_enrichment(x).expand_dims(1)
        return *contexts, (self.for_hidden(x), self.for_cell(x))


class TemporalFusionTransformer(nn.Cell):
    """Quantiles (batch, HORIZON, quantiles)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.static_encoder = StaticEncoder(model)
        self.sales, self.price, self.promotion, self.month = (
            build_input(model, name) for name in PAST
        )
        self.past_selection = VariableSelection(model, "past", PAST)
        self.future_selection = VariableSelection(model, "future", FUTURE)
        lstm = ProjectedLSTM if model.variant == "written" else SteppedLSTM
        self.encoder, self.decoder = lstm(model, "encoder"), lstm(model, "decoder")
        self.lstm_gate = GateAddNorm(model, "lstm")
        self.enrichment = GatedResidualNetwork(model, "enrichment")
        self.attention = InterpretableAttention(model)
        self.attention_gate = GateAddNorm(model, "attention")
        self.feed_forward = GatedResidualNetwork(model, "feed_forward")
        self.output_gate = GateAddNorm(model, "output")
        self.head = build_dense(model, "quantiles")
        self.future_start = HISTORY - model.known_offset
        self.is_decoder_restarted = model.is_decoder_restarted
        self.is_state_stopped = model.is_state_stopped
        self.is_last_skip_short = model.is_last_skip_short

    def select_inputs(self, sales, known_reals, months, context):
        """Return the selected inputs of past and future."""
        price, promotion = self.price(known_reals[:, :, :1]), self.promotion(known_reals[:, :, 1:])
        past, future = (self.sales(sales),), ()
        start, end = self.future_start, self.future_start + HORIZON
        for known in (price, promotion, self.month(months)):
            past += (known[:, :HISTORY],)
            future += (known[:, start:end],)
        return self.past_selection(past, context), self.future_selection(future, context)

    def encode_locally(self, past, future, first_state):
        """Return what the LSTMs make of all steps, with a gated skip around them."""
        encoded, (hidden, cell) = self.encoder(past, first_state)
        if self.is_decoder_restarted:
            hidden, cell = first_state
        if self.is_state_stopped:
            hidden, cell = ops.stop_gradient(hidden), ops.stop_gradient(cell)
        decoded, _ = self.decoder(future, (hidden, cell))
        outputs = ops.concat((encoded, decoded), 1)
        return self.lstm_gate(outputs, ops.concat((past, future), 1))

    def construct(self, shops, static_reals, sales, known_reals, months):
        selection, enrichment, first_state = self.static_encoder(shops, static_reals)
        past, future = self.select_inputs(sales, known_reals, months, selection)
        temporal = self.encode_locally(past, future, first_state)
        enriched = self.enrichment(temporal, enrichment)
        x = self.attention_gate(self.attention(enriched), enriched[:, HISTORY:])
        y = self.feed_forward(x)
        skip = x if self.is_last_skip_short else temporal[:, HISTORY:]
        return self.head(self.output_gate(y, skip))


class QuantileLoss(nn.Cell):
    """Pinball losses of all quantiles, averaged over the valid steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.network = TemporalFusionTransformer(model)
        self.quantiles = Tensor(QUANTILES, ms.float32)
        self.is_written = model.variant == "written"

    def construct(self, shops, static_reals, sales, known_reals, months, targets, valid):
        forecasts = self.network(shops, static_reals, sales, known_reals, months)
        errors = targets.expand_dims(-1) - forecasts
        if self.is_written:
            slopes = ops.where(errors < 0, self.quantiles - 1, self.quantiles)
            losses = slopes * errors * valid.expand_dims(-1)
            return losses.sum() / valid.sum()
        losses = ops.maximum(self.quantiles * errors, (self.quantiles - 1) * errors).sum(-1)
        return (losses * valid).sum() / valid.sum()
