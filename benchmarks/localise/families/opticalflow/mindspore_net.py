"""Optical flow in MindSpore. Bilinear lookups are written by gathers.

CPU has no right gradient of ops.grid_sample, and no kernel of nn.InstanceNorm2d. Variant
'products': a lookup is two products with triangular weights, which need no indices, and instance
norm is a group norm of single channels. Variant 'shared': images are encoded one by one, the
context's share of the gates is computed once, convolutions of joined channels are sums, and
neighbours are slices of the padded flow.
"""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from families.opticalflow.architecture import (
    BATCH,
    COLUMNS,
    CONTEXT,
    EPS,
    FACTOR,
    FEATURES,
    GAMMA,
    HEIGHT,
    HIDDEN,
    ITERATIONS,
    LEVELS,
    MASK_SCALE,
    MAX_FLOW,
    NEIGHBOURS,
    RADIUS,
    READ,
    ROWS,
    WIDTH,
    Model,
)

QUERIES = BATCH * ROWS * COLUMNS


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return NetWithLoss(model)


def make_conv(weight: np.ndarray, bias: np.ndarray | None, stride: int = 1) -> nn.Conv2d:
    """Return a convolution that keeps the size, up to its stride."""
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


def load_conv(model: Model, path: str, stride: int = 1) -> nn.Conv2d:
    """Return a convolution; it has a bias if there is one."""
    return make_conv(model.weights[f"{path}.weight"], model.weights.get(f"{path}.bias"), stride)


def load_parts(model: Model, path: str, *sizes: int) -> list[nn.Conv2d]:
    """Return a convolution for each part of the input's channels; the last one has the bias."""
    weights = np.split(model.weights[f"{path}.weight"], np.cumsum(sizes)[:-1], axis=1)
    biases = [None] * (len(sizes) - 1) + [model.weights[f"{path}.bias"]]
    return [make_conv(weight, bias) for weight, bias in zip(weights, biases, strict=True)]


class InstanceNorm(nn.Cell):
    """Instance norm without weights."""

    def construct(self, x):
        mean = x.mean((2, 3), keep_dims=True)
        variance = ops.square(x - mean).mean((2, 3), keep_dims=True)
        return (x - mean) / ops.sqrt(variance + EPS)


def load_norm(model: Model, path: str, width: int) -> nn.Cell:
    """Return a batch norm, or an instance norm if there are no weights."""
    if f"{path}.weight" not in model.weights:
        if model.variant == "products":
            return nn.GroupNorm(width, width, eps=EPS, affine=False)
        return InstanceNorm()
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    return nn.BatchNorm2d(width, eps=EPS, momentum=0.9, gamma_init=weight, beta_init=bias)


class ConvNorm(nn.SequentialCell):
    """A convolution and its norm."""

    def __init__(self, model: Model, path: str, norm_path: str, stride: int = 1) -> None:
        conv = load_conv(model, path, stride)
        super().__init__([conv, load_norm(model, norm_path, conv.out_channels)])


class ResidualBlock(nn.Cell):
    """Two convolutions, added to their input."""

    def __init__(self, model: Model, path: str, stride: int) -> None:
        super().__init__()
        self.conv1 = ConvNorm(model, f"{path}.conv1", f"{path}.norm1", stride)
        self.conv2 = ConvNorm(model, f"{path}.conv2", f"{path}.norm2")
        self.relu = nn.ReLU()
        self.downsample = None
        if stride > 1:
            self.downsample = ConvNorm(model, f"{path}.skip", f"{path}.skip_norm", stride)

    def construct(self, x):
        y = self.relu(self.conv2(self.relu(self.conv1(x))))
        if self.downsample is not None:
            x = self.downsample(x)
        return self.relu(x + y)


