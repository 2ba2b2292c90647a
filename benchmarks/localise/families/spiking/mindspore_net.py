"""The spiking transformer in MindSpore for graph mode, spikes as cells with their own bprop.

Variant 'written': the image passes the stem's convolution once, norms and losses from reductions,
spikes from a stopped difference, keys times values first, tokens as rows of one matrix.
"""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from families.spiking.architecture import (
    ACTIVITY,
    ALPHA,
    BATCH,
    BLOCKS,
    BRANCH_ALPHA,
    CLASSES,
    CONV_THRESHOLD,
    DECAY,
    DISTILLATION,
    EPS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    LAYERS,
    MARGIN,
    MARGIN_SHARE,
    MOMENTUM,
    RATE,
    READOUT_DECAY,
    SCALE,
    SLOPE,
    STEPS,
    TEMPERATURE,
    TOKEN_THRESHOLD,
    TOKENS,
    Model,
)

IMAGES = STEPS * BATCH


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return WrittenLoss(model) if model.variant == "written" else SNNWithLoss(model)


def read(model: Model, name: str) -> Tensor:
    """Return a weight."""
    return Tensor(np.ascontiguousarray(model.weights[name]))


def build_conv(model: Model, path: str, stride: int = 1) -> nn.Conv2d:
    """Return the convolution at ``path``; one with one channel per kernel is depthwise."""
    weight = read(model, f"{path}.weight")
    n_out, n_in, kernel, _ = weight.shape
    group = n_out if n_in == 1 else 1
    return nn.Conv2d(
        n_in * group,
        n_out,
        kernel,
        stride,
        pad_mode="pad",
        padding=kernel // 2,
        group=group,
        weight_init=weight,
    )


def build_dense(model: Model, path: str, *, has_bias: bool = False) -> nn.Dense:
    """Return the linear layer at ``path``."""
    weight = read(model, f"{path}.weight")
    bias = read(model, f"{path}.bias") if has_bias else None
    return nn.Dense(
        weight.shape[1], weight.shape[0], weight_init=weight, bias_init=bias, has_bias=has_bias
    )


def fire(z, is_exclusive):
    """Return spikes where z is not negative, or where it is positive."""
    fired = ops.greater(z, 0) if is_exclusive else ops.greater_equal(z, 0)
    return fired.astype(ms.float32)


class ATanSpike(nn.Cell):
    """Spikes with the derivative of an arctan."""

    def __init__(self, *, is_exclusive: bool) -> None:
        super().__init__()
        self.is_exclusive = is_exclusive

    def construct(self, z):
        return fire(z, self.is_exclusive)

    def bprop(self, z, out, dout):
        return (dout * (ALPHA / 2) / (1 + ops.square(math.pi / 2 * ALPHA * z)),)


class FastSigmoidSpike(nn.Cell):
    """Spikes with the derivative of a fast sigmoid."""

    def __init__(self, slope: float, *, is_exclusive: bool) -> None:
        super().__init__()
        self.slope = slope
        self.is_exclusive = is_exclusive

    def construct(self, z):
        return fire(z, self.is_exclusive)

    def bprop(self, z, out, dout):
        return (dout / ops.square(1 + self.slope * ops.abs(z)),)


class PLIFNeuron(nn.Cell):
    """Neurons of channels that learn how fast they leak; refractory for one step."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.leak = Parameter(read(model, f"{path}.leak"), name="leak")
        self.spike = ATanSpike(is_exclusive=model.is_threshold_exclusive)
        self.is_reset_hard = model.is_reset_hard

    def construct(self, x):
        gain = ops.sigmoid(self.leak).reshape(-1, 1, 1)
        decay = 1 - gain
        u = ops.zeros_like(x[0])
        active = ops.ones_like(u)
        spikes = ()
        for t in range(STEPS):
            v = decay * u + gain * x[t]
            s = self.spike(v - CONV_THRESHOLD) * active
            spikes += (s,)
            s = ops.stop_gradient(s)
            active = 1 - s
            u = v * (1 - s) if self.is_reset_hard else v - CONV_THRESHOLD * s
        return ops.stack(spikes)


class LIFNeuron(nn.Cell):
    """Neurons of tokens; hard reset."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        is_exclusive = model.is_threshold_exclusive
        self.spike = FastSigmoidSpike(model.slope, is_exclusive=is_exclusive)

    def construct(self, x):
        u = ops.zeros_like(x[0])
        spikes = ()
        for t in range(STEPS):
            v = DECAY * u + x[t]
            s = self.spike(v - TOKEN_THRESHOLD)
            spikes += (s,)
            u = v * (1 - ops.stop_gradient(s))
        return ops.stack(spikes)


