"""The sequence tagger as a MindSpore user writes it for graph mode: the GRU step by step."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore_nets.gradient import ScaledGradient

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


def load_dense(model: Model, path: str) -> nn.Dense:
    """Return a layer with its weights."""
    weight, bias = model.weights[f"{path}.weight"], model.weights[f"{path}.bias"]
    return nn.Dense(
        weight.shape[1], weight.shape[0], weight_init=Tensor(weight), bias_init=Tensor(bias)
    )


class CharCNN(nn.Cell):
    """Features (batch, seq, filters) of the characters of words."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        weights = model.weights
        self.embedding = nn.Embedding(
            CHARS, CHAR_WIDTH, embedding_table=Tensor(weights["char.weight"])
        )
        self.conv = nn.Conv1d(
            CHAR_WIDTH,
            FILTERS,
            3,
            pad_mode="pad",
            padding=1,
            has_bias=True,
            weight_init=Tensor(weights["conv.weight"]),
            bias_init=Tensor(weights["conv.bias"]),
        )
        self.is_mean = model.char_pooling == "mean"
        self.are_words_by_step = model.are_words_by_step

    def construct(self, chars):
        x = self.embedding(chars.reshape(-1, LETTERS)).transpose(0, 2, 1)
        x = ops.tanh(self.conv(x))
        x = x.mean(axis=-1) if self.is_mean else x.max(axis=-1)
        if self.are_words_by_step:
            return x.reshape(SEQ, -1, FILTERS).transpose(1, 0, 2)
        return x.reshape(-1, SEQ, FILTERS)


class Highway(nn.Cell):
    """A layer that may be bypassed."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.transform = load_dense(model, "highway.transform")
        self.gate = load_dense(model, "highway.gate")
        self.offset = model.highway_offset

    def construct(self, x):
        scores = self.gate(x)
        if self.offset != 0:
            scores = scores + self.offset
        gate = ops.sigmoid(scores)
        return gate * ops.relu(self.transform(x)) + (1 - gate) * x


class JoinedHighway(nn.Cell):
    """The same with one product."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        joined = [
            np.concatenate(
                [model.weights[f"highway.{half}.{name}"] for half in ("transform", "gate")]
            )
            for name in ("weight", "bias")
        ]
        self.dense = nn.Dense(
            WIDTH, 2 * WIDTH, weight_init=Tensor(joined[0]), bias_init=Tensor(joined[1])
        )

    def construct(self, x):
        transformed, scores = ops.split(self.dense(x), WIDTH, axis=-1)
        return x + ops.sigmoid(scores) * (ops.relu(transformed) - x)


class GRULayer(nn.Cell):
    """All steps of one direction; padding leaves the state as it is."""

    def __init__(self, model: Model, direction: str) -> None:
        super().__init__()
        values = [Tensor(model.weights[f"gru.{direction}.{name}"]) for name in GRU_NAMES]
        self.weight_ih = Parameter(values[0])
        self.weight_hh = Parameter(values[1])
        self.bias_ih = Parameter(values[2])
        self.bias_hh = Parameter(values[3])
        self.matmul = ops.MatMul(transpose_b=True)
        self.split = ops.Split(axis=1, output_num=3)
        self.r, self.z, self.n = model.gate_order
        self.is_backward = direction == "backward"
        self.is_reset_first = model.is_reset_first
        self.is_projected_at_once = model.variant == "projected"

    def project(self, x):
        return self.matmul(x, self.weight_ih) + self.bias_ih

    def step(self, projected, hidden):
        inputs = self.split(projected)
        states = self.split(self.matmul(hidden, self.weight_hh) + self.bias_hh)
        reset = ops.sigmoid(inputs[self.r] + states[self.r])
        update = ops.sigmoid(inputs[self.z] + states[self.z])
        if self.is_reset_first:
            weight, bias = self.weight_hh[2 * HIDDEN :], self.bias_hh[2 * HIDDEN :]
            candidate = ops.tanh(inputs[self.n] + self.matmul(reset * hidden, weight) + bias)
        else:
            candidate = ops.tanh(inputs[self.n] + reset * states[self.n])
        return (1 - update) * candidate + update * hidden

    def construct(self, x, mask):
        hidden = ops.zeros((x.shape[0], HIDDEN), ms.float32)
        at_once = x
        if self.is_projected_at_once:
            at_once = self.project(x.reshape(-1, WIDTH)).reshape(-1, SEQ, 3 * HIDDEN)
        outputs = ()
        for number in range(SEQ):
            step = SEQ - 1 - number if self.is_backward else number
            is_word = mask[:, step : step + 1]
            if self.is_projected_at_once:
                state = self.step(at_once[:, step], hidden)
                hidden = ops.select((is_word > 0).broadcast_to(state.shape), state, hidden)
            else:
                state = self.step(self.project(x[:, step]), hidden)
                hidden = is_word * state + (1 - is_word) * hidden
            output = hidden * is_word
            outputs = (output, *outputs) if self.is_backward else (*outputs, output)
        return ops.stack(outputs, 1)


