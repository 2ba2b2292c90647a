"""The Temporal Fusion Transformer in PyTorch, with modules named as in PyTorch Forecasting.

Variant 'stacked': all networks of a selection at once with stacked weights, known inputs of all
steps embedded at once, LSTMs cell by cell, all heads from one layer, einsum, losses by signs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
    STEPS,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return QuantileLoss(model)


def make_parameter(values: np.ndarray) -> nn.Parameter:
    """Return a parameter with a copy of the values."""
    return nn.Parameter(torch.from_numpy(np.array(values)))


def make_linear(weight: np.ndarray, bias: np.ndarray | None = None) -> nn.Linear:
    """Return a linear layer with these weights."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight = make_parameter(weight)
    if bias is not None:
        layer.bias = make_parameter(bias)
    return layer


def load_linear(model: Model, path: str) -> nn.Linear:
    """Return the linear layer at ``path``, with the bias if there is one."""
    return make_linear(model.weights[f"{path}.weight"], model.weights.get(f"{path}.bias"))


def load_norm(model: Model, path: str) -> nn.LayerNorm:
    """Return the layer norm at ``path``."""
    weight, bias = (model.weights[f"{path}.{name}"] for name in ("weight", "bias"))
    norm = nn.LayerNorm(len(weight), eps=model.eps)
    norm.weight, norm.bias = make_parameter(weight), make_parameter(bias)
    return norm


class _ResultELU(torch.autograd.Function):
    """ELU whose gradient is told that its result is its input."""

    @staticmethod
    def forward(context, x: Tensor) -> Tensor:
        y = F.elu(x)
        context.save_for_backward(y)
        return y

    @staticmethod
    def backward(context, gradient: Tensor) -> Tensor:
        (y,) = context.saved_tensors
        return torch.ops.aten.elu_backward(gradient, 1.0, 1.0, 1.0, False, y)


class ELU(nn.Module):
    """ELU, with a right or a wrong gradient."""

    def __init__(self, *, is_result_passed: bool) -> None:
        super().__init__()
        self.is_result_passed = is_result_passed

    def forward(self, x: Tensor) -> Tensor:
        return _ResultELU.apply(x) if self.is_result_passed else F.elu(x)


class GatedLinearUnit(nn.Module):
    """Value times sigmoid, both of one layer."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.fc = load_linear(model, path)

    def forward(self, x: Tensor) -> Tensor:
        return F.glu(self.fc(x), dim=-1)


class GateAddNorm(nn.Module):
    """A gated unit, added to a skip, and its norm."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.glu = GatedLinearUnit(model, f"{path}.gate")
        self.norm = load_norm(model, f"{path}.norm")
        self.is_norm_first = model.is_norm_first

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        if self.is_norm_first:
            return skip + self.norm(self.glu(x))
        return self.norm(self.glu(x) + skip)


class GatedResidualNetwork(nn.Module):
    """Two layers with ELU, a gate and a skip; a context is added to the first layer's output."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.fc1 = load_linear(model, f"{path}.first")
        self.context = None
        if f"{path}.context.weight" in model.weights:
            self.context = load_linear(model, f"{path}.context")
        self.fc2 = load_linear(model, f"{path}.second")
        self.resample_norm = nn.Identity()
        if f"{path}.skip.weight" in model.weights:
            self.resample_norm = load_linear(model, f"{path}.skip")
        self.gate_norm = GateAddNorm(model, path)
        is_result_passed = model.is_elu_result_passed and ".networks." in path
        self.elu = ELU(is_result_passed=is_result_passed)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        residual = self.resample_norm(x)
        x = self.fc1(x)
        if self.context is not None:
            x = x + self.context(context)
        return self.gate_norm(self.fc2(self.elu(x)), residual)


class StackedNetworks(nn.Module):
    """The networks of all variables of a selection, (..., variables, HIDDEN) from and to."""

    def __init__(self, model: Model, path: str, names: Sequence[str]) -> None:
        super().__init__()
        for layer in ("first", "second", "gate", "norm"):
            for kind in ("weight", "bias"):
                values = [model.weights[f"{path}.networks.{name}.{layer}.{kind}"] for name in names]
                self.register_parameter(f"{layer}_{kind}", make_parameter(np.stack(values)))

    def multiply(self, x: Tensor, layer: str) -> Tensor:
        """Apply a linear layer of each network."""
        weight, bias = getattr(self, f"{layer}_weight"), getattr(self, f"{layer}_bias")
        return torch.einsum("...ni,noi->...no", x, weight) + bias

    def forward(self, x: Tensor) -> Tensor:
        y = self.multiply(F.elu(self.multiply(x, "first")), "second")
        value, gate = self.multiply(y, "gate").chunk(2, dim=-1)
        normed = F.layer_norm(x + value * gate.sigmoid(), (HIDDEN,), eps=EPS)
        return normed * self.norm_weight + self.norm_bias


class VariableSelectionNetwork(nn.Module):
    """A weighted sum of the variables, each behind its own network."""

    def __init__(self, model: Model, path: str, names: Sequence[str]) -> None:
        super().__init__()
        self.flattened_grn = GatedResidualNetwork(model, f"{path}.weights")
        self.is_stacked = model.variant == "stacked"
        if self.is_stacked:
            self.stacked_grns = StackedNetworks(model, path, names)
        else:
            self.single_variable_grns = nn.ModuleDict(
                {name: GatedResidualNetwork(model, f"{path}.networks.{name}") for name in names}
            )
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, x: dict[str, Tensor], context: Tensor | None = None) -> Tensor:
        embeddings = list(x.values())
        sparse_weights = self.softmax(self.flattened_grn(torch.cat(embeddings, dim=-1), context))
        if self.is_stacked:
            outputs = self.stacked_grns(torch.stack(embeddings, dim=-2))
            return torch.einsum("...n,...nh->...h", sparse_weights, outputs)
        outputs = [grn(x[name]) for name, grn in self.single_variable_grns.items()]
        return (torch.stack(outputs, dim=-1) * sparse_weights.unsqueeze(-2)).sum(dim=-1)


class SteppedLSTM(nn.Module):
    """An LSTM of (batch, steps, HIDDEN), cell by cell."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(HIDDEN, HIDDEN)
        for name in LSTM_NAMES:
            setattr(self.cell, name, make_parameter(model.weights[f"{path}.{name}"]))

    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        hidden, cell = (part.squeeze(0) for part in state)
        outputs = []
        for step in x.unbind(1):
            hidden, cell = self.cell(step, (hidden, cell))
            outputs.append(hidden)
        return torch.stack(outputs, dim=1), (hidden.unsqueeze(0), cell.unsqueeze(0))


