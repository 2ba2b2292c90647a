"""The learned world model in MindSpore for graph mode.

Variant 'written': norms, cell, softmax and targets in plain arithmetic, a convolution of states and
one of actions, atoms chosen by distance.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from families.muzero.architecture import (
    ACTIONS,
    ATOMS,
    BATCH,
    CHANNELS,
    COLORS,
    COLUMNS,
    CONSISTENCY_WEIGHT,
    DISCOUNT,
    EPS,
    FLAT,
    FRAMES,
    HEAD_FLAT,
    HEIGHT,
    HORIZON,
    MEMORY,
    ROWS,
    STATE_GRADIENT,
    STEPS,
    SUPPORT,
    TINY,
    TRANSFORM_EPS,
    UNROLL,
    VALUE_WEIGHT,
    WIDTH,
    Model,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return WrittenLoss(model) if model.variant == "written" else MuZeroLoss(model)


def read(model: Model, name: str) -> Tensor:
    """Return a weight."""
    return Tensor(np.ascontiguousarray(model.weights[name]))


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at a path."""
    weight = read(model, f"{path}.weight")
    has_bias = f"{path}.bias" in model.weights
    return nn.Dense(
        weight.shape[1],
        weight.shape[0],
        weight_init=weight,
        bias_init=read(model, f"{path}.bias") if has_bias else None,
        has_bias=has_bias,
    )


def make_conv(weight: np.ndarray, bias: np.ndarray | None = None, stride: int = 1) -> nn.Conv2d:
    """Return a convolution with these weights."""
    n_out, n_in, kernel, _ = weight.shape
    return nn.Conv2d(
        n_in,
        n_out,
        kernel,
        stride,
        pad_mode="pad",
        padding=kernel // 2,
        has_bias=bias is not None,
        weight_init=Tensor(np.ascontiguousarray(weight)),
        bias_init=None if bias is None else Tensor(bias),
    )


def build_conv(model: Model, path: str, stride: int = 1) -> nn.Conv2d:
    """Return the convolution at a path."""
    return make_conv(
        model.weights[f"{path}.weight"], model.weights.get(f"{path}.bias"), stride=stride
    )


def build_norm(model: Model, path: str, kind: type[nn.Cell] = nn.BatchNorm2d) -> nn.Cell:
    """Return the batch norm at a path."""
    weight, bias = read(model, f"{path}.weight"), read(model, f"{path}.bias")
    return kind(len(weight), eps=EPS, momentum=0.9, gamma_init=weight, beta_init=bias)


def build_mlp(model: Model, path: str) -> nn.SequentialCell:
    """Return two linear layers around ReLU."""
    return nn.SequentialCell(
        build_dense(model, f"{path}.hidden"), nn.ReLU(), build_dense(model, f"{path}.out")
    )


class ResidualBlock(nn.Cell):
    """Two convolutions with norms, added to what they read."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.conv1 = build_conv(model, f"{path}.0")
        self.norm1 = build_norm(model, f"{path}.0.norm")
        self.conv2 = build_conv(model, f"{path}.1")
        self.norm2 = build_norm(model, f"{path}.1.norm")
        self.relu = nn.ReLU()

    def construct(self, x):
        out = self.relu(self.norm1(self.conv1(x)))
        return self.relu(self.norm2(self.conv2(out)) + x)


class Rescale(nn.Cell):
    """States from 0 to 1."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.axis = (2, 3) if model.is_range_of_channel else (1, 2, 3)

    def construct(self, state):
        smallest = state.min(self.axis, keepdims=True)
        largest = state.max(self.axis, keepdims=True)
        return (state - smallest) / (largest - smallest + TINY)