def build_encoder(model: Model, path: str) -> nn.SequentialCell:
    """Return an encoder of images."""
    return nn.SequentialCell(
        ConvNorm(model, f"{path}.stem", f"{path}.stem_norm", 2),
        nn.ReLU(),
        ResidualBlock(model, f"{path}.blocks.0", 1),
        ResidualBlock(model, f"{path}.blocks.1", 2),
        load_conv(model, f"{path}.out"),
    )


class CorrelationPyramid(nn.Cell):
    """The correlations of all pairs of pixels, (QUERIES, rows, columns) for each level."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        pad_mode = "same" if model.is_pool_same else "valid"
        self.pool = nn.AvgPool2d(kernel_size=2, stride=2, pad_mode=pad_mode)

    def construct(self, first, second):
        first = first.reshape(BATCH, FEATURES, -1)
        second = second.reshape(BATCH, FEATURES, -1)
        scores = ops.bmm(first.transpose(0, 2, 1), second) / math.sqrt(FEATURES)
        level = scores.reshape(QUERIES, 1, ROWS, COLUMNS)
        levels = (level.squeeze(1),)
        for _ in range(LEVELS - 1):
            level = self.pool(level)
            levels += (level.squeeze(1),)
        return levels


class WindowLookup(nn.Cell):
    """Bilinear values in a window around each query, by gathers of four pixels."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        steps = np.arange(-RADIUS, RADIUS + 1, dtype=np.float32)
        window = np.stack(np.meshgrid(steps, steps, indexing="ij"), axis=-1).reshape(-1, 2)
        if model.is_window_y_first:
            window = window[:, ::-1]
        corners = np.array([[0, 0], [1, 0], [0, 1], [1, 1]], np.float32)
        self.window, self.corners = Tensor(window.copy()), Tensor(corners)
        self.is_outside_zero = model.lookup_padding == "zeros"

    def construct(self, level, centers):
        rows, columns = level.shape[1:]
        points = (centers.expand_dims(1) + self.window).expand_dims(2)
        pixels = ops.floor(points) + self.corners
        shares = (1 - ops.abs(points - pixels)).prod(-1)
        x, y = pixels[..., 0], pixels[..., 1]
        if self.is_outside_zero:
            is_inside = ops.logical_and(
                ops.logical_and(x >= 0, x < columns), ops.logical_and(y >= 0, y < rows)
            )
        index = ops.clamp(y, 0, rows - 1) * columns + ops.clamp(x, 0, columns - 1)
        index = index.astype(ms.int32).reshape(QUERIES, -1)
        values = ops.gather_elements(level.reshape(QUERIES, -1), 1, index)
        if self.is_outside_zero:
            shares = shares * is_inside.astype(ms.float32)
        return (values.reshape(shares.shape) * shares).sum(-1)


class ProductLookup(nn.Cell):
    """The same without indices: products with triangular weights along both axes."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = Tensor(np.arange(-RADIUS, RADIUS + 1, dtype=np.float32))

    def weigh(self, center, length):
        """Return the weights of the pixels of an axis, (QUERIES, WINDOW, length)."""
        points = (center + self.steps).expand_dims(-1)
        return ops.relu(1 - ops.abs(points - ops.arange(length).astype(ms.float32)))

    def construct(self, level, centers):
        rows, columns = level.shape[1:]
        along_x, along_y = self.weigh(centers[:, :1], columns), self.weigh(centers[:, 1:], rows)
        values = ops.bmm(ops.bmm(along_x, level.swapaxes(1, 2)), along_y.swapaxes(1, 2))
        return values.reshape(QUERIES, -1)


class MotionEncoder(nn.Cell):
    """Motion features of correlations and flow."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv_corr = load_conv(model, "motion.correlation")
        self.conv_flow = load_conv(model, "motion.flow")
        self.conv = load_conv(model, "motion.join")
        self.relu = nn.ReLU()

    def construct(self, corr, flow):
        joined = ops.concat((self.relu(self.conv_corr(corr)), self.relu(self.conv_flow(flow))), 1)
        return ops.concat((self.relu(self.conv(joined)), flow), 1)


