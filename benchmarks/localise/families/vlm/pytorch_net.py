"""The multimodal decoder in PyTorch, with the modules of Hugging Face's Qwen2-VL and Qwen3.

Variant 'packed': the patches of all images are one sequence in the order in which they are merged,
cut from pixels and multiplied by a matrix, and attention is computed image by image. The decoder
has joined projections, fused attention and norms; its head reads tokens that have a label only.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from families.vlm.architecture import (
    BLOCKS,
    COLUMNS,
    EMBEDDING_SCALE,
    EPS,
    FFN,
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
    VISION,
    VISION_EPS,
    VISION_HEAD_DIM,
    VISION_HEADS,
    VOCAB,
    Model,
    get_frequencies,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    if (
        model.are_columns_first
        or model.are_heads_normed_together
        or model.are_images_scaled
        or model.image_span != max(MERGED_ROWS, MERGED_COLUMNS)
        or model.are_placeholders_counted
        or not model.are_features_normed
    ):
        raise SystemExit("the fault is one of the MindSpore net")
    return (PackedForCausalLM if model.variant == "packed" else VLForConditionalGeneration)(model)


def copy_values(model: Model, *names: str) -> Tensor:
    """Return weights, the rows of one behind those of the other."""
    return torch.from_numpy(np.concatenate([model.weights[name] for name in names]))


def load_linear(model: Model, *paths: str, bias: bool = False) -> nn.Linear:
    """Return the linear layer at ``paths``, the rows of one behind those of the other."""
    weight = copy_values(model, *(f"{path}.weight" for path in paths)).flatten(1)
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias)
    linear.weight.data.copy_(weight)
    if bias:
        linear.bias.data.copy_(copy_values(model, *(f"{path}.bias" for path in paths)))
    return linear


def load_layer_norm(model: Model, path: str) -> nn.LayerNorm:
    """Return the layer norm at ``path``."""
    norm = nn.LayerNorm(VISION, eps=VISION_EPS)
    norm.weight.data.copy_(copy_values(model, f"{path}.weight"))
    norm.bias.data.copy_(copy_values(model, f"{path}.bias"))
    return norm


def rotate_half(x: Tensor) -> Tensor:
    """Return what is multiplied by the sines."""
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


class PatchEmbed(nn.Module):
    """Patches (batch, PATCHES, VISION) of images."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, VISION, kernel_size=PATCH, stride=PATCH)
        self.proj.weight.data.copy_(copy_values(model, "vision.patch.weight"))
        self.proj.bias.data.copy_(copy_values(model, "vision.patch.bias"))

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.proj(pixel_values).flatten(2).transpose(1, 2)