class ThresholdNorm(nn.Cell):
    """Batch norm over time and batch, times alpha and the threshold, of (images, channels, ...)."""

    def __init__(self, model: Model, path: str, alpha: float, threshold: float, rank: int) -> None:
        super().__init__()
        self.gamma = Parameter(read(model, f"{path}.weight"), name="gamma")
        self.beta = Parameter(read(model, f"{path}.bias"), name="beta")
        norm_class = nn.BatchNorm2d if rank == 4 else nn.BatchNorm1d
        channels = len(model.weights[f"{path}.weight"])
        self.bn = norm_class(channels, eps=EPS, momentum=1 - MOMENTUM, affine=False)
        self.scale = alpha * threshold if model.is_norm_scaled else 1.0
        self.shape = (-1, 1, 1) if rank == 4 else (-1,)

    def construct(self, x):
        x = self.bn(x) * self.scale
        return x * self.gamma.reshape(self.shape) + self.beta.reshape(self.shape)


class ConvLayer(nn.Cell):
    """A convolution, its norm and its neurons, of (STEPS, batch, channels, height, width)."""

    def __init__(self, model: Model, path: str, stride: int = 1, alpha: float = 1.0) -> None:
        super().__init__()
        self.conv = build_conv(model, path, stride)
        self.norm = ThresholdNorm(model, f"{path}.norm", alpha, CONV_THRESHOLD, 4)
        self.neuron = PLIFNeuron(model, path)

    def construct(self, x):
        x = self.norm(self.conv(x.reshape(IMAGES, *x.shape[2:])))
        spikes = self.neuron(x.reshape(STEPS, BATCH, *x.shape[1:]))
        return spikes, compute_activity(spikes, (0, 1, 3, 4))


class TokenLayer(nn.Cell):
    """A linear layer, its norm and its neurons, of (STEPS, batch, TOKENS, features)."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.dense = build_dense(model, path)
        self.norm = ThresholdNorm(model, f"{path}.norm", 1.0, TOKEN_THRESHOLD, 2)
        self.neuron = LIFNeuron(model)

    def construct(self, x):
        x = self.dense(x)
        spikes = self.neuron(self.norm(x.reshape(-1, x.shape[-1])).reshape(x.shape))
        return spikes, compute_activity(spikes, (0, 1, 2))


def compute_activity(spikes, axes):
    """Return how far the rates of channels are from RATE."""
    return ops.square(spikes.mean(axes) - RATE).mean()


class SEWBlock(nn.Cell):
    """Two layers, whose spikes are added to those that come in."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path, stride = f"blocks.{n}", BLOCKS[n][2]
        self.layer1 = ConvLayer(model, f"{path}.first", stride, BRANCH_ALPHA)
        self.layer2 = ConvLayer(model, f"{path}.second", 1, BRANCH_ALPHA)
        self.has_shortcut = stride > 1
        if self.has_shortcut:
            self.shortcut = ConvLayer(model, f"{path}.shortcut", stride, BRANCH_ALPHA)

    def construct(self, x):
        y, activity1 = self.layer1(x)
        y, activity2 = self.layer2(y)
        activity = activity1 + activity2
        if self.has_shortcut:
            x, activity3 = self.shortcut(x)
            activity = activity + activity3
        return x + y, activity


class SpikingAttention(nn.Cell):
    """Attention of spikes, without softmax."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.q = TokenLayer(model, "attention.q")
        self.k = TokenLayer(model, "attention.k")
        self.v = TokenLayer(model, "attention.v")
        self.neuron = LIFNeuron(model)
        self.proj = TokenLayer(model, "attention.out")
        self.are_heads_merged_plain = model.are_heads_merged_plain

    def split(self, x):
        """Return (images, HEADS, TOKENS, HEAD_DIM)."""
        return x.reshape(IMAGES, TOKENS, HEADS, HEAD_DIM).transpose(0, 2, 1, 3)

    def construct(self, x):
        q, activity1 = self.q(x)
        k, activity2 = self.k(x)
        v, activity3 = self.v(x)
        scores = ops.matmul(self.split(q), self.split(k).swapaxes(-1, -2)) * SCALE
        context = ops.matmul(scores, self.split(v))
        if not self.are_heads_merged_plain:
            context = context.transpose(0, 2, 1, 3)
        context = self.neuron(context.reshape(STEPS, BATCH, TOKENS, HIDDEN))
        activity4 = compute_activity(context, (0, 1, 2))
        out, activity5 = self.proj(context)
        return out, activity1 + activity2 + activity3 + activity4 + activity5


class SpikingMLP(nn.Cell):
    """Two layers of tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.up = TokenLayer(model, "mlp.up")
        self.down = TokenLayer(model, "mlp.down")

    def construct(self, x):
        x, activity1 = self.up(x)
        x, activity2 = self.down(x)
        return x, activity1 + activity2