class Representation(nn.Cell):
    """States of observations."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv = build_conv(model, "representation.in", stride=2)
        self.norm = build_norm(model, "representation.in.norm")
        self.relu = nn.ReLU()
        self.block = ResidualBlock(model, "representation.block")
        self.rescale = Rescale(model)

    def construct(self, observation):
        x = self.relu(self.norm(self.conv(observation)))
        return self.rescale(self.block(x))


class ScaleGradient(nn.Cell):
    """The identity; its gradient is scaled.

    As a cell without arithmetic, graph mode drops it together with its own ``bprop``.
    """

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def construct(self, x):
        return x * self.scale + ops.stop_gradient(x) * (1 - self.scale)


class Dynamics(nn.Cell):
    """The next states of states and actions."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.scale_gradient = ScaleGradient(STATE_GRADIENT)
        self.conv = build_conv(model, "dynamics.in")
        self.norm = build_norm(model, "dynamics.in.norm")
        self.relu = nn.ReLU()
        self.block = ResidualBlock(model, "dynamics.block")
        self.rescale = Rescale(model)
        self.on, self.off = Tensor(1.0, ms.float32), Tensor(0.0, ms.float32)

    def construct(self, state, action):
        state = self.scale_gradient(state)
        one_hot = ops.one_hot(action, ACTIONS, self.on, self.off).reshape(-1, ACTIONS, 1, 1)
        planes = ops.broadcast_to(one_hot, (BATCH, ACTIONS, ROWS, COLUMNS))
        x = self.norm(self.conv(ops.concat((state, planes), 1)))
        return self.rescale(self.block(self.relu(x + state)))


class Head(nn.Cell):
    """Logits of states."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.conv = build_conv(model, f"{path}.conv")
        self.relu, self.flatten = nn.ReLU(), nn.Flatten()
        self.mlp = build_mlp(model, path)

    def construct(self, state):
        return self.mlp(self.flatten(self.relu(self.conv(state))))


class ValuePrefix(nn.Cell):
    """Logits of the value prefix of a state, and the memory behind it."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv = build_conv(model, "prefix.conv")
        self.relu, self.flatten = nn.ReLU(), nn.Flatten()
        self.lstm = nn.LSTMCell(HEAD_FLAT, MEMORY)
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(self.lstm, name).set_data(read(model, f"prefix.lstm.{name}"))
        self.dense = build_dense(model, "prefix.out")

    def construct(self, state, memory):
        x = self.flatten(self.relu(self.conv(state)))
        memory = self.lstm(x, memory)
        return self.dense(memory[0]), memory


class ScalarToSupport(nn.Cell):
    """Shares of atoms, (..., ATOMS), of transformed scalars."""

    def __init__(self) -> None:
        super().__init__()
        self.on, self.off = Tensor(1.0, ms.float32), Tensor(0.0, ms.float32)

    def choose(self, index):
        """Return ones at atoms."""
        index = ops.minimum(index, ATOMS - 1)
        return ops.one_hot(index, ATOMS, self.on, self.off)

    def construct(self, x):
        x = ops.sign(x) * (ops.sqrt(ops.abs(x) + 1) - 1) + TRANSFORM_EPS * x
        x = ops.clip_by_value(x, -SUPPORT, SUPPORT)
        low = ops.floor(x)
        share = (x - low).expand_dims(-1)
        index = low.astype(ms.int32) + SUPPORT
        return (1 - share) * self.choose(index) + share * self.choose(index + 1)


class Targets(nn.Cell):
    """Targets of values and prefixes, and masks of states and steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.to_support = ScalarToSupport()
        self.are_ends_counted = model.are_ends_counted

    def construct(self, rewards, bootstrap, ends):
        alive = ops.cumprod(1 - ends, 1)
        alive = ops.concat((ops.ones_like(alive[:, :1]), alive), 1)
        counted = rewards * alive[:, :-1]
        values = bootstrap * alive[:, STEPS:] * DISCOUNT**STEPS
        for step in range(STEPS):
            values = values + DISCOUNT**step * counted[:, step : step + UNROLL + 1]
        prefixes = ops.cumsum(counted[:, :UNROLL].reshape(-1, UNROLL // HORIZON, HORIZON), 2)
        prefixes = prefixes.reshape(-1, UNROLL)
        state_mask = alive[:, 1 : UNROLL + 1]
        if self.are_ends_counted:
            state_mask = alive[:, :UNROLL]
        return self.to_support(values), self.to_support(prefixes), state_mask, alive[:, :UNROLL]


class SoftCrossEntropy(nn.Cell):
    """Cross entropy of each row with shares."""

    def __init__(self) -> None:
        super().__init__()
        self.log_softmax = nn.LogSoftmax(axis=-1)

    def construct(self, logits, target):
        return -(target * self.log_softmax(logits)).sum(-1)


class Consistency(nn.Cell):
    """The cosine of predicted and observed states."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        self.projection = nn.SequentialCell(
            build_dense(model, "projection.hidden"),
            build_norm(model, "projection.norm", nn.BatchNorm1d),
            nn.ReLU(),
            build_dense(model, "projection.out"),
        )
        self.predictor = build_mlp(model, "predictor")
        self.normalize = ops.L2Normalize(axis=-1, epsilon=TINY)
        self.are_observed_attached = model.are_observed_attached

    def construct(self, predicted, observed):
        online = self.normalize(self.predictor(self.projection(self.flatten(predicted))))
        target = self.normalize(self.projection(self.flatten(observed)))
        if not self.are_observed_attached:
            target = ops.stop_gradient(target)
        return (online * target).sum(-1)