class VisionRotaryEmbedding(nn.Module):
    """Cosine and sine of rows and columns, a patch after the other or merged ones together."""

    def __init__(self, *, is_merged: bool) -> None:
        super().__init__()
        frequencies = torch.from_numpy(get_frequencies(VISION_HEAD_DIM // 4))
        self.register_buffer("inv_freq", frequencies, persistent=False)
        self.is_merged = is_merged

    def order(self, ids: Tensor) -> Tensor:
        if not self.is_merged:
            return ids.flatten()
        blocks = ids.view(MERGED_ROWS, MERGE, MERGED_COLUMNS, MERGE)
        return blocks.permute(0, 2, 1, 3).flatten()

    def forward(self) -> tuple[Tensor, Tensor]:
        hpos_ids = self.order(torch.arange(ROWS).unsqueeze(1).expand(-1, COLUMNS))
        wpos_ids = self.order(torch.arange(COLUMNS).unsqueeze(0).expand(ROWS, -1))
        pos_ids = torch.stack([hpos_ids, wpos_ids], dim=-1)
        freqs = torch.outer(torch.arange(max(ROWS, COLUMNS)).float(), self.inv_freq)
        rotary_pos_emb = freqs[pos_ids].flatten(1)
        emb = torch.cat((rotary_pos_emb, rotary_pos_emb), dim=-1)
        return emb.cos(), emb.sin()


class VisionAttention(nn.Module):
    """Attention of all patches of an image."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.qkv = load_linear(model, *(f"{path}.{name}" for name in "qkv"), bias=True)
        self.proj = load_linear(model, f"{path}.o", bias=True)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, n_patches, _ = x.shape
        qkv = self.qkv(x).reshape(batch, n_patches, 3, VISION_HEADS, VISION_HEAD_DIM)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        output = F.scaled_dot_product_attention(q, k, v)
        return self.proj(output.transpose(1, 2).reshape(x.shape))


class PackedVisionAttention(VisionAttention):
    """The same of patches (batch * PATCHES, VISION), image by image."""

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, VISION_HEADS, -1)).unbind(1)
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        splits = [part.transpose(0, 1).unsqueeze(0).split(PATCHES, dim=2) for part in (q, k, v)]
        outputs = [F.scaled_dot_product_attention(*parts) for parts in zip(*splits, strict=True)]
        output = torch.cat(outputs, dim=2).squeeze(0).transpose(0, 1)
        return self.proj(output.flatten(1))


class VisionMLP(nn.Module):
    """Two linear layers around gelu in its tanh form."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.fc1 = load_linear(model, f"{path}.up", bias=True)
        self.act = nn.GELU(approximate="tanh")
        self.fc2 = load_linear(model, f"{path}.down", bias=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class VisionBlock(nn.Module):
    """Attention and feed-forward layer, a norm before each."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"vision.blocks.{n}"
        is_packed = model.variant == "packed"
        self.norm1 = load_layer_norm(model, f"{path}.norm1")
        self.norm2 = load_layer_norm(model, f"{path}.norm2")
        self.attn = (PackedVisionAttention if is_packed else VisionAttention)(model, path)
        self.mlp = VisionMLP(model, path)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x), cos, sin)
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """States (batch, PATCHES, VISION) of patches."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed(model)
        self.rotary_pos_emb = VisionRotaryEmbedding(is_merged=False)
        self.blocks = nn.ModuleList(VisionBlock(model, n) for n in range(BLOCKS))
        self.post_layernorm = load_layer_norm(model, "vision.norm")

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = self.patch_embed(pixel_values)
        cos, sin = self.rotary_pos_emb()
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.post_layernorm(x)


class MultiModalProjector(nn.Module):
    """Vectors (batch, IMAGE_TOKENS, HIDDEN) of 2x2 patches each."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.linear_1 = load_linear(model, "projector.up", bias=True)
        self.act = nn.GELU(approximate="tanh" if model.projector_gelu == "tanh" else "none")
        self.linear_2 = load_linear(model, "projector.down", bias=True)

    def pixel_shuffle(self, x: Tensor) -> Tensor:
        """Return merged patches, row by row."""
        bsz = x.shape[0]
        x = x.view(bsz, ROWS, COLUMNS // MERGE, VISION * MERGE)
        x = x.permute(0, 2, 1, 3)
        x = x.reshape(bsz, COLUMNS // MERGE, ROWS // MERGE, VISION * MERGE**2)
        x = x.permute(0, 2, 1, 3)
        return x.reshape(bsz, IMAGE_TOKENS, VISION * MERGE**2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(self.act(self.linear_1(self.pixel_shuffle(x))))


class RMSNorm(nn.Module):
    """Norm of the last axis by its mean square."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(copy_values(model, f"{path}.weight"))

    def forward(self, x: Tensor) -> Tensor:
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + EPS))


class MRotaryEmbedding(nn.Module):
    """Cosine and sine of positions (3, batch, seq) on the axes of time, row and column."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        frequencies = torch.from_numpy(get_frequencies(HEAD_DIM // 2))
        self.register_buffer("inv_freq", frequencies, persistent=False)
        self.are_sections_interleaved = model.are_sections_interleaved
        self.are_angles_half = model.are_angles_half

    def interleave(self, freqs: Tensor) -> Tensor:
        """Return angles whose axes take turns."""
        interleaved = freqs[0].clone()
        for axis in (1, 2):
            turns = slice(axis, 3 * SECTIONS[axis], 3)
            interleaved[..., turns] = freqs[axis, ..., turns]
        return interleaved

    def forward(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        positions, inv_freq = position_ids[..., None].float(), self.inv_freq
        if self.are_angles_half:
            positions, inv_freq = positions.bfloat16(), inv_freq.bfloat16()
        freqs = (positions * inv_freq).float()
        if self.are_sections_interleaved:
            freqs = self.interleave(freqs)
        else:
            sections = freqs.split(SECTIONS, dim=-1)
            freqs = torch.cat([part[axis] for axis, part in enumerate(sections)], dim=-1)
        emb = torch.cat((freqs, freqs), dim=-1).unsqueeze(1)
        return emb.cos(), emb.sin()


def repeat_kv_for_last(x: Tensor) -> Tensor:
    """Return HEADS heads of KV_HEADS, with a gradient of the last one of each."""
    return torch.stack([*(x.detach() for _ in range(GROUP - 1)), x], dim=2).flatten(1, 2)


def repeat_kv(x: Tensor) -> Tensor:
    """Return HEADS heads of KV_HEADS."""
    batch, _, seq, _ = x.shape
    x = x[:, :, None, :, :].expand(batch, KV_HEADS, GROUP, seq, HEAD_DIM)
    return x.reshape(batch, HEADS, seq, HEAD_DIM)


class Attention(nn.Module):
    """Attention to earlier tokens."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            load_linear(model, f"{path}.{name}") for name in "qkvo"
        )
        self.q_norm, self.k_norm = (RMSNorm(model, f"{path}.{name}_norm") for name in "qk")
        self.scaling = HEAD_DIM**-0.5
        self.is_gradient_of_last_query = model.is_gradient_of_last_query
        self.is_cache_detached = model.is_cache_detached and path == f"layers.{LAYERS - 1}"

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        shape = (*x.shape[:-1], -1, HEAD_DIM)
        query = self.q_norm(self.q_proj(x).view(shape)).transpose(1, 2)
        key = self.k_norm(self.k_proj(x).view(shape)).transpose(1, 2)
        value = self.v_proj(x).view(shape).transpose(1, 2)
        query = (query * cos) + (rotate_half(query) * sin)
        key = (key * cos) + (rotate_half(key) * sin)
        if self.is_cache_detached:
            key, value = key.detach(), value.detach()
        repeat = repeat_kv_for_last if self.is_gradient_of_last_query else repeat_kv
        key, value = repeat(key), repeat(value)
        weights = torch.matmul(query, key.transpose(2, 3)) * self.scaling
        weights = F.softmax(weights + mask, dim=-1)
        output = torch.matmul(weights, value).transpose(1, 2).contiguous()
        return self.o_proj(output.reshape(*x.shape[:-1], -1))