class LeakyReadout(nn.Cell):
    """Potentials of neurons that do not spike."""

    def construct(self, x):
        potential = x[0]
        potentials = (potential,)
        for t in range(1, STEPS):
            potential = READOUT_DECAY * potential + x[t]
            potentials += (potential,)
        return ops.stack(potentials)


class SpikingTransformer(nn.Cell):
    """Potentials of the classes (STEPS, batch, CLASSES), and the mean activity of layers."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.stem = ConvLayer(model, "stem")
        self.pool = nn.AvgPool2d(kernel_size=2, stride=2)
        self.blocks = nn.CellList([SEWBlock(model, n) for n in range(len(BLOCKS))])
        self.position = ConvLayer(model, "position")
        self.attention = SpikingAttention(model)
        self.mlp = SpikingMLP(model)
        self.head = build_dense(model, "head", has_bias=True)
        self.readout = LeakyReadout()

    def construct(self, images):
        x = ops.tile(images.expand_dims(0), (STEPS, 1, 1, 1, 1))
        x, activity = self.stem(x)
        x = self.pool(x.reshape(IMAGES, *x.shape[2:]))
        x = x.reshape(STEPS, BATCH, *x.shape[1:])
        for block in self.blocks:
            x, block_activity = block(x)
            activity = activity + block_activity
        y, position_activity = self.position(x)
        x = (x + y).reshape(STEPS, BATCH, HIDDEN, TOKENS).transpose(0, 1, 3, 2)
        y, attention_activity = self.attention(x)
        x = x + y
        y, mlp_activity = self.mlp(x)
        x = x + y
        activity = activity + position_activity + attention_activity + mlp_activity
        return self.readout(self.head(x.mean(2))), activity / LAYERS


class SNNWithLoss(nn.Cell):
    """Loss of all time steps, of a teacher and of the rates of neurons."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = SpikingTransformer(model)
        self.cross_entropy = nn.CrossEntropyLoss()
        self.mse = nn.MSELoss()
        self.kl_div = nn.KLDivLoss(reduction="batchmean")
        self.is_time_averaged_first = model.is_time_averaged_first

    def construct(self, images, labels, teacher_logits):
        outputs, activity = self.network(images)
        mean_output = outputs.mean(0)
        if self.is_time_averaged_first:
            cross_entropy = self.cross_entropy(mean_output, labels)
        else:
            cross_entropy = 0.0
            for t in range(STEPS):
                cross_entropy = cross_entropy + self.cross_entropy(outputs[t], labels)
            cross_entropy = cross_entropy / STEPS
        margin = self.mse(outputs, ops.full_like(outputs, MARGIN))
        student = ops.log_softmax(mean_output / TEMPERATURE, axis=-1)
        teacher = ops.softmax(teacher_logits / TEMPERATURE, axis=-1)
        divergence = TEMPERATURE**2 * self.kl_div(student, teacher)
        loss = (1 - MARGIN_SHARE) * cross_entropy + MARGIN_SHARE * margin
        return loss + DISTILLATION * divergence + ACTIVITY * activity


class WrittenSpike(nn.Cell):
    """Spikes plus a surrogate less itself without a gradient."""

    def __init__(self, *, is_arctan: bool) -> None:
        super().__init__()
        self.is_arctan = is_arctan

    def construct(self, z):
        if self.is_arctan:
            soft = ops.atan(z * (math.pi / 2 * ALPHA)) * (1 / math.pi)
        else:
            soft = z / (1 + SLOPE * ops.abs(z))
        return soft - ops.stop_gradient(soft) + ops.cast(z >= 0, ms.float32)


