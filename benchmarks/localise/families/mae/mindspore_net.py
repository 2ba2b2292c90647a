"""A masked autoencoder of images in MindSpore for graph mode.

Variant 'written': patches, gathers, norms, attention and losses in plain arithmetic, a matrix each
for queries, keys and values, the class token apart from the patches.
"""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from families.mae.architecture import (
    BATCH,
    BETA,
    COLORS,
    COLUMNS,
    DECODER_LAYERS,
    EPS,
    HEADS,
    HEIGHT,
    KEEP,
    LATENT_WEIGHT,
    LAYERS,
    NARROW,
    PATCH,
    PATCHES,
    PIXELS,
    ROWS,
    SMALL,
    SPECTRUM_WEIGHT,
    TOP,
    VARIANCE_EPS,
    WIDE,
    WIDTH,
    Model,
    build_cosines,
    build_frequency_weights,
    build_luma,
)

MASKED = -1e9  #: score of a key that is not real


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return WrittenLoss(model) if model.variant == "written" else MaskedAutoencoder(model)


def read(model: Model, name: str) -> Tensor:
    """Return a weight."""
    return Tensor(model.weights[name])


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at a path."""
    weight = read(model, f"{path}.weight")
    return nn.Dense(
        weight.shape[1],
        weight.shape[0],
        weight_init=weight,
        bias_init=read(model, f"{path}.bias"),
    )


def build_norm(model: Model, path: str) -> nn.LayerNorm:
    """Return the layer norm at a path."""
    weight = read(model, f"{path}.weight")
    return nn.LayerNorm(
        weight.shape, gamma_init=weight, beta_init=read(model, f"{path}.bias"), epsilon=EPS
    )


class PatchEmbed(nn.Cell):
    """Patches (batch, PATCHES, WIDE)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.projection = nn.Conv2d(
            COLORS,
            WIDE,
            PATCH,
            PATCH,
            pad_mode="valid",
            has_bias=True,
            weight_init=read(model, "patch.weight"),
            bias_init=read(model, "patch.bias"),
        )

    def construct(self, images):
        return self.projection(images).reshape(-1, WIDE, PATCHES).transpose(0, 2, 1)


class Attention(nn.Cell):
    """Attention to keys (batch, tokens) that are real."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.qkv, self.proj = build_dense(model, f"{path}.qkv"), build_dense(model, f"{path}.out")
        self.head_dim = self.proj.in_channels // HEADS
        self.scale = Tensor(self.head_dim**-0.5, ms.float32)
        self.q_matmul_k = ops.BatchMatMul(transpose_b=True)
        self.attn_matmul_v = ops.BatchMatMul()
        self.softmax = nn.Softmax(axis=-1)

    def construct(self, x, is_seen):
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, HEADS, self.head_dim).transpose(2, 0, 3, 1, 4)
        q, k, v = ops.unstack(qkv, axis=0)
        scores = self.q_matmul_k(q, k) * self.scale
        is_hidden = ops.logical_not(is_seen).reshape(b, 1, 1, n)
        weights = self.softmax(ops.masked_fill(scores, is_hidden, MASKED))
        context = self.attn_matmul_v(weights, v).transpose(0, 2, 1, 3).reshape(b, n, c)
        return self.proj(context)


class Mlp(nn.Cell):
    """Two linear layers around gelu."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.fc1, self.fc2 = build_dense(model, f"{path}.up"), build_dense(model, f"{path}.down")
        self.act = nn.GELU(approximate=False)

    def construct(self, x):
        return self.fc2(self.act(self.fc1(x)))


class LayerScale(nn.Cell):
    """Channels times learned factors."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.gamma = Parameter(read(model, path))

    def construct(self, x):
        return self.gamma * x


class Block(nn.Cell):
    """Attention and an mlp behind norms, with LayerScale."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.norm1, self.attn = build_norm(model, f"{path}.norm1"), Attention(model, path)
        self.ls1 = LayerScale(model, f"{path}.scale1")
        self.norm2, self.mlp = build_norm(model, f"{path}.norm2"), Mlp(model, path)
        self.ls2 = LayerScale(model, f"{path}.scale2")
        self.drop_path = nn.Dropout(p=0.0)

    def construct(self, x, is_seen):
        x = x + self.drop_path(self.ls1(self.attn(self.norm1(x), is_seen)))
        return x + self.drop_path(self.ls2(self.mlp(self.norm2(x))))


