"""The text-line recognizer as a PyTorch user writes it: a packed ``nn.LSTM``.

Variant 'stepped': other names, LSTM cells step by step, functions and einsum in place of modules,
losses of gathered logarithms.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from families.crnn.architecture import (
    BLANK,
    CHANNELS,
    COLUMNS,
    DECODER,
    DIRECTIONS,
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
    VOCAB,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return SteppedRecognizer(model) if model.variant == "stepped" else Recognizer(model)


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the weights at ``path`` into a module."""
    for name, parameter in module.named_parameters():
        parameter.data.copy_(torch.from_numpy(model.weights[f"{path}.{name}"].copy()))
    return module


def load_linear(model: Model, path: str) -> nn.Module:
    """Return the linear layer at ``path``, with the bias if there is one."""
    n_out, n_in = model.weights[f"{path}.weight"].shape
    return load(nn.Linear(n_in, n_out, bias=f"{path}.bias" in model.weights), model, path)


class ConvStage(nn.Module):
    """Convolution, batch norm, rectifier, pooling; padding becomes zero."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        n_in = CHANNELS[n - 1] if n else 1
        self.conv = load(
            nn.Conv2d(n_in, CHANNELS[n], 3, padding=1, bias=False), model, f"stages.{n}"
        )
        self.bn = load(nn.BatchNorm2d(CHANNELS[n], eps=EPS), model, f"stages.{n}.norm")
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(POOLS[n])

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.pool(self.relu(self.bn(self.conv(x)))) * mask


class BidirectionalLSTM(nn.Module):
    """States of both directions, zero in padding, and what the decoder begins with."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.rnn = nn.LSTM(INPUT, HIDDEN, batch_first=True, bidirectional=True)
        for direction, suffix in zip(DIRECTIONS, ("", "_reverse"), strict=True):
            for name in LSTM_NAMES:
                values = torch.from_numpy(model.weights[f"lstm.{direction}.{name}"].copy())
                getattr(self.rnn, f"{name}_l0{suffix}").data.copy_(values)
        self.is_start_of_last_column = model.is_start_of_last_column
        self.is_padding_read = model.is_padding_read

    def read_padding(self, x: Tensor, n_columns: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states of all columns, zero in padding, and those at the ends of a text."""
        states, _ = self.rnn(x)
        mask = torch.arange(COLUMNS) < n_columns.unsqueeze(1)
        states = states * mask.unsqueeze(-1)
        ahead, back = states.chunk(2, dim=-1)
        return states, torch.cat((ahead[torch.arange(len(x)), n_columns - 1], back[:, 0]), dim=-1)

    def forward(self, x: Tensor, n_columns: Tensor) -> tuple[Tensor, Tensor]:
        if self.is_padding_read:
            return self.read_padding(x, n_columns)
        packed = pack_padded_sequence(x, n_columns, batch_first=True)
        outputs, (hidden, _) = self.rnn(packed)
        states, _ = pad_packed_sequence(outputs, batch_first=True, total_length=COLUMNS)
        if self.is_start_of_last_column:
            return states, states[torch.arange(len(states)), n_columns - 1]
        return states, torch.cat((hidden[0], hidden[1]), dim=-1)


class _TanhOfInputGradient(torch.autograd.Function):
    """Tanh whose gradient takes its input for its result."""

    @staticmethod
    def forward(context, x: Tensor) -> Tensor:
        context.save_for_backward(x)
        return torch.tanh(x)

    @staticmethod
    def backward(context, gradient: Tensor) -> Tensor:
        (x,) = context.saved_tensors
        return gradient * (1 - x * x)


class LocationAttention(nn.Module):
    """Weights of the columns from their states, the decoder's state and the weights so far."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.memory_layer = load_linear(model, "attention.key")
        self.query_layer = load_linear(model, "attention.query")
        conv = nn.Conv1d(1, FILTERS, KERNEL, padding=KERNEL // 2, bias=False)
        self.location_conv = load(conv, model, "attention.conv")
        self.location_dense = load_linear(model, "attention.location")
        self.v = load_linear(model, "attention.energy")
        self.is_energy_gradient_of_input = model.is_energy_gradient_of_input

    def forward(self, keys: Tensor, mask: Tensor, hidden: Tensor, past: Tensor) -> Tensor:
        locations = self.location_dense(self.location_conv(past.unsqueeze(1)).transpose(1, 2))
        sums = self.query_layer(hidden).unsqueeze(1) + keys + locations
        if self.is_energy_gradient_of_input:
            energies = self.v(_TanhOfInputGradient.apply(sums)).squeeze(-1)
        else:
            energies = self.v(torch.tanh(sums)).squeeze(-1)
        return F.softmax(energies.masked_fill(~mask, float("-inf")), dim=1)


class AttentionDecoder(nn.Module):
    """Logits of each next character, (batch, STEPS, VOCAB)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.init_hidden = load_linear(model, "decoder.start")
        self.embedding = load(nn.Embedding(VOCAB, EMBED), model, "decoder.embedding")
        self.attention = LocationAttention(model)
        self.lstm_cell = nn.LSTMCell(EMBED + 2 * HIDDEN, DECODER)
        load(self.lstm_cell, model, "decoder")
        self.generator = load_linear(model, "decoder.out")
        self.are_locations_summed = model.are_locations_summed

    def forward(self, states: Tensor, last: Tensor, mask: Tensor, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.init_hidden(last))
        cell = torch.zeros_like(hidden)
        past = states.new_zeros(states.shape[:2])
        keys = self.attention.memory_layer(states)
        outputs = []
        for embedded in self.embedding(inputs).unbind(1):
            alpha = self.attention(keys, mask, hidden, past)
            past = past + alpha if self.are_locations_summed else alpha
            context = torch.bmm(alpha.unsqueeze(1), states).squeeze(1)
            hidden, cell = self.lstm_cell(torch.cat((embedded, context), dim=1), (hidden, cell))
            outputs.append(self.generator(torch.cat((hidden, context), dim=1)))
        return torch.stack(outputs, dim=1)


class Recognizer(nn.Module):
    """The weighted sum of the losses of the three heads."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.feature_extraction = nn.ModuleList(ConvStage(model, n) for n in range(len(CHANNELS)))
        self.map_to_sequence = load_linear(model, "sequence")
        self.sequence_modeling = BidirectionalLSTM(model)
        self.ctc_head = load_linear(model, "ctc")
        self.attention_head = AttentionDecoder(model)
        self.length_head = load_linear(model, "length")
        self.ctc_weight = model.ctc_weight
        self.are_all_columns_aligned = model.are_all_columns_aligned
        self.are_columns_floored = model.are_columns_floored

    def compute_ctc(
        self, logits: Tensor, n_columns: Tensor, labels: Tensor, lengths: Tensor
    ) -> Tensor:
        """Return the mean loss of the alignments."""
        log_probs = F.log_softmax(logits, dim=-1).permute(1, 0, 2)
        if self.are_all_columns_aligned:
            n_columns = torch.full_like(n_columns, COLUMNS)
        return F.ctc_loss(log_probs, labels, n_columns, lengths, blank=BLANK)

    def forward(
        self,
        images: Tensor,
        widths: Tensor,
        labels: Tensor,
        lengths: Tensor,
        inputs: Tensor,
        targets: Tensor,
    ) -> Tensor:
        n_columns = widths // 2 if self.are_columns_floored else (widths + 1) // 2
        mask = torch.arange(COLUMNS) < n_columns.unsqueeze(1)
        x = images
        for stage in self.feature_extraction:
            x = stage(x, mask[:, None, None].float())
        columns = x.permute(0, 3, 1, 2).flatten(2)
        states, last = self.sequence_modeling(self.map_to_sequence(columns), n_columns)
        loss_ctc = self.compute_ctc(self.ctc_head(states), n_columns, labels, lengths)
        logits = self.attention_head(states, last, mask, inputs)
        loss_att = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD)
        mean = states.sum(dim=1) / n_columns.unsqueeze(1)
        loss_len = F.smooth_l1_loss(self.length_head(mean).squeeze(-1), lengths.float())
        loss = self.ctc_weight * loss_ctc + (1 - self.ctc_weight) * loss_att
        return loss + LENGTH_WEIGHT * loss_len


class SteppedRecognizer(nn.Module):
    """The same losses from cells and functions."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.kernels = nn.ParameterList(
            torch.from_numpy(model.weights[f"stages.{n}.weight"].copy())
            for n in range(len(CHANNELS))
        )
        self.norms = nn.ModuleList(
            load(nn.BatchNorm2d(width, eps=EPS), model, f"stages.{n}.norm")
            for n, width in enumerate(CHANNELS)
        )
        self.project_in = load_linear(model, "sequence")
        self.left_to_right, self.right_to_left = (
            load(nn.LSTMCell(INPUT, HIDDEN), model, f"lstm.{direction}") for direction in DIRECTIONS
        )
        self.to_labels, self.to_length = (load_linear(model, name) for name in ("ctc", "length"))
        self.speller = SteppedSpeller(model)
        self.ctc_weight = model.ctc_weight

    def extract(self, images: Tensor, mask: Tensor) -> Tensor:
        """Return vectors of the columns, (batch, COLUMNS, INPUT)."""
        x = images
        for kernel, norm, size in zip(self.kernels, self.norms, POOLS, strict=True):
            x = F.max_pool2d(F.relu(norm(F.conv2d(x, kernel, padding=1))), size)
            x = x.masked_fill(~mask[:, None, None], 0)
        return self.project_in(torch.cat(x.unbind(2), dim=1).transpose(1, 2)[..., self.order(x)])

    def order(self, x: Tensor) -> Tensor:
        """Return where the rows of each channel are among the channels of each row."""
        _, channels, rows, _ = x.shape
        return torch.arange(rows * channels).view(rows, channels).t().flatten()

    def run(
        self, cell: nn.LSTMCell, x: Tensor, mask: Tensor, *, is_reversed: bool
    ) -> tuple[Tensor, Tensor]:
        """Return the states of one direction, zero in padding, and the last one."""
        hidden = memory = x.new_zeros(len(x), HIDDEN)
        outputs = {}
        for column in reversed(range(COLUMNS)) if is_reversed else range(COLUMNS):
            is_valid = mask[:, column, None]
            next_hidden, next_memory = cell(x[:, column], (hidden, memory))
            hidden = torch.where(is_valid, next_hidden, hidden)
            memory = torch.where(is_valid, next_memory, memory)
            outputs[column] = hidden
        states = torch.stack([outputs[column] for column in range(COLUMNS)], dim=1)
        return states * mask.unsqueeze(-1), hidden

    def forward(
        self,
        images: Tensor,
        widths: Tensor,
        labels: Tensor,
        lengths: Tensor,
        inputs: Tensor,
        targets: Tensor,
    ) -> Tensor:
        n_columns = torch.div(widths + 1, 2, rounding_mode="floor")
        mask = torch.arange(COLUMNS) < n_columns.unsqueeze(1)
        x = self.extract(images, mask)
        ahead, last_ahead = self.run(self.left_to_right, x, mask, is_reversed=False)
        back, last_back = self.run(self.right_to_left, x, mask, is_reversed=True)
        states = torch.cat((ahead, back), dim=-1)
        log_probs = self.to_labels(states).transpose(0, 1).log_softmax(-1)
        losses = F.ctc_loss(log_probs, labels, n_columns, lengths, blank=BLANK, reduction="none")
        loss = self.ctc_weight * (losses / lengths).mean()
        logits = self.speller(states, torch.cat((last_ahead, last_back), dim=-1), mask, inputs)
        picked = logits.log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        is_target = targets != PAD
        loss = loss - (1 - self.ctc_weight) * (picked * is_target).sum() / is_target.sum()
        shares = mask / n_columns.unsqueeze(1)
        predicted = self.to_length(torch.einsum("bt,bth->bh", shares, states)).squeeze(-1)
        return loss + LENGTH_WEIGHT * F.huber_loss(predicted, lengths.float())


class SteppedSpeller(nn.Module):
    """The decoder from functions."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.bridge = load_linear(model, "decoder.start")
        self.characters = load(nn.Embedding(VOCAB, EMBED), model, "decoder.embedding")
        self.rnn = load(nn.LSTMCell(EMBED + 2 * HIDDEN, DECODER), model, "decoder")
        self.to_key, self.to_query, self.to_location = (
            load_linear(model, f"attention.{name}") for name in ("key", "query", "location")
        )
        self.filters, self.energy = (
            nn.Parameter(torch.from_numpy(model.weights[f"attention.{name}.weight"].copy()))
            for name in ("conv", "energy")
        )
        self.to_logits = load_linear(model, "decoder.out")

    def forward(self, states: Tensor, last: Tensor, mask: Tensor, inputs: Tensor) -> Tensor:
        hidden = self.bridge(last).tanh()
        memory = torch.zeros_like(hidden)
        covered = torch.zeros(mask.shape)
        keys = self.to_key(states)
        joined = []
        for step in range(inputs.shape[1]):
            features = F.conv1d(covered[:, None], self.filters, padding="same")
            sums = keys + self.to_location(features.mT) + self.to_query(hidden)[:, None]
            scores = torch.einsum("btd,d->bt", sums.tanh(), self.energy[0])
            weights = scores.masked_fill(~mask, -1e9).softmax(-1)
            covered = covered + weights
            context = torch.einsum("bt,bth->bh", weights, states)
            embedded = self.characters(inputs[:, step])
            hidden, memory = self.rnn(torch.cat((embedded, context), -1), (hidden, memory))
            joined.append(torch.cat((hidden, context), -1))
        return self.to_logits(torch.stack(joined, 1))