class WrittenConvNeurons(nn.Cell):
    """PLIF neurons whose potential takes a step towards the input."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        leak = model.weights[f"{path}.leak"].reshape(1, -1, 1, 1)
        self.w = Parameter(Tensor(leak), name="w")
        self.fire = WrittenSpike(is_arctan=True)

    def construct(self, currents):
        inverse_tau = 1 / (1 + ops.exp(-self.w))
        membrane = currents[0] * inverse_tau
        fired = self.fire(membrane - CONV_THRESHOLD)
        outputs = [fired]
        for current in currents[1:]:
            last = ops.stop_gradient(fired)
            membrane = membrane - last * CONV_THRESHOLD
            membrane = membrane + inverse_tau * (current - membrane)
            fired = self.fire(membrane - CONV_THRESHOLD)
            fired = ops.where(last > 0, ops.zeros_like(fired), fired)
            outputs.append(fired)
        return outputs


class WrittenTokenNeurons(nn.Cell):
    """LIF neurons of a list of currents, one of each time step."""

    def __init__(self) -> None:
        super().__init__()
        self.fire = WrittenSpike(is_arctan=False)

    def construct(self, currents):
        membrane = currents[0]
        fired = self.fire(membrane - TOKEN_THRESHOLD)
        outputs = [fired]
        for current in currents[1:]:
            kept = ops.where(fired > 0, ops.zeros_like(membrane), membrane)
            membrane = current + kept * DECAY
            fired = self.fire(membrane - TOKEN_THRESHOLD)
            outputs.append(fired)
        return outputs


class WrittenNorm(nn.Cell):
    """tdBN from reductions."""

    def __init__(self, model: Model, path: str, scale: float, rank: int) -> None:
        super().__init__()
        shape = (1, -1, 1, 1) if rank == 4 else (1, -1)
        self.weight = Parameter(Tensor(model.weights[f"{path}.weight"].reshape(shape)))
        self.bias = Parameter(Tensor(model.weights[f"{path}.bias"].reshape(shape)))
        self.axes = (0, 2, 3) if rank == 4 else (0,)
        self.scale = scale

    def construct(self, x):
        centered = x - x.mean(self.axes, keep_dims=True)
        variance = (centered * centered).mean(self.axes, keep_dims=True)
        return centered * (self.weight * self.scale * ops.rsqrt(variance + EPS)) + self.bias


class WrittenConvLayer(nn.Cell):
    """Lists of spikes from a list of inputs, one of each time step."""

    def __init__(self, model: Model, path: str, stride: int = 1, alpha: float = 1.0) -> None:
        super().__init__()
        self.kernel = build_conv(model, path, stride)
        self.tdbn = WrittenNorm(model, f"{path}.norm", alpha * CONV_THRESHOLD, 4)
        self.plif = WrittenConvNeurons(model, path)

    def construct(self, x):
        currents = self.tdbn(self.kernel(ops.concat(x, 0)))
        if len(x) == 1:  # the image, which is the same at each step
            return self.plif([currents] * STEPS)
        return self.plif(ops.split(currents, BATCH, 0))


class WrittenTokenLayer(nn.Cell):
    """The same of tokens, rows of (batch * TOKENS, features)."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.weight = Parameter(read(model, f"{path}.weight"), name="weight")
        self.tdbn = WrittenNorm(model, f"{path}.norm", TOKEN_THRESHOLD, 2)
        self.lif = WrittenTokenNeurons()

    def construct(self, x):
        currents = self.tdbn(ops.matmul(ops.concat(x, 0), self.weight.T))
        return self.lif(ops.split(currents, BATCH * TOKENS, 0))


def add(first, second):
    """Return the sums of two lists."""
    return [first[t] + second[t] for t in range(STEPS)]