def build_blocks(model: Model, name: str, count: int) -> nn.CellList:
    """Return blocks."""
    return nn.CellList([Block(model, f"{name}.{n}") for n in range(count)])


class RealPatches(nn.Cell):
    """Which patches are real, (BATCH, PATCHES)."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = Tensor(np.arange(ROWS, dtype=np.int32) * PATCH)
        self.columns = Tensor(np.arange(COLUMNS, dtype=np.int32) * PATCH)

    def construct(self, sizes):
        rows = (self.rows < sizes[:, :1]).expand_dims(2)
        columns = (self.columns < sizes[:, 1:]).expand_dims(1)
        return ops.logical_and(rows, columns).reshape(-1, PATCHES)


class RandomMasking(nn.Cell):
    """Ones of patches that are not kept, and where each patch is in the permutation."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_mask_shuffled = model.is_mask_shuffled
        mask = np.ones((BATCH, PATCHES), np.float32)
        mask[:, :KEEP] = 0
        self.mask = Tensor(mask)

    def construct(self, ids_shuffle):
        ids_restore = ops.argsort(ids_shuffle, 1)
        if self.is_mask_shuffled:
            return self.mask, ids_restore
        return ops.gather_elements(self.mask, 1, ids_restore), ids_restore


class PlainNorm(nn.Cell):
    """Layer norm without weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer_norm = ops.LayerNorm(begin_norm_axis=-1, begin_params_axis=-1, epsilon=EPS)
        self.ones = Tensor(np.ones(WIDE, np.float32))
        self.zeros = Tensor(np.zeros(WIDE, np.float32))

    def construct(self, x):
        return self.layer_norm(x, self.ones, self.zeros)[0]


class Teacher(nn.Cell):
    """Targets (batch, PATCHES, WIDE) from the last blocks."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.blocks = build_blocks(model, "teacher", LAYERS)
        self.norm = PlainNorm()
        self.is_attached = model.is_teacher_attached
        self.are_targets_averaged_first = model.are_targets_averaged_first
        for parameter in self.get_parameters():
            parameter.requires_grad = False

    def construct(self, x, is_seen):
        target = 0
        for n in range(LAYERS):
            x = self.blocks[n](x, is_seen)
            if n >= LAYERS - TOP:
                output = x[:, 1:]
                target = target + (output if self.are_targets_averaged_first else self.norm(output))
        target = self.norm(target / TOP)
        return target if self.is_attached else ops.stop_gradient(target)


class SpectrumLoss(nn.Cell):
    """Weighted differences of frequencies of two images, (BATCH, PATCHES)."""

    def __init__(self) -> None:
        super().__init__()
        self.luma, self.cosines = Tensor(build_luma()), Tensor(build_cosines())
        self.frequency_weights = Tensor(build_frequency_weights()[:, None])
        self.convert = ops.Conv2D(COLORS, 1)
        self.dct = ops.Conv2D(PATCH**2, PATCH, stride=PATCH)

    def transform(self, images):
        """Return frequencies, (BATCH, COLORS, PATCH ** 2, PATCHES)."""
        planes = self.convert(images, self.luma).reshape(-1, 1, HEIGHT, WIDTH)
        return self.dct(planes, self.cosines).reshape(-1, COLORS, PATCH**2, PATCHES)

    def construct(self, predicted, target):
        difference = self.transform(predicted) - self.transform(target)
        losses = ops.sqrt(ops.square(difference) + SMALL**2)
        return (losses * self.frequency_weights).mean((1, 2))