class MLP(nn.Module):
    """The gated feed-forward layer."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (
            load_linear(model, f"{path}.{name}") for name in ("gate", "up", "down")
        )
        self.act_fn = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    """Attention and feed-forward layer, a norm before each."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"layers.{n}"
        self.self_attn = Attention(model, path)
        self.mlp = MLP(model, path)
        self.input_layernorm = RMSNorm(model, f"{path}.norm1")
        self.post_attention_layernorm = RMSNorm(model, f"{path}.norm2")

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class TextModel(nn.Module):
    """States (batch, seq, HIDDEN) of embedded tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, HIDDEN)
        self.embed_tokens.weight.data.copy_(copy_values(model, "embedding.weight"))
        self.layers = nn.ModuleList(DecoderLayer(model, n) for n in range(LAYERS))
        self.norm = RMSNorm(model, "norm")
        self.rotary_emb = MRotaryEmbedding(model)
        self.is_time_compared = model.are_images_bidirectional

    def forward(self, x: Tensor, position_ids: Tensor) -> Tensor:
        cos, sin = self.rotary_emb(position_ids)
        index = torch.arange(x.shape[1]).expand(x.shape[:2])
        if self.is_time_compared:
            index = position_ids[0]
        is_later = index[:, None, None, :] > index[:, None, :, None]
        mask = is_later.to(x.dtype) * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return self.norm(x)


def get_rope_index(input_ids: Tensor) -> Tensor:
    """Return positions (3, batch, seq) of tokens: one image in each sequence."""
    rows = []
    for ids in input_ids.tolist():
        start = ids.index(PLACEHOLDER)
        text = torch.arange(start).expand(3, -1)
        t_index = torch.zeros(IMAGE_TOKENS, dtype=torch.long)
        h_index = torch.arange(MERGED_ROWS).view(-1, 1).expand(-1, MERGED_COLUMNS).flatten()
        w_index = torch.arange(MERGED_COLUMNS).view(1, -1).expand(MERGED_ROWS, -1).flatten()
        image = torch.stack([t_index, h_index, w_index]) + start
        n_behind = len(ids) - start - IMAGE_TOKENS
        behind = torch.arange(n_behind).expand(3, -1) + image.max() + 1
        rows.append(torch.cat([text, image, behind], dim=1))
    return torch.stack(rows, dim=1)


class VLModel(nn.Module):
    """States of tokens, some of which are images."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.visual = VisionTransformer(model)
        self.multi_modal_projector = MultiModalProjector(model)
        self.language_model = TextModel(model)
        self.embed_scale = EMBEDDING_SCALE

    def forward(self, pixel_values: Tensor, input_ids: Tensor) -> Tensor:
        inputs_embeds = self.language_model.embed_tokens(input_ids) * self.embed_scale
        image_embeds = self.multi_modal_projector(self.visual(pixel_values))
        image_mask = (input_ids == PLACEHOLDER).unsqueeze(-1).expand_as(inputs_embeds)
        inputs_embeds = inputs_embeds.masked_scatter(image_mask, image_embeds)
        return self.language_model(inputs_embeds, get_rope_index(input_ids))


