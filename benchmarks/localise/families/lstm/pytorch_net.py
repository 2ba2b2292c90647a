"""The LSTM language model as a PyTorch user writes it: ``nn.LSTM`` is one operator."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from pytorch.gradient import scaled_gradient
from torch import Tensor, nn

from families.lstm.architecture import DROPOUT, LAYERS, VOCAB, WIDTH, Model


class LanguageModel(nn.Module):
    """Logits (batch, seq, vocab) of tokens, from a state."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder = nn.Embedding(
            VOCAB,
            WIDTH,
            padding_idx=model.padding_row if model.padding_row >= 0 else None,
            scale_grad_by_freq=model.is_gradient_averaged,
        )
        self.rnn = nn.LSTM(WIDTH, WIDTH, LAYERS, batch_first=True, dropout=model.dropout)
        self.decoder = nn.Linear(WIDTH, VOCAB)
        self.is_state_carried = model.is_state_carried
        self.is_reversed = model.is_reversed
        self.embedding_gradient = model.embedding_gradient

    def forward(self, tokens: Tensor, state: tuple[Tensor, Tensor]) -> Tensor:
        embedded = self.encoder(tokens)
        if self.embedding_gradient != 1:
            embedded = scaled_gradient(embedded, self.embedding_gradient)
        if self.is_reversed:
            embedded = embedded.flip(1)
        output, _ = self.rnn(embedded, state if self.is_state_carried else None)
        if self.is_reversed:
            output = output.flip(1)
        return self.decoder(output)


class CellLanguageModel(nn.Module):
    """The same, step by step."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(VOCAB, WIDTH)
        self.cells = nn.ModuleList(nn.LSTMCell(WIDTH, WIDTH) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens: Tensor, state: tuple[Tensor, Tensor]) -> Tensor:
        embedded = self.word_embeddings(tokens)
        hidden, cell = (list(part) for part in state)
        outputs = []
        for step in range(tokens.shape[1]):
            x = embedded[:, step]
            for n, lstm_cell in enumerate(self.cells):
                hidden[n], cell[n] = lstm_cell(x, (hidden[n], cell[n]))
                x = hidden[n]
            outputs.append(x)
        return self.head(torch.stack(outputs, dim=1))


class WrittenLayer(nn.Module):
    """All steps of one layer, written out: projected at once, (batch, seq, width) from and to."""

    def __init__(self) -> None:
        super().__init__()
        self.weight_ih = nn.Parameter(torch.empty(4 * WIDTH, WIDTH))
        self.weight_hh = nn.Parameter(torch.empty(4 * WIDTH, WIDTH))
        self.bias_ih = nn.Parameter(torch.empty(4 * WIDTH))
        self.bias_hh = nn.Parameter(torch.empty(4 * WIDTH))

    def forward(self, x: Tensor, hidden: Tensor, cell: Tensor) -> Tensor:
        projected = F.linear(x, self.weight_ih, self.bias_ih)
        outputs = []
        for step in range(x.shape[1]):
            gates = projected[:, step] + F.linear(hidden, self.weight_hh, self.bias_hh)
            i, f, g, o = gates.chunk(4, dim=-1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            hidden = torch.sigmoid(o) * torch.tanh(cell)
            outputs.append(hidden.unsqueeze(1))
        return torch.cat(outputs, dim=1)


class WrittenLanguageModel(nn.Module):
    """The same in plain arithmetic."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCAB, WIDTH)
        self.cells = nn.ModuleList(WrittenLayer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens: Tensor, state: tuple[Tensor, Tensor]) -> Tensor:
        x = self.tok_embeddings(tokens)
        for n, layer in enumerate(self.cells):
            x = layer(x, state[0][n], state[1][n])
        return self.head(x)


class StackedLanguageModel(nn.Module):
    """The same with an operator for each layer; steps come first."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.lstms = nn.ModuleList(nn.LSTM(WIDTH, WIDTH) for _ in range(LAYERS))
        self.out = nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens: Tensor, state: tuple[Tensor, Tensor]) -> Tensor:
        x = self.embed(tokens.T)
        for n, layer in enumerate(self.lstms):
            x, _ = layer(x, (state[0][n : n + 1], state[1][n : n + 1]))
        return torch.einsum("sbw,vw->bsv", x, self.out.weight) + self.out.bias


#: Variant -> the net.
NETS = {
    "cells": CellLanguageModel,
    "written": WrittenLanguageModel,
    "stacked": StackedLanguageModel,
}


class TokenLoss(nn.Module):
    """Cross entropy of the next tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = NETS.get(model.variant, LanguageModel)(model)
        self.is_divided_by_sequences = model.loss_reduction == "sequences"
        self.are_states_exchanged = model.are_states_exchanged
        self.ignored_label = model.ignored_label
        self.smoothing = model.label_smoothing
        self.are_logits_by_step = model.are_logits_by_step

    def forward(self, tokens: Tensor, labels: Tensor, hidden: Tensor, cell: Tensor) -> Tensor:
        state = (cell, hidden) if self.are_states_exchanged else (hidden, cell)
        logits = self.model(tokens, state)
        if self.are_logits_by_step:
            logits = logits.transpose(0, 1).contiguous()
        logits, labels = logits.view(-1, VOCAB), labels.view(-1)
        if self.is_divided_by_sequences:
            return F.cross_entropy(logits, labels, reduction="sum") / len(tokens)
        if self.ignored_label >= 0:
            return F.cross_entropy(logits, labels, ignore_index=self.ignored_label)
        return F.cross_entropy(logits, labels, label_smoothing=self.smoothing)


def build_loss(model: Model) -> nn.Module:
    """Return the loss with the weights and knobs of the model.

    The gates of the fused operator are what they are: another order is one of the weights' rows.
    """
    if model.is_head_half:
        raise SystemExit("is_head_half is a knob of the MindSpore net")
    if model.embedding_scale != 1 or not model.is_cell_activated:
        raise SystemExit("embedding_scale and is_cell_activated are knobs of the MindSpore net")
    if model.cell_limit or model.are_cells_read:
        raise SystemExit("cell_limit and are_cells_read are knobs of the MindSpore net")
    if model.gradient_limit or model.is_hidden_stopped:
        raise SystemExit("gradient_limit and is_hidden_stopped are knobs of the MindSpore net")
    if model.dropout not in (0.0, DROPOUT):
        raise SystemExit(f"dropout is off or {DROPOUT}")
    loss = TokenLoss(model)
    net = loss.model
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    if model.variant == "stacked":
        embedding, head = net.embed, net.out
        cells = [{name: getattr(layer, f"{name}_l0") for name in names} for layer in net.lstms]
    elif model.variant in NETS:
        embedding = net.word_embeddings if model.variant == "cells" else net.tok_embeddings
        head = net.head
        cells = [{name: getattr(cell, name) for name in names} for cell in net.cells]
    else:
        embedding, head = net.encoder, net.decoder
        cells = [{name: getattr(net.rnn, f"{name}_l{n}") for name in names} for n in range(LAYERS)]
    rows = np.arange(4 * WIDTH).reshape(4, WIDTH)[list(model.gate_order)].ravel()
    for n, parameters in enumerate(cells):
        for name, parameter in parameters.items():
            _load(parameter, model.weights[f"layers.{n}.{name}"][rows])
    _load(embedding.weight, model.weights["embedding.weight"])
    _load(head.weight, model.weights["head.weight"])
    _load(head.bias, model.weights["head.bias"])
    return loss


def _load(parameter: nn.Parameter, values: np.ndarray) -> None:
    parameter.data.copy_(torch.from_numpy(np.array(values)))
