"""The sequence tagger as a PyTorch user writes it: a packed ``nn.GRU``."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from families.tagger.architecture import (
    AUXILIARY,
    CHAR_WIDTH,
    CHARS,
    DIRECTIONS,
    FILTERS,
    GRU_NAMES,
    HIDDEN,
    IGNORED,
    LETTERS,
    SEQ,
    TAGS,
    WIDTH,
    WORD_WIDTH,
    WORDS,
    Model,
)


class CharEncoder(nn.Module):
    """Features (batch, seq, filters) of the characters of words."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CHARS, CHAR_WIDTH)
        self.conv = nn.Conv1d(CHAR_WIDTH, FILTERS, 3, padding=1)

    def forward(self, chars: Tensor) -> Tensor:
        x = self.embedding(chars.view(-1, LETTERS)).transpose(1, 2)
        x = torch.tanh(self.conv(x)).max(dim=-1).values
        return x.view(-1, SEQ, FILTERS)


class Highway(nn.Module):
    """A layer that may be bypassed."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_gate_detached = model.is_gate_detached
        self.is_carry_stopped = model.is_carry_stopped
        self.transform = nn.Linear(WIDTH, WIDTH)
        self.gate = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate(x.detach() if self.is_gate_detached else x))
        carried = x.detach() if self.is_carry_stopped else x
        return gate * F.relu(self.transform(x)) + (1 - gate) * carried


class PackedGRU(nn.Module):
    """States (batch, seq, 2 * hidden) of both directions, zero for padding."""

    def __init__(self, is_packed: bool) -> None:
        super().__init__()
        self.gru = nn.GRU(WIDTH, HIDDEN, batch_first=True, bidirectional=True)
        self.is_packed = is_packed

    def forward(self, x: Tensor, lengths: Tensor, mask: Tensor) -> Tensor:
        if not self.is_packed:
            return self.gru(x)[0] * mask.unsqueeze(-1)
        packed = pack_padded_sequence(x, lengths, batch_first=True)
        return pad_packed_sequence(self.gru(packed)[0], batch_first=True)[0]

    def list_parameters(self) -> list[list[nn.Parameter]]:
        return [
            [getattr(self.gru, f"{name}_l0{suffix}") for name in GRU_NAMES]
            for suffix in ("", "_reverse")
        ]


class WrittenCell(nn.Module):
    """One step of one direction in plain arithmetic."""

    def __init__(self) -> None:
        super().__init__()
        self.weight_ih = nn.Parameter(torch.empty(3 * HIDDEN, WIDTH))
        self.weight_hh = nn.Parameter(torch.empty(3 * HIDDEN, HIDDEN))
        self.bias_ih = nn.Parameter(torch.empty(3 * HIDDEN))
        self.bias_hh = nn.Parameter(torch.empty(3 * HIDDEN))

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        from_input = F.linear(x, self.weight_ih, self.bias_ih).chunk(3, dim=-1)
        from_hidden = F.linear(hidden, self.weight_hh, self.bias_hh).chunk(3, dim=-1)
        reset = torch.sigmoid(from_input[0] + from_hidden[0])
        update = torch.sigmoid(from_input[1] + from_hidden[1])
        candidate = torch.tanh(from_input[2] + reset * from_hidden[2])
        return candidate + update * (hidden - candidate)


class SteppedGRU(nn.Module):
    """The same, step by step."""

    def __init__(self, is_written: bool) -> None:
        super().__init__()
        self.cells = nn.ModuleList(
            WrittenCell() if is_written else nn.GRUCell(WIDTH, HIDDEN) for _ in DIRECTIONS
        )

    def forward(self, x: Tensor, lengths: Tensor, mask: Tensor) -> Tensor:
        directions = []
        for cell, steps in zip(self.cells, (range(SEQ), reversed(range(SEQ))), strict=True):
            hidden = x.new_zeros(len(x), HIDDEN)
            outputs = {}
            for step in steps:
                is_word = mask[:, step, None] > 0
                hidden = torch.where(is_word, cell(x[:, step], hidden), hidden)
                outputs[step] = hidden
            directions.append(torch.stack([outputs[step] for step in range(SEQ)], dim=1))
        return torch.cat(directions, dim=-1) * mask.unsqueeze(-1)

    def list_parameters(self) -> list[list[nn.Parameter]]:
        return [[getattr(cell, name) for name in GRU_NAMES] for cell in self.cells]


class CRF(nn.Module):
    """Negative log likelihood of the gold tags: (batch,)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.transitions = nn.Parameter(torch.empty(TAGS, TAGS))
        self.start_transitions = nn.Parameter(torch.empty(TAGS))
        self.end_transitions = nn.Parameter(torch.empty(TAGS))
        self.is_end_last = model.is_end_last
        self.is_written = model.variant == "written"

    def forward(self, emissions: Tensor, tags: Tensor, lengths: Tensor, mask: Tensor) -> Tensor:
        return self.normalize(emissions, mask) - self.score(emissions, tags, lengths, mask)

    def score(self, emissions: Tensor, tags: Tensor, lengths: Tensor, mask: Tensor) -> Tensor:
        emitted = emissions.gather(2, tags.unsqueeze(2)).squeeze(2)
        moved = self.transitions[tags[:, :-1], tags[:, 1:]]
        last = tags[:, -1] if self.is_end_last else tags.gather(1, lengths[:, None] - 1).squeeze(1)
        score = self.start_transitions[tags[:, 0]] + (emitted * mask).sum(dim=1)
        return score + (moved * mask[:, 1:]).sum(dim=1) + self.end_transitions[last]

    def normalize(self, emissions: Tensor, mask: Tensor) -> Tensor:
        alpha = self.start_transitions + emissions[:, 0]
        for step in range(1, SEQ):
            scores = alpha.unsqueeze(2) + self.transitions + emissions[:, step].unsqueeze(1)
            alpha = torch.where(mask[:, step, None] > 0, self.reduce(scores), alpha)
        return self.reduce(alpha + self.end_transitions)

    def reduce(self, scores: Tensor) -> Tensor:
        if not self.is_written:
            return torch.logsumexp(scores, dim=1)
        largest = scores.detach().amax(dim=1, keepdim=True)
        return (scores - largest).exp().sum(dim=1).log() + largest.squeeze(1)


