"""Self-distillation in PyTorch, with the module names of DINOv2.

Variant 'transformers': modules as Hugging Face names them, separate projections, fused attention,
pairs of crops by one matrix product. Variant 'joined': patches by a linear layer, one call of the
head on class tokens and patches together, einsum for attention and losses.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from families.dino.architecture import (
    BOTTLENECK,
    CHANNELS,
    COLUMNS,
    CROPS,
    EPS,
    FFN,
    HEADS,
    HIDDEN,
    KOLEO_EPS,
    KOLEO_WEIGHT,
    LAYERS,
    LENGTH_EPS,
    PATCH,
    PROTOTYPES,
    REGISTERS,
    ROWS,
    STUDENT,
    STUDENT_TEMPERATURE,
    TEACHER,
    TEACHER_TEMPERATURE,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return Dinov2Pretraining(model) if model.variant == "transformers" else SSLMetaArch(model)


def read(model: Model, *names: str) -> Tensor:
    """Return a copy of weights, one behind the other."""
    return torch.from_numpy(np.concatenate([model.weights[name] for name in names]))


def load(module: nn.Module, model: Model, *paths: str) -> nn.Module:
    """Copy the parameters at ``paths`` into a module, one behind the other."""
    for name, parameter in module.named_parameters():
        parameter.data.copy_(read(model, *(f"{path}.{name}" for path in paths)))
    return module


def build_linear(model: Model, *paths: str) -> nn.Linear:
    """Return the linear layer at ``paths``, the rows of one behind those of the other."""
    n_in = model.weights[f"{paths[0]}.weight"].shape[1]
    n_out = sum(len(model.weights[f"{path}.weight"]) for path in paths)
    return load(nn.Linear(n_in, n_out), model, *paths)


def build_norm(model: Model, path: str) -> nn.LayerNorm:
    """Return a layer norm."""
    return load(nn.LayerNorm(HIDDEN, eps=EPS), model, path)


def build_convolution(model: Model, path: str) -> nn.Conv2d:
    """Return the convolution that embeds patches."""
    return load(nn.Conv2d(CHANNELS, HIDDEN, PATCH, PATCH), model, path)


class PatchEmbed(nn.Module):
    """Patches (batch, patches, HIDDEN) of images."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.proj = build_convolution(model, path)
        self.is_linear = model.variant == "joined"

    def forward(self, x: Tensor) -> Tensor:
        if self.is_linear:
            columns = F.unfold(x, PATCH, stride=PATCH).transpose(1, 2)
            return F.linear(columns, self.proj.weight.flatten(1), self.proj.bias)
        return self.proj(x).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    """Attention with one layer for queries, keys and values."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.qkv = build_linear(model, *(f"{path}.{name}" for name in "qkv"))
        self.proj = build_linear(model, f"{path}.o")
        self.scale = (HIDDEN // HEADS) ** -0.5
        self.has_einsum = model.variant == "joined"

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, HEADS, c // HEADS)
        if self.has_einsum:
            q, k, v = qkv.unbind(2)
            attn = (torch.einsum("bnhd,bmhd->bhnm", q, k) * self.scale).softmax(dim=-1)
            return self.proj(torch.einsum("bhnm,bmhd->bnhd", attn, v).flatten(2))
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        x = attn.softmax(dim=-1) @ v
        return self.proj(x.transpose(1, 2).reshape(b, n, c))


class LayerScale(nn.Module):
    """A factor for each channel."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.gamma = nn.Parameter(read(model, f"{path}.weight"))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class SwiGLUFFN(nn.Module):
    """SiLU of one half times the other one."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.w12 = build_linear(model, f"{path}.joined")
        self.w3 = build_linear(model, f"{path}.down")
        self.is_second_half_gate = model.is_second_half_gate

    def forward(self, x: Tensor) -> Tensor:
        x1, x2 = self.w12(x).chunk(2, dim=-1)
        if self.is_second_half_gate:
            x1, x2 = x2, x1
        return self.w3(F.silu(x1) * x2)


class Block(nn.Module):
    """Attention and SwiGLU, each behind a norm and scaled."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.norm1 = build_norm(model, f"{path}.norm1")
        self.attn = Attention(model, f"{path}.attention")
        self.ls1 = LayerScale(model, f"{path}.scale1")
        self.norm2 = build_norm(model, f"{path}.norm2")
        self.mlp = SwiGLUFFN(model, f"{path}.mlp")
        self.ls2 = LayerScale(model, f"{path}.scale2")

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.ls1(self.attn(self.norm1(x)))
        return x + self.ls2(self.mlp(self.norm2(x)))


