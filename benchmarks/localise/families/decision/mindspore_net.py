"""A decision transformer in MindSpore for graph mode, on a GPT with MindFormers' names.

Variant 'written': norms, softmax, tables and losses in plain arithmetic, one matrix for queries,
keys and values, tokens joined by channels, a mask that is added.
"""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from families.decision.architecture import (
    ACTION,
    BATCH,
    BINS,
    EPISODE,
    HEAD_DIM,
    HEADS,
    IGNORE,
    KINDS,
    LAYERS,
    NORM_EPS,
    RETURN_SCALE,
    RETURN_WEIGHT,
    STATE,
    STATE_WEIGHT,
    STEPS,
    TOKENS,
    WIDE,
    Model,
)

MASKED = -1e9  #: score of a token that is not seen


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return WrittenLoss(model) if model.variant == "written" else DecisionTransformerWithLoss(model)


def read(model: Model, name: str) -> Tensor:
    """Return a weight."""
    return Tensor(model.weights[name])


def build_dense(model: Model, path: str, part: int = 0, parts: int = 1) -> nn.Dense:
    """Return the linear layer at a path, or one of the equal parts of its rows."""
    weight, bias = (
        Tensor(np.split(model.weights[f"{path}.{name}"], parts)[part])
        for name in ("weight", "bias")
    )
    return nn.Dense(weight.shape[1], weight.shape[0], weight_init=weight, bias_init=bias)


def build_norm(model: Model, path: str) -> nn.LayerNorm:
    """Return the layer norm at a path."""
    return nn.LayerNorm(
        (WIDE,),
        gamma_init=read(model, f"{path}.weight"),
        beta_init=read(model, f"{path}.bias"),
        epsilon=NORM_EPS,
    )


def build_table(model: Model, path: str) -> nn.Embedding:
    """Return the table of embeddings at a path."""
    table = read(model, f"{path}.weight")
    return nn.Embedding(table.shape[0], WIDE, embedding_table=table)


class MultiHeadAttention(nn.Cell):
    """Attention to the tokens that are not hidden, (BATCH, 1, TOKENS, TOKENS)."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.dense1, self.dense2, self.dense3 = (
            build_dense(model, f"{path}.qkv", n, 3) for n in range(3)
        )
        self.projection = build_dense(model, f"{path}.out")
        self.scale_factor = Tensor(math.sqrt(math.sqrt(HEAD_DIM)), ms.float32)
        self.batch_matmul_q_k = ops.BatchMatMul(transpose_b=True)
        self.batch_matmul = ops.BatchMatMul()
        self.softmax = nn.Softmax(axis=-1)

    def split_heads(self, x):
        """Return (BATCH, HEADS, TOKENS, HEAD_DIM)."""
        return x.reshape(BATCH, TOKENS, HEADS, HEAD_DIM).transpose(0, 2, 1, 3)

    def construct(self, x, is_hidden):
        query = self.split_heads(self.dense1(x)) / self.scale_factor
        key = self.split_heads(self.dense2(x)) / self.scale_factor
        value = self.split_heads(self.dense3(x))
        scores = ops.masked_fill(self.batch_matmul_q_k(query, key), is_hidden, MASKED)
        context = self.batch_matmul(self.softmax(scores), value)
        return self.projection(context.transpose(0, 2, 1, 3).reshape(BATCH, TOKENS, WIDE))


class FeedForward(nn.Cell):
    """Two linear layers around ReLU."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.mapping = build_dense(model, f"{path}.up")
        self.activation = nn.ReLU()
        self.projection = build_dense(model, f"{path}.down")

    def construct(self, x):
        return self.projection(self.activation(self.mapping(x)))


class TransformerEncoderLayer(nn.Cell):
    """Attention and an mlp behind norms."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.layernorm1 = build_norm(model, f"{path}.norm1")
        self.attention = MultiHeadAttention(model, path)
        self.layernorm2 = build_norm(model, f"{path}.norm2")
        self.output = FeedForward(model, path)

    def construct(self, x, is_hidden):
        x = x + self.attention(self.layernorm1(x), is_hidden)
        return x + self.output(self.layernorm2(x))


class GPTBackbone(nn.Cell):
    """States (BATCH, TOKENS, WIDE) of tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.position_embedding = build_table(model, "position")
        self.blocks = nn.CellList(
            [TransformerEncoderLayer(model, f"block.{n}") for n in range(LAYERS)]
        )
        self.layernorm = build_norm(model, "norm")
        self.position_ids = Tensor(np.zeros((1, TOKENS), np.int32))
        self.causal_mask = Tensor(np.tril(np.ones((TOKENS, TOKENS), np.bool_)))

    def construct(self, x, mask):
        is_seen = ops.logical_and(self.causal_mask, mask.reshape(BATCH, 1, 1, TOKENS) > 0)
        is_hidden = ops.logical_not(is_seen)
        x = x + self.position_embedding(self.position_ids)
        for block in self.blocks:
            x = block(x, is_hidden)
        return self.layernorm(x)


