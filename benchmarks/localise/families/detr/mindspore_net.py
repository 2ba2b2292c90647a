"""The detector in MindSpore for graph mode.

Variant 'written': norms, softmax and cross entropy in plain arithmetic, queries and keys of
self-attention by one layer, cosines as shifted sines, matched queries by one-hot vectors, mint.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore_nets.gradient import ScaledGradient

from families.detr.architecture import (
    BATCH,
    BOX_LAYERS,
    CHANNELS,
    CLASSES,
    COLUMNS,
    ENCODER_LAYERS,
    EPS,
    FEATURES,
    GIOU_WEIGHT,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    L1_WEIGHT,
    LAYERS,
    OBJECTS,
    OWNERS,
    POSITION_EPS,
    QUERIES,
    ROWS,
    STRIDE,
    TOKENS,
    Model,
)

MASKED = -1e9


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return WrittenLoss(model) if model.variant == "written" else NetWithLoss(model)


def read(model: Model, name: str) -> Tensor:
    """Return a weight."""
    return Tensor(model.weights[name])


def build_dense(model: Model, *paths: str) -> nn.Dense:
    """Return the linear layer at ``paths``, the rows of one behind those of the other."""
    weight, bias = (
        np.concatenate([model.weights[f"{path}.{name}"] for path in paths])
        for name in ("weight", "bias")
    )
    n_out, n_in = weight.shape
    return nn.Dense(n_in, n_out, weight_init=Tensor(weight), bias_init=Tensor(bias))


def build_conv(model: Model, path: str, stride: int = 1) -> nn.Conv2d:
    """Return the convolution at ``path``; it has a bias if there is one."""
    weight = read(model, f"{path}.weight")
    n_out, n_in, kernel, _ = weight.shape
    has_bias = f"{path}.bias" in model.weights
    return nn.Conv2d(
        n_in,
        n_out,
        kernel,
        stride,
        pad_mode="pad",
        padding=kernel // 2,
        has_bias=has_bias,
        weight_init=weight,
        bias_init=read(model, f"{path}.bias") if has_bias else None,
    )


def build_norm(model: Model, path: str) -> nn.LayerNorm:
    """Return the layer norm at ``path``."""
    weight, bias = read(model, f"{path}.weight"), read(model, f"{path}.bias")
    return nn.LayerNorm((HIDDEN,), gamma_init=weight, beta_init=bias, epsilon=EPS)


class FrozenBatchNorm2d(nn.Cell):
    """A batch norm whose statistics and weights are fixed."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.gamma, self.beta, self.moving_mean, self.moving_variance = (
            Parameter(read(model, f"{path}.{name}").reshape(1, -1, 1, 1), requires_grad=False)
            for name in ("weight", "bias", "mean", "variance")
        )

    def construct(self, x):
        scale = self.gamma * ops.rsqrt(self.moving_variance + EPS)
        return x * scale + (self.beta - self.moving_mean * scale)


def build_batch_norm(model: Model, path: str) -> nn.BatchNorm2d:
    """Return the framework's batch norm at ``path``; its weights do not train."""
    weight, bias, mean, variance = (
        read(model, f"{path}.{name}") for name in ("weight", "bias", "mean", "variance")
    )
    norm = nn.BatchNorm2d(
        len(weight),
        eps=EPS,
        gamma_init=weight,
        beta_init=bias,
        moving_mean_init=mean,
        moving_var_init=variance,
    )
    norm.gamma.requires_grad = False
    norm.beta.requires_grad = False
    return norm


class ConvNorm(nn.Cell):
    """A convolution and its norm."""

    def __init__(self, model: Model, n: int, stride: int) -> None:
        super().__init__()
        self.conv = build_conv(model, f"backbone.{n}", stride)
        build = FrozenBatchNorm2d if model.is_norm_frozen else build_batch_norm
        self.bn = build(model, f"backbone.{n}.norm")

    def construct(self, x):
        return self.bn(self.conv(x))


