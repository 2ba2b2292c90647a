"""The multimodal decoder in MindSpore, with the cells of MindONE's and Transformers' ports.

Variant 'sequence_first': the decoder as in Megatron, (seq, batch, HIDDEN), with joined projections
whose rows are grouped by key. Attention is a product of three axes, norms and gelu are written out,
patches are a product with a matrix, and the loss is that of a vocabulary in parts.
"""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from families.vlm.architecture import (
    BATCH,
    BLOCKS,
    COLUMNS,
    EMBEDDING_SCALE,
    EPS,
    GROUP,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    IGNORED,
    IMAGE_TOKENS,
    KV_HEADS,
    LAYERS,
    MERGE,
    MERGED_COLUMNS,
    MERGED_ROWS,
    PADDING,
    PATCH,
    PATCHES,
    PLACEHOLDER,
    ROWS,
    SECTIONS,
    SEQ,
    VISION,
    VISION_EPS,
    VISION_HEAD_DIM,
    VISION_HEADS,
    VOCAB,
    Model,
    get_frequencies,
)

MASKED = -1e9


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    if (
        model.are_sections_interleaved
        or model.is_cache_detached
        or model.projector_gelu != "erf"
        or model.are_images_bidirectional
        or model.are_angles_half
        or model.is_gradient_of_last_query
    ):
        raise SystemExit("the fault is one of the PyTorch net")
    return (ParallelVLM if model.variant == "sequence_first" else VLForCausalLM)(model)


def build_dense_of(weight: np.ndarray, bias: np.ndarray | None = None) -> nn.Dense:
    """Return the linear layer with these weights."""
    return nn.Dense(
        weight.shape[1],
        weight.shape[0],
        weight_init=Tensor(weight),
        bias_init=None if bias is None else Tensor(bias),
        has_bias=bias is not None,
    )


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at ``path``, with a bias if it has one."""
    return build_dense_of(model.weights[f"{path}.weight"], model.weights.get(f"{path}.bias"))


def build_vision_tables() -> tuple[Tensor, Tensor]:
    """Return cosine and sine of all patches, (PATCHES, VISION_HEAD_DIM // 2)."""
    rows, columns = np.divmod(np.arange(PATCHES), COLUMNS)
    frequencies = get_frequencies(VISION_HEAD_DIM // 4)
    angles = np.concatenate([np.outer(rows, frequencies), np.outer(columns, frequencies)], axis=1)
    angles = angles.astype(np.float32)
    return Tensor(np.cos(angles)), Tensor(np.sin(angles))


class LayerNorm(nn.Cell):
    """Layer norm of the channels."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.is_written_out = model.variant == "sequence_first"
        weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
        if self.is_written_out:
            self.gamma, self.beta = Parameter(weight), Parameter(bias)
        else:
            self.norm = nn.LayerNorm(
                (VISION,), gamma_init=weight, beta_init=bias, epsilon=VISION_EPS
            )

    def construct(self, x):
        if not self.is_written_out:
            return self.norm(x)
        centered = x - ops.mean(x, -1, True)
        variance = ops.mean(centered * centered, -1, True)
        return centered / ops.sqrt(variance + VISION_EPS) * self.gamma + self.beta


class PatchEmbedding(nn.Cell):
    """Patches (BATCH, PATCHES, VISION) of images."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            3,
            VISION,
            PATCH,
            PATCH,
            pad_mode="valid",
            has_bias=True,
            weight_init=Tensor(model.weights["vision.patch.weight"]),
            bias_init=Tensor(model.weights["vision.patch.bias"]),
        )

    def construct(self, pixels):
        return self.conv(pixels).reshape(BATCH, VISION, PATCHES).swapaxes(1, 2)


class PatchProduct(nn.Cell):
    """The same from patches that are cut first."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        weight = model.weights["vision.patch.weight"].reshape(VISION, -1)
        self.dense = build_dense_of(weight, model.weights["vision.patch.bias"])

    def construct(self, pixels):
        patches = pixels.reshape(BATCH, 3, ROWS, PATCH, COLUMNS, PATCH)
        patches = patches.transpose(0, 2, 4, 1, 3, 5)
        return self.dense(patches.reshape(BATCH, PATCHES, 3 * PATCH * PATCH))


class VisionSdpa(nn.Cell):
    """Attention of all patches of an image."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.q_proj = build_dense(model, f"{path}.q")
        self.k_proj = build_dense(model, f"{path}.k")
        self.v_proj = build_dense(model, f"{path}.v")
        self.out_proj = build_dense(model, f"{path}.o")
        self.scale = 1 / math.sqrt(VISION_HEAD_DIM)

    def split(self, x):
        x = x.reshape(BATCH, PATCHES, VISION_HEADS, VISION_HEAD_DIM)
        return mint.permute(x, (0, 2, 1, 3))

    def rotate(self, x, cos, sin):
        first, second = mint.chunk(x, 2, dim=-1)
        return mint.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    def construct(self, x, cos, sin):
        q = self.rotate(self.split(self.q_proj(x)), cos, sin)
        k = self.rotate(self.split(self.k_proj(x)), cos, sin)
        v = self.split(self.v_proj(x))
        scores = mint.matmul(q, k.swapaxes(-1, -2)) * self.scale
        context = mint.matmul(mint.nn.functional.softmax(scores, dim=-1), v)
        return self.out_proj(mint.permute(context, (0, 2, 1, 3)).reshape(BATCH, PATCHES, VISION))


class WrittenGelu(nn.Cell):
    """Gelu in plain arithmetic, in the tanh form or exact."""

    def __init__(self, *, approximate: bool) -> None:
        super().__init__()
        self.approximate = approximate

    def construct(self, x):
        if self.approximate:
            inner = math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x)
            return x * 0.5 * (1 + ops.tanh(inner))
        return x * 0.5 * (1 + ops.erf(x / math.sqrt(2)))