class Tagger(nn.Module):
    """The loss of the tags, and of masked words."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.char_encoder = CharEncoder()
        self.word_embedding = nn.Embedding(WORDS, WORD_WIDTH)
        self.highway = Highway(model)
        is_packed = model.variant == ""
        self.encoder = (
            PackedGRU(model.is_packed) if is_packed else SteppedGRU(model.variant == "written")
        )
        self.hidden2tag = nn.Linear(2 * HIDDEN, TAGS)
        self.lm_head = nn.Linear(2 * HIDDEN, WORDS)
        self.crf = CRF(model)
        self.is_divided_by_tokens = model.loss_reduction == "tokens"

    def forward(
        self, words: Tensor, chars: Tensor, lengths: Tensor, tags: Tensor, labels: Tensor
    ) -> Tensor:
        mask = (torch.arange(SEQ) < lengths.unsqueeze(1)).float()
        features = self.char_encoder(chars)
        x = self.highway(torch.cat((features, self.word_embedding(words)), dim=-1))
        states = self.encoder(x, lengths, mask)
        losses = self.crf(self.hidden2tag(states), tags, lengths, mask)
        loss = losses.sum() / mask.sum() if self.is_divided_by_tokens else losses.mean()
        logits = self.lm_head(states).view(-1, WORDS)
        return loss + AUXILIARY * F.cross_entropy(logits, labels.view(-1), ignore_index=IGNORED)


def build_loss(model: Model) -> nn.Module:
    """Return the loss with the weights and knobs of the model."""
    if model.char_pooling != "max" or model.highway_offset or model.gate_order != (0, 1, 2):
        raise SystemExit("char_pooling, highway_offset, gate_order: knobs of the MindSpore net")
    if model.is_reset_first or not model.has_gold_start or model.auxiliary_gradient != 1:
        raise SystemExit("is_reset_first, has_gold_start, auxiliary_gradient: of the MindSpore net")
    if model.are_words_by_step:
        raise SystemExit("are_words_by_step is a knob of the MindSpore net")
    net = Tagger(model)
    parameters = {
        "char.weight": net.char_encoder.embedding.weight,
        "word.weight": net.word_embedding.weight,
        "crf.transitions": net.crf.transitions,
        "crf.start": net.crf.start_transitions,
        "crf.end": net.crf.end_transitions,
    }
    layers = {
        "conv": net.char_encoder.conv,
        "highway.transform": net.highway.transform,
        "highway.gate": net.highway.gate,
        "tag": net.hidden2tag,
        "lm": net.lm_head,
    }
    for path, layer in layers.items():
        parameters[f"{path}.weight"], parameters[f"{path}.bias"] = layer.weight, layer.bias
    for direction, group in zip(DIRECTIONS, net.encoder.list_parameters(), strict=True):
        for name, parameter in zip(GRU_NAMES, group, strict=True):
            parameters[f"gru.{direction}.{name}"] = parameter
    for path, parameter in parameters.items():
        parameter.data.copy_(torch.from_numpy(np.array(model.weights[path])))
    return net