class Backbone(nn.Cell):
    """Features (batch, channels, ROWS, COLUMNS)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        layers = []
        for n in range(len(CHANNELS)):
            layers += [ConvNorm(model, n, 2), nn.ReLU()]
        self.stages = nn.SequentialCell(layers)
        self.block = ConvNorm(model, len(CHANNELS), 1)
        self.relu = nn.ReLU()

    def construct(self, images):
        x = self.stages(images)
        return self.relu(x + self.block(x))


class PositionEncoding(nn.Cell):
    """Waves of the rows and columns of what is no padding, (batch, TOKENS, HIDDEN)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.divisors = Tensor(model.divisors())
        self.scale = 2 * np.pi
        self.offset = model.position_offset

    def encode(self, positions):
        """Return sines and cosines in turn."""
        angles = positions.expand_dims(-1) / self.divisors
        waves = ops.stack((ops.sin(angles[..., 0::2]), ops.cos(angles[..., 1::2])), -1)
        return waves.reshape(BATCH, TOKENS, FEATURES)

    def construct(self, is_valid):
        rows, columns = ops.cumsum(is_valid, 1), ops.cumsum(is_valid, 2)
        last_rows, last_columns = rows[:, -1:, :], columns[:, :, -1:]
        if self.offset != 0:
            rows, columns = rows + self.offset, columns + self.offset
        rows = rows / (last_rows + POSITION_EPS) * self.scale
        columns = columns / (last_columns + POSITION_EPS) * self.scale
        return ops.concat((self.encode(rows), self.encode(columns)), -1)


class MultiHeadAttention(nn.Cell):
    """Attention of queries to keys; hidden keys have a number below zero in the mask."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.q_dense = build_dense(model, f"{path}.q")
        self.k_dense = build_dense(model, f"{path}.k")
        self.v_dense = build_dense(model, f"{path}.v")
        self.out_dense = build_dense(model, f"{path}.o")
        self.softmax = nn.Softmax(-1)
        self.scaled_gradient = None
        if model.query_gradient != 1:
            self.scaled_gradient = ScaledGradient(model.query_gradient)

    def split_heads(self, x):
        """Return (batch, HEADS, length, HEAD_DIM)."""
        return x.reshape(BATCH, -1, HEADS, HEAD_DIM).transpose(0, 2, 1, 3)

    def construct(self, queries, keys, values, mask=None):
        q, k = self.split_heads(self.q_dense(queries)), self.split_heads(self.k_dense(keys))
        if self.scaled_gradient is not None:
            q = self.scaled_gradient(q)
        scores = ops.matmul(q, k.swapaxes(-1, -2)) / HEAD_DIM**0.5
        if mask is not None:
            scores = scores + mask
        y = ops.matmul(self.softmax(scores), self.split_heads(self.v_dense(values)))
        return self.out_dense(y.transpose(0, 2, 1, 3).reshape(BATCH, -1, HIDDEN))


class FeedForward(nn.Cell):
    """Two linear layers with a relu."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.dense1 = build_dense(model, f"{path}.up")
        self.dense2 = build_dense(model, f"{path}.down")
        self.act = nn.ReLU()

    def construct(self, x):
        return self.dense2(self.act(self.dense1(x)))


class EncoderLayer(nn.Cell):
    """Attention of tokens to each other, and feed-forward."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(model, f"{path}.attention")
        self.ffn = FeedForward(model, f"{path}.mlp")
        self.norm1 = build_norm(model, f"{path}.norm1")
        self.norm2 = build_norm(model, f"{path}.norm2")
        self.are_values_positioned = model.are_values_positioned

    def construct(self, x, positions, mask):
        positioned = x + positions
        values = positioned if self.are_values_positioned else x
        x = self.norm1(x + self.attention(positioned, positioned, values, mask))
        return self.norm2(x + self.ffn(x))


class DecoderLayer(nn.Cell):
    """Attention of queries to each other and to tokens, and feed-forward."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(model, f"{path}.attention")
        self.cross_attention = MultiHeadAttention(model, f"{path}.cross")
        self.ffn = FeedForward(model, f"{path}.mlp")
        self.norm1 = build_norm(model, f"{path}.norm1")
        self.norm2 = build_norm(model, f"{path}.norm2")
        self.norm3 = build_norm(model, f"{path}.norm3")
        self.has_cross_positions = model.has_cross_positions

    def construct(self, x, query_positions, memory, keys, mask):
        positioned = x + query_positions
        x = self.norm1(x + self.self_attention(positioned, positioned, x))
        queries = x + query_positions if self.has_cross_positions else x
        x = self.norm2(x + self.cross_attention(queries, keys, memory, mask))
        return self.norm3(x + self.ffn(x))


