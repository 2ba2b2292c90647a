"""The network for tables in PyTorch, with modules named as in rtdl and in pytorch-tabnet.

Variant 'fused': one product for q, k and v and a fused attention, all virtual batches at once,
products of numbers by einsum, sparsemax by comparing all features and with autograd's gradient,
losses in plain arithmetic, other names.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from families.tabular.architecture import (
    ATTENTION,
    BLOCKS,
    CATEGORIES,
    CLASS_WEIGHTS,
    COUNT_WEIGHT,
    DECISION,
    EPS,
    FEATURES,
    GHOST,
    HEAD_WIDTH,
    HEADS,
    LOG_EPS,
    MASK_WEIGHT,
    MOMENTUM,
    NO_CLASS,
    NO_COUNT,
    NUMBERS,
    OFFSETS,
    PLAIN,
    QUANTILE_WEIGHT,
    QUANTILES,
    RELAXATION,
    STEPS,
    WIDTH,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return FusedLoss(model) if model.variant == "fused" else TabularLoss(model)


def copy_parameter(values: np.ndarray) -> nn.Parameter:
    """Return a parameter with these values."""
    return nn.Parameter(torch.from_numpy(np.array(values)))


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the weights at ``path`` into a module."""
    for name, parameter in module.named_parameters():
        parameter.data.copy_(torch.from_numpy(np.array(model.weights[f"{path}.{name}"])))
    return module


def load_linear(model: Model, path: str) -> nn.Linear:
    """Return the linear layer at ``path``, with the bias if there is one."""
    n_out, n_in = model.weights[f"{path}.weight"].shape
    return load(nn.Linear(n_in, n_out, bias=f"{path}.bias" in model.weights), model, path)


def load_norm(model: Model, path: str) -> nn.LayerNorm:
    """Return the layer norm at ``path``."""
    return load(nn.LayerNorm(WIDTH, eps=EPS), model, path)


class LinearEmbeddings(nn.Module):
    """Tokens of plain numbers, (rows, PLAIN, WIDTH)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.weight = copy_parameter(model.weights["plain.weight"])
        self.bias = copy_parameter(model.weights["plain.bias"])
        self.missing = copy_parameter(model.weights["plain.missing"])

    def forward(self, x: Tensor, is_missing: Tensor) -> Tensor:
        x = x[..., None] * self.weight + self.bias
        return x + is_missing[..., None] * self.missing


class PeriodicEmbeddings(nn.Module):
    """Tokens of numbers from waves, (rows, PERIODIC, WIDTH)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.frequencies = copy_parameter(model.weights["periodic.frequencies"])
        self.weight = copy_parameter(model.weights["periodic.weight"])
        self.bias = copy_parameter(model.weights["periodic.bias"])
        self.missing = copy_parameter(model.weights["periodic.missing"])
        self.scale = model.frequency_scale

    def forward(self, x: Tensor, is_missing: Tensor) -> Tensor:
        x = self.scale * self.frequencies * x[..., None]
        x = torch.cat([torch.cos(x), torch.sin(x)], -1)
        x = (x.transpose(0, 1) @ self.weight).transpose(0, 1) + self.bias
        return F.relu(x) + is_missing[..., None] * self.missing


class CategoricalEmbeddings(nn.Module):
    """Tokens of categories, (rows, CATEGORIES, WIDTH)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        table = torch.from_numpy(model.weights["categories.weight"].copy())
        self.embeddings = nn.Embedding.from_pretrained(table, freeze=False)
        self.bias = copy_parameter(model.weights["categories.bias"])
        self.register_buffer("offsets", torch.tensor(OFFSETS), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.embeddings(x + self.offsets) + self.bias


class FeatureTokenizer(nn.Module):
    """Tokens of a row, [CLS] first, (rows, 1 + FEATURES, WIDTH)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.cls_embedding = copy_parameter(model.weights["cls"])
        self.cont_embeddings = LinearEmbeddings(model)
        self.periodic_embeddings = PeriodicEmbeddings(model)
        self.cat_embeddings = CategoricalEmbeddings(model)

    def forward(self, x_cont: Tensor, is_missing: Tensor, x_cat: Tensor) -> Tensor:
        plain = self.cont_embeddings(x_cont[:, :PLAIN], is_missing[:, :PLAIN])
        periodic = self.periodic_embeddings(x_cont[:, PLAIN:], is_missing[:, PLAIN:])
        cls = self.cls_embedding.expand(len(x_cont), 1, -1)
        return torch.cat([cls, plain, periodic, self.cat_embeddings(x_cat)], dim=1)