class MaskedAutoencoder(nn.Cell):
    """Pixels, latents and spectrum of patches that were not kept."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed(model)
        self.cls_token = Parameter(read(model, "class_token"), name="cls_token")
        self.pos_embed = Tensor(model.positions(WIDE))
        self.encoder = build_blocks(model, "encoder", LAYERS)
        self.norm = build_norm(model, "encoder.norm")
        self.teacher = Teacher(model)
        self.decoder_embed = build_dense(model, "decoder.embed")
        self.mask_token = Parameter(read(model, "mask_token"), name="mask_token")
        self.decoder_pos_embed = Tensor(model.positions(NARROW))
        self.decoder = build_blocks(model, "decoder", DECODER_LAYERS)
        self.decoder_norm = build_norm(model, "decoder.norm")
        self.pixel_head = build_dense(model, "decoder.pixels")
        self.latent_head = build_dense(model, "decoder.latents")
        self.real_patches, self.random_masking = RealPatches(), RandomMasking(model)
        self.smooth_l1 = nn.SmoothL1Loss(beta=BETA, reduction="none")
        self.spectrum_loss = SpectrumLoss()
        self.ddof = 0 if model.is_variance_biased else 1
        self.class_seen = Tensor(np.ones((BATCH, 1), np.bool_))

    def patchify(self, images):
        """Return pixels (batch, PATCHES, PIXELS)."""
        x = images.reshape(-1, COLORS, ROWS, PATCH, COLUMNS, PATCH).transpose(0, 2, 4, 3, 5, 1)
        return x.reshape(-1, PATCHES, PIXELS)

    def unpatchify(self, x):
        """Return images."""
        x = x.reshape(-1, ROWS, COLUMNS, PATCH, PATCH, COLORS).transpose(0, 5, 1, 3, 2, 4)
        return x.reshape(-1, COLORS, HEIGHT, WIDTH)

    def add_class(self, patches):
        """Return patches behind the class token."""
        token = self.cls_token + self.pos_embed[:, :1]
        return ops.concat((ops.tile(token, (BATCH, 1, 1)), patches), 1)

    def encode(self, patches, is_real, ids_keep):
        """Return latents of the class token and of patches that are kept."""
        index = ops.tile(ids_keep.expand_dims(-1), (1, 1, WIDE))
        x = self.add_class(ops.gather_elements(patches, 1, index))
        is_seen = ops.concat((self.class_seen, ops.gather_elements(is_real, 1, ids_keep)), 1)
        for block in self.encoder:
            x = block(x, is_seen)
        return self.norm(x)

    def decode(self, latents, ids_restore, is_seen):
        """Return decoded patches."""
        x = self.decoder_embed(latents)
        mask_tokens = ops.tile(self.mask_token, (BATCH, PATCHES - KEEP, 1))
        patches = ops.concat((x[:, 1:], mask_tokens), 1)
        index = ops.tile(ids_restore.expand_dims(-1), (1, 1, NARROW))
        patches = ops.gather_elements(patches, 1, index)
        x = ops.concat((x[:, :1], patches), 1) + self.decoder_pos_embed
        for block in self.decoder:
            x = block(x, is_seen)
        return self.decoder_norm(x)[:, 1:]

    def normalize(self, pixels):
        """Return pixels of the mean 0 and the variance 1 in each patch."""
        variance = pixels.var(-1, ddof=self.ddof, keepdims=True)
        return (pixels - pixels.mean(-1, keep_dims=True)) / ops.sqrt(variance + VARIANCE_EPS)

    def construct(self, images, sizes, ids_shuffle):
        is_real = self.real_patches(sizes)
        is_seen = ops.concat((self.class_seen, is_real), 1)
        mask, ids_restore = self.random_masking(ids_shuffle)
        patches = self.patch_embed(images) + self.pos_embed[:, 1:]

        latents = self.encode(patches, is_real, ids_shuffle[:, :KEEP])
        decoded = self.decode(latents, ids_restore, is_seen)
        predicted, target = self.pixel_head(decoded), self.normalize(self.patchify(images))
        latent_target = self.teacher(self.add_class(patches), is_seen)

        losses = ops.square(predicted - target).mean(-1)
        latent_losses = self.smooth_l1(self.latent_head(decoded), latent_target).mean(-1)
        spectrum_losses = self.spectrum_loss(self.unpatchify(predicted), self.unpatchify(target))
        mask = mask * is_real.astype(ms.float32)
        count = mask.sum()
        loss = (losses * mask).sum() / count
        loss = loss + LATENT_WEIGHT * (latent_losses * mask).sum() / count
        return loss + SPECTRUM_WEIGHT * (spectrum_losses * mask).sum() / count


class WrittenLinear(nn.Cell):
    """A linear layer."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.matrix = Parameter(read(model, f"{path}.weight"))
        self.shift = Parameter(read(model, f"{path}.bias"))

    def construct(self, x):
        return mint.matmul(x, self.matrix.swapaxes(0, 1)) + self.shift