class Transformer(nn.Cell):
    """States of the queries behind each layer of the decoder, (batch, QUERIES, HIDDEN)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder_layers = nn.CellList(
            [EncoderLayer(model, f"encoder.{n}") for n in range(ENCODER_LAYERS)]
        )
        self.decoder_layers = nn.CellList(
            [DecoderLayer(model, f"decoder.{n}") for n in range(LAYERS)]
        )
        self.decoder_norm = build_norm(model, "decoder.norm")
        self.query_embedding = Parameter(read(model, "queries.weight"), name="query_embedding")

    def construct(self, tokens, positions, mask):
        memory = tokens
        for layer in self.encoder_layers:
            memory = layer(memory, positions, mask)
        keys = memory + positions
        query_positions = ops.tile(self.query_embedding.expand_dims(0), (BATCH, 1, 1))
        x = ops.zeros_like(query_positions)
        states = ()
        for layer in self.decoder_layers:
            x = layer(x, query_positions, memory, keys, mask)
            states += (self.decoder_norm(x),)
        return states


class BoxHead(nn.Cell):
    """The MLP of the boxes."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.dense1, self.dense2, self.dense3 = (
            build_dense(model, f"boxes.{n}") for n in range(BOX_LAYERS)
        )

    def construct(self, x):
        x = ops.relu(self.dense1(x))
        x = ops.relu(self.dense2(x))
        return ops.sigmoid(self.dense3(x))


class DETR(nn.Cell):
    """Logits and boxes of all layers of the decoder."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.backbone = Backbone(model)
        self.position_encoding = PositionEncoding(model)
        self.input_proj = build_conv(model, "project")
        self.transformer = Transformer(model)
        self.class_head = build_dense(model, "classes")
        self.box_head = BoxHead(model)

    def construct(self, images, is_padding):
        features = self.input_proj(self.backbone(images))
        tokens = features.reshape(BATCH, HIDDEN, TOKENS).transpose(0, 2, 1)
        padding = is_padding.astype(ms.float32).expand_dims(1)
        padding = ops.interpolate(padding, size=(ROWS, COLUMNS), mode="nearest").squeeze(1)
        positions = self.position_encoding(1.0 - padding)
        mask = padding.reshape(BATCH, 1, 1, TOKENS) * MASKED
        outputs = ()
        for state in self.transformer(tokens, positions, mask):
            outputs += ((self.class_head(state), self.box_head(state)),)
        return outputs


def convert_to_corners(boxes):
    """Return upper left and lower right corners of boxes."""
    centers, half_sizes = boxes[..., :2], 0.5 * boxes[..., 2:]
    return centers - half_sizes, centers + half_sizes


def multiply(sizes):
    """Return areas."""
    return sizes[..., 0] * sizes[..., 1]


def compute_giou(boxes, targets):
    """Return the GIoU of each box and its target."""
    low, high = convert_to_corners(boxes)
    target_low, target_high = convert_to_corners(targets)
    common_sizes = ops.minimum(high, target_high) - ops.maximum(low, target_low)
    common = multiply(ops.relu(common_sizes))
    union = multiply(high - low) + multiply(target_high - target_low) - common
    enclosing = multiply(ops.maximum(high, target_high) - ops.minimum(low, target_low))
    return common / union - (enclosing - union) / enclosing


class SetCriterion(nn.Cell):
    """The losses of a layer of the decoder."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.class_weights = Tensor(model.class_weights())
        self.owners = Tensor(OWNERS, ms.int32)
        self.no_objects = Tensor(np.full((BATCH, QUERIES), CLASSES, np.int32))

    def construct(self, logits, predicted, labels, boxes, queries, objects):
        index = ops.stack((self.owners, queries), -1)
        targets = ops.tensor_scatter_update(self.no_objects, index, ops.gather(labels, objects, 0))
        class_loss = ops.cross_entropy(
            logits.reshape(-1, CLASSES + 1), targets.reshape(-1), self.class_weights
        )
        matched, wanted = ops.gather_nd(predicted, index), ops.gather(boxes, objects, 0)
        box_loss = ops.abs(matched - wanted).sum() / OBJECTS
        giou_loss = (1 - compute_giou(matched, wanted)).sum() / OBJECTS
        return class_loss + L1_WEIGHT * box_loss + GIOU_WEIGHT * giou_loss


class NetWithLoss(nn.Cell):
    """The sum of the losses of all layers of the decoder."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network, self.criterion = DETR(model), SetCriterion(model)

    def construct(self, images, is_padding, labels, boxes, queries, objects):
        outputs = self.network(images, is_padding)
        loss = 0.0
        for n in range(LAYERS):
            logits, predicted = outputs[n]
            loss += self.criterion(logits, predicted, labels, boxes, queries[n], objects[n])
        return loss


# Variant 'written'


class WrittenFrozenNorm(nn.Cell):
    """A batch norm with fixed statistics and weights, as a factor and an offset."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        weight, bias, mean, variance = (
            model.weights[f"{path}.{name}"] for name in ("weight", "bias", "mean", "variance")
        )
        factor = weight / np.sqrt(variance + np.float32(EPS))
        self.factor = Tensor(factor.reshape(1, -1, 1, 1))
        self.offset = Tensor((bias - mean * factor).reshape(1, -1, 1, 1))

    def construct(self, x):
        return x * self.factor + self.offset