class DinoVisionTransformer(nn.Module):
    """Class token, registers and patches, (batch, tokens, HIDDEN)."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed(model, f"{path}.patch")
        self.cls_token = nn.Parameter(read(model, f"{path}.class_token.weight"))
        self.pos_embed = nn.Parameter(read(model, f"{path}.positions.weight"))
        self.register_tokens = nn.Parameter(read(model, f"{path}.registers.weight"))
        self.mask_token = nn.Parameter(read(model, f"{path}.mask_token.weight"))
        self.blocks = nn.ModuleList(Block(model, f"{path}.layers.{n}") for n in range(LAYERS))
        self.norm = build_norm(model, f"{path}.norm")
        self.is_mask_behind_positions = model.is_mask_behind_positions

    def interpolate_pos_encoding(self, height: int, width: int) -> Tensor:
        """Return the positions of the class token and of patches of an image of that size."""
        size = (height // PATCH, width // PATCH)
        if size == (ROWS, COLUMNS):
            return self.pos_embed
        patches = self.pos_embed[:, 1:].reshape(1, ROWS, COLUMNS, HIDDEN).permute(0, 3, 1, 2)
        patches = F.interpolate(patches, size=size, mode="bilinear", align_corners=False)
        patches = patches.permute(0, 2, 3, 1).reshape(1, -1, HIDDEN)
        return torch.cat((self.pos_embed[:, :1], patches), dim=1)

    def prepare_tokens(self, images: Tensor, masks: Tensor | None) -> Tensor:
        """Return class token, registers and patches."""
        x = self.patch_embed(images)
        if masks is not None and not self.is_mask_behind_positions:
            x = torch.where(masks.unsqueeze(-1), self.mask_token, x)
        x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), dim=1)
        x = x + self.interpolate_pos_encoding(*images.shape[2:])
        if masks is not None and self.is_mask_behind_positions:
            x = torch.where(F.pad(masks, (1, 0)).unsqueeze(-1), self.mask_token, x)
        registers = self.register_tokens.expand(len(x), -1, -1)
        return torch.cat((x[:, :1], registers, x[:, 1:]), dim=1)

    def forward(self, images: Tensor, masks: Tensor | None = None) -> Tensor:
        x = self.prepare_tokens(images, masks)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class WeightNormLinear(nn.Module):
    """A linear layer whose rows have the length 1, without bias."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.weight_v = nn.Parameter(read(model, f"{path}.weight"))
        self.is_length_stopped = model.is_length_stopped

    def forward(self, x: Tensor) -> Tensor:
        length = self.weight_v.norm(dim=1, keepdim=True)
        if self.is_length_stopped:
            length = length.detach()
        return F.linear(x, self.weight_v / length)


class DINOHead(nn.Module):
    """Scores of prototypes."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            build_linear(model, f"{path}.0"),
            nn.GELU(),
            build_linear(model, f"{path}.1"),
            nn.GELU(),
            build_linear(model, f"{path}.2"),
        )
        self.last_layer = WeightNormLinear(model, f"{path}.last")

    def forward(self, x: Tensor) -> Tensor:
        x = F.normalize(self.mlp(x), dim=-1, p=2, eps=LENGTH_EPS)
        return self.last_layer(x)


class DINOLoss(nn.Module):
    """Cross entropy between the class tokens of pairs of different crops."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.register_buffer("center", read(model, "centers.class"))
        self.has_einsum = model.variant == "joined"

    @torch.no_grad()
    def softmax_center_teacher(self, scores: Tensor) -> Tensor:
        return F.softmax((scores - self.center) / TEACHER_TEMPERATURE, dim=-1)

    def forward(self, student_crops: list[Tensor], teacher_crops: list[Tensor]) -> Tensor:
        if self.has_einsum:
            return self.compute_from_sums(student_crops, teacher_crops)
        total_loss, n_terms = 0.0, 0
        for t, teacher in enumerate(teacher_crops):
            for s, student in enumerate(student_crops):
                if s == t:
                    continue
                log_probs = F.log_softmax(student / STUDENT_TEMPERATURE, dim=-1)
                total_loss = total_loss - (teacher * log_probs).sum(dim=-1).mean()
                n_terms += 1
        return total_loss / n_terms

    def compute_from_sums(self, student_crops: list[Tensor], teacher_crops: list[Tensor]) -> Tensor:
        """Return the same from all pairs less those of the same crop."""
        log_probs = (torch.stack(student_crops) / STUDENT_TEMPERATURE).log_softmax(dim=-1)
        teacher = torch.stack(teacher_crops)
        of_all = torch.einsum("tbk,sbk->", teacher, log_probs)
        of_same = torch.einsum("tbk,tbk->", teacher, log_probs[: len(teacher)])
        n_terms = len(teacher) * (len(log_probs) - 1) * teacher.shape[1]
        return (of_same - of_all) / n_terms