class WrittenBlock(nn.Cell):
    """A block of two convolutions, whose spikes are returned, too."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path, stride = f"blocks.{n}", BLOCKS[n][2]
        self.conv_a = WrittenConvLayer(model, f"{path}.first", stride, BRANCH_ALPHA)
        self.conv_b = WrittenConvLayer(model, f"{path}.second", 1, BRANCH_ALPHA)
        self.down = None
        if stride > 1:
            self.down = WrittenConvLayer(model, f"{path}.shortcut", stride, BRANCH_ALPHA)

    def construct(self, x):
        a = self.conv_a(x)
        b = self.conv_b(a)
        if self.down is None:
            return add(b, x), [a, b]
        c = self.down(x)
        return add(b, c), [a, b, c]


def measure(spikes):
    """Return how far the rates of columns or channels are from RATE."""
    axes = (0, 2, 3) if spikes[0].ndim == 4 else (0,)
    rates = 0.0
    for t in range(STEPS):
        rates = rates + spikes[t].mean(axes)
    errors = rates / STEPS - RATE
    return (errors * errors).mean()


class WrittenAttention(nn.Cell):
    """Queries times the product of keys and values."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.query = WrittenTokenLayer(model, "attention.q")
        self.key = WrittenTokenLayer(model, "attention.k")
        self.value = WrittenTokenLayer(model, "attention.v")
        self.lif = WrittenTokenNeurons()
        self.output = WrittenTokenLayer(model, "attention.out")

    def attend(self, q, k, v):
        """Return the context of one time step."""
        q = q.reshape(BATCH, TOKENS, HEADS, HEAD_DIM).transpose(0, 2, 1, 3)
        k = k.reshape(BATCH, TOKENS, HEADS, HEAD_DIM).transpose(0, 2, 3, 1)
        v = v.reshape(BATCH, TOKENS, HEADS, HEAD_DIM).transpose(0, 2, 1, 3)
        context = ops.matmul(q * SCALE, ops.matmul(k, v)).transpose(0, 2, 1, 3)
        return context.reshape(BATCH * TOKENS, HIDDEN)

    def construct(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        context = self.lif([self.attend(q[t], k[t], v[t]) for t in range(STEPS)])
        out = self.output(context)
        return add(x, out), [q, k, v, context, out]


class WrittenTransformer(nn.Cell):
    """Logits of each time step, and the activity of all layers."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encode = WrittenConvLayer(model, "stem")
        self.stages = nn.CellList([WrittenBlock(model, n) for n in range(len(BLOCKS))])
        self.relative = WrittenConvLayer(model, "position")
        self.ssa = WrittenAttention(model)
        self.expand = WrittenTokenLayer(model, "mlp.up")
        self.contract = WrittenTokenLayer(model, "mlp.down")
        self.classify = build_dense(model, "head", has_bias=True)

    def pool(self, x):
        """Return means of 2x2 pixels."""
        n_batch, channels, height, width = x.shape
        return x.reshape(n_batch, channels, height // 2, 2, width // 2, 2).mean((3, 5))

    def flatten(self, x):
        """Return tokens as rows."""
        return x.transpose(0, 2, 3, 1).reshape(BATCH * TOKENS, HIDDEN)

    def construct(self, images):
        spikes = self.encode([images])
        layers = [spikes]
        x = [self.pool(s) for s in spikes]
        for stage in self.stages:
            x, stage_layers = stage(x)
            layers = [*layers, *stage_layers]
        positions = self.relative(x)
        x = [self.flatten(s) for s in add(x, positions)]
        x, attention_layers = self.ssa(x)
        hidden = self.expand(x)
        down = self.contract(hidden)
        layers = [*layers, positions, *attention_layers, hidden, down]
        x = ops.stack(add(x, down)).reshape(STEPS, BATCH, TOKENS, HIDDEN)
        activity = 0.0
        for layer in layers:
            activity = activity + measure(layer)
        return self.classify(x.sum(2) / TOKENS), activity / LAYERS


class WrittenLoss(nn.Cell):
    """The same loss from reductions."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.backbone = WrittenTransformer(model)
        steps = np.arange(STEPS)
        decays = np.tril(READOUT_DECAY ** np.abs(steps[:, None] - steps))
        self.decays = Tensor(decays.astype(np.float32))
        self.eye = Tensor(np.eye(CLASSES, dtype=np.float32))

    def construct(self, images, labels, teacher_logits):
        logits, activity = self.backbone(images)
        outputs = ops.matmul(self.decays, logits.reshape(STEPS, -1)).reshape(STEPS * BATCH, CLASSES)
        one_hot = ops.tile(ops.gather(self.eye, labels, 0), (STEPS, 1))
        cross_entropy = (ops.logsumexp(outputs, 1) - (outputs * one_hot).sum(1)).mean()
        loss = cross_entropy + MARGIN_SHARE * (ops.pow(outputs - MARGIN, 2).mean() - cross_entropy)

        student = outputs.reshape(STEPS, BATCH, CLASSES).mean(0) / TEMPERATURE
        teacher = teacher_logits / TEMPERATURE
        log_ratios = teacher - student
        shares = ops.softmax(teacher, axis=-1)
        divergence = (shares * log_ratios).sum(-1)
        divergence = divergence - ops.logsumexp(teacher, 1) + ops.logsumexp(student, 1)
        loss = loss + DISTILLATION * TEMPERATURE**2 * divergence.mean()
        return loss + ACTIVITY * activity
