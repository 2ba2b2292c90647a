"""The capsule network in MindSpore for graph mode.

Variant 'written': poses and activations from one convolution, votes as sums of products, softmax
and norms in plain arithmetic, losses from differences.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from families.capsule.architecture import (
    BATCH,
    CELLS,
    CHANNELS,
    CLASS_DIM,
    CLASSES,
    COLUMNS,
    COORDINATE,
    DEVIATION,
    DIM,
    DOWN_WEIGHT,
    ENTROPY,
    EPS,
    HEIGHT,
    LOWER,
    MARGIN_STEPS,
    MEAN,
    MIXER_ROUTINGS,
    NORM_EPS,
    RECONSTRUCTION,
    ROUTINGS,
    ROWS,
    SPREAD_WEIGHT,
    STRIDE,
    TYPES,
    UPPER,
    WIDTH,
    Model,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return WrittenLoss(model) if model.variant == "written" else CapsuleWithLoss(model)


def read(model: Model, name: str) -> Tensor:
    """Return a weight."""
    return Tensor(np.ascontiguousarray(model.weights[name]))


def build_conv(weight: np.ndarray, bias: np.ndarray) -> nn.Conv2d:
    """Return a convolution with stride 2."""
    n_out, n_in, kernel, _ = weight.shape
    return nn.Conv2d(
        n_in,
        n_out,
        kernel,
        2,
        pad_mode="pad",
        padding=kernel // 2,
        has_bias=True,
        weight_init=Tensor(weight),
        bias_init=Tensor(bias),
    )


def load_conv(model: Model, path: str) -> nn.Conv2d:
    """Return the convolution at a path."""
    return build_conv(model.weights[f"{path}.weight"], model.weights[f"{path}.bias"])


def load_dense(model: Model, path: str, activation: str | None = None) -> nn.Dense:
    """Return the linear layer at a path."""
    weight, bias = read(model, f"{path}.weight"), read(model, f"{path}.bias")
    n_out, n_in = weight.shape
    return nn.Dense(n_in, n_out, weight_init=weight, bias_init=bias, activation=activation)


def make_coordinates() -> np.ndarray:
    """Return rows and columns of the centers of cells (CELLS, CLASS_DIM), 0 behind them."""
    rows, columns = (np.arange(n) + 0.5 for n in (ROWS, COLUMNS))
    grid = np.stack(np.meshgrid(rows / ROWS, columns / COLUMNS, indexing="ij"), -1)
    coordinates = COORDINATE * grid.reshape(CELLS, 2)
    return np.pad(coordinates, ((0, 0), (0, CLASS_DIM - 2))).astype(np.float32)


class Squash(nn.Cell):
    """Capsules with lengths below 1."""

    def construct(self, x):
        squared_norm = ops.square(x).sum(-1, keepdims=True)
        scale = squared_norm / (1 + squared_norm)
        return scale * x / ops.sqrt(squared_norm + EPS)


class PrimaryCapsules(nn.Cell):
    """Poses (batch, TYPES, CELLS, DIM) and activations (batch, TYPES, CELLS)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.pose_conv = load_conv(model, "primary.pose")
        self.gate_conv = load_conv(model, "primary.gate")
        self.squash = Squash()
        self.sigmoid = nn.Sigmoid()

    def construct(self, x):
        pose = self.pose_conv(x).reshape(BATCH, TYPES, DIM, CELLS).transpose(0, 1, 3, 2)
        activation = self.sigmoid(self.gate_conv(x)).reshape(BATCH, TYPES, CELLS)
        return self.squash(pose), activation


