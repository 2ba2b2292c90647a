"""Promptable segmentation in MindSpore for graph mode.

Variant 'written': norms, softmax and losses in plain arithmetic, convolutions without overlap as
products, windows by an index, queries, keys and values from three products, one-hot choices.
"""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from families.promptseg.architecture import (
    ALPHA,
    BACKGROUND,
    BATCH,
    CELLS,
    DECODER_EPS,
    DECODER_HEADS,
    DECODER_LAYERS,
    DIM,
    EMBED,
    EPS,
    FOCAL_WEIGHT,
    FOREGROUND,
    GAMMA,
    GRID,
    HEAD_DIM,
    HEADS,
    HEIGHT,
    MASK_SIZE,
    MASKS,
    PADDED_ROWS,
    PADDING,
    PATCH,
    POINTS,
    PROMPTS,
    SCORE_WEIGHT,
    SMOOTHING,
    UP_CHANNELS,
    WIDTH,
    WINDOW,
    WINDOWS,
    Model,
    relative_index,
)

ROWS, COLUMNS = GRID
TOKENS = 1 + MASKS + POINTS + 2


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return WrittenLoss(model) if model.variant == "written" else SegmentationLoss(model)


def read(model: Model, *names: str) -> Tensor:
    """Return a weight, or several ones behind each other."""
    return Tensor(np.concatenate([model.weights[name] for name in names]))


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at a path."""
    weight = read(model, f"{path}.weight")
    n_out, n_in = weight.shape
    return nn.Dense(n_in, n_out, weight_init=weight, bias_init=read(model, f"{path}.bias"))


def build_conv(model: Model, path: str, stride: int = 1, padding: int = 0) -> nn.Conv2d:
    """Return the convolution at a path."""
    weight = read(model, f"{path}.weight")
    n_out, n_in, kernel, _ = weight.shape
    has_bias = f"{path}.bias" in model.weights
    return nn.Conv2d(
        n_in,
        n_out,
        kernel,
        stride,
        pad_mode="pad",
        padding=padding,
        has_bias=has_bias,
        weight_init=weight,
        bias_init=read(model, f"{path}.bias") if has_bias else None,
    )


def build_deconv(model: Model, path: str) -> nn.Conv2dTranspose:
    """Return the transposed convolution at a path, which doubles a grid."""
    weight = read(model, f"{path}.weight")
    n_in, n_out, kernel, stride = weight.shape
    return nn.Conv2dTranspose(
        n_in,
        n_out,
        kernel,
        stride,
        pad_mode="valid",
        has_bias=True,
        weight_init=weight,
        bias_init=read(model, f"{path}.bias"),
    )


def build_norm(model: Model, path: str, eps: float) -> nn.LayerNorm:
    """Return the layer norm at a path."""
    weight = read(model, f"{path}.weight")
    return nn.LayerNorm(
        weight.shape, gamma_init=weight, beta_init=read(model, f"{path}.bias"), epsilon=eps
    )


class LayerNorm2d(nn.Cell):
    """Layer norm of the channels of (batch, channels, rows, columns)."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.gamma = Parameter(read(model, f"{path}.weight"), name="gamma")
        self.beta = Parameter(read(model, f"{path}.bias"), name="beta")

    def construct(self, x):
        mean = x.mean(1, keep_dims=True)
        variance = ops.square(x - mean).mean(1, keep_dims=True)
        x = (x - mean) / ops.sqrt(variance + EPS)
        return x * self.gamma.reshape(1, -1, 1, 1) + self.beta.reshape(1, -1, 1, 1)


class RelativeAttention(nn.Cell):
    """Attention within a grid, with terms of relative rows and columns."""

    def __init__(self, model: Model, path: str, grid: tuple[int, int]) -> None:
        super().__init__()
        self.qkv = build_dense(model, f"{path}.qkv")
        self.proj = build_dense(model, f"{path}.proj")
        self.rel_pos_h = Parameter(read(model, f"{path}.rows"), name="rel_pos_h")
        self.rel_pos_w = Parameter(read(model, f"{path}.columns"), name="rel_pos_w")
        self.index_h, self.index_w = (Tensor(relative_index(length)) for length in grid)
        self.rows, self.columns = grid
        self.softmax = nn.Softmax(axis=-1)
        self.scale = HEAD_DIM**-0.5

    def get_relative(self, q):
        """Return what is added to the scores, (batch, HEADS, cells, cells)."""
        rows, columns = self.rows, self.columns
        q = q.reshape(-1, HEADS, rows, columns, HEAD_DIM)
        table_h = ops.gather(self.rel_pos_h, self.index_h, 0)
        table_w = ops.gather(self.rel_pos_w, self.index_w, 0)
        by_row = ops.matmul(q, table_h.swapaxes(-2, -1))
        by_column = ops.matmul(q.swapaxes(2, 3), table_w.swapaxes(-2, -1)).swapaxes(2, 3)
        bias = by_row.expand_dims(-1) + by_column.expand_dims(-2)
        return bias.reshape(-1, HEADS, rows * columns, rows * columns)

    def construct(self, x):
        qkv = self.qkv(x).reshape(-1, self.rows * self.columns, 3, HEADS, HEAD_DIM)
        q, k, v = qkv.transpose(2, 0, 3, 1, 4)
        scores = ops.matmul(q * self.scale, k.swapaxes(-2, -1)) + self.get_relative(q)
        x = ops.matmul(self.softmax(scores), v).transpose(0, 2, 1, 3)
        return self.proj(x.reshape(-1, self.rows, self.columns, DIM))


