"""An object-centric video model in MindSpore for graph mode; attention is (batch, cells, slots).

Variant 'written': norms, softmax, the cell and losses in plain arithmetic, one matrix for keys and
values and for the predictor's queries, keys and values, attention (batch, slots, cells).
"""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from families.slots.architecture import (
    BATCH,
    BOX_WEIGHT,
    CELLS,
    CHANNELS,
    CLASS_WEIGHT,
    CLASSES,
    COLORS,
    DECODER_GRID,
    DELTA,
    ENTROPY_WEIGHT,
    EPS,
    FRAMES,
    GRID,
    HEAD_DIM,
    HEADS,
    HEIGHT,
    IGNORE,
    ITERATIONS,
    MASK_WEIGHT,
    OBJECTS,
    SLOT,
    SLOTS,
    TINY,
    WIDTH,
    Model,
)

ROWS, COLUMNS = DECODER_GRID


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return WrittenLoss(model) if model.variant == "written" else VideoLoss(model)


def read(model: Model, *names: str) -> Tensor:
    """Return a weight, or several ones behind each other."""
    return Tensor(np.concatenate([model.weights[name] for name in names]))


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


def build_conv(model: Model, path: str, stride: int = 1) -> nn.Conv2d:
    """Return the convolution at a path."""
    weight = read(model, f"{path}.weight")
    n_out, n_in, kernel, _ = weight.shape
    return nn.Conv2d(
        n_in,
        n_out,
        kernel,
        stride,
        pad_mode="pad",
        padding=kernel // 2,
        has_bias=True,
        weight_init=weight,
        bias_init=read(model, f"{path}.bias"),
    )


def build_deconv(model: Model, path: str) -> nn.Conv2dTranspose:
    """Return the transposed convolution at a path, which doubles a grid.

    Its kernel is even: with ``output_padding`` the CPU leaves only biases in the last row and
    column.
    """
    weight = read(model, f"{path}.weight")
    n_in, n_out, kernel, _ = weight.shape
    return nn.Conv2dTranspose(
        n_in,
        n_out,
        kernel,
        2,
        pad_mode="pad",
        padding=1,
        has_bias=True,
        weight_init=weight,
        bias_init=read(model, f"{path}.bias"),
    )


def build_norm(model: Model, path: str) -> nn.LayerNorm:
    """Return the layer norm at a path."""
    weight = read(model, f"{path}.weight")
    return nn.LayerNorm(
        weight.shape, gamma_init=weight, beta_init=read(model, f"{path}.bias"), epsilon=EPS
    )


def build_mlp(model: Model, first: str, second: str) -> nn.SequentialCell:
    """Return two linear layers around ReLU."""
    return nn.SequentialCell(build_dense(model, first), nn.ReLU(), build_dense(model, second))


class SoftPositionEmbed(nn.Cell):
    """Coordinates behind a linear layer, added to (batch, rows, columns, channels)."""

    def __init__(self, model: Model, path: str, grid: tuple[int, int]) -> None:
        super().__init__()
        self.dense = build_dense(model, path)
        self.grid = Tensor(model.coordinates(grid)[None])

    def construct(self, x):
        return x + self.dense(self.grid)


class FrameEncoder(nn.Cell):
    """Features (images, CELLS, CHANNELS)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.backbone = nn.SequentialCell(
            build_conv(model, "encoder.0", 2),
            nn.ReLU(),
            build_conv(model, "encoder.1"),
            nn.ReLU(),
            build_conv(model, "encoder.2"),
            nn.ReLU(),
        )
        self.position_embedding = SoftPositionEmbed(model, "encoder.position", GRID)
        self.layer_norm = build_norm(model, "encoder.norm")
        self.mlp = build_mlp(model, "encoder.up", "encoder.down")

    def construct(self, images):
        x = self.backbone(images).transpose(0, 2, 3, 1)
        x = self.position_embedding(x).reshape(-1, CELLS, CHANNELS)
        return self.mlp(self.layer_norm(x))


class WeightedMean(nn.Cell):
    """Means of values (batch, CELLS, SLOT), weighted by the attention of each slot."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.axis = 2 if model.is_sum_over_slots else 1
        self.matmul = ops.BatchMatMul(transpose_a=True)

    def construct(self, attention, values):
        weights = attention / attention.sum(self.axis, keepdims=True)
        return self.matmul(weights, values)