class _PassedReGLU(torch.autograd.Function):
    """ReGLU whose gate's gradient passes the rectifier."""

    @staticmethod
    def forward(context, a: Tensor, b: Tensor) -> Tensor:
        context.save_for_backward(a, b)
        return a * F.relu(b)

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, Tensor]:
        a, b = context.saved_tensors
        return gradient * F.relu(b), gradient * a


class ReGLU(nn.Module):
    """The first half times the rectified second one."""

    def __init__(self, *, is_rectifier_passed: bool) -> None:
        super().__init__()
        self.is_rectifier_passed = is_rectifier_passed

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return _PassedReGLU.apply(a, b) if self.is_rectifier_passed else a * F.relu(b)


class MultiheadAttention(nn.Module):
    """Attention among tokens that a row has."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.W_q, self.W_k = load_linear(model, f"{path}.q"), load_linear(model, f"{path}.k")
        self.W_v, self.W_out = load_linear(model, f"{path}.v"), load_linear(model, f"{path}.o")

    def split_heads(self, x: Tensor) -> Tensor:
        """Return (rows, HEADS, tokens, HEAD_WIDTH)."""
        return x.unflatten(-1, (HEADS, HEAD_WIDTH)).transpose(1, 2)

    def forward(self, x: Tensor, is_hidden: Tensor) -> Tensor:
        q = self.split_heads(self.W_q(x))
        k = self.split_heads(self.W_k(x))
        v = self.split_heads(self.W_v(x))
        logits = q @ k.transpose(-2, -1) / math.sqrt(HEAD_WIDTH)
        logits = logits.masked_fill(is_hidden[:, None, None], -torch.inf)
        x = F.softmax(logits, dim=-1) @ v
        return self.W_out(x.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and ReGLU, each behind a norm; the first block has none before its attention."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"blocks.{n}"
        self.attention_normalization = nn.Identity()
        if n:
            self.attention_normalization = load_norm(model, f"{path}.attention_norm")
        self.attention = MultiheadAttention(model, path)
        self.ffn_normalization = load_norm(model, f"{path}.mlp_norm")
        self.ffn = nn.Sequential(
            load_linear(model, f"{path}.in"),
            ReGLU(is_rectifier_passed=model.is_rectifier_passed),
            load_linear(model, f"{path}.out"),
        )

    def forward(self, x: Tensor, is_hidden: Tensor) -> Tensor:
        x = x + self.attention(self.attention_normalization(x), is_hidden)
        return x + self.ffn(self.ffn_normalization(x))


class GBN(nn.Module):
    """Batch norm of virtual batches."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        bn = nn.BatchNorm1d(len(model.weights[f"{path}.weight"]), eps=EPS, momentum=MOMENTUM)
        self.bn = load(bn, model, path)
        self.virtual_batch_size = model.virtual_batch

    def forward(self, x: Tensor) -> Tensor:
        chunks = x.chunk(math.ceil(len(x) / self.virtual_batch_size), 0)
        return torch.cat([self.bn(chunk) for chunk in chunks], dim=0)


class GLU_Layer(nn.Module):
    """A linear layer, its norm and a gated unit."""

    def __init__(self, fc: nn.Linear, bn: nn.Module) -> None:
        super().__init__()
        self.fc, self.bn = fc, bn

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn(self.fc(x))
        value, gate = x.chunk(2, dim=1)
        return value * torch.sigmoid(gate)