class MLPBlock(nn.Cell):
    """Two linear layers around an activation."""

    def __init__(self, model: Model, path: str, activation: nn.Cell) -> None:
        super().__init__()
        self.lin1, self.lin2 = build_dense(model, f"{path}.up"), build_dense(model, f"{path}.down")
        self.act = activation

    def construct(self, x):
        return self.lin2(self.act(self.lin1(x)))


class EncoderBlock(nn.Cell):
    """Attention, in windows or not, and mlp, each after a norm."""

    def __init__(self, model: Model, path: str, window: int) -> None:
        super().__init__()
        self.norm1 = build_norm(model, f"{path}.norm1", EPS)
        self.attn = RelativeAttention(model, path, (window, window) if window else GRID)
        self.norm2 = build_norm(model, f"{path}.norm2", EPS)
        self.mlp = MLPBlock(model, path, nn.GELU(approximate=False))
        self.window = window
        self.are_windows_reshaped = model.are_windows_reshaped

    def partition(self, x):
        """Return (windows, WINDOW, WINDOW, DIM)."""
        x = ops.pad(x, (0, 0, 0, 0, 0, PADDED_ROWS - ROWS))
        if not self.are_windows_reshaped:
            x = x.reshape(BATCH, PADDED_ROWS // WINDOW, WINDOW, COLUMNS // WINDOW, WINDOW, DIM)
            x = x.transpose(0, 1, 3, 2, 4, 5)
        return x.reshape(-1, WINDOW, WINDOW, DIM)

    def reverse(self, x):
        """Return (batch, rows, columns, DIM)."""
        if not self.are_windows_reshaped:
            x = x.reshape(BATCH, PADDED_ROWS // WINDOW, COLUMNS // WINDOW, WINDOW, WINDOW, DIM)
            x = x.transpose(0, 1, 3, 2, 4, 5)
        return x.reshape(BATCH, PADDED_ROWS, COLUMNS, DIM)[:, :ROWS]

    def construct(self, x):
        y = self.norm1(x)
        if self.window > 0:
            y = self.partition(y)
        y = self.attn(y)
        if self.window > 0:
            y = self.reverse(y)
        x = x + y
        return x + self.mlp(self.norm2(x))


class ImageEncoder(nn.Cell):
    """Image embeddings (batch, EMBED, *GRID)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.patch_embed = build_conv(model, "encoder.patch", PATCH)
        self.pos_embed = Parameter(read(model, "encoder.position"), name="pos_embed")
        self.blocks = nn.CellList(
            [EncoderBlock(model, f"encoder.{n}", window) for n, window in enumerate(WINDOWS)]
        )
        self.neck = nn.SequentialCell(
            build_conv(model, "neck.conv1"),
            LayerNorm2d(model, "neck.norm1"),
            build_conv(model, "neck.conv2", padding=1),
            LayerNorm2d(model, "neck.norm2"),
        )

    def construct(self, images):
        x = self.patch_embed(images).transpose(0, 2, 3, 1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.neck(x.transpose(0, 3, 1, 2))


class PositionEncoder(nn.Cell):
    """Fourier features of coordinates."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        gaussian = read(model, "prompts.gaussian")
        self.gaussian = Parameter(gaussian, name="gaussian", requires_grad=False)
        self.grid = Tensor(model.coordinates())
        self.size = Tensor([WIDTH, HEIGHT], ms.float32)

    def encode(self, coordinates):
        """Return sin and cos of coordinates from 0 to 1."""
        phase = 2 * math.pi * ops.matmul(2 * coordinates - 1, self.gaussian)
        return ops.cat((ops.sin(phase), ops.cos(phase)), axis=-1)

    def encode_grid(self):
        """Return features of all cells, (1, CELLS, EMBED)."""
        return self.encode(self.grid).reshape(1, CELLS, EMBED)

    def construct(self, points):
        return self.encode((points + 0.5) / self.size)


class PromptEncoder(nn.Cell):
    """Tokens (prompts, POINTS + 2, EMBED) and what is added to images."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.position = PositionEncoder(model)
        self.point_embeddings = Parameter(read(model, "prompts.points"), name="point_embeddings")
        self.not_a_point = Parameter(read(model, "prompts.not_a_point"), name="not_a_point")
        self.no_mask = Parameter(read(model, "prompts.no_mask"), name="no_mask")
        self.mask_downscaling = nn.SequentialCell(
            build_conv(model, "prompts.mask1", 2),
            LayerNorm2d(model, "prompts.mask_norm1"),
            nn.GELU(approximate=False),
            build_conv(model, "prompts.mask2", 2),
            LayerNorm2d(model, "prompts.mask_norm2"),
            nn.GELU(approximate=False),
            build_conv(model, "prompts.mask3"),
        )

    def embed_points(self, points, labels):
        """Return (prompts, POINTS, EMBED)."""
        labels = labels.expand_dims(-1)
        embedding = self.position(points)
        embedding = ops.where(labels == PADDING, self.not_a_point, embedding)
        is_background = (labels == BACKGROUND).astype(ms.float32)
        is_foreground = (labels == FOREGROUND).astype(ms.float32)
        embedding = embedding + is_background * self.point_embeddings[0]
        return embedding + is_foreground * self.point_embeddings[1]

    def embed_boxes(self, boxes, has_box):
        """Return (prompts, 2, EMBED)."""
        corners = self.position(boxes.reshape(-1, 2, 2)) + self.point_embeddings[2:]
        return ops.where(has_box.reshape(-1, 1, 1) > 0, corners, self.not_a_point)

    def construct(self, points, labels, boxes, has_box, masks, has_mask):
        sparse = ops.cat((self.embed_points(points, labels), self.embed_boxes(boxes, has_box)), 1)
        dense = self.mask_downscaling(masks.expand_dims(1))
        no_mask = self.no_mask.reshape(1, EMBED, 1, 1)
        return sparse, ops.where(has_mask.reshape(-1, 1, 1, 1) > 0, dense, no_mask)


class Attention(nn.Cell):
    """Attention whose inner width is smaller."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            build_dense(model, f"{path}.{name}") for name in ("q", "k", "v", "out")
        )
        self.internal = len(model.weights[f"{path}.q.bias"])
        self.scale = 1 / math.sqrt(self.internal // DECODER_HEADS)
        self.softmax = nn.Softmax(axis=-1)

    def split(self, x):
        """Return (prompts, DECODER_HEADS, tokens, channels)."""
        x = x.reshape(x.shape[0], x.shape[1], DECODER_HEADS, -1)
        return x.transpose(0, 2, 1, 3)

    def construct(self, q, k, v):
        q, k, v = (
            self.split(self.q_proj(q)),
            self.split(self.k_proj(k)),
            self.split(self.v_proj(v)),
        )
        weights = self.softmax(ops.matmul(q, k.swapaxes(-2, -1)) * self.scale)
        out = ops.matmul(weights, v).transpose(0, 2, 1, 3)
        return self.out_proj(out.reshape(out.shape[0], out.shape[1], self.internal))


class TwoWayBlock(nn.Cell):
    """Tokens attend to themselves and the image, the image to tokens."""

    def __init__(self, model: Model, path: str, *, is_first: bool) -> None:
        super().__init__()
        self.self_attn = Attention(model, f"{path}.self")
        self.norm1 = build_norm(model, f"{path}.norm1", DECODER_EPS)
        self.token_to_image = Attention(model, f"{path}.to_image")
        self.norm2 = build_norm(model, f"{path}.norm2", DECODER_EPS)
        self.mlp = MLPBlock(model, path, nn.ReLU())
        self.norm3 = build_norm(model, f"{path}.norm3", DECODER_EPS)
        self.image_to_token = Attention(model, f"{path}.to_tokens")
        self.norm4 = build_norm(model, f"{path}.norm4", DECODER_EPS)
        self.is_first = is_first

    def construct(self, queries, keys, query_pe, key_pe):
        if self.is_first:
            queries = self.self_attn(queries, queries, queries)
        else:
            q = queries + query_pe
            queries = queries + self.self_attn(q, q, queries)
        queries = self.norm1(queries)
        out = self.token_to_image(queries + query_pe, keys + key_pe, keys)
        queries = self.norm2(queries + out)
        queries = self.norm3(queries + self.mlp(queries))
        out = self.image_to_token(keys + key_pe, queries + query_pe, queries)
        return queries, self.norm4(keys + out)


class TwoWayTransformer(nn.Cell):
    """Layers, and the last attention of tokens to the image."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.layers = nn.CellList(
            [TwoWayBlock(model, f"decoder.{n}", is_first=n == 0) for n in range(DECODER_LAYERS)]
        )
        self.final_attn = Attention(model, "decoder.final")
        self.norm_final = build_norm(model, "decoder.final_norm", DECODER_EPS)

    def construct(self, keys, key_pe, tokens):
        queries = tokens
        for layer in self.layers:
            queries, keys = layer(queries, keys, tokens, key_pe)
        out = self.final_attn(queries + tokens, keys + key_pe, keys)
        return self.norm_final(queries + out), keys


def build_mlp(model: Model, path: str) -> nn.SequentialCell:
    """Return three linear layers with ReLU between them."""
    return nn.SequentialCell(
        build_dense(model, f"{path}.0"),
        nn.ReLU(),
        build_dense(model, f"{path}.1"),
        nn.ReLU(),
        build_dense(model, f"{path}.2"),
    )


class MaskDecoder(nn.Cell):
    """Logits (prompts, MASKS, *MASK_SIZE) and predicted IoU (prompts, MASKS)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.transformer = TwoWayTransformer(model)
        self.iou_token = Parameter(read(model, "decoder.score_token"), name="iou_token")
        self.mask_tokens = Parameter(read(model, "decoder.mask_tokens"), name="mask_tokens")
        self.upscaling = nn.SequentialCell(
            build_deconv(model, "decoder.up1"),
            LayerNorm2d(model, "decoder.up_norm"),
            nn.GELU(approximate=False),
            build_deconv(model, "decoder.up2"),
            nn.GELU(approximate=False),
        )
        self.hypernetworks = nn.CellList(
            [build_mlp(model, f"decoder.hyper.{mask}") for mask in range(MASKS)]
        )
        self.iou_head = build_mlp(model, "decoder.score")

    def construct(self, images, image_pe, sparse, dense):
        outputs = ops.cat((self.iou_token, self.mask_tokens), axis=0).expand_dims(0)
        outputs = ops.tile(outputs, (sparse.shape[0], 1, 1))
        tokens = ops.cat((outputs, sparse), axis=1)
        src = ops.repeat_interleave(images, PROMPTS, axis=0) + dense
        src = src.reshape(-1, EMBED, CELLS).transpose(0, 2, 1)

        tokens, src = self.transformer(src, image_pe, tokens)
        src = src.transpose(0, 2, 1).reshape(-1, EMBED, ROWS, COLUMNS)
        upscaled = self.upscaling(src).reshape(-1, UP_CHANNELS[1], MASK_SIZE[0] * MASK_SIZE[1])
        hyper_in = ()
        for mask in range(MASKS):
            hyper_in += (self.hypernetworks[mask](tokens[:, 1 + mask]),)
        masks = ops.matmul(ops.stack(hyper_in, axis=1), upscaled)
        return masks.reshape(-1, MASKS, *MASK_SIZE), self.iou_head(tokens[:, 0])


class FocalLoss(nn.Cell):
    """The mean over pixels, (prompts, MASKS)."""

    def __init__(self) -> None:
        super().__init__()
        self.bce = nn.BCEWithLogitsLoss(reduction="none")

    def construct(self, logits, targets):
        probabilities = ops.sigmoid(logits)
        p_t = probabilities * targets + (1 - probabilities) * (1 - targets)
        alpha_t = ALPHA * targets + (1 - ALPHA) * (1 - targets)
        losses = alpha_t * ops.pow(1 - p_t, GAMMA) * self.bce(logits, targets)
        return losses.mean((-2, -1))


class DiceLoss(nn.Cell):
    """The loss of each mask, (prompts, MASKS)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_squared = model.is_dice_squared

    def construct(self, logits, targets):
        probabilities = ops.sigmoid(logits)
        intersection = (probabilities * targets).sum((-2, -1))
        if self.is_squared:
            total = ops.square(probabilities).sum((-2, -1)) + ops.square(targets).sum((-2, -1))
        else:
            total = probabilities.sum((-2, -1)) + targets.sum((-2, -1))
        return 1 - (2 * intersection + SMOOTHING) / (total + SMOOTHING)


class SegmentationLoss(nn.Cell):
    """Focal, dice and IoU losses of the masks of prompts."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.image_encoder = ImageEncoder(model)
        self.prompt_encoder = PromptEncoder(model)
        self.mask_decoder = MaskDecoder(model)
        self.focal_loss, self.dice_loss = FocalLoss(), DiceLoss(model)
        self.is_measured_attached = model.is_measured_attached

    def measure(self, logits, targets):
        """Return the IoU of probabilities, (prompts, MASKS)."""
        probabilities = ops.sigmoid(logits)
        intersection = (probabilities * targets).sum((-2, -1))
        union = probabilities.sum((-2, -1)) + targets.sum((-2, -1)) - intersection
        iou = intersection / union
        return iou if self.is_measured_attached else ops.stop_gradient(iou)

    def select(self, losses, labels, has_box):
        """Return which mask of each prompt counts, (prompts, 1)."""
        best = ops.argmin(losses[:, 1:], axis=-1).astype(ms.int32) + 1
        n_points = (labels != PADDING).astype(ms.int32).sum(-1)
        is_ambiguous = ops.logical_and(n_points <= 1, has_box == 0)
        return (best * is_ambiguous.astype(ms.int32)).expand_dims(-1)

    def construct(
        self, images, points, labels, boxes, has_box, masks, has_mask, targets, is_prompt
    ):
        labels, has_box = labels.reshape(-1, POINTS), has_box.reshape(-1)
        sparse, dense = self.prompt_encoder(
            points.reshape(-1, POINTS, 2),
            labels,
            boxes.reshape(-1, 4),
            has_box,
            masks.reshape(-1, *MASK_SIZE),
            has_mask.reshape(-1),
        )
        image_pe = self.prompt_encoder.position.encode_grid()
        logits, ious = self.mask_decoder(self.image_encoder(images), image_pe, sparse, dense)

        targets = ops.tile(targets.reshape(-1, 1, *MASK_SIZE), (1, MASKS, 1, 1))
        losses = FOCAL_WEIGHT * self.focal_loss(logits, targets) + self.dice_loss(logits, targets)
        errors = ops.square(ious - self.measure(logits, targets))
        index = self.select(losses, labels, has_box)
        losses = ops.gather_elements(losses, 1, index)
        losses = losses + SCORE_WEIGHT * ops.gather_elements(errors, 1, index)
        is_prompt = is_prompt.reshape(-1, 1)
        return (losses * is_prompt).sum() / is_prompt.sum()


def apply_gelu(x):
    """Return GELU from the error function."""
    return 0.5 * x * (1 + mint.erf(x / math.sqrt(2)))


def apply_softmax(x):
    """Return the softmax of the last axis from exponentials."""
    shares = mint.exp(x - ops.stop_gradient(x.max(-1, keepdims=True)))
    return shares / mint.sum(shares, -1, True)


class WrittenLinear(nn.Cell):
    """A linear layer, or rows of one."""

    def __init__(self, model: Model, path: str, start: int = 0, end: int | None = None) -> None:
        super().__init__()
        self.matrix = Parameter(Tensor(model.weights[f"{path}.weight"][start:end]))
        self.shift = Parameter(Tensor(model.weights[f"{path}.bias"][start:end]))

    def construct(self, x):
        return mint.matmul(x, self.matrix.swapaxes(0, 1)) + self.shift


class WrittenNorm(nn.Cell):
    """Layer norm of the last axis from means."""

    def __init__(self, model: Model, path: str, eps: float) -> None:
        super().__init__()
        self.gain = Parameter(read(model, f"{path}.weight"))
        self.shift = Parameter(read(model, f"{path}.bias"))
        self.eps = eps

    def construct(self, x):
        centered = x - mint.mean(x, -1, True)
        variance = mint.mean(mint.square(centered), -1, True)
        return centered * mint.rsqrt(variance + self.eps) * self.gain + self.shift


class PatchProduct(nn.Cell):
    """A convolution without overlap of (batch, rows, columns, channels) as a product."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        weight = model.weights[f"{path}.weight"]
        self.n_out, self.n_in, self.size, _ = weight.shape
        self.matrix = Parameter(Tensor(weight.reshape(self.n_out, -1)))
        self.shift = Parameter(read(model, f"{path}.bias"))

    def construct(self, x):
        size = self.size
        batch, rows, columns = x.shape[0], x.shape[1] // size, x.shape[2] // size
        x = x.reshape(batch, rows, size, columns, size, self.n_in).permute(0, 1, 3, 5, 2, 4)
        x = x.reshape(batch, rows, columns, self.n_in * size * size)
        return mint.matmul(x, self.matrix.swapaxes(0, 1)) + self.shift


class DoublingProduct(nn.Cell):
    """A transposed convolution without overlap of (batch, rows, columns, channels)."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        weight = model.weights[f"{path}.weight"]
        self.n_in, self.n_out, self.size, _ = weight.shape
        self.matrix = Parameter(Tensor(weight.reshape(self.n_in, -1)))
        self.shift = Parameter(read(model, f"{path}.bias"))

    def construct(self, x):
        batch, rows, columns, _ = x.shape
        size = self.size
        x = mint.matmul(x, self.matrix).reshape(batch, rows, columns, self.n_out, size, size)
        x = x.permute(0, 1, 4, 2, 5, 3).reshape(batch, rows * size, columns * size, self.n_out)
        return x + self.shift


class WrittenBlock(nn.Cell):
    """A block of the image encoder on (BATCH, CELLS, DIM), windows by an index."""

    def __init__(self, model: Model, path: str, window: int) -> None:
        super().__init__()
        self.before, self.between = (
            WrittenNorm(model, f"{path}.{name}", EPS) for name in ("norm1", "norm2")
        )
        self.query, self.key, self.value = (
            WrittenLinear(model, f"{path}.qkv", n * DIM, (n + 1) * DIM) for n in range(3)
        )
        self.mix = WrittenLinear(model, f"{path}.proj")
        self.up, self.down = (WrittenLinear(model, f"{path}.{name}") for name in ("up", "down"))
        self.row_table = Parameter(read(model, f"{path}.rows"))
        self.column_table = Parameter(read(model, f"{path}.columns"))
        self.window = window
        self.rows, self.columns = (window, window) if window else GRID
        self.size = self.rows * self.columns
        row_index, column_index = relative_index(self.rows), relative_index(self.columns)
        number = np.arange(self.size)
        row, column = number // self.columns, number % self.columns
        pairs = np.ix_(row, row), np.ix_(column, column)
        self.row_of = Tensor(row_index[pairs[0]].reshape(1, 1, self.size, self.size))
        self.column_of = Tensor(column_index[pairs[1]].reshape(1, 1, self.size, self.size))
        if window:
            cells = np.arange(PADDED_ROWS * COLUMNS, dtype=np.int32)
            cells = cells.reshape(PADDED_ROWS // window, window, COLUMNS // window, window)
            order = cells.transpose(0, 2, 1, 3).reshape(-1)
            self.order, self.back = (
                Tensor(order),
                Tensor(np.argsort(order)[:CELLS].astype(np.int32)),
            )
            self.zeros = Tensor(np.zeros((BATCH, (PADDED_ROWS - ROWS) * COLUMNS, DIM), np.float32))

    def split(self, x):
        """Return (batch, HEADS, cells, HEAD_DIM)."""
        return x.reshape(-1, self.size, HEADS, HEAD_DIM).permute(0, 2, 1, 3)

    def attend(self, x):
        """Return the result of attention within (batch, cells, DIM)."""
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = mint.matmul(q, k.permute(0, 1, 3, 2)) / math.sqrt(HEAD_DIM)
        shape = (q.shape[0], HEADS, self.size, self.size)
        by_row = mint.matmul(q, self.row_table.swapaxes(0, 1))
        by_column = mint.matmul(q, self.column_table.swapaxes(0, 1))
        scores = scores + ops.gather_elements(by_row, 3, ops.broadcast_to(self.row_of, shape))
        scores = scores + ops.gather_elements(by_column, 3, ops.broadcast_to(self.column_of, shape))
        out = mint.matmul(apply_softmax(scores), v).permute(0, 2, 1, 3)
        return self.mix(out.reshape(-1, self.size, DIM))

    def construct(self, x):
        y = self.before(x)
        if self.window > 0:
            y = ops.gather(mint.cat((y, self.zeros), 1), self.order, 1)
            y = self.attend(y.reshape(-1, self.size, DIM)).reshape(BATCH, -1, DIM)
            y = ops.gather(y, self.back, 1)
        else:
            y = self.attend(y)
        x = y + x
        return self.down(apply_gelu(self.up(self.between(x)))) + x


class WrittenAttention(nn.Cell):
    """Attention of the decoder."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.q, self.k, self.v, self.mix = (
            WrittenLinear(model, f"{path}.{name}") for name in ("q", "k", "v", "out")
        )
        self.width = len(model.weights[f"{path}.q.bias"])
        self.head_dim = self.width // DECODER_HEADS

    def construct(self, q, k, v):
        n_queries, n_keys, head_dim = q.shape[1], k.shape[1], self.head_dim
        q = self.q(q).reshape(-1, n_queries, DECODER_HEADS, head_dim) / math.sqrt(head_dim)
        k = self.k(k).reshape(-1, n_keys, DECODER_HEADS, head_dim).permute(0, 2, 3, 1)
        v = self.v(v).reshape(-1, n_keys, DECODER_HEADS, head_dim).permute(0, 2, 1, 3)
        out = mint.matmul(apply_softmax(mint.matmul(q.permute(0, 2, 1, 3), k)), v)
        return self.mix(out.permute(0, 2, 1, 3).reshape(-1, n_queries, self.width))


class WrittenLayer(nn.Cell):
    """A layer of the decoder."""

    def __init__(self, model: Model, path: str, *, is_first: bool) -> None:
        super().__init__()
        self.talk, self.look, self.answer = (
            WrittenAttention(model, f"{path}.{name}") for name in ("self", "to_image", "to_tokens")
        )
        self.norm1, self.norm2, self.norm3, self.norm4 = (
            WrittenNorm(model, f"{path}.norm{n}", DECODER_EPS) for n in range(1, 5)
        )
        self.up, self.down = (WrittenLinear(model, f"{path}.{name}") for name in ("up", "down"))
        self.is_first = is_first

    def construct(self, tokens, image, starts, places):
        located = tokens if self.is_first else tokens + starts
        heard = self.talk(located, located, tokens)
        tokens = self.norm1(heard if self.is_first else heard + tokens)
        located_image = image + places
        tokens = self.norm2(self.look(tokens + starts, located_image, image) + tokens)
        tokens = self.norm3(self.down(mint.nn.functional.relu(self.up(tokens))) + tokens)
        return tokens, self.norm4(self.answer(located_image, tokens + starts, tokens) + image)


class WrittenMlp(nn.Cell):
    """Three linear layers with ReLU between them."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.first, self.second, self.third = (
            WrittenLinear(model, f"{path}.{n}") for n in range(3)
        )

    def construct(self, x):
        x = mint.nn.functional.relu(self.first(x))
        return self.third(mint.nn.functional.relu(self.second(x)))


class WrittenLoss(nn.Cell):
    """The same loss in other steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.patches = PatchProduct(model, "encoder.patch")
        self.places = Parameter(Tensor(model.weights["encoder.position"].reshape(1, CELLS, DIM)))
        self.block1, self.block2 = (
            WrittenBlock(model, f"encoder.{n}", window) for n, window in enumerate(WINDOWS)
        )
        self.neck1 = Parameter(Tensor(model.weights["neck.conv1.weight"][:, :, 0, 0]))
        self.neck_norm1 = WrittenNorm(model, "neck.norm1", EPS)
        self.neck2 = build_conv(model, "neck.conv2", padding=1)
        self.neck_norm2 = WrittenNorm(model, "neck.norm2", EPS)

        self.gaussian = Parameter(read(model, "prompts.gaussian"), requires_grad=False)
        self.grid = Tensor(model.coordinates().reshape(CELLS, 2))
        self.size = Tensor([WIDTH, HEIGHT], ms.float32)
        self.kinds = Parameter(read(model, "prompts.points", "prompts.not_a_point"))
        self.kind_numbers = Tensor(np.arange(5, dtype=np.int32))
        self.corner_kinds = Tensor(np.array([[2, 3]], np.int32))
        self.maskless = Parameter(read(model, "prompts.no_mask"))
        self.mask1, self.mask2, self.mask3 = (
            PatchProduct(model, f"prompts.mask{n}") for n in range(1, 4)
        )
        self.mask_norm1, self.mask_norm2 = (
            WrittenNorm(model, f"prompts.mask_norm{n}", EPS) for n in range(1, 3)
        )

        self.outputs = Parameter(read(model, "decoder.score_token", "decoder.mask_tokens"))
        self.layer1, self.layer2 = (
            WrittenLayer(model, f"decoder.{n}", is_first=n == 0) for n in range(DECODER_LAYERS)
        )
        self.last = WrittenAttention(model, "decoder.final")
        self.last_norm = WrittenNorm(model, "decoder.final_norm", DECODER_EPS)
        self.up1, self.up2 = (DoublingProduct(model, f"decoder.up{n}") for n in range(1, 3))
        self.up_norm = WrittenNorm(model, "decoder.up_norm", EPS)
        self.hyper1, self.hyper2, self.hyper3, self.hyper4 = (
            WrittenMlp(model, f"decoder.hyper.{mask}") for mask in range(MASKS)
        )
        self.score = WrittenMlp(model, "decoder.score")
        self.mask_numbers = Tensor(np.arange(MASKS, dtype=np.int32))

    def encode(self, images):
        """Return image embeddings (BATCH, CELLS, EMBED)."""
        x = self.patches(images.permute(0, 2, 3, 1)).reshape(BATCH, CELLS, DIM) + self.places
        x = self.block2(self.block1(x))
        x = self.neck_norm1(mint.matmul(x, self.neck1.swapaxes(0, 1)))
        x = self.neck2(x.permute(0, 2, 1).reshape(BATCH, EMBED, ROWS, COLUMNS))
        return self.neck_norm2(x.reshape(BATCH, EMBED, CELLS).permute(0, 2, 1))

    def locate(self, coordinates):
        """Return Fourier features of coordinates from 0 to 1."""
        phase = mint.matmul((coordinates - 0.5) * (4 * math.pi), self.gaussian)
        return mint.cat((mint.sin(phase), mint.cos(phase)), -1)

    def encode_prompts(self, points, labels, boxes, has_box):
        """Return tokens (prompts, POINTS + 2, EMBED)."""
        corners = self.corner_kinds + (4 - self.corner_kinds) * (1 - has_box).astype(ms.int32)
        kinds = mint.cat((mint.where(labels < 0, 4, labels), corners), 1).expand_dims(-1)
        pixels = mint.cat((points, boxes.reshape(-1, 2, 2)), 1)
        is_located = (kinds < 4).astype(ms.float32)
        chosen = (kinds == self.kind_numbers).astype(ms.float32)
        features = self.locate((pixels + 0.5) / self.size) * is_located
        return features + mint.matmul(chosen, self.kinds)

    def encode_masks(self, masks, has_mask):
        """Return what is added to images, (prompts, CELLS, EMBED)."""
        x = apply_gelu(self.mask_norm1(self.mask1(masks.expand_dims(-1))))
        x = self.mask3(apply_gelu(self.mask_norm2(self.mask2(x)))).reshape(-1, CELLS, EMBED)
        return has_mask * x + (1 - has_mask) * self.maskless

    def decode(self, image, prompts):
        """Return logits (prompts, MASKS, pixels) and predicted IoU."""
        places = self.locate(self.grid)
        outputs = ops.broadcast_to(self.outputs, (BATCH * PROMPTS, 1 + MASKS, EMBED))
        starts = mint.cat((outputs, prompts), 1)
        tokens, image = self.layer1(starts, image, starts, places)
        tokens, image = self.layer2(tokens, image, starts, places)
        tokens = self.last_norm(self.last(tokens + starts, image + places, image) + tokens)
        x = apply_gelu(self.up_norm(self.up1(image.reshape(-1, ROWS, COLUMNS, EMBED))))
        x = apply_gelu(self.up2(x)).reshape(BATCH * PROMPTS, -1, UP_CHANNELS[1])
        vectors = (
            self.hyper1(tokens[:, 1:2]),
            self.hyper2(tokens[:, 2:3]),
            self.hyper3(tokens[:, 3:4]),
            self.hyper4(tokens[:, 4:5]),
        )
        logits = mint.matmul(mint.cat(vectors, 1), x.permute(0, 2, 1))
        return logits, self.score(tokens[:, 0])

    def construct(
        self, images, points, labels, boxes, has_box, masks, has_mask, targets, is_prompt
    ):
        labels, has_box = labels.reshape(-1, POINTS), has_box.reshape(-1, 1)
        prompts = self.encode_prompts(
            points.reshape(-1, POINTS, 2), labels, boxes.reshape(-1, 4), has_box
        )
        dense = self.encode_masks(masks.reshape(-1, *MASK_SIZE), has_mask.reshape(-1, 1, 1))
        image = self.encode(images).reshape(BATCH, 1, CELLS, EMBED)
        image = image + dense.reshape(BATCH, PROMPTS, CELLS, EMBED)
        logits, scores = self.decode(image.reshape(-1, CELLS, EMBED), prompts)

        targets = targets.reshape(BATCH * PROMPTS, 1, -1)
        rest = mint.exp(-mint.abs(logits))
        entropies = mint.clamp(logits, min=0) - logits * targets + mint.log1p(rest)
        p = 1 / (1 + mint.exp(-logits))
        missing = p + targets - 2 * p * targets
        focal = mint.mean((0.75 - 0.5 * targets) * mint.square(missing) * entropies, -1)
        hits, total = mint.sum(p * targets, -1), mint.sum(p + targets, -1)
        losses = FOCAL_WEIGHT * focal + 1 - (2 * hits + SMOOTHING) / (total + SMOOTHING)
        measured = ops.stop_gradient(hits / (total - hits))

        n_points = mint.sum((labels >= 0).astype(ms.float32), -1, True)
        is_ambiguous = (n_points + 2 * has_box < 2).astype(ms.int32)
        best = ops.argmin(losses[:, 1:], -1, True).astype(ms.int32) + 1
        chosen = (best * is_ambiguous == self.mask_numbers).astype(ms.float32)
        counted = chosen * is_prompt.reshape(-1, 1)
        losses = losses + SCORE_WEIGHT * mint.square(scores - measured)
        return mint.sum(losses * counted) / mint.sum(is_prompt)