class IBOTPatchLoss(nn.Module):
    """Cross entropy between masked patches."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.register_buffer("center", read(model, "centers.patch"))
        self.is_mean = model.is_patch_mean

    @torch.no_grad()
    def softmax_center_teacher(self, scores: Tensor) -> Tensor:
        return F.softmax((scores - self.center) / TEACHER_TEMPERATURE, dim=-1)

    def forward(self, student: Tensor, teacher: Tensor, weights: Tensor, n_crops: int) -> Tensor:
        log_probs = F.log_softmax(student / STUDENT_TEMPERATURE, dim=-1)
        loss = torch.sum(teacher * log_probs, dim=-1)
        if self.is_mean:
            return -loss.mean()
        return -(loss * weights).sum() / n_crops


class KoLeoLoss(nn.Module):
    """Minus the logarithm of the distance to the nearest token."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_neighbor_stopped = model.is_neighbor_stopped

    @torch.no_grad()
    def find_neighbors(self, x: Tensor) -> Tensor:
        """Return the number of the nearest other token, for tokens of length 1."""
        dots = torch.mm(x, x.t())
        is_same = torch.eye(len(x), dtype=torch.bool)
        return dots.masked_fill(is_same, -1.0).argmax(dim=1)

    def forward(self, x: Tensor) -> Tensor:
        x = x / x.norm(dim=-1, keepdim=True)
        neighbors = x[self.find_neighbors(x)]
        if self.is_neighbor_stopped:
            neighbors = neighbors.detach()
        distances = F.pairwise_distance(x, neighbors, p=2, eps=KOLEO_EPS)
        return -torch.log(distances + KOLEO_EPS).mean()


def build_network(model: Model, path: str) -> nn.ModuleDict:
    """Return backbone and head of the student or of the teacher."""
    backbone = DinoVisionTransformer(model, path)
    return nn.ModuleDict({"backbone": backbone, "dino_head": DINOHead(model, f"{path}.head")})