class WrittenBackbone(nn.Cell):
    """The backbone with norms as factors and offsets."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        strides = (*(2 for _ in CHANNELS), 1)
        self.convs = nn.CellList(
            [build_conv(model, f"backbone.{n}", stride) for n, stride in enumerate(strides)]
        )
        self.norms = nn.CellList(
            [WrittenFrozenNorm(model, f"backbone.{n}.norm") for n in range(len(strides))]
        )

    def construct(self, x):
        for n in range(len(CHANNELS)):
            x = mint.nn.functional.relu(self.norms[n](self.convs[n](x)))
        return mint.nn.functional.relu(self.norms[-1](self.convs[-1](x)) + x)


class WrittenNorm(nn.Cell):
    """Layer norm from means."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.scale = Parameter(read(model, f"{path}.weight"))
        self.shift = Parameter(read(model, f"{path}.bias"))

    def construct(self, x):
        centered = x - mint.mean(x, -1, keepdim=True)
        variance = mint.mean(mint.square(centered), -1, keepdim=True)
        return centered * mint.rsqrt(variance + EPS) * self.scale + self.shift


class WrittenAttention(nn.Cell):
    """Attention with its norm; queries and keys of self-attention by one layer."""

    def __init__(self, model: Model, path: str, name: str, norm: str) -> None:
        super().__init__()
        self.is_joined = name == "attention"
        path_of_weights = f"{path}.{name}"
        if self.is_joined:
            self.qk = build_dense(model, f"{path_of_weights}.q", f"{path_of_weights}.k")
        else:
            self.q = build_dense(model, f"{path_of_weights}.q")
            self.k = build_dense(model, f"{path_of_weights}.k")
        self.v = build_dense(model, f"{path_of_weights}.v")
        self.proj = build_dense(model, f"{path_of_weights}.o")
        self.ln = WrittenNorm(model, f"{path}.{norm}")

    def split_heads(self, x):
        """Return (batch, HEADS, length, HEAD_DIM)."""
        return mint.permute(x.reshape(BATCH, -1, HEADS, HEAD_DIM), (0, 2, 1, 3))

    def construct(self, x, queries, keys, values, is_hidden=None):
        if self.is_joined:
            q, k = mint.chunk(self.qk(queries), 2, dim=-1)
        else:
            q, k = self.q(queries), self.k(keys)
        q, k, v = self.split_heads(q), self.split_heads(k), self.split_heads(self.v(values))
        scores = mint.matmul(q * HEAD_DIM**-0.5, mint.transpose(k, 2, 3))
        if is_hidden is not None:
            scores = ops.masked_fill(scores, is_hidden, MASKED)
        exponentials = mint.exp(scores - ops.stop_gradient(scores.max(-1, keepdims=True)))
        shares = exponentials / mint.sum(exponentials, -1, keepdim=True)
        y = mint.permute(mint.matmul(shares, v), (0, 2, 1, 3)).reshape(BATCH, -1, HIDDEN)
        return self.ln(x + self.proj(y))


class WrittenMLP(nn.Cell):
    """Feed-forward with its norm."""

    def __init__(self, model: Model, path: str, norm: str) -> None:
        super().__init__()
        self.fc1 = build_dense(model, f"{path}.mlp.up")
        self.fc2 = build_dense(model, f"{path}.mlp.down")
        self.ln = WrittenNorm(model, f"{path}.{norm}")

    def construct(self, x):
        return self.ln(self.fc2(mint.nn.functional.relu(self.fc1(x))) + x)