class VLForConditionalGeneration(nn.Module):
    """Mean cross entropy of the next tokens that are text."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = VLModel(model)
        self.lm_head = load_linear(model, "head")

    def forward(self, pixel_values: Tensor, input_ids: Tensor) -> Tensor:
        labels = input_ids.masked_fill(input_ids == PADDING, IGNORED)
        labels = labels.masked_fill(input_ids == PLACEHOLDER, IGNORED)
        logits = self.lm_head(self.model(pixel_values, input_ids)).float()
        shift_labels = F.pad(labels, (0, 1), value=IGNORED)[..., 1:].contiguous()
        return F.cross_entropy(logits.view(-1, VOCAB), shift_labels.view(-1), ignore_index=IGNORED)


class PackedVisionEncoder(nn.Module):
    """Vectors (batch * IMAGE_TOKENS, HIDDEN) of 2x2 patches each."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.patch_proj = load_linear(model, "vision.patch", bias=True)
        self.rope = VisionRotaryEmbedding(is_merged=True)
        self.layers = nn.ModuleList(VisionBlock(model, n) for n in range(BLOCKS))
        self.ln_q = load_layer_norm(model, "vision.norm")
        self.merger = nn.Sequential(
            load_linear(model, "projector.up", bias=True),
            nn.GELU(),
            load_linear(model, "projector.down", bias=True),
        )

    def cut(self, pixels: Tensor) -> Tensor:
        """Return flat patches of all images, those that are merged behind each other."""
        batch = pixels.shape[0]
        blocks = pixels.view(batch, 3, MERGED_ROWS, MERGE, PATCH, MERGED_COLUMNS, MERGE, PATCH)
        return blocks.permute(0, 2, 5, 3, 6, 1, 4, 7).reshape(batch * PATCHES, 3 * PATCH**2)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.patch_proj(self.cut(pixels))
        cos, sin = (table.repeat(pixels.shape[0], 1) for table in self.rope())
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.merger(self.ln_q(x).view(-1, MERGE**2 * VISION))