class TrajectoryEmbedding(nn.Cell):
    """Tokens (BATCH, TOKENS, WIDE) of returns, states and actions in turn."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.return_embedding = build_dense(model, "embed.return")
        self.state_embedding = build_dense(model, "embed.state")
        self.action_embedding = build_dense(model, "embed.action")
        self.time_embedding = build_table(model, "embed.time")
        self.layernorm = build_norm(model, "embed.norm")
        self.are_states_first = model.are_states_first

    def construct(self, returns, states, actions, timesteps):
        times = self.time_embedding(timesteps)
        returns = self.return_embedding(returns) + times
        states = self.state_embedding(states) + times
        actions = self.action_embedding(actions) + times
        if self.are_states_first:
            tokens = ops.stack((states, returns, actions), axis=2)
        else:
            tokens = ops.stack((returns, states, actions), axis=2)
        return self.layernorm(tokens.reshape(BATCH, TOKENS, WIDE))


class MaskedSquaredError(nn.Cell):
    """The mean squared error of (BATCH, steps, channels) where a float mask is one."""

    def construct(self, predicted, target, mask):
        errors = ops.square(predicted - target).mean(-1)
        return (errors * mask).sum() / mask.sum()


class DecisionTransformer(nn.Cell):
    """Predictions of the next state, the action and the next return."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embedding = TrajectoryEmbedding(model)
        self.backbone = GPTBackbone(model)
        self.state_head = build_dense(model, "head.state")
        self.action_head = nn.SequentialCell(build_dense(model, "head.action"), nn.Tanh())
        self.return_head = build_dense(model, "head.return")
        self.are_results_of_states = model.are_results_of_states
        self.embedding_gradient = model.embedding_gradient

    def construct(self, states, actions, returns, timesteps, mask):
        tokens = self.embedding(returns, states, actions, timesteps)
        if self.embedding_gradient != 1:
            constant = ops.stop_gradient(tokens)
            tokens = constant + self.embedding_gradient * (tokens - constant)
        token_mask = ops.tile(mask.expand_dims(-1), (1, 1, KINDS)).reshape(BATCH, TOKENS)
        x = self.backbone(tokens, token_mask).reshape(BATCH, STEPS, KINDS, WIDE)
        of_state, of_action = x[:, :, 1], x[:, :, 2]
        result = of_state if self.are_results_of_states else of_action
        return self.state_head(result), self.action_head(of_state), self.return_head(result)


class DecisionTransformerWithLoss(nn.Cell):
    """Losses of actions, next states and next returns."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.network = DecisionTransformer(model)
        mean, deviation = model.statistics()
        self.state_mean, self.state_std = Tensor(mean), Tensor(deviation)
        self.state_error, self.action_error = MaskedSquaredError(), MaskedSquaredError()

    def construct(self, states, actions, returns, bins, timesteps, mask):
        states = (states - self.state_mean) / self.state_std
        state_preds, action_preds, return_logits = self.network(
            states, actions, returns / RETURN_SCALE, timesteps, mask
        )
        is_real = mask.astype(ms.float32)
        loss = self.action_error(action_preds, actions, is_real)
        state_loss = self.state_error(state_preds[:, :-1], states[:, 1:], is_real[:, :-1])
        return_loss = ops.cross_entropy(
            return_logits.reshape(-1, BINS), bins.reshape(-1), ignore_index=IGNORE
        )
        return loss + STATE_WEIGHT * state_loss + RETURN_WEIGHT * return_loss


class WrittenLinear(nn.Cell):
    """A linear layer."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.matrix = Parameter(read(model, f"{path}.weight"))
        self.shift = Parameter(read(model, f"{path}.bias"))

    def construct(self, x):
        return mint.matmul(x, self.matrix.swapaxes(0, 1)) + self.shift