class DotProductRouting(nn.Cell):
    """Capsules of a cell plus what their votes agree on."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.weight = Parameter(read(model, "mixer.weight"), name="weight")
        self.layer_norm = nn.LayerNorm(
            (DIM,),
            gamma_init=read(model, "mixer.norm.weight"),
            beta_init=read(model, "mixer.norm.bias"),
            epsilon=NORM_EPS,
        )
        self.softmax = nn.Softmax(axis=2)
        self.scale = DIM**-0.5

    def construct(self, pose):
        # (batch, TYPES, TYPES of the result, CELLS, DIM)
        votes = ops.matmul(pose.expand_dims(2), self.weight.swapaxes(-1, -2))
        out = self.layer_norm(votes.mean(1))
        for _ in range(MIXER_ROUTINGS - 1):
            agreement = (votes * out.expand_dims(1)).sum(-1) * self.scale
            coupling = self.softmax(agreement)
            out = self.layer_norm((coupling.expand_dims(-1) * votes).sum(1))
        return pose + out


class ClassCapsules(nn.Cell):
    """Capsules (batch, CLASSES, CLASS_DIM) and their couplings (batch, CLASSES, TYPES, CELLS)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.weight = Parameter(read(model, "classes.weight"), name="weight")
        self.prior = Parameter(read(model, "classes.prior"), name="prior")
        self.coordinates = Tensor(make_coordinates())
        self.squash = Squash()
        self.are_inputs_normalized = model.are_inputs_normalized
        self.are_logits_replaced = model.are_logits_replaced
        self.are_votes_detached = model.are_votes_detached

    def normalize(self, logits):
        """Return couplings."""
        if self.are_inputs_normalized:
            flat_logits = logits.reshape(BATCH, CLASSES, TYPES * CELLS)
            return ops.softmax(flat_logits, axis=2).reshape(logits.shape)
        return ops.softmax(logits, axis=1)

    def construct(self, pose, activation):
        votes = ops.matmul(pose.expand_dims(1), self.weight.swapaxes(-1, -2)) + self.coordinates
        stopped_votes = ops.stop_gradient(votes) if self.are_votes_detached else votes
        logits = ops.broadcast_to(self.prior.expand_dims(-1), votes.shape[:-1])
        for _ in range(ROUTINGS - 1):
            weight = self.normalize(logits) * activation.expand_dims(1)
            capsules = self.squash((weight.expand_dims(-1) * stopped_votes).sum((2, 3)))
            agreement = (stopped_votes * capsules.reshape(BATCH, CLASSES, 1, 1, CLASS_DIM)).sum(-1)
            logits = agreement if self.are_logits_replaced else logits + agreement
        coupling = self.normalize(logits)
        weight = coupling * activation.expand_dims(1)
        return self.squash((weight.expand_dims(-1) * votes).sum((2, 3))), coupling


class Decoder(nn.Cell):
    """The image from the capsule of a label."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.layers = nn.SequentialCell(
            load_dense(model, "decoder.0", "relu"),
            load_dense(model, "decoder.1", "relu"),
            load_dense(model, "decoder.2", "sigmoid"),
        )

    def construct(self, capsules, one_hot):
        masked = capsules * one_hot.expand_dims(-1)
        return self.layers(masked.reshape(BATCH, -1)).reshape(BATCH, CHANNELS, HEIGHT, WIDTH)


class CapsuleNet(nn.Cell):
    """Capsules of classes, couplings, and the image from the capsule of the label."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv1 = load_conv(model, "stem")
        self.relu = nn.ReLU()
        self.primary = PrimaryCapsules(model)
        self.mixer = DotProductRouting(model)
        self.digit = ClassCapsules(model)
        self.decoder = Decoder(model)
        self.mean = Tensor(np.array(MEAN, np.float32).reshape(1, 3, 1, 1))
        self.std = Tensor(np.array(DEVIATION, np.float32).reshape(1, 3, 1, 1))
        self.is_padding_routed = model.is_padding_routed

    def construct(self, images, cell_mask, one_hot):
        x = self.relu(self.conv1((images - self.mean) / self.std))
        pose, activation = self.primary(x)
        if not self.is_padding_routed:
            activation = activation * cell_mask.expand_dims(1)
        capsules, coupling = self.digit(self.mixer(pose), activation)
        return capsules, coupling, self.decoder(capsules, one_hot)


class PaddingMask(nn.Cell):
    """1 where a grid of points is inside of an image, else 0."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.rows = Tensor(np.arange(0, HEIGHT, stride, dtype=np.int32).reshape(1, -1, 1))
        self.columns = Tensor(np.arange(0, WIDTH, stride, dtype=np.int32).reshape(1, 1, -1))

    def construct(self, sizes):
        height, width = sizes[:, 0].reshape(-1, 1, 1), sizes[:, 1].reshape(-1, 1, 1)
        inside = ops.logical_and(self.rows < height, self.columns < width)
        return inside.astype(ms.float32)


class MarginLoss(nn.Cell):
    """Lengths above UPPER for the label, below LOWER for other classes."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.down_weight = model.down_weight

    def construct(self, lengths, one_hot):
        present = ops.square(ops.relu(UPPER - lengths))
        absent = ops.square(ops.relu(lengths - LOWER))
        loss = one_hot * present + self.down_weight * (1 - one_hot) * absent
        return loss.sum(1).mean()