class FeatTransformer(nn.Module):
    """A shared and an own layer."""

    def __init__(self, model: Model, n: int, shared: nn.Linear) -> None:
        super().__init__()
        path = f"transforms.{n}"
        self.shared = GLU_Layer(shared, GBN(model, f"{path}.shared_norm"))
        self.specifics = GLU_Layer(
            load_linear(model, f"{path}.own"), GBN(model, f"{path}.own_norm")
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.shared(x)
        return (x + self.specifics(x)) * math.sqrt(0.5)


class SparsemaxFunction(torch.autograd.Function):
    """The Euclidean projection to probabilities, with its own gradient."""

    @staticmethod
    def forward(context, x: Tensor) -> Tensor:
        x = x - x.max(dim=-1, keepdim=True)[0]
        ordered = x.sort(dim=-1, descending=True)[0]
        ranks = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
        sums = ordered.cumsum(dim=-1) - 1
        support_size = (ranks * ordered > sums).sum(dim=-1, keepdim=True)
        tau = sums.gather(-1, support_size - 1) / support_size
        output = (x - tau).clamp(min=0)
        context.save_for_backward(support_size, output)
        return output

    @staticmethod
    def backward(context, gradient: Tensor) -> Tensor:
        support_size, output = context.saved_tensors
        gradient = gradient.masked_fill(output == 0, 0)
        mean = gradient.sum(dim=-1, keepdim=True) / support_size
        return torch.where(output != 0, gradient - mean, gradient)


class AttentiveTransformer(nn.Module):
    """The mask of a step."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        self.fc = load_linear(model, f"attentive.{n}")
        self.bn = GBN(model, f"attentive.{n}.norm")

    def forward(self, prior: Tensor, a: Tensor) -> Tensor:
        return SparsemaxFunction.apply(torch.mul(self.bn(self.fc(a)), prior))


class TabNetEncoder(nn.Module):
    """The sum of the decisions, (rows, DECISION), and the entropy of the masks."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        shared = load_linear(model, "shared")
        self.initial_splitter = FeatTransformer(model, 0, shared)
        self.feat_transformers = nn.ModuleList(
            FeatTransformer(model, n + 1, shared) for n in range(STEPS)
        )
        self.att_transformers = nn.ModuleList(AttentiveTransformer(model, n) for n in range(STEPS))
        self.is_prior_detached = model.is_prior_detached

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        prior = torch.ones(x.shape[:2])
        att = self.initial_splitter(x.flatten(1))[:, DECISION:]
        decisions, m_loss = 0, 0
        for att_transformer, feat_transformer in zip(
            self.att_transformers, self.feat_transformers, strict=True
        ):
            mask = att_transformer(prior, att)
            m_loss = m_loss + torch.mean(torch.sum(mask * torch.log(mask + LOG_EPS), dim=1))
            used = mask.detach() if self.is_prior_detached else mask
            prior = torch.mul(RELAXATION - used, prior)
            out = feat_transformer((mask[..., None] * x).flatten(1))
            decisions = decisions + F.relu(out[:, :DECISION])
            att = out[:, DECISION:]
        return decisions, m_loss / STEPS


class PinballLoss(nn.Module):
    """The pinball loss of each row, mean of QUANTILES."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("quantiles", torch.tensor(QUANTILES), persistent=False)

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        errors = target[:, None] - prediction
        return torch.max((self.quantiles - 1) * errors, self.quantiles * errors).mean(dim=1)


class TabularLoss(nn.Module):
    """The sum of the four losses."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.tokenizer = FeatureTokenizer(model)
        self.blocks = nn.ModuleList(Block(model, n) for n in range(BLOCKS))
        self.normalization = load_norm(model, "norm")
        self.encoder = TabNetEncoder(model)
        self.class_head = load_linear(model, "heads.classes")
        self.quantile_head = load_linear(model, "heads.quantiles")
        self.count_head = load_linear(model, "heads.counts")
        self.class_loss = nn.CrossEntropyLoss(torch.tensor(CLASS_WEIGHTS), ignore_index=NO_CLASS)
        self.quantile_loss = PinballLoss()
        self.count_loss = nn.PoissonNLLLoss(log_input=True)
        self.is_exposure_logarithmic = model.is_exposure_logarithmic
        self.is_mask_entropy_maximized = model.is_mask_entropy_maximized

    def forward(
        self,
        x_cont: Tensor,
        is_missing: Tensor,
        x_cat: Tensor,
        labels: Tensor,
        targets: Tensor,
        has_target: Tensor,
        counts: Tensor,
        exposures: Tensor,
    ) -> Tensor:
        x = self.tokenizer(x_cont, is_missing, x_cat)
        is_hidden = F.pad(x_cat == 0, (1 + NUMBERS, 0), value=False)
        for block in self.blocks:
            x = block(x, is_hidden)
        decisions, m_loss = self.encoder(x[:, 1:])
        x = torch.cat([F.relu(self.normalization(x[:, 0])), decisions], dim=1)

        class_loss = self.class_loss(self.class_head(x), labels)
        quantile_losses = self.quantile_loss(self.quantile_head(x), targets)
        quantile_loss = (quantile_losses * has_target).sum() / has_target.sum()
        log_rates = self.count_head(x).squeeze(1)
        offsets = torch.log(exposures) if self.is_exposure_logarithmic else exposures
        has_count = counts != NO_COUNT
        count_loss = self.count_loss((log_rates + offsets)[has_count], counts[has_count])
        loss = class_loss + QUANTILE_WEIGHT * quantile_loss + COUNT_WEIGHT * count_loss
        if self.is_mask_entropy_maximized:
            return loss + MASK_WEIGHT * m_loss
        return loss - MASK_WEIGHT * m_loss


class NumericalEmbedder(nn.Module):
    """Tokens of all numbers, (rows, NUMBERS, WIDTH)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        read = model.weights.__getitem__
        self.weights = copy_parameter(read("plain.weight"))
        self.waves = copy_parameter(read("periodic.frequencies"))
        self.layers = copy_parameter(read("periodic.weight").transpose(0, 2, 1))
        self.biases = copy_parameter(np.concatenate([read("plain.bias"), read("periodic.bias")]))
        missing = np.concatenate([read("plain.missing"), read("periodic.missing")])
        self.missing_embedding = copy_parameter(missing)

    def forward(self, x: Tensor, missing: Tensor) -> Tensor:
        plain = torch.addcmul(self.biases[:PLAIN], x[:, :PLAIN, None], self.weights)
        angles = torch.einsum("bn,nk->bnk", x[:, PLAIN:], self.waves) * (2 * math.pi)
        waves = torch.concat([angles.cos(), angles.sin()], dim=2)
        periodic = torch.einsum("bnk,ndk->bnd", waves, self.layers) + self.biases[PLAIN:]
        tokens = torch.concat([plain, periodic.clamp(min=0)], dim=1)
        return torch.addcmul(tokens, missing.unsqueeze(2), self.missing_embedding)


class FusedBlock(nn.Module):
    """The same as Block, of one projection of q, k and v."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"blocks.{n}"
        self.norm1 = load_norm(model, f"{path}.attention_norm") if n else None
        self.to_qkv = nn.Linear(WIDTH, 3 * WIDTH)
        for kind, parameter in self.to_qkv.named_parameters():
            parts = [model.weights[f"{path}.{name}.{kind}"] for name in "qkv"]
            parameter.data.copy_(torch.from_numpy(np.concatenate(parts)))
        self.to_out = load_linear(model, f"{path}.o")
        self.norm2 = load_norm(model, f"{path}.mlp_norm")
        self.linear1, self.linear2 = (
            load_linear(model, f"{path}.{name}") for name in ("in", "out")
        )

    def attend(self, x: Tensor, is_seen: Tensor) -> Tensor:
        """Return what tokens get of others."""
        if self.norm1 is not None:
            x = self.norm1(x)
        q, k, v = self.to_qkv(x).unflatten(-1, (3, HEADS, HEAD_WIDTH)).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=is_seen)
        return self.to_out(out.transpose(1, 2).reshape(x.shape))

    def forward(self, x: Tensor, is_seen: Tensor) -> Tensor:
        x = x + self.attend(x, is_seen)
        value, gate = self.linear1(self.norm2(x)).tensor_split(2, dim=-1)
        return x + self.linear2(value * gate.clamp(min=0))