class MuZeroLoss(nn.Cell):
    """Losses of policies, values, value prefixes and consistency of unrolled states."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.representation, self.dynamics = Representation(model), Dynamics(model)
        self.policy, self.value = Head(model, "policy"), Head(model, "value")
        self.value_prefix = ValuePrefix(model)
        self.consistency = Consistency(model)
        self.targets, self.cross_entropy = Targets(model), SoftCrossEntropy()
        self.step_weight = model.step_weight

    def observe(self, frames, actions, start):
        """Return the observation that begins with a frame."""
        images = frames[:, start : start + FRAMES] / 255
        images = images.reshape(-1, FRAMES * COLORS, HEIGHT, WIDTH)
        planes = actions[:, start : start + FRAMES].astype(ms.float32) / ACTIONS
        planes = planes.reshape(-1, FRAMES, 1, 1)
        planes = ops.broadcast_to(planes, (BATCH, FRAMES, HEIGHT, WIDTH))
        return ops.concat((images, planes), 1)

    def predict(self, state, visits, value_target):
        """Return the losses of policy and value of a state."""
        policy_loss = self.cross_entropy(self.policy(state), visits)
        return policy_loss + VALUE_WEIGHT * self.cross_entropy(self.value(state), value_target)

    def construct(self, frames, actions, visits, rewards, bootstrap, ends, weights):
        targets = self.targets(rewards, bootstrap, ends)
        value_targets, prefix_targets, state_mask, step_mask = targets

        state = self.representation(self.observe(frames, actions, 0))
        loss = self.predict(state, visits[:, 0], value_targets[:, 0])
        states, observations, memory = (), (), None
        for step in range(UNROLL):
            if step % HORIZON == 0:
                zeros = ops.zeros((BATCH, MEMORY), ms.float32)
                memory = (zeros, zeros)
            state = self.dynamics(state, actions[:, FRAMES + step])
            prefix, memory = self.value_prefix(state, memory)
            prefix_loss = self.cross_entropy(prefix, prefix_targets[:, step])
            step_loss = self.predict(state, visits[:, step + 1], value_targets[:, step + 1])
            step_loss = step_loss * state_mask[:, step] + prefix_loss * step_mask[:, step]
            loss = loss + self.step_weight * step_loss
            states += (state,)
            observations += (self.observe(frames, actions, step + 1),)

        observed = self.representation(ops.concat(observations))
        cosine = self.consistency(ops.concat(states), observed).reshape(UNROLL, -1)
        cosine = (cosine * state_mask.swapaxes(0, 1)).sum(0)
        loss = loss - CONSISTENCY_WEIGHT * self.step_weight * cosine
        return (weights * loss).mean()


class WrittenDense(nn.Cell):
    """A linear layer as a product and a sum."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.matrix = Parameter(read(model, f"{path}.weight"), name="matrix")
        self.has_shift = f"{path}.bias" in model.weights
        if self.has_shift:
            self.shift = Parameter(read(model, f"{path}.bias"), name="shift")

    def construct(self, x):
        x = mint.matmul(x, self.matrix.swapaxes(0, 1))
        return x + self.shift if self.has_shift else x


class WrittenNorm(nn.Cell):
    """Batch norm from means."""

    def __init__(self, model: Model, path: str, axes: tuple[int, ...] = (0, 2, 3)) -> None:
        super().__init__()
        gain, shift = (model.weights[f"{path}.{name}"] for name in ("weight", "bias"))
        self.shape, self.axes = (1, -1, *(1 for _ in axes[1:])), axes
        self.gain, self.shift = (
            Parameter(Tensor(gain), name="gain"),
            Parameter(Tensor(shift), name="shift"),
        )

    def construct(self, x):
        centered = x - mint.mean(x, self.axes, True)
        variance = mint.mean(mint.square(centered), self.axes, True)
        normed = centered * mint.rsqrt(variance + EPS)
        return normed * self.gain.reshape(self.shape) + self.shift.reshape(self.shape)