class CRF(nn.Cell):
    """Negative log likelihood of the gold tags: (batch,)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.transitions = Parameter(Tensor(model.weights["crf.transitions"]))
        self.start = Parameter(Tensor(model.weights["crf.start"]))
        self.end = Parameter(Tensor(model.weights["crf.end"]))
        self.has_gold_start = model.has_gold_start
        self.is_one_hot = model.variant == "joined"

    def construct(self, emissions, tags, lengths, mask):
        return self.normalize(emissions, mask) - self.score(emissions, tags, lengths, mask)

    def score(self, emissions, tags, lengths, mask):
        if self.is_one_hot:
            return self.score_one_hot(emissions, tags, lengths, mask)
        emitted = ops.gather_elements(emissions, 2, tags.expand_dims(2)).squeeze(2)
        pairs = tags[:, :-1] * TAGS + tags[:, 1:]
        moved = ops.gather(self.transitions.reshape(-1), pairs, 0)
        last = ops.gather_elements(tags, 1, lengths.expand_dims(1) - 1).squeeze(1)
        score = (emitted * mask).sum(axis=1) + (moved * mask[:, 1:]).sum(axis=1)
        if self.has_gold_start:
            score = score + ops.gather(self.start, tags[:, 0], 0)
        return score + ops.gather(self.end, last, 0)

    def score_one_hot(self, emissions, tags, lengths, mask):
        gold = ops.one_hot(tags, TAGS, Tensor(1.0), Tensor(0.0)) * mask.expand_dims(2)
        last = ops.one_hot(lengths - 1, SEQ, Tensor(1.0), Tensor(0.0))
        moved = ops.matmul(gold[:, :-1], self.transitions) * gold[:, 1:]
        score = (gold * emissions).sum(axis=(1, 2)) + moved.sum(axis=(1, 2))
        ends = (gold * last.expand_dims(2)).sum(axis=1)
        return score + (gold[:, 0] * self.start).sum(axis=1) + (ends * self.end).sum(axis=1)

    def normalize(self, emissions, mask):
        alpha = self.start + emissions[:, 0]
        for step in range(1, SEQ):
            is_word = mask[:, step : step + 1]
            moved = ops.logsumexp(alpha.expand_dims(2) + self.transitions, 1)
            alpha = is_word * (moved + emissions[:, step]) + (1 - is_word) * alpha
        return ops.logsumexp(alpha + self.end, 1)


class Tagger(nn.Cell):
    """The loss of the tags, and of masked words."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.char_cnn = CharCNN(model)
        self.word_embedding = nn.Embedding(
            WORDS, WORD_WIDTH, embedding_table=Tensor(model.weights["word.weight"])
        )
        self.highway = JoinedHighway(model) if model.variant == "joined" else Highway(model)
        self.gru_forward, self.gru_backward = [GRULayer(model, name) for name in DIRECTIONS]
        self.projection = load_dense(model, "tag")
        self.lm_head = load_dense(model, "lm")
        self.crf = CRF(model)
        self.scaled_gradient = None
        if model.auxiliary_gradient != 1:
            self.scaled_gradient = ScaledGradient(model.auxiliary_gradient)

    def construct(self, words, chars, lengths, tags, labels):
        mask = (ops.arange(SEQ) < lengths.expand_dims(1)).astype(ms.float32)
        x = ops.concat((self.char_cnn(chars), self.word_embedding(words)), -1)
        x = self.highway(x)
        states = ops.concat((self.gru_forward(x, mask), self.gru_backward(x, mask)), -1)
        loss = self.crf(self.projection(states), tags, lengths, mask).mean()
        if self.scaled_gradient is not None:
            states = self.scaled_gradient(states)
        logits = self.lm_head(states).reshape(-1, WORDS)
        auxiliary = ops.cross_entropy(logits, labels.reshape(-1), ignore_index=IGNORED)
        return loss + AUXILIARY * auxiliary


def build_loss(model: Model) -> nn.Cell:
    """Return the loss with the weights and knobs of the model."""
    if model.is_end_last or not model.is_packed or model.is_gate_detached:
        raise SystemExit("is_end_last, is_packed, is_gate_detached: knobs of the PyTorch net")
    if model.loss_reduction != "sentences" or model.is_carry_stopped:
        raise SystemExit("loss_reduction, is_carry_stopped: knobs of the PyTorch net")
    return Tagger(model)