class SpreadLoss(nn.Cell):
    """The label's length above all others by a margin that grows with the step."""

    def construct(self, lengths, one_hot, step):
        progress = ops.minimum(step.astype(ms.float32) / MARGIN_STEPS - 4, 10.0)
        margin = 0.2 + 0.79 * ops.sigmoid(progress)
        target = (lengths * one_hot).sum(1, keepdims=True)
        loss = ops.square(ops.relu(margin - (target - lengths))) * (1 - one_hot)
        return loss.sum(1).mean()


class CapsuleWithLoss(nn.Cell):
    """The sum of all losses."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.network = CapsuleNet(model)
        self.cell_mask = PaddingMask(STRIDE)
        self.pixel_mask = PaddingMask(1)
        self.one_hot = nn.OneHot(depth=CLASSES)
        self.margin_loss = MarginLoss(model)
        self.spread_loss = SpreadLoss()

    def construct(self, images, sizes, labels, step):
        cell_mask = self.cell_mask(sizes).reshape(BATCH, CELLS)
        one_hot = self.one_hot(labels)
        capsules, coupling, decoded = self.network(images, cell_mask, one_hot)
        lengths = ops.sqrt(ops.square(capsules).sum(-1) + EPS)
        loss = self.margin_loss(lengths, one_hot)
        loss += SPREAD_WEIGHT * self.spread_loss(lengths, one_hot, step)
        error = ops.square(decoded - images) * self.pixel_mask(sizes).expand_dims(1)
        loss += RECONSTRUCTION * error.sum((1, 2, 3)).mean()
        entropy = -(coupling * ops.log(coupling)).sum(1) * cell_mask.expand_dims(1)
        return loss + ENTROPY * entropy.sum() / (TYPES * cell_mask.sum())


def shorten(x, axis):
    """Return vectors along an axis, squashed."""
    square = mint.sum(x * x, axis, keepdim=True)
    return x * (mint.sqrt(square + EPS) * mint.reciprocal(1 + square))


def couple(logits, axis):
    """Return shares along an axis and their logarithms."""
    logits = logits - ops.stop_gradient(mint.amax(logits, axis, keepdim=True))
    logarithm = logits - mint.log(mint.sum(mint.exp(logits), axis, keepdim=True))
    return mint.exp(logarithm), logarithm


class WrittenMixer(nn.Cell):
    """The residual layer, of (batch, TYPES, DIM, CELLS)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.kernel = Parameter(read(model, "mixer.weight").expand_dims(-1), name="kernel")
        self.gain = Parameter(read(model, "mixer.norm.weight").reshape(DIM, 1), name="gain")
        self.shift = Parameter(read(model, "mixer.norm.bias").reshape(DIM, 1), name="shift")

    def normalize(self, x):
        """Return a layer norm over DIM."""
        centered = x - mint.mean(x, 2, keepdim=True)
        variance = mint.mean(centered * centered, 2, keepdim=True)
        return centered * mint.rsqrt(variance + NORM_EPS) * self.gain + self.shift

    def construct(self, pose):
        # (batch, TYPES, TYPES of the result, DIM, CELLS)
        votes = mint.sum(self.kernel * pose.reshape(BATCH, TYPES, 1, 1, DIM, CELLS), 4)
        query = self.normalize(mint.sum(votes, 1) / TYPES)
        for _ in range(MIXER_ROUTINGS - 1):
            agreement = mint.sum(votes * query.expand_dims(1), 3) * (DIM**-0.5)
            shares, _ = couple(agreement, 2)
            query = self.normalize(mint.sum(shares.expand_dims(3) * votes, 1))
        return pose + query