class FusedWeightedMean(WeightedMean):
    """The same with its own backward pass, for which sums of the attention are constants."""

    def bprop(self, attention, values, out, gradient):
        total = attention.sum(1, keepdims=True)
        attention_gradient = ops.bmm(values, gradient.swapaxes(1, 2)) / total
        return attention_gradient, ops.bmm(attention / total, gradient)


class SlotAttention(nn.Cell):
    """Slots (batch, SLOTS, SLOT) behind some iterations, and the last attention."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.norm_inputs = build_norm(model, "attention.input_norm")
        self.norm_slots = build_norm(model, "attention.slot_norm")
        self.norm_mlp = build_norm(model, "attention.mlp_norm")
        self.project_q = build_dense(model, "attention.q")
        self.project_k = build_dense(model, "attention.k")
        self.project_v = build_dense(model, "attention.v")
        self.gru = nn.GRUCell(SLOT, SLOT)
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(self.gru, name).set_data(read(model, f"attention.gru.{name}"))
        self.mlp = build_mlp(model, "attention.up", "attention.down")
        self.scores = ops.BatchMatMul(transpose_b=True)
        self.softmax = nn.Softmax(axis=-1)
        is_plain = model.is_mean_gradient_plain
        self.weighted_mean = (FusedWeightedMean if is_plain else WeightedMean)(model)
        self.scale = SLOT**-0.5

    def step(self, slots, k, v):
        """Return slots behind an iteration, and its attention."""
        q = self.project_q(self.norm_slots(slots)) * self.scale
        attention = self.softmax(self.scores(k, q)) + TINY
        updates = self.weighted_mean(attention, v)
        slots = self.gru(updates.reshape(-1, SLOT), slots.reshape(-1, SLOT))
        slots = slots.reshape(-1, SLOTS, SLOT)
        return slots + self.mlp(self.norm_mlp(slots)), attention

    def construct(self, features, slots, n_iterations):
        features = self.norm_inputs(features)
        k, v = self.project_k(features), self.project_v(features)
        attention = None
        for _ in range(n_iterations):
            slots, attention = self.step(slots, k, v)
        return slots, attention


class SlotPredictor(nn.Cell):
    """A transformer layer between slots."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.query, self.key, self.value, self.dense = (
            build_dense(model, f"predictor.{name}") for name in ("q", "k", "v", "out")
        )
        self.norm_attention = build_norm(model, "predictor.attention_norm")
        self.mlp = build_mlp(model, "predictor.up", "predictor.down")
        self.norm_mlp = build_norm(model, "predictor.mlp_norm")
        self.softmax = nn.Softmax(axis=-1)

    def split(self, x):
        """Return (batch, HEADS, SLOTS, HEAD_DIM)."""
        return x.reshape(-1, SLOTS, HEADS, HEAD_DIM).transpose(0, 2, 1, 3)

    def construct(self, slots):
        q, k, v = (
            self.split(self.query(slots)),
            self.split(self.key(slots)),
            self.split(self.value(slots)),
        )
        weights = self.softmax(ops.matmul(q, k.swapaxes(-2, -1)) / math.sqrt(HEAD_DIM))
        context = ops.matmul(weights, v).transpose(0, 2, 1, 3).reshape(-1, SLOTS, SLOT)
        slots = self.norm_attention(slots + self.dense(context))
        return self.norm_mlp(slots + self.mlp(slots))