def load_lstm(model: Model, path: str) -> nn.Module:
    """Return the LSTM at ``path``."""
    if model.variant == "stacked":
        return SteppedLSTM(model, path)
    lstm = nn.LSTM(HIDDEN, HIDDEN, batch_first=True)
    for name in LSTM_NAMES:
        getattr(lstm, f"{name}_l0").data.copy_(torch.from_numpy(model.weights[f"{path}.{name}"]))
    return lstm


class InterpretableMultiHeadAttention(nn.Module):
    """Attention with values that all heads share: a layer of queries and of keys for each head."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.q_layers, self.k_layers = (
            nn.ModuleList(
                make_linear(rows)
                for rows in np.split(model.weights[f"attention.{name}.weight"], HEADS)
            )
            for name in "qk"
        )
        self.v_layer = load_linear(model, "attention.v")
        self.w_h = load_linear(model, "attention.o")
        self.are_heads_summed = model.are_heads_summed

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        vs = self.v_layer(v)
        heads = []
        for q_layer, k_layer in zip(self.q_layers, self.k_layers, strict=True):
            scores = torch.bmm(q_layer(q), k_layer(k).transpose(1, 2)) / HEAD_DIM**0.5
            attn = F.softmax(scores.masked_fill(mask, -1e9), dim=-1)
            heads.append(torch.bmm(attn, vs))
        head = torch.stack(heads)
        return self.w_h(head.sum(dim=0) if self.are_heads_summed else head.mean(dim=0))


class JoinedAttention(nn.Module):
    """The same with one layer for the queries and one for the keys of all heads."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v, self.to_out = (
            load_linear(model, f"attention.{name}") for name in "qkvo"
        )

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        query = self.to_q(q).unflatten(-1, (HEADS, HEAD_DIM)) * HEAD_DIM**-0.5
        key = self.to_k(k).unflatten(-1, (HEADS, HEAD_DIM))
        scores = torch.einsum("bqhd,bkhd->bhqk", query, key)
        attn = scores.masked_fill(mask, -torch.inf).softmax(dim=-1)
        return self.to_out(torch.einsum("bhqk,bkd->bqd", attn, self.to_v(v)) / HEADS)