def normalize_tokens(x):
    """Return layer norm without weights from means."""
    centered = x - mint.mean(x, -1, True)
    return centered * mint.rsqrt(mint.mean(mint.square(centered), -1, True) + EPS)


class WrittenNorm(nn.Cell):
    """Layer norm from means."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.gain = Parameter(read(model, f"{path}.weight"))
        self.shift = Parameter(read(model, f"{path}.bias"))

    def construct(self, x):
        return normalize_tokens(x) * self.gain + self.shift


class WrittenBlock(nn.Cell):
    """A block with a matrix each for queries, keys and values, and a bias (BATCH, tokens)."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        matrices, shifts = (model.weights[f"{path}.qkv.{name}"] for name in ("weight", "bias"))
        width = matrices.shape[1]
        self.ask, self.offer, self.carry = (Parameter(Tensor(m)) for m in np.split(matrices, 3))
        self.ask_shift, self.offer_shift, self.carry_shift = (
            Parameter(Tensor(shift)) for shift in np.split(shifts, 3)
        )
        self.mix = WrittenLinear(model, f"{path}.out")
        self.widen = WrittenLinear(model, f"{path}.up")
        self.narrow = WrittenLinear(model, f"{path}.down")
        self.norm_a, self.norm_b = (WrittenNorm(model, f"{path}.norm{n}") for n in (1, 2))
        self.gain_a = Parameter(read(model, f"{path}.scale1"))
        self.gain_b = Parameter(read(model, f"{path}.scale2"))
        self.width, self.head_dim = width, width // HEADS

    def split(self, x, matrix, shift):
        """Return (BATCH, HEADS, tokens, head_dim)."""
        x = mint.matmul(x, matrix.swapaxes(0, 1)) + shift
        return x.reshape(BATCH, -1, HEADS, self.head_dim).permute(0, 2, 1, 3)

    def construct(self, x, bias):
        normed = self.norm_a(x)
        query = self.split(normed, self.ask, self.ask_shift) / math.sqrt(self.head_dim)
        key = self.split(normed, self.offer, self.offer_shift).permute(0, 1, 3, 2)
        scores = mint.matmul(query, key) + bias.reshape(BATCH, 1, 1, -1)
        shares = mint.exp(scores - ops.stop_gradient(scores.max(-1, keepdims=True)))
        shares = shares / mint.sum(shares, -1, True)
        context = mint.matmul(shares, self.split(normed, self.carry, self.carry_shift))
        context = context.permute(0, 2, 1, 3).reshape(BATCH, -1, self.width)
        x = self.mix(context) * self.gain_a + x
        hidden = self.widen(self.norm_b(x))
        hidden = hidden * (0.5 * mint.erf(hidden / math.sqrt(2)) + 0.5)
        return self.narrow(hidden) * self.gain_b + x