def rescale(state):
    """Return states from 0 to 1."""
    flat = state.reshape(-1, FLAT)
    low = flat.min(1).reshape(-1, 1, 1, 1)
    return (state - low) / (flat.max(1).reshape(-1, 1, 1, 1) - low + TINY)


class WrittenBlock(nn.Cell):
    """The last part of both networks."""

    def __init__(self, model: Model, network: str) -> None:
        super().__init__()
        self.first = build_conv(model, f"{network}.block.0")
        self.first_norm = WrittenNorm(model, f"{network}.block.0.norm")
        self.second = build_conv(model, f"{network}.block.1")
        self.second_norm = WrittenNorm(model, f"{network}.block.1.norm")

    def construct(self, x):
        y = self.first_norm(self.first(x))
        y = self.second_norm(self.second(mint.nn.functional.relu(y)))
        return rescale(mint.nn.functional.relu(x + y))


class WrittenHead(nn.Cell):
    """Logarithms of shares of states."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.mix = build_conv(model, f"{path}.conv")
        self.hidden = WrittenDense(model, f"{path}.hidden")
        self.logits = WrittenDense(model, f"{path}.out")

    def construct(self, state):
        x = mint.nn.functional.relu(self.mix(state)).reshape(-1, HEAD_FLAT)
        return self.logits(mint.nn.functional.relu(self.hidden(x)))


class WrittenCell(nn.Cell):
    """An LSTM's step with one product."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        weights, path = model.weights, "prefix.lstm"
        kernel = np.concatenate([weights[f"{path}.weight_{name}"] for name in ("ih", "hh")], 1)
        self.kernel = Parameter(Tensor(kernel.T.copy()), name="kernel")
        bias = weights[f"{path}.bias_ih"] + weights[f"{path}.bias_hh"]
        self.bias = Parameter(Tensor(bias), name="bias")

    def construct(self, x, hidden, cell):
        gates = mint.matmul(mint.cat((x, hidden), 1), self.kernel) + self.bias
        store = mint.sigmoid(gates[:, :MEMORY])
        keep = mint.sigmoid(gates[:, MEMORY : 2 * MEMORY])
        candidate = mint.tanh(gates[:, 2 * MEMORY : 3 * MEMORY])
        cell = keep * cell + store * candidate
        return mint.sigmoid(gates[:, 3 * MEMORY :]) * mint.tanh(cell), cell


def measure_surprise(logits, shares):
    """Return the cross entropy of each row."""
    logits = logits - ops.stop_gradient(logits.max(-1, keepdims=True))
    total = mint.log(mint.sum(mint.exp(logits), -1))
    return mint.sum(shares, -1) * total - mint.sum(shares * logits, -1)