class WrittenNorm(nn.Cell):
    """Layer norm from means."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.gain = Parameter(read(model, f"{path}.weight"))
        self.shift = Parameter(read(model, f"{path}.bias"))

    def construct(self, x):
        centered = x - mint.mean(x, -1, True)
        variance = mint.mean(mint.square(centered), -1, True)
        return centered * mint.rsqrt(variance + NORM_EPS) * self.gain + self.shift


class WrittenBlock(nn.Cell):
    """A block with one matrix for queries, keys and values, and a bias of scores."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.norm_a, self.norm_b = (WrittenNorm(model, f"{path}.norm{n}") for n in (1, 2))
        self.qkv = WrittenLinear(model, f"{path}.qkv")
        self.mix = WrittenLinear(model, f"{path}.out")
        self.widen = WrittenLinear(model, f"{path}.up")
        self.narrow = WrittenLinear(model, f"{path}.down")

    def construct(self, x, bias):
        qkv = self.qkv(self.norm_a(x)).reshape(BATCH, TOKENS, 3 * HEADS, HEAD_DIM)
        qkv = qkv.permute(0, 2, 1, 3)
        query, key, value = qkv[:, :HEADS], qkv[:, HEADS : 2 * HEADS], qkv[:, 2 * HEADS :]
        scores = mint.matmul(query, key.permute(0, 1, 3, 2)) * HEAD_DIM**-0.5 + bias
        shares = mint.exp(scores - ops.stop_gradient(scores.max(-1, keepdims=True)))
        context = mint.matmul(shares, value) / mint.sum(shares, -1, True)
        x = self.mix(context.permute(0, 2, 1, 3).reshape(BATCH, TOKENS, WIDE)) + x
        return self.narrow(mint.nn.functional.relu(self.widen(self.norm_b(x)))) + x


class WrittenLoss(nn.Cell):
    """The same loss in other steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.from_return = WrittenLinear(model, "embed.return")
        self.from_state = WrittenLinear(model, "embed.state")
        self.from_action = WrittenLinear(model, "embed.action")
        self.clock = Parameter(read(model, "embed.time.weight"))
        self.places = Parameter(read(model, "position.weight"))
        self.token_norm = WrittenNorm(model, "embed.norm")
        self.layers = nn.CellList([WrittenBlock(model, f"block.{n}") for n in range(LAYERS)])
        self.last_norm = WrittenNorm(model, "norm")
        self.to_state = WrittenLinear(model, "head.state")
        self.to_action = WrittenLinear(model, "head.action")
        self.to_return = WrittenLinear(model, "head.return")
        mean, deviation = model.statistics()
        self.center, self.width = Tensor(mean), Tensor(deviation)
        self.later = Tensor(np.triu(np.ones((TOKENS, TOKENS), np.float32), 1))
        self.step_numbers = Tensor(np.arange(EPISODE, dtype=np.int32))
        self.bin_numbers = Tensor(np.arange(BINS, dtype=np.int32))

    def embed(self, returns, states, actions, times):
        """Return tokens (BATCH, TOKENS, WIDE)."""
        chosen = (times.expand_dims(-1) == self.step_numbers).astype(ms.float32)
        clock = mint.tile(mint.matmul(chosen, self.clock), (1, 1, KINDS))
        tokens = (self.from_return(returns), self.from_state(states), self.from_action(actions))
        tokens = (mint.cat(tokens, -1) + clock).reshape(BATCH, TOKENS, WIDE)
        return self.token_norm(tokens) + self.places[0]

    def construct(self, states, actions, returns, bins, times, mask):
        is_real = mask.astype(ms.float32)
        is_padding = (1 - is_real).reshape(BATCH, STEPS, 1)
        is_padding = mint.tile(is_padding, (1, 1, KINDS)).reshape(BATCH, 1, 1, TOKENS)
        bias = mint.maximum(is_padding, self.later) * MASKED

        states = (states - self.center) / self.width
        x = self.embed(returns / RETURN_SCALE, states, actions, times)
        for layer in self.layers:
            x = layer(x, bias)
        x = self.last_norm(x).reshape(BATCH, STEPS, KINDS * WIDE)
        of_state, of_action = x[:, :, WIDE : 2 * WIDE], x[:, :, 2 * WIDE :]

        error = (mint.tanh(self.to_action(of_state)) - actions) * is_real.expand_dims(-1)
        loss = mint.sum(mint.square(error)) / (ACTION * mint.sum(is_real))
        is_pair = is_real[:, : STEPS - 1]
        error = self.to_state(of_action[:, : STEPS - 1]) - states[:, 1:]
        error = mint.sum(mint.square(error), -1) * is_pair
        loss = loss + STATE_WEIGHT / STATE * mint.sum(error) / mint.sum(is_pair)

        logits = self.to_return(of_action)
        logits = logits - ops.stop_gradient(logits.max(-1, keepdims=True))
        chosen = (bins.expand_dims(-1) == self.bin_numbers).astype(ms.float32)
        log_sums = mint.log(mint.sum(mint.exp(logits), -1))
        surprise = (log_sums - mint.sum(logits * chosen, -1)) * is_real
        return loss + RETURN_WEIGHT * mint.sum(surprise) / mint.sum(is_real)