class SplitMotionEncoder(nn.Cell):
    """The same with a sum of convolutions."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv_corr = load_conv(model, "motion.correlation")
        self.conv_flow = load_conv(model, "motion.flow")
        sizes = self.conv_corr.out_channels, self.conv_flow.out_channels
        self.join_corr, self.join_flow = load_parts(model, "motion.join", *sizes)

    def construct(self, corr, flow):
        of_corr = self.join_corr(ops.relu(self.conv_corr(corr)))
        of_flow = self.join_flow(ops.relu(self.conv_flow(flow)))
        return ops.concat((ops.relu(of_corr + of_flow), flow), 1)


class ConvGRUCell(nn.Cell):
    """A gated recurrent cell of convolutions."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv_z, self.conv_r, self.conv_q = (load_conv(model, f"gru.{gate}") for gate in "zrq")
        self.sigmoid, self.tanh = nn.Sigmoid(), nn.Tanh()
        self.is_update_reversed = model.is_update_reversed

    def share(self, context):
        """Return what the cell reads of the context in each iteration."""
        return context

    def construct(self, hidden, context, motion):
        inputs = ops.concat((context, motion), 1)
        both = ops.concat((hidden, inputs), 1)
        update = self.sigmoid(self.conv_z(both))
        reset = self.sigmoid(self.conv_r(both))
        candidate = self.tanh(self.conv_q(ops.concat((reset * hidden, inputs), 1)))
        if self.is_update_reversed:
            return update * hidden + (1 - update) * candidate
        return (1 - update) * hidden + update * candidate


class SharedGRUCell(nn.Cell):
    """The same; what the context adds to the gates is computed once."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        motion = model.weights["gru.z.weight"].shape[1] - HIDDEN - CONTEXT
        sizes = HIDDEN, CONTEXT, motion
        self.z_hidden, self.z_context, self.z_motion = load_parts(model, "gru.z", *sizes)
        self.r_hidden, self.r_context, self.r_motion = load_parts(model, "gru.r", *sizes)
        self.q_hidden, self.q_context, self.q_motion = load_parts(model, "gru.q", *sizes)

    def share(self, context):
        """Return what the context adds to the three gates."""
        return self.z_context(context), self.r_context(context), self.q_context(context)

    def construct(self, hidden, shares, motion):
        update = ops.sigmoid(self.z_hidden(hidden) + self.z_motion(motion) + shares[0])
        reset = ops.sigmoid(self.r_hidden(hidden) + self.r_motion(motion) + shares[1])
        candidate = ops.tanh(self.q_hidden(reset * hidden) + self.q_motion(motion) + shares[2])
        return hidden + update * (candidate - hidden)


class UpdateBlock(nn.Cell):
    """The next hidden state, and what it makes: a mask and a change of the coordinates."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        is_shared = model.variant == "shared"
        self.encoder = SplitMotionEncoder(model) if is_shared else MotionEncoder(model)
        self.gru = SharedGRUCell(model) if is_shared else ConvGRUCell(model)
        self.flow_head, self.mask_head = (
            nn.SequentialCell(
                load_conv(model, f"{name}.0"), nn.ReLU(), load_conv(model, f"{name}.1")
            )
            for name in ("flow", "mask")
        )

    def construct(self, hidden, context, corr, flow):
        hidden = self.gru(hidden, context, self.encoder(corr, flow))
        return hidden, self.flow_head(hidden), MASK_SCALE * self.mask_head(hidden)