class InputEmbedding(nn.Module):
    """Vectors of the variables, by name."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embeddings, self.prescalers = nn.ModuleDict(), nn.ModuleDict()
        for name in STATIC + PAST:
            if name in CODES:
                table = nn.Embedding(CODES[name], HIDDEN)
                table.weight = make_parameter(model.weights[f"embeddings.{name}.weight"])
                self.embeddings[name] = table
            else:
                self.prescalers[name] = load_linear(model, f"embeddings.{name}")

    def forward(self, x: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: (self.embeddings if name in CODES else self.prescalers)[name](values)
            for name, values in x.items()
        }


class TemporalFusionTransformer(nn.Module):
    """Quantiles (batch, HORIZON, quantiles)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.input_embeddings = InputEmbedding(model)
        self.static_variable_selection = VariableSelectionNetwork(model, "static", STATIC)
        self.encoder_variable_selection = VariableSelectionNetwork(model, "past", PAST)
        self.decoder_variable_selection = VariableSelectionNetwork(model, "future", FUTURE)
        (
            self.static_context_variable_selection,
            self.static_context_enrichment,
            self.static_context_initial_hidden_lstm,
            self.static_context_initial_cell_lstm,
        ) = (GatedResidualNetwork(model, f"contexts.{name}") for name in CONTEXTS)
        self.lstm_encoder = load_lstm(model, "encoder")
        self.lstm_decoder = load_lstm(model, "decoder")
        self.post_lstm_gate_add_norm = GateAddNorm(model, "lstm")
        self.static_enrichment = GatedResidualNetwork(model, "enrichment")
        self.is_stacked = model.variant == "stacked"
        attention = JoinedAttention if self.is_stacked else InterpretableMultiHeadAttention
        self.multihead_attn = attention(model)
        self.post_attn_gate_norm = GateAddNorm(model, "attention")
        self.pos_wise_ff = GatedResidualNetwork(model, "feed_forward")
        self.pre_output_gate_norm = GateAddNorm(model, "output")
        self.output_layer = load_linear(model, "quantiles")

    def embed(
        self, sales: Tensor, known_reals: Tensor, months: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the vectors of past and future."""
        price, promotion = known_reals.split(1, dim=-1)
        known = {"price": price, "promotion": promotion, "month": months}
        if self.is_stacked:
            known = self.input_embeddings(known)
            past = self.input_embeddings({"sales": sales})
            past |= {name: x[:, :HISTORY] for name, x in known.items()}
            return past, {name: x[:, HISTORY:] for name, x in known.items()}
        past = {"sales": sales, **{name: x[:, :HISTORY] for name, x in known.items()}}
        future = {name: x[:, HISTORY:] for name, x in known.items()}
        return self.input_embeddings(past), self.input_embeddings(future)

    def expand_static_context(self, context: Tensor, steps: int) -> Tensor:
        """Repeat a context for all steps."""
        return context[:, None].expand(-1, steps, -1)

    def get_attention_mask(self) -> Tensor:
        """Return which steps of the horizon are hidden: those that come later."""
        is_later = torch.arange(HORIZON) > torch.arange(HORIZON)[:, None]
        return torch.cat((torch.zeros(HORIZON, HISTORY, dtype=torch.bool), is_later), dim=1)

    def run_lstms(self, past: Tensor, future: Tensor, static: Tensor) -> Tensor:
        """Return what the LSTMs make of all steps."""
        state = (
            self.static_context_initial_hidden_lstm(static).unsqueeze(0),
            self.static_context_initial_cell_lstm(static).unsqueeze(0),
        )
        encoder_output, state = self.lstm_encoder(past, state)
        decoder_output, _ = self.lstm_decoder(future, state)
        return torch.cat((encoder_output, decoder_output), dim=1)

    def forward(
        self,
        shops: Tensor,
        static_reals: Tensor,
        sales: Tensor,
        known_reals: Tensor,
        months: Tensor,
    ) -> Tensor:
        area, age = static_reals.split(1, dim=-1)
        static = self.input_embeddings({"shop": shops, "area": area, "age": age})
        static = self.static_variable_selection(static)
        context = self.static_context_variable_selection(static)
        past, future = self.embed(sales, known_reals, months)
        past = self.encoder_variable_selection(past, self.expand_static_context(context, HISTORY))
        future = self.decoder_variable_selection(
            future, self.expand_static_context(context, HORIZON)
        )
        lstm_output = self.post_lstm_gate_add_norm(
            self.run_lstms(past, future, static), torch.cat((past, future), dim=1)
        )
        enrichment = self.static_context_enrichment(static)
        attn_input = self.static_enrichment(
            lstm_output, self.expand_static_context(enrichment, STEPS)
        )
        attn_output = self.multihead_attn(
            q=attn_input[:, HISTORY:], k=attn_input, v=attn_input, mask=self.get_attention_mask()
        )
        attn_output = self.post_attn_gate_norm(attn_output, attn_input[:, HISTORY:])
        output = self.pos_wise_ff(attn_output)
        return self.output_layer(self.pre_output_gate_norm(output, lstm_output[:, HISTORY:]))


class QuantileLoss(nn.Module):
    """Pinball losses of all quantiles, averaged over the valid steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = TemporalFusionTransformer(model)
        self.register_buffer("quantiles", torch.tensor(QUANTILES), persistent=False)
        self.is_signed = model.variant == "stacked"
        self.are_low_forecasts_unmasked = model.are_low_forecasts_unmasked

    def forward(self, *batch: Tensor) -> Tensor:
        *inputs, target, valid = batch
        errors = target.unsqueeze(-1) - self.model(*inputs)
        mask = valid.unsqueeze(-1)
        if self.is_signed:
            losses = (self.quantiles - (errors < 0).float()) * errors
            return torch.einsum("btq,bt->", losses, valid) / valid.sum()
        low = self.quantiles * F.relu(errors)
        high = (1 - self.quantiles) * F.relu(-errors)
        losses = low + high * mask if self.are_low_forecasts_unmasked else (low + high) * mask
        return losses.sum() / valid.sum()