class SpatialBroadcastDecoder(nn.Cell):
    """Colors and alpha logits, (images, SLOTS, channels, HEIGHT, WIDTH), of slots."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.position_embedding = SoftPositionEmbed(model, "decoder.position", DECODER_GRID)
        self.backbone = nn.SequentialCell(
            build_deconv(model, "decoder.0"),
            nn.ReLU(),
            build_deconv(model, "decoder.1"),
            nn.ReLU(),
            build_conv(model, "decoder.2"),
        )

    def construct(self, slots):
        x = ops.tile(slots.reshape(-1, 1, 1, SLOT), (1, ROWS, COLUMNS, 1))
        x = self.position_embedding(x).transpose(0, 3, 1, 2)
        x = self.backbone(x).reshape(-1, SLOTS, COLORS + 1, HEIGHT, WIDTH)
        return x[:, :, :COLORS], x[:, :, COLORS:]


class SetPrediction(nn.Cell):
    """Boxes and class logits of slots."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.box = build_mlp(model, "box.hidden", "box.out")
        self.classifier = build_dense(model, "class")

    def construct(self, slots):
        return ops.sigmoid(self.box(slots)), self.classifier(slots)


class MaskLoss(nn.Cell):
    """Cross entropy of alpha logits (batch, SLOTS, 1, HEIGHT, WIDTH) of pixels with an object."""

    def construct(self, logits, objects, assignments):
        objects = objects.reshape(BATCH, -1)
        targets = ops.gather_elements(assignments, 1, ops.maximum(objects, 0))
        targets = ops.masked_fill(targets, objects < 0, IGNORE)
        logits = logits.reshape(BATCH, SLOTS, -1).transpose(0, 2, 1).reshape(-1, SLOTS)
        return ops.cross_entropy(logits, targets.reshape(-1), ignore_index=IGNORE)


class BoxLoss(nn.Cell):
    """Huber loss of the boxes of matched slots, (batch, FRAMES, SLOTS, 4)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_smooth_l1 = model.is_smooth_l1
        self.smooth_l1 = nn.SmoothL1Loss(beta=DELTA, reduction="none")

    def construct(self, predicted, boxes, assignments, is_object):
        index = ops.tile(assignments.reshape(BATCH, 1, OBJECTS, 1), (1, FRAMES, 1, 4))
        matched = ops.gather_elements(predicted, 2, index)
        if self.is_smooth_l1:
            losses = self.smooth_l1(matched, boxes)
        else:
            losses = ops.huber_loss(matched, boxes, reduction="none", delta=DELTA)
        losses = losses * is_object.reshape(BATCH, 1, OBJECTS, 1)
        return losses.sum() / (FRAMES * is_object.sum())


class ClassLoss(nn.Cell):
    """Cross entropy of the classes of slots."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.empty_weight = Tensor(model.class_weights())
        self.slots = Tensor(np.arange(SLOTS, dtype=np.int32))

    def construct(self, logits, classes, assignments, is_object):
        is_matched = (assignments.expand_dims(-1) == self.slots).astype(ms.float32)
        is_matched = (is_matched * is_object.expand_dims(-1)).astype(ms.int32)
        targets = (is_matched * (classes.expand_dims(-1) - CLASSES)).sum(1) + CLASSES
        targets = ops.tile(targets.expand_dims(1), (1, FRAMES, 1)).reshape(-1)
        logits = logits.reshape(-1, CLASSES + 1)
        return ops.cross_entropy(logits, targets.astype(ms.int32), weight=self.empty_weight)