class ConvexUpsample(nn.Cell):
    """Flow of all pixels, convex combinations of nine neighbours."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_sliced = model.variant == "shared"
        self.softmax = nn.Softmax(axis=2)

    def unfold(self, flow):
        """Return the neighbours, (BATCH, 2, NEIGHBOURS, ROWS, COLUMNS)."""
        if not self.is_sliced:
            return ops.unfold(flow, 3, padding=1).reshape(BATCH, 2, NEIGHBOURS, ROWS, COLUMNS)
        padded = ops.pad(flow, (1, 1, 1, 1))
        parts = ()
        for i in range(3):
            for j in range(3):
                parts += (padded[:, :, i : i + ROWS, j : j + COLUMNS],)
        return ops.stack(parts, 2)

    def construct(self, flow, mask):
        mask = mask.reshape(BATCH, 1, NEIGHBOURS, FACTOR, FACTOR, ROWS, COLUMNS)
        mask = self.softmax(mask)
        around = self.unfold(FACTOR * flow).expand_dims(3).expand_dims(3)
        fine = (mask * around).sum(2).transpose(0, 1, 4, 2, 5, 3)
        return fine.reshape(BATCH, 2, HEIGHT, WIDTH)


class RAFT(nn.Cell):
    """Flow after each iteration."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.feature_encoder = build_encoder(model, "features")
        self.context_encoder = build_encoder(model, "context")
        self.correlation = CorrelationPyramid(model)
        is_product = model.variant == "products"
        self.lookup = ProductLookup() if is_product else WindowLookup(model)
        self.update = UpdateBlock(model)
        self.upsample = ConvexUpsample(model)
        y, x = np.meshgrid(np.arange(ROWS), np.arange(COLUMNS), indexing="ij")
        grid = np.stack((x, y))[None].repeat(BATCH, axis=0)
        self.grid = Tensor(grid.astype(np.float32))
        self.is_separate = model.variant == "shared"
        self.is_hidden_stopped = model.is_hidden_stopped

    def encode(self, first, second):
        """Return the features of both images."""
        if self.is_separate:
            return self.feature_encoder(first), self.feature_encoder(second)
        features = self.feature_encoder(ops.concat((first, second), 0))
        return features[:BATCH], features[BATCH:]

    def read(self, levels, coords):
        """Return the windows of all levels, (BATCH, READ, ROWS, COLUMNS)."""
        centers = coords.transpose(0, 2, 3, 1).reshape(QUERIES, 2)
        windows = ()
        for n in range(LEVELS):
            windows += (self.lookup(levels[n], centers / 2**n),)
        windows = ops.concat(windows, 1).reshape(BATCH, ROWS, COLUMNS, READ)
        return windows.transpose(0, 3, 1, 2)

    def construct(self, first, second):
        first = 2 * (first / 255.0) - 1.0
        second = 2 * (second / 255.0) - 1.0
        levels = self.correlation(*self.encode(first, second))
        encoded = self.context_encoder(first)
        hidden = ops.tanh(encoded[:, :HIDDEN])
        context = self.update.gru.share(ops.relu(encoded[:, HIDDEN:]))
        coords = self.grid
        predictions = ()
        for _ in range(ITERATIONS):
            coords = ops.stop_gradient(coords)
            if self.is_hidden_stopped:
                hidden = ops.stop_gradient(hidden)
            corr = self.read(levels, coords)
            hidden, delta, mask = self.update(hidden, context, corr, coords - self.grid)
            coords = coords + delta
            predictions += (self.upsample(coords - self.grid, mask),)
        return predictions


class NetWithLoss(nn.Cell):
    """The weighted L1 distances of all iterations."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = RAFT(model)
        self.is_magnitude_squared = model.is_magnitude_squared

    def construct(self, first, second, flow, valid):
        predictions = self.network(first, second)
        magnitude = ops.square(flow).sum(1)
        if not self.is_magnitude_squared:
            magnitude = ops.sqrt(magnitude)
        mask = ops.logical_and(valid >= 0.5, magnitude < MAX_FLOW)
        mask = mask.expand_dims(1).astype(ms.float32)
        loss = 0.0
        for n in range(ITERATIONS):
            distances = ops.abs(predictions[n] - flow)
            loss += GAMMA ** (ITERATIONS - 1 - n) * (mask * distances).mean()
        return loss