class VisionEncoderLayer(nn.Cell):
    """Attention and feed-forward layer, a norm before each."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"vision.blocks.{n}"
        self.layer_norm1 = LayerNorm(model, f"{path}.norm1")
        self.self_attn = VisionSdpa(model, path)
        self.layer_norm2 = LayerNorm(model, f"{path}.norm2")
        self.fc1 = build_dense(model, f"{path}.up")
        gelu = WrittenGelu if model.variant == "sequence_first" else nn.GELU
        self.gelu = gelu(approximate=True)
        self.fc2 = build_dense(model, f"{path}.down")

    def construct(self, x, cos, sin):
        x = x + self.self_attn(self.layer_norm1(x), cos, sin)
        return x + self.fc2(self.gelu(self.fc1(self.layer_norm2(x))))


class VisionTower(nn.Cell):
    """States (BATCH, PATCHES, VISION) of patches."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        is_cut = model.variant == "sequence_first"
        self.embeddings = (PatchProduct if is_cut else PatchEmbedding)(model)
        self.encoder = nn.CellList([VisionEncoderLayer(model, n) for n in range(BLOCKS)])
        self.norm_out = LayerNorm(model, "vision.norm")
        self.are_features_normed = model.are_features_normed
        self.cos, self.sin = build_vision_tables()

    def construct(self, pixels):
        x = self.embeddings(pixels)
        for layer in self.encoder:
            x = layer(x, self.cos, self.sin)
        return self.norm_out(x) if self.are_features_normed else x


class Projector(nn.Cell):
    """Vectors (BATCH, IMAGE_TOKENS, HIDDEN) of 2x2 patches each."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.dense1 = build_dense(model, "projector.up")
        gelu = WrittenGelu if model.variant == "sequence_first" else nn.GELU
        self.act = gelu(approximate=False)
        self.dense2 = build_dense(model, "projector.down")
        self.order = (0, 3, 1, 2, 4, 5) if model.are_columns_first else (0, 1, 3, 2, 4, 5)

    def construct(self, x):
        blocks = x.reshape(BATCH, MERGED_ROWS, MERGE, MERGED_COLUMNS, MERGE, VISION)
        merged = blocks.transpose(self.order)
        merged = merged.reshape(BATCH, IMAGE_TOKENS, MERGE * MERGE * VISION)
        return self.dense2(self.act(self.dense1(merged)))


class TokenPositions(nn.Cell):
    """Positions (BATCH, SEQ) of tokens on the axes of time, row and column."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.image_span = Tensor(model.image_span, ms.int32)

    def construct(self, is_image):
        n_text = ops.cumsum(1 - is_image, 1)
        n_image = ops.cumsum(is_image, 1)
        is_behind = ops.equal(n_image, IMAGE_TOKENS).astype(ms.int32)
        text = n_text - 1 + is_behind * self.image_span
        cell = ops.maximum(n_image - 1, 0)
        row = ops.floor_div(cell, MERGED_COLUMNS)
        column = cell - row * MERGED_COLUMNS
        is_chosen = is_image.astype(ms.bool_)
        time = ops.where(is_chosen, n_text, text)
        return (
            time,
            ops.where(is_chosen, n_text + row, text),
            ops.where(is_chosen, n_text + column, text),
        )