class VideoLoss(nn.Cell):
    """Reconstruction, masks, boxes, classes and entropy."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder = FrameEncoder(model)
        self.slots_mu = Parameter(read(model, "slots.mean"), name="slots_mu")
        self.slots_log_sigma = Parameter(read(model, "slots.log_deviation"), name="slots_log_sigma")
        self.corrector = SlotAttention(model)
        self.predictor = SlotPredictor(model)
        self.decoder = SpatialBroadcastDecoder(model)
        self.head = SetPrediction(model)
        self.reconstruction_loss = nn.MSELoss()
        self.mask_loss, self.box_loss = MaskLoss(), BoxLoss(model)
        self.class_loss = ClassLoss(model)
        self.objects = Tensor(np.arange(OBJECTS, dtype=np.int32))

    def track(self, images, noise):
        """Return slots of all frames, (batch, FRAMES, SLOTS, SLOT), and the mean entropy."""
        features = self.encoder(images.reshape(-1, COLORS, HEIGHT, WIDTH))
        features = features.reshape(BATCH, FRAMES, CELLS, CHANNELS)
        slots = self.slots_mu + ops.exp(self.slots_log_sigma) * noise
        tracked, entropy = (), 0.0
        for frame in range(FRAMES):
            if frame > 0:
                slots = self.predictor(slots)
            slots, attention = self.corrector(features[:, frame], slots, ITERATIONS[frame])
            tracked += (slots,)
            entropy = entropy - (attention * ops.log(attention)).sum(-1).mean()
        return ops.stack(tracked, 1), entropy / FRAMES

    def construct(self, images, noise, objects, boxes, classes, assignments, counts):
        slots, entropy = self.track(images, noise)
        colors, alpha = self.decoder(slots)
        reconstruction = (ops.softmax(alpha, 1) * colors).sum(1)
        reconstruction = reconstruction.reshape(BATCH, FRAMES, COLORS, HEIGHT, WIDTH)
        last_alpha = alpha.reshape(BATCH, FRAMES, SLOTS, 1, HEIGHT, WIDTH)[:, -1]
        predicted_boxes, logits = self.head(slots)

        is_object = (self.objects < counts.expand_dims(1)).astype(ms.float32)
        loss = self.reconstruction_loss(reconstruction, images)
        loss = loss + MASK_WEIGHT * self.mask_loss(last_alpha, objects, assignments)
        loss = loss + BOX_WEIGHT * self.box_loss(predicted_boxes, boxes, assignments, is_object)
        loss = loss + CLASS_WEIGHT * self.class_loss(logits, classes, assignments, is_object)
        return loss + ENTROPY_WEIGHT * entropy


def build_weight(model: Model, *paths: str) -> Parameter:
    """Return the weight of a layer, or of several ones of the same input."""
    return Parameter(read(model, *(f"{path}.weight" for path in paths)))


def build_bias(model: Model, *paths: str) -> Parameter:
    """Return the bias of a layer, or of several ones of the same input."""
    return Parameter(read(model, *(f"{path}.bias" for path in paths)))


def apply_softmax(x, axis):
    """Return the softmax from exponentials."""
    shares = mint.exp(x - ops.stop_gradient(x.max(axis, keepdims=True)))
    return shares / mint.sum(shares, axis, True)


def select_log_share(logits, chosen):
    """Return the logarithm of the softmax of the last axis at a one-hot choice."""
    logits = logits - ops.stop_gradient(logits.max(-1, keepdims=True))
    return mint.sum(logits * chosen, -1) - mint.log(mint.sum(mint.exp(logits), -1))


class WrittenLinear(nn.Cell):
    """A linear layer, or several ones of the same input."""

    def __init__(self, model: Model, *paths: str) -> None:
        super().__init__()
        self.matrix = build_weight(model, *paths)
        self.has_shift = f"{paths[0]}.bias" in model.weights
        if self.has_shift:
            self.shift = build_bias(model, *paths)

    def construct(self, x):
        x = mint.matmul(x, self.matrix.swapaxes(0, 1))
        return x + self.shift if self.has_shift else x


class WrittenNorm(nn.Cell):
    """Layer norm from means."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.gain, self.shift = build_weight(model, path), build_bias(model, path)

    def construct(self, x):
        centered = x - mint.mean(x, -1, True)
        variance = mint.mean(mint.square(centered), -1, True)
        return centered * mint.rsqrt(variance + EPS) * self.gain + self.shift


class WrittenMlp(nn.Cell):
    """Two linear layers around ReLU."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.first = WrittenLinear(model, f"{path}.up")
        self.second = WrittenLinear(model, f"{path}.down")

    def construct(self, x):
        return self.second(mint.nn.functional.relu(self.first(x)))


class WrittenCell(nn.Cell):
    """A GRU cell with one product for both gates."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.weight_x, self.weight_h, self.bias_x, self.bias_h = (
            Parameter(read(model, f"attention.gru.{name}"))
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )

    def construct(self, x, h):
        n_gates = 2 * SLOT
        weight = mint.cat((self.weight_x[:n_gates], self.weight_h[:n_gates]), 1)
        bias = self.bias_x[:n_gates] + self.bias_h[:n_gates]
        gates = mint.sigmoid(mint.matmul(mint.cat((x, h), -1), weight.swapaxes(0, 1)) + bias)
        from_x = mint.matmul(x, self.weight_x[n_gates:].swapaxes(0, 1)) + self.bias_x[n_gates:]
        from_h = mint.matmul(h, self.weight_h[n_gates:].swapaxes(0, 1)) + self.bias_h[n_gates:]
        reset, update = gates[..., :SLOT], gates[..., SLOT:]
        return (1 - update) * mint.tanh(from_x + reset * from_h) + update * h