class WrittenLoss(nn.Cell):
    """The same loss in other steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.see, self.see_norm = (
            build_conv(model, "representation.in", stride=2),
            WrittenNorm(model, "representation.in.norm"),
        )
        self.see_block = WrittenBlock(model, "representation")
        kernel = model.weights["dynamics.in.weight"]
        self.move, self.act = make_conv(kernel[:, :CHANNELS]), make_conv(kernel[:, CHANNELS:])
        self.move_norm = WrittenNorm(model, "dynamics.in.norm")
        self.move_block = WrittenBlock(model, "dynamics")
        self.actor, self.critic = WrittenHead(model, "policy"), WrittenHead(model, "value")
        self.reward_mix, self.cell = build_conv(model, "prefix.conv"), WrittenCell(model)
        self.reward_logits = WrittenDense(model, "prefix.out")
        self.project1 = WrittenDense(model, "projection.hidden")
        self.project_norm = WrittenNorm(model, "projection.norm", (0,))
        self.project2 = WrittenDense(model, "projection.out")
        self.predict1 = WrittenDense(model, "predictor.hidden")
        self.predict2 = WrittenDense(model, "predictor.out")
        self.atoms = Tensor(np.arange(-SUPPORT, SUPPORT + 1, dtype=np.float32))
        self.action_numbers = Tensor(np.arange(ACTIONS, dtype=np.int32))
        self.image_plane = Tensor(np.ones((1, 1, HEIGHT, WIDTH), np.float32))
        self.state_plane = Tensor(np.ones((1, 1, ROWS, COLUMNS), np.float32))

    def represent(self, frames, actions, state_number):
        """Return an observation."""
        images = frames[:, state_number : state_number + FRAMES]
        images = images.reshape(BATCH, FRAMES * COLORS, HEIGHT, WIDTH) * (1 / 255)
        planes = actions[:, state_number : state_number + FRAMES].astype(ms.float32)
        planes = (planes / ACTIONS).reshape(BATCH, FRAMES, 1, 1) * self.image_plane
        return mint.cat((images, planes), 1)

    def encode(self, observation):
        """Return states of observations."""
        return self.see_block(mint.nn.functional.relu(self.see_norm(self.see(observation))))

    def advance(self, state, action):
        """Return the states behind an action."""
        state = state * STATE_GRADIENT + ops.stop_gradient(state) * (1 - STATE_GRADIENT)
        one_hot = (action.expand_dims(1) == self.action_numbers).astype(ms.float32)
        planes = one_hot.reshape(BATCH, ACTIONS, 1, 1) * self.state_plane
        x = self.move_norm(self.move(state) + self.act(planes))
        return self.move_block(mint.nn.functional.relu(state + x))

    def spread(self, scalar):
        """Return shares of atoms by their distance from a transformed scalar."""
        size = mint.abs(scalar)
        scalar = mint.sign(scalar) * (mint.sqrt(size + 1) - 1 + TRANSFORM_EPS * size)
        scalar = mint.clamp(scalar, -SUPPORT, SUPPORT)
        distance = mint.abs(scalar.expand_dims(-1) - self.atoms)
        return mint.nn.functional.relu(1 - distance)

    def project(self, state):
        """Return projections of states."""
        x = self.project_norm(self.project1(state.reshape(-1, FLAT)))
        return self.project2(mint.nn.functional.relu(x))

    def measure_likeness(self, predicted, observed):
        """Return cosines."""
        observed = ops.stop_gradient(self.project(observed))
        online = self.predict2(mint.nn.functional.relu(self.predict1(self.project(predicted))))
        product = mint.sum(online * observed, -1)
        squares = mint.sum(mint.square(online), -1) * mint.sum(mint.square(observed), -1)
        return product * mint.rsqrt(squares)

    def construct(self, frames, actions, visits, rewards, bootstrap, ends, weights):
        alive, counts, rewards_counted = mint.ones_like(weights), (), ()
        for step in range(UNROLL + STEPS):
            counts += (alive,)
            rewards_counted += (alive * rewards[:, step],)
            alive = alive * (1 - ends[:, step])
        counts += (alive,)

        values = ()
        for number in range(UNROLL + 1):
            value = counts[number + STEPS] * bootstrap[:, number]
            for step in range(STEPS - 1, -1, -1):
                value = rewards_counted[number + step] + DISCOUNT * value
            values += (self.spread(value),)

        state = self.encode(self.represent(frames, actions, 0))
        root = measure_surprise(self.actor(state), visits[:, 0])
        root = root + VALUE_WEIGHT * measure_surprise(self.critic(state), values[0])
        prefix, hidden, cell, steps, states, seen = 0.0, 0.0, 0.0, 0.0, (), ()
        for number in range(1, UNROLL + 1):
            state = self.advance(state, actions[:, FRAMES + number - 1])
            surprise = measure_surprise(self.actor(state), visits[:, number])
            value_surprise = measure_surprise(self.critic(state), values[number])
            surprise = surprise + VALUE_WEIGHT * value_surprise

            if number % HORIZON == 1:
                prefix = mint.zeros_like(weights)
                hidden = cell = ops.zeros((BATCH, MEMORY), ms.float32)
            prefix = prefix + rewards_counted[number - 1]
            features = mint.nn.functional.relu(self.reward_mix(state)).reshape(-1, HEAD_FLAT)
            hidden, cell = self.cell(features, hidden, cell)
            prefix_surprise = measure_surprise(self.reward_logits(hidden), self.spread(prefix))
            steps = steps + counts[number] * surprise + counts[number - 1] * prefix_surprise
            states += (state,)
            seen += (self.represent(frames, actions, number),)

        likeness = self.measure_likeness(mint.cat(states, 0), self.encode(mint.cat(seen, 0)))
        likeness = likeness.reshape(UNROLL, BATCH) * ops.stack(counts[1 : UNROLL + 1])
        steps = steps - CONSISTENCY_WEIGHT * mint.sum(likeness, 0)
        return mint.sum(weights * (root + steps / UNROLL)) / BATCH
