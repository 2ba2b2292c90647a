"""The translator in PyTorch: ``nn.GRU`` reads the source, ``nn.GRUCell`` writes the target.

Variant 'written': recurrence in plain arithmetic, under other names. Variant 'joint': attention
reads state and source together through one layer; the readout is a sum of three layers.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from families.nmt.architecture import (
    EMBED,
    HIDDEN,
    PADDING,
    TARGET_VOCAB,
    Model,
)

RECURRENT = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
MASKED = -1e9


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    is_changed = (
        model.gate_order != (0, 1, 2)
        or not model.is_state_bridged
        or not model.is_backward_restored
        or model.are_energies_half
        or model.is_alignment_stopped
        or model.is_update_exchanged
        or model.is_padding_skipped
    )
    if is_changed:
        raise SystemExit("faults of recurrence and alignment are knobs of the MindSpore net")
    return Translator(model)


def copy_parameter(values: np.ndarray) -> nn.Parameter:
    """Return a parameter with these values."""
    return nn.Parameter(torch.from_numpy(np.array(values)))


def build_linear(weight: np.ndarray, bias: np.ndarray | None) -> nn.Linear:
    """Return a linear layer."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    linear.weight = copy_parameter(weight)
    if bias is not None:
        linear.bias = copy_parameter(bias)
    return linear


def load_linear(model: Model, path: str) -> nn.Linear:
    """Return the linear layer at ``path``."""
    return build_linear(model.weights[f"{path}.weight"], model.weights.get(f"{path}.bias"))


def load_table(model: Model, path: str, *, is_gradient_by_count: bool = False) -> nn.Embedding:
    """Return the embedding at ``path``."""
    values = model.weights[f"{path}.weight"]
    table = nn.Embedding(*values.shape, scale_grad_by_freq=is_gradient_by_count)
    table.weight = copy_parameter(values)
    return table


class WrittenCell(nn.Module):
    """One step of gated recurrent units in plain arithmetic."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        for name in RECURRENT:
            setattr(self, name, copy_parameter(model.weights[f"{path}.{name}"]))
        self.is_reset_early = model.is_reset_early and path == "decoder"

    def project(self, x: Tensor) -> Tensor:
        """Return the share of the inputs, for one step or for all of them."""
        return x @ self.weight_ih.T + self.bias_ih

    def forward(self, projected: Tensor, hidden: Tensor) -> Tensor:
        from_state = F.linear(hidden, self.weight_hh, self.bias_hh)
        gates = torch.sigmoid(projected[:, : 2 * HIDDEN] + from_state[:, : 2 * HIDDEN])
        reset, update = gates.chunk(2, dim=-1)
        if self.is_reset_early:
            weight, bias = self.weight_hh[2 * HIDDEN :], self.bias_hh[2 * HIDDEN :]
            gated = F.linear(reset * hidden, weight, bias)
        else:
            gated = reset * from_state[:, 2 * HIDDEN :]
        candidate = torch.tanh(projected[:, 2 * HIDDEN :] + gated)
        return torch.lerp(candidate, hidden, update)


class WrittenRecurrence(nn.Module):
    """Both directions in plain arithmetic."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.l2r = WrittenCell(model, "encoder.forward")
        self.r2l = WrittenCell(model, "encoder.backward")

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = reverse_hidden = x.new_zeros(len(x), HIDDEN)
        outputs, reverse_outputs = [], []
        for projected in self.l2r.project(x).unbind(1):
            hidden = self.l2r(projected, hidden)
            outputs.append(hidden)
        for projected in self.r2l.project(x.flip(1)).unbind(1):
            reverse_hidden = self.r2l(projected, reverse_hidden)
            reverse_outputs.append(reverse_hidden)
        reverse_states = torch.stack(reverse_outputs, dim=1).flip(1)
        return torch.cat([torch.stack(outputs, dim=1), reverse_states], dim=-1), reverse_hidden


class Encoder(nn.Module):
    """States (batch, source, 2 * HIDDEN), and the last one of the backward direction."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embedding = load_table(model, "source.embedding")
        self.bridged_state = model.bridged_state
        if model.variant == "written":
            self.recurrence = WrittenRecurrence(model)
            return
        self.rnn = nn.GRU(EMBED, HIDDEN, batch_first=True, bidirectional=True)
        for path, suffix in (("forward", ""), ("backward", "_reverse")):
            for name in RECURRENT:
                values = torch.from_numpy(np.array(model.weights[f"encoder.{path}.{name}"]))
                getattr(self.rnn, f"{name}_l0{suffix}").data.copy_(values)

    def forward(self, source: Tensor) -> tuple[Tensor, Tensor]:
        embedded = self.embedding(source)
        if hasattr(self, "recurrence"):
            return self.recurrence(embedded)
        states, last_states = self.rnn(embedded)
        if self.bridged_state == "mean":
            return states, states[..., HIDDEN:].mean(dim=1)
        if self.bridged_state == "end":
            return states, states[:, -1, HIDDEN:]
        return states, last_states[1]


class AdditiveAttention(nn.Module):
    """Contexts from energies of a state and all states of the source."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.query_proj = load_linear(model, "attention.query")
        self.key_proj = load_linear(model, "attention.key")
        self.score = load_linear(model, "attention.energy")
        self.is_masked, self.is_activated = model.is_source_masked, model.is_energy_activated
        self.energy_scale, self.is_mask_late = model.energy_scale, model.is_mask_late
        self.are_parts_activated = model.are_parts_activated
        self.softmax_axis = model.softmax_axis

    def prepare(self, states: Tensor) -> Tensor:
        """Return what all steps read of the source."""
        return self.key_proj(states)

    def forward(self, hidden: Tensor, keys: Tensor, states: Tensor, is_padding: Tensor) -> Tensor:
        query = self.query_proj(hidden)[:, None]
        if self.are_parts_activated:
            energies = torch.tanh(query) + torch.tanh(keys)
        else:
            energies = query + keys
            if self.is_activated:
                energies = torch.tanh(energies)
        scores = self.score(energies)[..., 0]
        if self.energy_scale != 1:
            scores = scores * self.energy_scale
        if self.is_masked and not self.is_mask_late:
            scores = scores.masked_fill(is_padding, MASKED)
        weights = F.softmax(scores, dim=self.softmax_axis)
        if self.is_mask_late:
            weights = weights.masked_fill(is_padding, 0.0)
        return torch.bmm(weights[:, None], states)[:, 0]