class GhostNorm(nn.Module):
    """Batch norm of all virtual batches at once, which are further channels."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.gamma, self.beta = (
            copy_parameter(model.weights[f"{path}.{name}"]) for name in ("weight", "bias")
        )

    def forward(self, x: Tensor) -> Tensor:
        groups = x.view(-1, GHOST, x.shape[1])
        variance, mean = torch.var_mean(groups, dim=1, keepdim=True, correction=0)
        normed = (groups - mean) * torch.rsqrt(variance + EPS)
        return torch.addcmul(self.beta, normed.view_as(x), self.gamma)


class GatedLayer(nn.Module):
    """A linear layer, its norm and a gated unit."""

    def __init__(self, model: Model, path: str, linear: nn.Linear) -> None:
        super().__init__()
        self.linear, self.ghost_norm = linear, GhostNorm(model, path)

    def forward(self, x: Tensor) -> Tensor:
        return F.glu(self.ghost_norm(self.linear(x)), dim=-1)


def compute_sparsemax(x: Tensor) -> Tensor:
    """Return the projection of x to probabilities, from all pairs of its columns."""
    differences = x[:, None, :] - x[:, :, None]
    is_supported = differences.clamp(min=0).sum(dim=2) < 1
    tau = ((x * is_supported).sum(dim=1, keepdim=True) - 1) / is_supported.sum(dim=1, keepdim=True)
    return F.relu(x - tau)


class FusedLoss(nn.Module):
    """The same loss in fewer operators."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.numerical_embedder = NumericalEmbedder(model)
        table = torch.from_numpy(model.weights["categories.weight"].copy())
        self.categorical_embeds = nn.Embedding.from_pretrained(table, freeze=False)
        self.categorical_bias = copy_parameter(model.weights["categories.bias"])
        self.register_buffer("categories_offset", torch.tensor([OFFSETS]), persistent=False)
        self.cls_token = copy_parameter(model.weights["cls"][None, None])
        self.layers = nn.ModuleList(FusedBlock(model, n) for n in range(BLOCKS))
        self.to_logits_norm = load_norm(model, "norm")
        shared = load_linear(model, "shared")
        self.shared_layers = nn.ModuleList(
            GatedLayer(model, f"transforms.{n}.shared_norm", shared) for n in range(STEPS + 1)
        )
        self.step_layers = nn.ModuleList(
            GatedLayer(model, f"transforms.{n}.own_norm", load_linear(model, f"transforms.{n}.own"))
            for n in range(STEPS + 1)
        )
        self.attentions = nn.ModuleList(
            nn.Sequential(
                load_linear(model, f"attentive.{n}"), GhostNorm(model, f"attentive.{n}.norm")
            )
            for n in range(STEPS)
        )
        self.heads = nn.ModuleDict(
            {
                name: load_linear(model, f"heads.{name}")
                for name in ("classes", "quantiles", "counts")
            }
        )
        self.register_buffer("class_weights", torch.tensor(CLASS_WEIGHTS), persistent=False)
        self.register_buffer("quantiles", torch.tensor(QUANTILES), persistent=False)

    def embed(self, x_numer: Tensor, missing: Tensor, x_categ: Tensor) -> Tensor:
        """Return tokens, [CLS] first."""
        categories = self.categorical_embeds(x_categ + self.categories_offset)
        categories = categories + self.categorical_bias
        cls_tokens = self.cls_token.repeat(len(x_numer), 1, 1)
        return torch.hstack([cls_tokens, self.numerical_embedder(x_numer, missing), categories])

    def transform(self, x: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """Return decision and attention of a step."""
        x = self.shared_layers[n](x.flatten(1))
        x = (x + self.step_layers[n](x)) / math.sqrt(2)
        return x.split([DECISION, ATTENTION], dim=1)

    def select(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of the decisions, and the mean entropy of the masks."""
        _, attention = self.transform(tokens, 0)
        priors = torch.ones(len(tokens), FEATURES)
        decisions, entropies = [], []
        for n, layer in enumerate(self.attentions):
            mask = compute_sparsemax(priors * layer(attention))
            entropies.append(-(mask * (mask + LOG_EPS).log()).sum(dim=1))
            priors = priors * RELAXATION - priors * mask
            decision, attention = self.transform(tokens * mask.unsqueeze(-1), n + 1)
            decisions.append(decision.clamp(min=0))
        return torch.stack(decisions).sum(dim=0), torch.stack(entropies).mean()

    def compute_class_loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the weighted mean of rows that have a class."""
        index = y.clamp(min=0)
        weights = self.class_weights[index] * (y != NO_CLASS)
        log_probs = logits.gather(1, index[:, None]).squeeze(1) - logits.logsumexp(dim=1)
        return -(weights * log_probs).sum() / weights.sum()

    def forward(
        self,
        x_numer: Tensor,
        missing: Tensor,
        x_categ: Tensor,
        y_class: Tensor,
        y_value: Tensor,
        has_value: Tensor,
        y_count: Tensor,
        exposure: Tensor,
    ) -> Tensor:
        x = self.embed(x_numer, missing, x_categ)
        is_seen = torch.ones(x.shape[:2], dtype=torch.bool)
        is_seen[:, -CATEGORIES:] = x_categ > 0
        for layer in self.layers:
            x = layer(x, is_seen[:, None, None, :])
        cls, tokens = x.split([1, FEATURES], dim=1)
        decision, entropy = self.select(tokens)
        x = torch.hstack([self.to_logits_norm(cls.squeeze(1)).clamp(min=0), decision])

        class_loss = self.compute_class_loss(self.heads["classes"](x), y_class)
        errors = self.heads["quantiles"](x) - y_value.unsqueeze(1)
        losses = F.relu(errors) - self.quantiles * errors
        quantile_loss = losses[has_value > 0].mean()
        log_rate = self.heads["counts"](x)[:, 0]
        has_count = (y_count >= 0).float()
        losses = exposure * log_rate.exp() - y_count * (log_rate + exposure.log())
        count_loss = (losses * has_count).sum() / has_count.sum()
        loss = torch.add(class_loss, quantile_loss, alpha=QUANTILE_WEIGHT)
        loss = torch.add(loss, count_loss, alpha=COUNT_WEIGHT)
        return torch.add(loss, entropy, alpha=MASK_WEIGHT)