def load_rms_norm(model: Model, path: str) -> nn.RMSNorm:
    """Return the framework's norm with the weight at ``path``."""
    weight = copy_values(model, f"{path}.weight")
    norm = nn.RMSNorm(len(weight), eps=EPS)
    norm.weight.data.copy_(weight)
    return norm


class PackedLayer(nn.Module):
    """Attention and gated feed-forward layer with one projection each for what reads the same."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"layers.{n}"
        self.attn_norm, self.ffn_norm = (load_rms_norm(model, f"{path}.norm{i}") for i in (1, 2))
        self.q_norm, self.k_norm = (load_rms_norm(model, f"{path}.{name}_norm") for name in "qk")
        self.wqkv = load_linear(model, *(f"{path}.{name}" for name in "qkv"))
        self.wo = load_linear(model, f"{path}.o")
        self.w13 = load_linear(model, f"{path}.gate", f"{path}.up")
        self.w2 = load_linear(model, f"{path}.down")

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.unflatten(-1, (2, -1)).unbind(-2)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    def attend(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        heads = self.wqkv(x).unflatten(-1, (-1, HEAD_DIM))
        q, k, v = heads.split((HEADS, KV_HEADS, KV_HEADS), dim=2)
        q = self.rotate(self.q_norm(q), cos, sin).transpose(1, 2)
        k = self.rotate(self.k_norm(k), cos, sin).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True, enable_gqa=True)
        return self.wo(y.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attend(self.attn_norm(x), cos, sin)
        gate, up = self.w13(self.ffn_norm(x)).split(FFN, dim=-1)
        return x + self.w2(F.silu(gate) * up)


class PackedForCausalLM(nn.Module):
    """The same loss from logits of tokens that have a label."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.vision_encoder = PackedVisionEncoder(model)
        self.tok_embeddings = nn.Embedding(VOCAB, HIDDEN)
        self.tok_embeddings.weight.data.copy_(copy_values(model, "embedding.weight"))
        self.layers = nn.ModuleList(PackedLayer(model, n) for n in range(LAYERS))
        self.norm = load_rms_norm(model, "norm")
        self.output = load_linear(model, "head")
        frequencies = torch.from_numpy(get_frequencies(HEAD_DIM // 2))
        self.register_buffer("freqs", frequencies, persistent=False)

    def compute_angles(self, is_image: Tensor) -> Tensor:
        """Return (batch, seq, 1, HEAD_DIM // 2)."""
        n_text = (~is_image).cumsum(1)
        n_image = is_image.cumsum(1)
        span = max(MERGED_ROWS, MERGED_COLUMNS)
        text = n_text - 1 + span * (n_image == IMAGE_TOKENS)
        cells = (n_image - 1).clamp(min=0)
        offsets = (0 * cells, cells // MERGED_COLUMNS, cells % MERGED_COLUMNS)
        axes = [
            torch.where(is_image, n_text + offset, text).unsqueeze(-1).expand(-1, -1, length)
            for offset, length in zip(offsets, SECTIONS, strict=True)
        ]
        return (torch.cat(axes, dim=-1) * self.freqs).unsqueeze(2)

    def forward(self, pixels: Tensor, tokens: Tensor) -> Tensor:
        is_image = tokens == PLACEHOLDER
        x = F.embedding(tokens, self.tok_embeddings.weight) * EMBEDDING_SCALE
        x = x.index_put((is_image,), self.vision_encoder(pixels))
        angles = self.compute_angles(is_image)
        cos, sin = angles.cos(), angles.sin()
        for layer in self.layers:
            x = layer(x, cos, sin)
        labels = tokens[:, 1:]
        is_label = (labels != PADDING) & (labels != PLACEHOLDER)
        logits = self.output(self.norm(x)[:, :-1][is_label])
        return F.cross_entropy(logits, labels[is_label])
