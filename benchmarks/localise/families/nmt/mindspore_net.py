"""The translator for graph mode: recurrent cells from linear layers, called step by step.

Variant 'projected': the inputs of all steps are projected at once, the biases of the gates are
added up before, and the steps come first.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from families.nmt.architecture import EMBED, HIDDEN, PADDING, SOURCE, TARGET, TARGET_VOCAB, Model

MASKED = -1e9
NO_LABEL = -100  #: what the framework ignores by default


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    if not model.is_source_masked or not model.is_energy_activated or model.is_gradient_by_count:
        raise SystemExit("mask, activation and counts of gradients are knobs of the PyTorch net")
    if model.loss_reduction != "tokens" or model.is_readout_early:
        raise SystemExit("loss_reduction and is_readout_early are knobs of the PyTorch net")
    return TranslationLoss(model)


def build_dense(weight: np.ndarray, bias: np.ndarray | None) -> nn.Dense:
    """Return a linear layer."""
    return nn.Dense(
        weight.shape[1],
        weight.shape[0],
        weight_init=Tensor(weight),
        bias_init=None if bias is None else Tensor(bias),
        has_bias=bias is not None,
    )


def load_dense(model: Model, path: str, *, has_bias: bool = True) -> nn.Dense:
    """Return the linear layer at ``path``."""
    bias = model.weights[f"{path}.bias"] if has_bias else None
    return build_dense(model.weights[f"{path}.weight"], bias)


class GRUCell(nn.Cell):
    """One step: (batch, HIDDEN) from a projected input and the state before."""

    def __init__(self, model: Model, path: str, gate_order: tuple[int, int, int]) -> None:
        super().__init__()
        self.is_update_exchanged = model.is_update_exchanged and path == "decoder"
        self.is_reset_early = model.is_reset_early and path == "decoder"
        weights = {
            name: model.weights[f"{path}.{name}"]
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        }
        self.dense_ih = build_dense(weights["weight_ih"], weights["bias_ih"])
        self.dense_hh = build_dense(weights["weight_hh"], weights["bias_hh"])
        self.reset, self.update, self.candidate = gate_order

    def project(self, x):
        return self.dense_ih(x)

    def construct(self, projected, hidden):
        inputs = ops.split(projected, HIDDEN, axis=1)
        states = ops.split(self.dense_hh(hidden), HIDDEN, axis=1)
        reset = ops.sigmoid(inputs[self.reset] + states[self.reset])
        update = ops.sigmoid(inputs[self.update] + states[self.update])
        if self.is_reset_early:
            weight, bias = self.dense_hh.weight[2 * HIDDEN :], self.dense_hh.bias[2 * HIDDEN :]
            from_state = ops.matmul(reset * hidden, weight.T) + bias
        else:
            from_state = reset * states[self.candidate]
        candidate = ops.tanh(inputs[self.candidate] + from_state)
        if self.is_update_exchanged:
            return (1 - update) * hidden + update * candidate
        return (1 - update) * candidate + update * hidden


class MergedGRUCell(nn.Cell):
    """The same: both gates at once, with one bias each."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        bias_ih, bias_hh = (model.weights[f"{path}.bias_{name}"] for name in ("ih", "hh"))
        gates = 2 * HIDDEN
        bias = np.concatenate([bias_ih[:gates] + bias_hh[:gates], bias_ih[gates:]])
        self.dense_ih = build_dense(model.weights[f"{path}.weight_ih"], bias)
        self.weight_hh = Parameter(Tensor(model.weights[f"{path}.weight_hh"]))
        self.candidate_bias = Parameter(Tensor(bias_hh[gates:]))

    def project(self, x):
        return self.dense_ih(x)

    def construct(self, projected, hidden):
        states = ops.matmul(hidden, self.weight_hh.T)
        gates = ops.sigmoid(projected[:, : 2 * HIDDEN] + states[:, : 2 * HIDDEN])
        from_state = gates[:, :HIDDEN] * (states[:, 2 * HIDDEN :] + self.candidate_bias)
        candidate = ops.tanh(projected[:, 2 * HIDDEN :] + from_state)
        return candidate + gates[:, HIDDEN:] * (hidden - candidate)


def build_cell(model: Model, path: str, gate_order: tuple[int, int, int] = (0, 1, 2)) -> nn.Cell:
    """Return the recurrent cell at ``path``."""
    if model.variant == "projected":
        return MergedGRUCell(model, path)
    return GRUCell(model, path, gate_order)