class WrittenCorrector(nn.Cell):
    """Slot attention, (batch, SLOTS, CELLS), of the features of one frame."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.feature_norm = WrittenNorm(model, "attention.input_norm")
        self.slot_norm = WrittenNorm(model, "attention.slot_norm")
        self.kv = WrittenLinear(model, "attention.k", "attention.v")
        self.q = WrittenLinear(model, "attention.q")
        self.cell = WrittenCell(model)
        self.residual_norm = WrittenNorm(model, "attention.mlp_norm")
        self.residual = WrittenMlp(model, "attention")

    def construct(self, features, slots, n_iterations):
        kv = self.kv(self.feature_norm(features))
        keys, values = kv[..., :SLOT].permute(0, 2, 1), kv[..., SLOT:]
        attention = None
        for _ in range(n_iterations):
            scores = mint.matmul(self.q(self.slot_norm(slots)), keys) / math.sqrt(SLOT)
            attention = apply_softmax(scores, 1) + TINY
            updates = mint.matmul(attention, values) / mint.sum(attention, 2, True)
            slots = self.cell(updates, slots)
            slots = self.residual(self.residual_norm(slots)) + slots
        return slots, attention


class WrittenPredictor(nn.Cell):
    """A transformer layer between slots with one matrix for queries, keys and values."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.qkv = WrittenLinear(model, *(f"predictor.{name}" for name in "qkv"))
        self.mix = WrittenLinear(model, "predictor.out")
        self.norm1 = WrittenNorm(model, "predictor.attention_norm")
        self.ffn = WrittenMlp(model, "predictor")
        self.norm2 = WrittenNorm(model, "predictor.mlp_norm")

    def construct(self, slots):
        qkv = self.qkv(slots).reshape(BATCH, SLOTS, 3, HEADS, HEAD_DIM)
        query = qkv[:, :, 0].permute(0, 2, 1, 3) * HEAD_DIM**-0.5
        weights = apply_softmax(mint.matmul(query, qkv[:, :, 1].permute(0, 2, 3, 1)), -1)
        context = mint.matmul(weights, qkv[:, :, 2].permute(0, 2, 1, 3)).permute(0, 2, 1, 3)
        slots = self.norm1(self.mix(context.reshape(BATCH, SLOTS, SLOT)) + slots)
        return self.norm2(self.ffn(slots) + slots)