class WrittenDETR(nn.Cell):
    """Logits and boxes of all layers, (LAYERS, batch, QUERIES, width) each."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.body = WrittenBackbone(model)
        self.reduce = build_conv(model, "project")
        encoder, decoder = [], []
        for n in range(ENCODER_LAYERS):
            path = f"encoder.{n}"
            encoder.append(WrittenAttention(model, path, "attention", "norm1"))
            encoder.append(WrittenMLP(model, path, "norm2"))
        for n in range(LAYERS):
            path = f"decoder.{n}"
            decoder.append(WrittenAttention(model, path, "attention", "norm1"))
            decoder.append(WrittenAttention(model, path, "cross", "norm2"))
            decoder.append(WrittenMLP(model, path, "norm3"))
        self.encoder, self.decoder = nn.CellList(encoder), nn.CellList(decoder)
        self.ln_out = WrittenNorm(model, "decoder.norm")
        self.queries = Parameter(read(model, "queries.weight"), name="queries")
        self.classify = build_dense(model, "classes")
        self.locate = nn.CellList([build_dense(model, f"boxes.{n}") for n in range(BOX_LAYERS)])
        self.frequencies = Tensor((2 * np.pi / model.divisors()).astype(np.float32))
        self.phases = Tensor(np.tile([0, np.pi / 2], FEATURES // 2).astype(np.float32))

    def encode_positions(self, is_valid):
        """Return waves (batch, TOKENS, HIDDEN), cosines as shifted sines."""
        rows, columns = ops.cumsum(is_valid, 1), ops.cumsum(is_valid, 2)
        rows = rows / (rows[:, -1:, :] + POSITION_EPS)
        columns = columns / (columns[:, :, -1:] + POSITION_EPS)
        both = ops.stack((rows, columns), -1).reshape(BATCH, TOKENS, 2, 1)
        waves = mint.sin(both * self.frequencies + self.phases)
        return waves.reshape(BATCH, TOKENS, HIDDEN)

    def construct(self, images, is_padding):
        x = self.reduce(self.body(images))
        memory = mint.permute(x.reshape(BATCH, HIDDEN, TOKENS), (0, 2, 1))
        is_padding = is_padding[:, ::STRIDE, ::STRIDE]
        positions = self.encode_positions(ops.logical_not(is_padding).astype(ms.float32))
        is_hidden = is_padding.reshape(BATCH, 1, 1, TOKENS)
        for n in range(ENCODER_LAYERS):
            positioned = memory + positions
            memory = self.encoder[2 * n](memory, positioned, positioned, memory, is_hidden)
            memory = self.encoder[2 * n + 1](memory)
        x = mint.zeros((BATCH, QUERIES, HIDDEN))
        states = ()
        for n in range(LAYERS):
            positioned = x + self.queries
            x = self.decoder[3 * n](x, positioned, positioned, x)
            keys = memory + positions
            x = self.decoder[3 * n + 1](x, x + self.queries, keys, memory, is_hidden)
            x = self.decoder[3 * n + 2](x)
            states += (x,)
        states = self.ln_out(ops.stack(states))
        boxes = states
        for n in range(BOX_LAYERS - 1):
            boxes = mint.nn.functional.relu(self.locate[n](boxes))
        return self.classify(states), mint.sigmoid(self.locate[-1](boxes))


class WrittenLoss(nn.Cell):
    """The losses of all layers at once, matched queries by one-hot vectors."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.detr = WrittenDETR(model)
        self.class_weights = Tensor(model.class_weights())
        self.is_owner = Tensor(np.eye(BATCH, dtype=np.float32)[:, list(OWNERS)])
        self.no_object = Tensor(np.eye(CLASSES + 1, dtype=np.float32)[-1])

    def construct(self, images, is_padding, labels, boxes, queries, objects):
        logits, predicted = self.detr(images, is_padding)
        is_query = ops.one_hot(queries, QUERIES, 1.0, 0.0)
        is_match = mint.unsqueeze(self.is_owner, -1) * mint.unsqueeze(is_query, 1)
        is_match = is_match.reshape(LAYERS * BATCH, OBJECTS, QUERIES)
        wanted_labels = ops.one_hot(labels[objects], CLASSES + 1, 1.0, 0.0)
        wanted = mint.unsqueeze(wanted_labels - self.no_object, 1).tile((1, BATCH, 1, 1))
        wanted = wanted.reshape(LAYERS * BATCH, OBJECTS, CLASSES + 1)
        targets = mint.bmm(mint.transpose(is_match, 1, 2), wanted) + self.no_object
        targets = targets.reshape(logits.shape) * self.class_weights
        logs = logits - ops.logsumexp(logits, -1, True)
        losses = -mint.sum(logs * targets, (1, 2, 3)) / mint.sum(targets, (1, 2, 3))
        matched = mint.bmm(is_match, predicted.reshape(LAYERS * BATCH, QUERIES, 4))
        matched = mint.sum(matched.reshape(LAYERS, BATCH, OBJECTS, 4), 1)
        wanted_boxes = boxes[objects]
        distances = mint.sum(mint.abs(matched - wanted_boxes))
        overlaps = mint.sum(compute_giou(matched, wanted_boxes))
        box_loss = L1_WEIGHT * distances + GIOU_WEIGHT * (LAYERS * OBJECTS - overlaps)
        return mint.sum(losses) + box_loss / OBJECTS