class RotaryTables(nn.Cell):
    """Cosine and sine of positions, (BATCH, SEQ, HEAD_DIM // 2)."""

    def __init__(self) -> None:
        super().__init__()
        frequencies = get_frequencies(HEAD_DIM // 2)
        axes = np.repeat(np.eye(3, dtype=np.float32), SECTIONS, axis=1)
        self.time, self.row, self.column = (Tensor(axis * frequencies) for axis in axes)

    def construct(self, time, row, column):
        angles = (
            time.astype(ms.float32).expand_dims(-1) * self.time
            + row.astype(ms.float32).expand_dims(-1) * self.row
            + column.astype(ms.float32).expand_dims(-1) * self.column
        )
        return ops.cos(angles), ops.sin(angles)


class RMSNorm(nn.Cell):
    """Norm of the last axis by its mean square."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(model.weights[f"{path}.weight"]))
        self.is_root_divided = model.variant == "sequence_first"
        are_heads_normed = path.endswith(("q_norm", "k_norm"))
        self.axes = (-2, -1) if are_heads_normed and model.are_heads_normed_together else -1

    def construct(self, x):
        if self.is_root_divided:
            return x / ops.sqrt((x * x).mean(-1, keep_dims=True) + EPS) * self.weight
        variance = mint.mean(mint.square(x), dim=self.axes, keepdim=True)
        return x * mint.rsqrt(variance + EPS) * self.weight


class Attention(nn.Cell):
    """Attention to earlier tokens."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.q_proj = build_dense(model, f"{path}.q")
        self.k_proj = build_dense(model, f"{path}.k")
        self.v_proj = build_dense(model, f"{path}.v")
        self.o_proj = build_dense(model, f"{path}.o")
        self.q_norm = RMSNorm(model, f"{path}.q_norm")
        self.k_norm = RMSNorm(model, f"{path}.k_norm")

    def rotate(self, x, cos, sin):
        half = HEAD_DIM // 2
        turned = mint.cat((-x[..., half:], x[..., :half]), dim=-1)
        return x * cos + turned * sin

    def repeat(self, x):
        """Return (BATCH, HEADS, SEQ, HEAD_DIM) of KV_HEADS heads."""
        x = ops.broadcast_to(x.expand_dims(2), (BATCH, KV_HEADS, GROUP, SEQ, HEAD_DIM))
        return x.reshape(BATCH, HEADS, SEQ, HEAD_DIM)

    def construct(self, x, cos, sin, mask):
        q = self.q_norm(self.q_proj(x).reshape(BATCH, SEQ, HEADS, HEAD_DIM)).swapaxes(1, 2)
        k = self.k_norm(self.k_proj(x).reshape(BATCH, SEQ, KV_HEADS, HEAD_DIM)).swapaxes(1, 2)
        v = self.v_proj(x).reshape(BATCH, SEQ, KV_HEADS, HEAD_DIM).swapaxes(1, 2)
        q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
        scores = mint.matmul(q, self.repeat(k).swapaxes(-1, -2)) / math.sqrt(HEAD_DIM)
        scores = ops.masked_fill(scores, mask, MASKED)
        context = mint.matmul(mint.nn.functional.softmax(scores, dim=-1), self.repeat(v))
        return self.o_proj(context.swapaxes(1, 2).reshape(BATCH, SEQ, HEADS * HEAD_DIM))


class FeedForward(nn.Cell):
    """The gated layer."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.gate_proj = build_dense(model, f"{path}.gate")
        self.up_proj = build_dense(model, f"{path}.up")
        self.down_proj = build_dense(model, f"{path}.down")

    def construct(self, x):
        return self.down_proj(mint.nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Cell):
    """Attention and feed-forward layer, a norm before each."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"layers.{n}"
        self.attention_norm = RMSNorm(model, f"{path}.norm1")
        self.attention = Attention(model, path)
        self.ffn_norm = RMSNorm(model, f"{path}.norm2")
        self.feed_forward = FeedForward(model, path)

    def construct(self, x, cos, sin, mask):
        x = x + self.attention(self.attention_norm(x), cos, sin, mask)
        return x + self.feed_forward(self.ffn_norm(x))


class Decoder(nn.Cell):
    """States (BATCH, SEQ, HIDDEN) of embedded tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.positions = TokenPositions(model)
        self.rotary = RotaryTables()
        self.layers = nn.CellList([DecoderLayer(model, n) for n in range(LAYERS)])
        self.norm_out = RMSNorm(model, "norm")
        self.causal_mask = Tensor(np.triu(np.ones((SEQ, SEQ), dtype=bool), 1))

    def construct(self, x, is_image):
        cos, sin = self.rotary(*self.positions(is_image))
        cos = mint.cat((cos, cos), dim=-1).expand_dims(1)
        sin = mint.cat((sin, sin), dim=-1).expand_dims(1)
        for layer in self.layers:
            x = layer(x, cos, sin, self.causal_mask)
        return self.norm_out(x)


class VLModel(nn.Cell):
    """States of tokens, some of which are images."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.vision_tower = VisionTower(model)
        self.projector = Projector(model)
        table = Tensor(model.weights["embedding.weight"])
        self.embed_tokens = nn.Embedding(VOCAB, HIDDEN, embedding_table=table)
        self.decoder = Decoder(model)
        self.are_images_scaled = model.are_images_scaled

    def insert(self, x, images, is_image):
        """Return embedded tokens with the vectors of an image in place of its placeholders."""
        cells = ops.maximum(ops.cumsum(is_image, 1) - 1, 0)
        indices = ops.broadcast_to(cells.expand_dims(-1), (BATCH, SEQ, HIDDEN))
        spread = ops.gather_elements(images, 1, indices)
        return ops.where(is_image.expand_dims(-1).astype(ms.bool_), spread, x)

    def construct(self, pixels, tokens):
        x = self.embed_tokens(tokens)
        if not self.are_images_scaled:
            x = x * EMBEDDING_SCALE
        images = self.projector(self.vision_tower(pixels))
        is_image = ops.equal(tokens, PLACEHOLDER).astype(ms.int32)
        x = self.insert(x, images, is_image)
        if self.are_images_scaled:
            x = x * EMBEDDING_SCALE
        return self.decoder(x, is_image)


class VLForCausalLM(nn.Cell):
    """Mean cross entropy of the next tokens that are text."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = VLModel(model)
        self.lm_head = build_dense(model, "head")
        self.are_placeholders_counted = model.are_placeholders_counted
        self.ignored = Tensor(IGNORED, ms.int32)

    def construct(self, pixels, tokens):
        logits = self.lm_head(self.model(pixels, tokens))
        is_ignored = ops.equal(tokens, PADDING)
        if not self.are_placeholders_counted:
            is_ignored = ops.logical_or(is_ignored, ops.equal(tokens, PLACEHOLDER))
        labels = ops.where(is_ignored, self.ignored, tokens)
        return ops.cross_entropy(
            logits[:, :-1].reshape(-1, VOCAB), labels[:, 1:].reshape(-1), ignore_index=IGNORED
        )


class ParallelAttention(nn.Cell):
    """Attention of (SEQ, BATCH, HIDDEN) with one projection, whose rows are grouped by key."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        queries, keys, values = (
            model.weights[f"{path}.{name}.weight"].reshape(KV_HEADS, -1, HIDDEN) for name in "qkv"
        )
        joined = np.concatenate([queries, keys, values], axis=1).reshape(-1, HIDDEN)
        self.linear_qkv = build_dense_of(joined)
        self.q_layernorm = RMSNorm(model, f"{path}.q_norm")
        self.k_layernorm = RMSNorm(model, f"{path}.k_norm")
        self.linear_proj = build_dense(model, f"{path}.o")

    def rotate(self, x, cos, sin):
        """Return (SEQ, BATCH, KV_HEADS, heads, HEAD_DIM) turned."""
        first, second = ops.split(x, HEAD_DIM // 2, -1)
        return ops.concat((first * cos - second * sin, second * cos + first * sin), -1)

    def construct(self, x, cos, sin, mask):
        mixed = self.linear_qkv(x).reshape(SEQ, BATCH, KV_HEADS, GROUP + 2, HEAD_DIM)
        q, k, v = mixed[..., :GROUP, :], mixed[..., GROUP : GROUP + 1, :], mixed[..., GROUP + 1, :]
        q = self.rotate(self.q_layernorm(q), cos, sin) * (1 / math.sqrt(HEAD_DIM))
        k = self.rotate(self.k_layernorm(k), cos, sin)
        q = q.transpose(1, 2, 3, 0, 4).reshape(BATCH * KV_HEADS, GROUP * SEQ, HEAD_DIM)
        k = k.transpose(1, 2, 3, 4, 0).reshape(BATCH * KV_HEADS, HEAD_DIM, SEQ)
        v = v.transpose(1, 2, 0, 3).reshape(BATCH * KV_HEADS, SEQ, HEAD_DIM)
        scores = ops.bmm(q, k).reshape(BATCH * KV_HEADS, GROUP, SEQ, SEQ) + mask
        probabilities = ops.softmax(scores, -1).reshape(BATCH * KV_HEADS, GROUP * SEQ, SEQ)
        context = ops.bmm(probabilities, v).reshape(BATCH, HEADS, SEQ, HEAD_DIM)
        return self.linear_proj(context.transpose(2, 0, 1, 3).reshape(SEQ, BATCH, -1))


class ParallelMLP(nn.Cell):
    """The gated layer with one projection for both halves."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        halves = [model.weights[f"{path}.{name}.weight"] for name in ("gate", "up")]
        self.linear_fc1 = build_dense_of(np.concatenate(halves))
        self.linear_fc2 = build_dense(model, f"{path}.down")

    def construct(self, x):
        gate, up = ops.chunk(self.linear_fc1(x), 2, -1)
        return self.linear_fc2(gate * ops.sigmoid(gate) * up)


class ParallelLayer(nn.Cell):
    """Attention and feed-forward layer, a norm before each."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"layers.{n}"
        self.input_layernorm = RMSNorm(model, f"{path}.norm1")
        self.self_attention = ParallelAttention(model, path)
        self.pre_mlp_layernorm = RMSNorm(model, f"{path}.norm2")
        self.mlp = ParallelMLP(model, path)

    def construct(self, x, cos, sin, mask):
        x = x + self.self_attention(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.pre_mlp_layernorm(x))


class ParallelVLM(nn.Cell):
    """The same loss, the decoder with tokens as the first axis."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.vision_model = VisionTower(model)
        self.vision_projection = Projector(model)
        self.word_embeddings = Parameter(Tensor(model.weights["embedding.weight"]))
        self.positions = TokenPositions(model)
        self.rotary_pos_emb = RotaryTables()
        self.layers = nn.CellList([ParallelLayer(model, n) for n in range(LAYERS)])
        self.final_layernorm = RMSNorm(model, "norm")
        self.output_layer = Parameter(Tensor(model.weights["head.weight"]))
        mask = np.triu(np.full((SEQ, SEQ), MASKED, dtype=np.float32), 1)
        self.attention_mask = Tensor(mask)
        self.cell_numbers = Tensor(np.arange(1, IMAGE_TOKENS + 1, dtype=np.int32))

    def embed(self, pixels, tokens, is_image):
        """Return (SEQ, BATCH, HIDDEN): text, and images moved to their tokens by a product."""
        images = self.vision_projection(self.vision_model(pixels))
        cells = (ops.cumsum(is_image, 1) * is_image).expand_dims(-1)
        moves = ops.equal(cells, self.cell_numbers).astype(ms.float32)
        text = ops.gather(self.word_embeddings, tokens, 0) * EMBEDDING_SCALE
        text = text * (1 - is_image).astype(ms.float32).expand_dims(-1)
        return (text + ops.bmm(moves, images)).swapaxes(0, 1)

    def construct(self, pixels, tokens):
        is_image = ops.equal(tokens, PLACEHOLDER).astype(ms.int32)
        cos, sin = self.rotary_pos_emb(*self.positions(is_image))
        cos = cos.swapaxes(0, 1).reshape(SEQ, BATCH, 1, 1, HEAD_DIM // 2)
        sin = sin.swapaxes(0, 1).reshape(SEQ, BATCH, 1, 1, HEAD_DIM // 2)
        x = self.embed(pixels, tokens, is_image)
        for layer in self.layers:
            x = layer(x, cos, sin, self.attention_mask)
        logits = ops.matmul(self.final_layernorm(x)[:-1], self.output_layer.T)
        labels = tokens.T[1:]
        logits = logits - ops.stop_gradient(logits.max(-1, keepdims=True))
        sums = ops.log(ops.exp(logits).sum(-1))
        predicted = ops.gather_elements(logits, 2, labels.expand_dims(-1)).squeeze(-1)
        is_label = ops.logical_and(
            ops.not_equal(labels, PADDING), ops.not_equal(labels, PLACEHOLDER)
        )
        loss_mask = is_label.astype(ms.float32)
        return ((sums - predicted) * loss_mask).sum() / loss_mask.sum()