class WrittenLoss(nn.Cell):
    """The same loss in other steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv1 = build_conv(model, "encoder.0", 2)
        self.conv2 = build_conv(model, "encoder.1")
        self.conv3 = build_conv(model, "encoder.2")
        self.place = WrittenLinear(model, "encoder.position")
        self.norm, self.mlp = WrittenNorm(model, "encoder.norm"), WrittenMlp(model, "encoder")
        self.mean = Parameter(read(model, "slots.mean"))
        self.log_deviation = Parameter(read(model, "slots.log_deviation"))
        self.attend, self.advance = WrittenCorrector(model), WrittenPredictor(model)
        self.slot_place = WrittenLinear(model, "decoder.position")
        self.deconv1 = build_deconv(model, "decoder.0")
        self.deconv2 = build_deconv(model, "decoder.1")
        self.conv_out = build_conv(model, "decoder.2")
        self.box1 = WrittenLinear(model, "box.hidden")
        self.box2 = WrittenLinear(model, "box.out")
        self.classes = WrittenLinear(model, "class")
        self.feature_grid = Tensor(model.coordinates(GRID).reshape(CELLS, 4))
        self.slot_grid = Tensor(model.coordinates(DECODER_GRID).reshape(ROWS * COLUMNS, 4))
        self.class_weights = Tensor(model.class_weights())
        self.slot_numbers = Tensor(np.arange(SLOTS, dtype=np.int32))
        self.object_numbers = Tensor(np.arange(OBJECTS, dtype=np.int32))
        self.class_numbers = Tensor(np.arange(CLASSES + 1, dtype=np.int32))

    def encode(self, images):
        """Return features (BATCH, CELLS, CHANNELS) of a frame."""
        x = mint.nn.functional.relu(self.conv1(images))
        x = mint.nn.functional.relu(self.conv2(x))
        x = mint.nn.functional.relu(self.conv3(x)).reshape(BATCH, CHANNELS, CELLS)
        return self.mlp(self.norm(x.permute(0, 2, 1) + self.place(self.feature_grid)))

    def decode(self, slots):
        """Return colors and alpha logits (BATCH, SLOTS, channels, HEIGHT, WIDTH) of a frame."""
        x = slots.reshape(-1, 1, SLOT) + self.slot_place(self.slot_grid)
        x = x.permute(0, 2, 1).reshape(-1, SLOT, ROWS, COLUMNS)
        x = mint.nn.functional.relu(self.deconv1(x))
        x = self.conv_out(mint.nn.functional.relu(self.deconv2(x)))
        return x.reshape(BATCH, SLOTS, COLORS + 1, HEIGHT, WIDTH)

    def construct(self, images, noise, objects, boxes, classes, assignments, counts):
        is_object = (self.object_numbers < counts.expand_dims(1)).astype(ms.float32)
        slot_of = (assignments.expand_dims(-1) == self.slot_numbers).astype(ms.float32)
        slot_of = slot_of * is_object.expand_dims(-1)
        class_of = (classes.expand_dims(-1) == self.class_numbers).astype(ms.float32)
        is_nothing = (self.class_numbers == CLASSES).astype(ms.float32)
        targets = mint.matmul(slot_of.permute(0, 2, 1), class_of)
        targets = targets + (1 - mint.sum(slot_of, 1)).expand_dims(-1) * is_nothing
        shares = mint.sum(targets * self.class_weights, -1)

        slots = self.mean + mint.exp(self.log_deviation) * noise
        error, box_error, surprise, entropy, logits = 0.0, 0.0, 0.0, 0.0, None
        for frame in range(FRAMES):
            image = images[:, frame]
            start = slots if frame == 0 else self.advance(slots)
            slots, attention = self.attend(self.encode(image), start, ITERATIONS[frame])
            entropy = entropy - mint.mean(mint.sum(attention * mint.log(attention), 1))

            decoded = self.decode(slots)
            logits = decoded[:, :, COLORS:]
            blended = mint.sum(apply_softmax(logits, 1) * decoded[:, :, :COLORS], 1)
            error = error + mint.mean(mint.square(image - blended))

            hidden = mint.nn.functional.relu(self.box1(slots))
            predicted = mint.matmul(slot_of, mint.sigmoid(self.box2(hidden)))
            distance = mint.abs(boxes[:, frame] - predicted) * is_object.expand_dims(-1)
            inner = mint.clamp(distance, max=DELTA)
            box_error = box_error + mint.sum(inner * (distance - 0.5 * inner))
            surprise = surprise - mint.sum(shares * select_log_share(self.classes(slots), targets))

        object_of = objects.reshape(BATCH, -1, 1) == self.object_numbers
        pixels = mint.matmul(object_of.astype(ms.float32), slot_of)
        logits = logits.reshape(BATCH, SLOTS, -1).permute(0, 2, 1)
        is_labeled = mint.sum(pixels, -1)
        mask_error = mint.sum(select_log_share(logits, pixels) * is_labeled)

        loss = (error + ENTROPY_WEIGHT * entropy) / FRAMES
        loss = loss - MASK_WEIGHT * mask_error / mint.sum(is_labeled)
        loss = loss + BOX_WEIGHT * box_error / (FRAMES * mint.sum(is_object))
        return loss + CLASS_WEIGHT * surprise / (FRAMES * mint.sum(shares))