class SSLMetaArch(nn.Module):
    """Student, teacher and the sum of the losses."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.student = build_network(model, STUDENT)
        self.teacher = build_network(model, TEACHER).requires_grad_(False)
        self.dino_loss = DINOLoss(model)
        self.ibot_patch_loss = IBOTPatchLoss(model)
        self.koleo_loss = KoLeoLoss(model)
        self.is_head_joined = model.variant == "joined"
        self.first_patch = 1 if model.are_registers_read else 1 + REGISTERS

    def choose(self, x: Tensor, indices: Tensor) -> Tensor:
        """Return the patches with these numbers, (patches, HIDDEN)."""
        patches = x[:, self.first_patch : self.first_patch + ROWS * COLUMNS]
        return torch.index_select(patches.flatten(0, 1), dim=0, index=indices)

    def score(self, head: nn.Module, tokens: Tensor, patches: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores of class tokens and of patches."""
        if self.is_head_joined:
            scores = head(torch.cat((tokens, patches)))
            return scores.split((len(tokens), len(patches)))
        return head(tokens), head(patches)

    @torch.no_grad()
    def get_targets(self, crops: Tensor, indices: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the teacher's probabilities of class tokens, crop by crop, and of patches."""
        x = self.teacher["backbone"](crops)
        patches = self.choose(x, indices)
        tokens, patches = self.score(self.teacher["dino_head"], x[:, 0], patches)
        targets = self.dino_loss.softmax_center_teacher(tokens)
        return list(targets.chunk(CROPS)), self.ibot_patch_loss.softmax_center_teacher(patches)

    def forward(
        self,
        global_crops: Tensor,
        local_crops: Tensor,
        masks: Tensor,
        mask_indices: Tensor,
        mask_weights: Tensor,
    ) -> Tensor:
        targets, patch_targets = self.get_targets(global_crops, mask_indices)
        x = self.student["backbone"](global_crops, masks)
        global_tokens = x[:, 0]
        local_tokens = self.student["backbone"](local_crops)[:, 0]
        tokens = torch.cat((global_tokens, local_tokens))
        patches = self.choose(x, mask_indices)
        scores, patch_scores = self.score(self.student["dino_head"], tokens, patches)

        loss = self.dino_loss(list(scores.chunk(CROPS + 1)), targets)
        n_crops = len(global_crops)
        loss = loss + self.ibot_patch_loss(patch_scores, patch_targets, mask_weights, n_crops)
        return loss + KOLEO_WEIGHT * sum(self.koleo_loss(x) for x in global_tokens.chunk(CROPS))


class Dinov2Embeddings(nn.Module):
    """Class token, registers and patches with their positions."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(read(model, f"{path}.class_token.weight"))
        self.mask_token = nn.Parameter(read(model, f"{path}.mask_token.weight"))
        self.register_tokens = nn.Parameter(read(model, f"{path}.registers.weight"))
        self.position_embeddings = nn.Parameter(read(model, f"{path}.positions.weight"))
        self.projection = build_convolution(model, f"{path}.patch")

    def forward(self, pixel_values: Tensor, bool_masked_pos: Tensor | None = None) -> Tensor:
        embeddings = self.projection(pixel_values)
        size = embeddings.shape[2:]
        embeddings = embeddings.flatten(2).transpose(1, 2)
        if bool_masked_pos is not None:
            embeddings = torch.where(
                bool_masked_pos.unsqueeze(-1), self.mask_token.unsqueeze(0), embeddings
            )
        class_position, positions = self.position_embeddings.split(
            (1, self.position_embeddings.shape[1] - 1), dim=1
        )
        if size != (ROWS, COLUMNS):
            positions = positions.transpose(1, 2).view(1, HIDDEN, ROWS, COLUMNS)
            positions = F.interpolate(positions, size=tuple(size), mode="bilinear")
            positions = positions.flatten(2).transpose(1, 2)
        batch = len(embeddings)
        class_tokens = (self.cls_token + class_position).expand(batch, -1, -1)
        registers = self.register_tokens.expand(batch, -1, -1)
        return torch.cat((class_tokens, registers, embeddings + positions), dim=1)


class Dinov2SelfAttention(nn.Module):
    """Fused attention with separate projections."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.query = build_linear(model, f"{path}.q")
        self.key = build_linear(model, f"{path}.k")
        self.value = build_linear(model, f"{path}.v")
        self.dense = build_linear(model, f"{path}.o")

    def forward(self, hidden_states: Tensor) -> Tensor:
        q, k, v = (
            layer(hidden_states).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        context = F.scaled_dot_product_attention(q, k, v)
        return self.dense(context.transpose(1, 2).flatten(2))


class Dinov2Layer(nn.Module):
    """Attention and SwiGLU, each behind a norm and scaled."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.norm1 = build_norm(model, f"{path}.norm1")
        self.attention = Dinov2SelfAttention(model, f"{path}.attention")
        self.lambda1 = nn.Parameter(read(model, f"{path}.scale1.weight"))
        self.norm2 = build_norm(model, f"{path}.norm2")
        self.weights_in = build_linear(model, f"{path}.mlp.joined")
        self.weights_out = build_linear(model, f"{path}.mlp.down")
        self.lambda2 = nn.Parameter(read(model, f"{path}.scale2.weight"))

    def forward(self, hidden_states: Tensor) -> Tensor:
        attended = self.attention(self.norm1(hidden_states))
        hidden_states = torch.addcmul(hidden_states, attended, self.lambda1)
        gate, up = self.weights_in(self.norm2(hidden_states)).split(FFN, dim=-1)
        output = self.weights_out(gate * torch.sigmoid(gate) * up)
        return torch.addcmul(hidden_states, output, self.lambda2)


class Dinov2WithProjector(nn.Module):
    """Backbone and head."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.embeddings = Dinov2Embeddings(model, path)
        self.layer = nn.ModuleList(Dinov2Layer(model, f"{path}.layers.{n}") for n in range(LAYERS))
        self.layernorm = build_norm(model, f"{path}.norm")
        self.fc1 = build_linear(model, f"{path}.head.0")
        self.fc2 = build_linear(model, f"{path}.head.1")
        self.fc3 = build_linear(model, f"{path}.head.2")
        prototypes = nn.Linear(BOTTLENECK, PROTOTYPES, bias=False)
        load(prototypes, model, f"{path}.head.last")
        self.prototypes = nn.utils.parametrizations.weight_norm(prototypes)
        magnitude = self.prototypes.parametrizations.weight.original0
        magnitude.data.fill_(1.0)
        magnitude.requires_grad = False

    def forward(self, pixel_values: Tensor, bool_masked_pos: Tensor | None = None) -> Tensor:
        hidden_states = self.embeddings(pixel_values, bool_masked_pos)
        for layer in self.layer:
            hidden_states = layer(hidden_states)
        return self.layernorm(hidden_states)

    def project(self, x: Tensor) -> Tensor:
        x = self.fc3(F.gelu(self.fc2(F.gelu(self.fc1(x)))))
        x = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return self.prototypes(x)


class Dinov2Pretraining(nn.Module):
    """Student, teacher and losses in the manner of Hugging Face."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.student_model = Dinov2WithProjector(model, STUDENT)
        self.teacher_model = Dinov2WithProjector(model, TEACHER).requires_grad_(False)
        self.register_buffer("class_center", read(model, "centers.class"))
        self.register_buffer("patch_center", read(model, "centers.patch"))
        pairs = 1 - torch.eye(CROPS, CROPS + 1)
        self.register_buffer("pair_weights", pairs / pairs.sum())

    @torch.no_grad()
    def get_targets(self, crops: Tensor, is_masked: Tensor) -> tuple[Tensor, Tensor]:
        hidden_states = self.teacher_model(crops)
        tokens = self.teacher_model.project(hidden_states[:, 0])
        patches = self.teacher_model.project(hidden_states[:, 1 + REGISTERS :][is_masked])
        tokens = ((tokens - self.class_center) / TEACHER_TEMPERATURE).softmax(-1)
        return tokens, ((patches - self.patch_center) / TEACHER_TEMPERATURE).softmax(-1)

    def spread(self, tokens: Tensor) -> Tensor:
        """Return the mean logarithm of the distance to the nearest token of the crop."""
        tokens = tokens.unflatten(0, (CROPS, -1))
        tokens = tokens / torch.linalg.vector_norm(tokens, dim=-1, keepdim=True)
        offsets = tokens.unsqueeze(2) - tokens.unsqueeze(1)
        squared = offsets.square().sum(-1)
        is_same = torch.eye(tokens.shape[1], dtype=torch.bool)
        nearest = squared.masked_fill(is_same, torch.inf).amin(-1)
        return 0.5 * nearest.log().mean(-1).sum()

    def forward(
        self,
        global_crops: Tensor,
        local_crops: Tensor,
        bool_masked_pos: Tensor,
        mask_indices: Tensor,
        mask_weights: Tensor,
    ) -> Tensor:
        targets, patch_targets = self.get_targets(global_crops, bool_masked_pos)
        global_states = self.student_model(global_crops, bool_masked_pos)
        tokens = global_states[:, 0]
        local_tokens = self.student_model(local_crops)[:, 0]
        scores = self.student_model.project(torch.cat((tokens, local_tokens)))
        log_probs = torch.log_softmax(scores / STUDENT_TEMPERATURE, dim=-1)
        products = targets.reshape(CROPS, -1) @ log_probs.reshape(CROPS + 1, -1).t()
        class_loss = -(products * self.pair_weights).sum() / len(local_crops)

        patches = global_states[:, 1 + REGISTERS :].flatten(0, 1)[mask_indices]
        patch_log_probs = torch.log_softmax(
            self.student_model.project(patches) / STUDENT_TEMPERATURE, dim=-1
        )
        patch_losses = -(patch_targets * patch_log_probs).sum(-1)
        patch_loss = torch.dot(patch_losses, mask_weights) / len(global_crops)
        return class_loss + patch_loss - KOLEO_WEIGHT * self.spread(tokens)