class JointAttention(nn.Module):
    """The same: state and source go through one layer together."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        names = ("attention.query", "attention.key")
        weight = np.concatenate([model.weights[f"{name}.weight"] for name in names], axis=1)
        self.attn = build_linear(weight, model.weights["attention.key.bias"])
        self.v = copy_parameter(model.weights["attention.energy.weight"][0])

    def prepare(self, states: Tensor) -> Tensor:
        """Return what all steps read of the source."""
        return states

    def forward(self, hidden: Tensor, keys: Tensor, states: Tensor, is_padding: Tensor) -> Tensor:
        repeated = hidden[:, None].expand(-1, keys.shape[1], -1)
        energies = torch.tanh(self.attn(torch.cat([repeated, keys], dim=-1))) @ self.v
        scores = torch.where(is_padding, torch.finfo(energies.dtype).min, energies)
        exponentials = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
        weights = exponentials / exponentials.sum(dim=-1, keepdim=True)
        return torch.einsum("bs,bsh->bh", weights, states)


class SummedReadout(nn.Module):
    """A layer for each part of what the readout reads."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        weight = model.weights["readout.weight"]
        state, context, token = np.split(weight, [HIDDEN, 3 * HIDDEN], axis=1)
        self.from_state = build_linear(state, model.weights["readout.bias"])
        self.from_context, self.from_token = build_linear(context, None), build_linear(token, None)

    def forward(self, joined: Tensor) -> Tensor:
        state, context, token = joined.split([HIDDEN, 2 * HIDDEN, EMBED], dim=-1)
        return self.from_state(state) + self.from_context(context) + self.from_token(token)


class Decoder(nn.Module):
    """Logits (batch, target, vocab) of the tokens before."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embedding = load_table(
            model, "target.embedding", is_gradient_by_count=model.is_gradient_by_count
        )
        self.bridge = load_linear(model, "bridge")
        is_joint = model.variant == "joint"
        self.is_written_out = model.variant == "written" or model.is_reset_early
        self.attention = JointAttention(model) if is_joint else AdditiveAttention(model)
        if self.is_written_out:
            self.gru = WrittenCell(model, "decoder")
        else:
            self.gru = nn.GRUCell(EMBED + 2 * HIDDEN, HIDDEN)
            for name in RECURRENT:
                values = torch.from_numpy(np.array(model.weights[f"decoder.{name}"]))
                getattr(self.gru, name).data.copy_(values)
        self.readout = SummedReadout(model) if is_joint else load_linear(model, "readout")
        self.generator = load_linear(model, "head")
        self.is_readout_early = model.is_readout_early

    def forward(
        self, tokens: Tensor, states: Tensor, last_state: Tensor, is_padding: Tensor
    ) -> Tensor:
        hidden = torch.tanh(self.bridge(last_state))
        keys = self.attention.prepare(states)
        features = []
        for token in self.embedding(tokens).unbind(1):
            context = self.attention(hidden, keys, states, is_padding)
            inputs = torch.cat([token, context], dim=-1)
            before = hidden
            hidden = self.gru(self.gru.project(inputs) if self.is_written_out else inputs, hidden)
            read = before if self.is_readout_early else hidden
            features.append(torch.cat([read, context, token], dim=-1))
        return self.generator(torch.tanh(self.readout(torch.stack(features, dim=1))))


class Translator(nn.Module):
    """Cross entropy of the labels without padding."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder, self.decoder = Encoder(model), Decoder(model)
        self.is_divided_by_tokens = model.loss_reduction == "tokens"
        self.label_smoothing = model.label_smoothing
        self.is_padding_counted = model.is_padding_counted

    def forward(self, source: Tensor, tokens: Tensor, labels: Tensor) -> Tensor:
        states, last_state = self.encoder(source)
        logits = self.decoder(tokens, states, last_state, source == PADDING)
        logits, labels = logits.view(-1, TARGET_VOCAB), labels.view(-1)
        if self.is_padding_counted:
            return F.cross_entropy(logits, labels, label_smoothing=self.label_smoothing)
        if self.is_divided_by_tokens:
            return F.cross_entropy(
                logits, labels, ignore_index=PADDING, label_smoothing=self.label_smoothing
            )
        total = F.cross_entropy(logits, labels, ignore_index=PADDING, reduction="sum")
        return total / len(source)