class WrittenRouting(nn.Cell):
    """Class capsules (batch, CLASS_DIM, CLASSES), couplings and their logarithms."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        kernel = model.weights["classes.weight"].transpose(1, 2, 0, 3)
        self.kernel = Parameter(Tensor(np.ascontiguousarray(kernel)), name="kernel")
        prior = np.ascontiguousarray(model.weights["classes.prior"].T).reshape(TYPES, 1, CLASSES)
        self.bias = Parameter(Tensor(prior), name="bias")
        coordinates = make_coordinates().T.reshape(CLASS_DIM, 1, CELLS)
        self.coordinates = Tensor(np.ascontiguousarray(coordinates))

    def gather(self, votes, weights):
        """Return class capsules of votes and weights (batch, TYPES, CELLS, CLASSES)."""
        total = mint.sum(votes * weights.transpose(0, 1, 3, 2).expand_dims(2), (1, 4))
        return shorten(total, 1)

    def construct(self, pose, activation):
        # (batch, TYPES, CLASS_DIM, CLASSES, CELLS)
        votes = mint.matmul(self.kernel.reshape(TYPES, -1, DIM), pose)
        votes = votes.reshape(BATCH, TYPES, CLASS_DIM, CLASSES, CELLS) + self.coordinates
        constant = ops.stop_gradient(votes)
        logits = ops.broadcast_to(self.bias, (BATCH, TYPES, CELLS, CLASSES))
        for _ in range(ROUTINGS - 1):
            shares, _ = couple(logits, 3)
            capsules = self.gather(constant, shares * activation.expand_dims(-1))
            agreement = mint.sum(constant * capsules.reshape(BATCH, 1, CLASS_DIM, CLASSES, 1), 2)
            logits = logits + agreement.transpose(0, 1, 3, 2)
        shares, logarithm = couple(logits, 3)
        return self.gather(votes, shares * activation.expand_dims(-1)), shares, logarithm


class WrittenNet(nn.Cell):
    """Everything between images and losses."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.features = load_conv(model, "stem")
        weight, bias = (
            np.concatenate([model.weights[f"primary.{part}.{name}"] for part in ("pose", "gate")])
            for name in ("weight", "bias")
        )
        self.capsules = build_conv(weight, bias)
        self.residual = WrittenMixer(model)
        self.routing = WrittenRouting(model)
        self.hidden = load_dense(model, "decoder.0")
        self.hidden2 = load_dense(model, "decoder.1")
        self.pixels = load_dense(model, "decoder.2")
        deviation = np.array(DEVIATION, np.float32).reshape(3, 1, 1)
        self.factor = Tensor(1 / deviation)
        self.offset = Tensor(np.array(MEAN, np.float32).reshape(3, 1, 1) / deviation)

    def construct(self, images, inside, labels):
        x = mint.nn.functional.relu(self.features(images * self.factor - self.offset))
        x = self.capsules(x).reshape(BATCH, TYPES * (DIM + 1), CELLS)
        pose = shorten(x[:, : TYPES * DIM].reshape(BATCH, TYPES, DIM, CELLS), 2)
        activation = mint.where(inside.expand_dims(1), mint.sigmoid(x[:, TYPES * DIM :]), 0.0)
        capsules, shares, logarithm = self.routing(self.residual(pose), activation)
        is_label = (labels.reshape(BATCH, 1, 1) == mint.arange(CLASSES)).astype(ms.float32)
        chosen = (capsules * is_label).transpose(0, 2, 1).reshape(BATCH, -1)
        hidden = mint.nn.functional.relu(self.hidden(chosen))
        hidden = mint.nn.functional.relu(self.hidden2(hidden))
        return capsules, shares, logarithm, mint.sigmoid(self.pixels(hidden))


class WrittenLoss(nn.Cell):
    """The same losses in other steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.net = WrittenNet(model)
        self.row = Tensor(np.arange(HEIGHT, dtype=np.int32).reshape(1, HEIGHT, 1))
        self.column = Tensor(np.arange(WIDTH, dtype=np.int32).reshape(1, 1, WIDTH))

    def construct(self, images, sizes, labels, step):
        height, width = sizes[:, :1].expand_dims(2), sizes[:, 1:].expand_dims(2)
        is_pixel = mint.logical_and(self.row < height, self.column < width)
        inside = is_pixel[:, ::STRIDE, ::STRIDE].reshape(BATCH, CELLS)
        capsules, shares, logarithm, pixels = self.net(images, inside, labels)

        lengths = mint.sqrt(mint.sum(capsules * capsules, 1) + EPS)
        is_label = labels.expand_dims(1) == mint.arange(CLASSES)
        length = mint.gather(lengths, 1, labels.expand_dims(1).astype(ms.int64))
        too_long = DOWN_WEIGHT * mint.square(mint.clamp(lengths - LOWER, min=0.0))
        margin = 0.2 + 0.79 / (1 + mint.exp(4 - mint.clamp(step / MARGIN_STEPS, max=14.0)))
        close = mint.square(mint.clamp(margin + lengths - length, min=0.0))
        others = mint.where(is_label, 0.0, too_long + SPREAD_WEIGHT * close)
        too_short = mint.square(mint.clamp(UPPER - length, min=0.0))
        loss = (mint.sum(too_short) + mint.sum(others)) / BATCH

        error = pixels.reshape(BATCH, CHANNELS, HEIGHT, WIDTH) - images
        error = mint.where(is_pixel.expand_dims(1), error, 0.0)
        loss = loss + RECONSTRUCTION / BATCH * mint.sum(error * error)
        entropy = mint.sum(shares * logarithm, (1, 3)) * inside.astype(ms.float32)
        return loss - ENTROPY / TYPES * mint.sum(entropy) / mint.sum(inside.astype(ms.float32))