class WrittenLoss(nn.Cell):
    """The same loss in other steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        kernel = model.weights["patch.weight"].transpose(2, 3, 1, 0).reshape(PIXELS, WIDE)
        self.kernel = Parameter(Tensor(np.ascontiguousarray(kernel)))
        self.kernel_shift = Parameter(read(model, "patch.bias"))
        self.summary = Parameter(read(model, "class_token"))
        self.blank = Parameter(read(model, "mask_token"))
        self.student, self.average, self.painter = (
            nn.CellList([WrittenBlock(model, f"{name}.{n}") for n in range(count)])
            for name, count in (
                ("encoder", LAYERS),
                ("teacher", LAYERS),
                ("decoder", DECODER_LAYERS),
            )
        )
        for parameter in self.average.get_parameters():
            parameter.requires_grad = False
        self.student_norm = WrittenNorm(model, "encoder.norm")
        self.bridge = WrittenLinear(model, "decoder.embed")
        self.painter_norm = WrittenNorm(model, "decoder.norm")
        self.pixels = WrittenLinear(model, "decoder.pixels")
        self.latents = WrittenLinear(model, "decoder.latents")
        self.places = Tensor(model.positions(WIDE)[:, 1:])
        self.painter_places = Tensor(model.positions(NARROW)[:, 1:])
        rows, columns = np.divmod(np.arange(PATCHES, dtype=np.int32), COLUMNS)
        self.corners = Tensor(np.stack([rows, columns], axis=-1) * PATCH)
        self.numbers = Tensor(np.arange(PATCHES, dtype=np.int32))
        self.luma = Tensor(build_luma()[:, :, 0, 0])
        self.cosines = Tensor(build_cosines().reshape(PATCH**2, PATCH**2))
        self.frequency_weights = Tensor(build_frequency_weights())

    def describe(self, patches, bias):
        """Return targets of all patches."""
        x, total = patches, 0.0
        for n in range(LAYERS):
            x = self.average[n](x, bias)
            total = total + normalize_tokens(x[:, 1:]) if n >= LAYERS - TOP else total
        return normalize_tokens(total / TOP)

    def construct(self, images, sizes, order):
        is_real = (self.corners < sizes.expand_dims(1)).astype(ms.float32)
        is_real = is_real[..., 0] * is_real[..., 1]
        # one of the patch that is the n-th kept one, (BATCH, KEEP, PATCHES)
        kept = (order[:, :KEEP].expand_dims(-1) == self.numbers).astype(ms.float32)
        is_hole = 1 - mint.sum(kept, 1)
        kept_real = mint.sum(kept * is_real.expand_dims(1), -1)
        no_bias = mint.zeros((BATCH, 1))
        bias = mint.cat((no_bias, (1 - is_real) * MASKED), 1)

        pixels = images.reshape(BATCH, COLORS, ROWS, PATCH, COLUMNS, PATCH)
        pixels = pixels.permute(0, 2, 4, 3, 5, 1).reshape(BATCH, PATCHES, PIXELS)
        patches = mint.matmul(pixels, self.kernel) + (self.kernel_shift + self.places)
        summary = mint.tile(self.summary, (BATCH, 1, 1))
        x = mint.cat((summary, mint.matmul(kept, patches)), 1)
        kept_bias = mint.cat((no_bias, (1 - kept_real) * MASKED), 1)
        for n in range(LAYERS):
            x = self.student[n](x, kept_bias)
        x = self.bridge(self.student_norm(x))

        canvas = mint.matmul(kept.permute(0, 2, 1), x[:, 1:])
        canvas = canvas + is_hole.expand_dims(-1) * self.blank + self.painter_places
        x = mint.cat((x[:, :1], canvas), 1)
        for n in range(DECODER_LAYERS):
            x = self.painter[n](x, bias)
        x = self.painter_norm(x)[:, 1:]

        described = ops.stop_gradient(self.describe(mint.cat((summary, patches), 1), bias))
        centered = pixels - mint.mean(pixels, -1, True)
        variance = mint.sum(mint.square(centered), -1, True) / (PIXELS - 1)
        error = self.pixels(x) - centered * mint.rsqrt(variance + VARIANCE_EPS)
        losses = mint.mean(mint.square(error), -1)

        distance = mint.abs(self.latents(x) - described)
        inner = mint.clamp(distance, max=BETA)
        losses = losses + LATENT_WEIGHT * mint.mean(inner * (distance - 0.5 * inner) / BETA, -1)

        planes = error.reshape(BATCH, PATCHES, PATCH**2, COLORS)
        planes = mint.matmul(self.cosines, planes)
        planes = mint.matmul(planes, self.luma.swapaxes(0, 1))
        size = mint.sum(mint.sqrt(mint.square(planes) + SMALL**2), -1)
        spectrum = mint.sum(size * self.frequency_weights, -1) / PIXELS
        losses = losses + SPECTRUM_WEIGHT * spectrum
        counted = is_hole * is_real
        return mint.sum(losses * counted) / mint.sum(counted)