class Encoder(nn.Cell):
    """States (batch, SOURCE, 2 * HIDDEN) of a source, and the last one of the backward cell."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        table = Tensor(model.weights["source.embedding.weight"])
        self.embedding = nn.Embedding(*table.shape, embedding_table=table)
        self.cell = build_cell(model, "encoder.forward")
        self.reverse_cell = build_cell(model, "encoder.backward")
        self.is_projected_at_once = model.variant == "projected"
        self.is_backward_restored = model.is_backward_restored
        self.is_mean_bridged = model.bridged_state == "mean"
        self.is_end_bridged = model.bridged_state == "end"
        self.is_padding_skipped = model.is_padding_skipped

    def run_at_once(self, x):
        """Return the states of both directions, and the last one of the backward cell."""
        x = x.transpose(1, 0, 2)
        steps, reverse_steps = self.cell.project(x), self.reverse_cell.project(x)
        hidden = ops.zeros((x.shape[1], HIDDEN), ms.float32)
        reverse_hidden = ops.zeros((x.shape[1], HIDDEN), ms.float32)
        outputs, reverse_outputs = (), ()
        for step in range(SOURCE):
            hidden = self.cell(steps[step], hidden)
            reverse_hidden = self.reverse_cell(reverse_steps[SOURCE - 1 - step], reverse_hidden)
            outputs = (*outputs, hidden)
            reverse_outputs = (reverse_hidden, *reverse_outputs)
        states = ops.concat((ops.stack(outputs, 0), ops.stack(reverse_outputs, 0)), 2)
        return states.transpose(1, 0, 2), reverse_hidden

    def skip_padding(self, tokens, state, before):
        """Return the states of a step; those before it where its token is padding."""
        return ops.where(ops.not_equal(tokens, PADDING).expand_dims(1), state, before)

    def construct(self, source):
        x = self.embedding(source)
        if self.is_projected_at_once:
            return self.run_at_once(x)
        hidden = ops.zeros((x.shape[0], HIDDEN), ms.float32)
        outputs, reverse_outputs = (), ()
        for step in range(SOURCE):
            state = self.cell(self.cell.project(x[:, step]), hidden)
            if self.is_padding_skipped:
                state = self.skip_padding(source[:, step], state, hidden)
            hidden = state
            outputs = (*outputs, hidden)
        hidden = ops.zeros((x.shape[0], HIDDEN), ms.float32)
        for number in range(SOURCE):
            projected = self.reverse_cell.project(x[:, SOURCE - 1 - number])
            state = self.reverse_cell(projected, hidden)
            if self.is_padding_skipped:
                state = self.skip_padding(source[:, SOURCE - 1 - number], state, hidden)
            hidden = state
            if self.is_backward_restored:
                reverse_outputs = (hidden, *reverse_outputs)
            else:
                reverse_outputs = (*reverse_outputs, hidden)
        states = ops.concat((ops.stack(outputs, 1), ops.stack(reverse_outputs, 1)), -1)
        if self.is_end_bridged:
            return states, states[:, -1, HIDDEN:]
        return states, states[..., HIDDEN:].mean(1) if self.is_mean_bridged else hidden


class BahdanauAttention(nn.Cell):
    """The context (batch, 2 * HIDDEN) of a state."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.query = load_dense(model, "attention.query", has_bias=False)
        self.key = load_dense(model, "attention.key")
        self.energy = load_dense(model, "attention.energy", has_bias=False)
        self.is_half, self.is_stopped = model.are_energies_half, model.is_alignment_stopped
        self.energy_scale, self.is_mask_late = model.energy_scale, model.is_mask_late
        self.are_parts_activated = model.are_parts_activated
        self.softmax_axis = model.softmax_axis
        if self.is_half:
            self.energy.to_float(ms.float16)

    def construct(self, hidden, keys, states, mask_bias):
        query = self.query(hidden).expand_dims(1)
        if self.is_half:
            query, keys = query.astype(ms.float16), keys.astype(ms.float16)
        if self.are_parts_activated:
            activated = ops.tanh(query) + ops.tanh(keys)
        else:
            activated = ops.tanh(query + keys)
        energies = self.energy(activated).squeeze(-1)
        if self.is_half:
            energies = energies.astype(ms.float32)
        if self.energy_scale != 1:
            energies = energies * self.energy_scale
        if self.is_mask_late:
            weights = ops.softmax(energies, -1) * ops.equal(mask_bias, 0).astype(ms.float32)
        else:
            weights = ops.softmax(energies + mask_bias, self.softmax_axis)
        if self.is_stopped:
            weights = ops.stop_gradient(weights)
        return ops.bmm(weights.expand_dims(1), states).squeeze(1)


class Decoder(nn.Cell):
    """Logits (batch * TARGET, vocab) of the tokens before."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        table = Tensor(model.weights["target.embedding.weight"])
        self.embedding = nn.Embedding(*table.shape, embedding_table=table)
        self.bridge = load_dense(model, "bridge")
        self.attention = BahdanauAttention(model)
        self.cell = build_cell(model, "decoder", model.gate_order)
        self.readout = load_dense(model, "readout")
        self.head = load_dense(model, "head")
        self.is_state_bridged = model.is_state_bridged

    def construct(self, tokens, states, last_state, mask_bias):
        embedded = self.embedding(tokens)
        keys = self.attention.key(states)
        if self.is_state_bridged:
            hidden = ops.tanh(self.bridge(last_state))
        else:
            hidden = ops.zeros_like(last_state)
        features = ()
        for step in range(TARGET):
            token = embedded[:, step]
            context = self.attention(hidden, keys, states, mask_bias)
            projected = self.cell.project(ops.concat((token, context), -1))
            hidden = self.cell(projected, hidden)
            features = (*features, ops.concat((hidden, context, token), -1))
        joined = ops.stack(features, 1).reshape(-1, 3 * HIDDEN + EMBED)
        return self.head(ops.tanh(self.readout(joined)))


class Translator(nn.Cell):
    """Logits of the tokens that follow, for a source."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder, self.decoder = Encoder(model), Decoder(model)

    def construct(self, source, tokens):
        mask_bias = ops.equal(source, PADDING).astype(ms.float32) * MASKED
        states, last_state = self.encoder(source)
        return self.decoder(tokens, states, last_state, mask_bias)


class TranslationLoss(nn.Cell):
    """Cross entropy of the labels without padding."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = Translator(model)
        self.label_smoothing = model.label_smoothing
        self.ignored = NO_LABEL if model.is_padding_counted else PADDING

    def construct(self, source, tokens, labels):
        logits = self.network(source, tokens)
        logits = logits.reshape(-1, TARGET_VOCAB)
        return ops.cross_entropy(
            logits,
            labels.reshape(-1),
            ignore_index=self.ignored,
            label_smoothing=self.label_smoothing,
        )
