"""Small PyTorch networks whose parts can each be faulty: two or three of them at once.

A part with a fault gets ``is_faulty=True`` and computes something else than it should. All parts
are modules, so that a value of the reference can be put in the place of each part's output.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, HEADS, LENGTH, BATCH = 16, 2, 6, 3
VOCABULARY, N_CHANNELS, N_EXPERTS = 20, 8, 4


class Norm(nn.Module):
    """RMS norm; a faulty one has another epsilon."""

    def __init__(self, is_faulty: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(WIDTH))
        self.epsilon = 1e-2 if is_faulty else 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon)


class Attention(nn.Module):
    """Self-attention; a faulty one divides scores by the size of a head."""

    def __init__(self, is_faulty: bool = False, is_causal: bool = False) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.is_causal = is_causal
        size = WIDTH // HEADS
        self.scale = 1 / size if is_faulty else size**-0.5

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = self.qkv(x).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        query, key, value = heads
        scores = query @ key.transpose(-1, -2) * self.scale
        if self.is_causal:
            mask = torch.ones(length, length, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(mask, -1e9)
        context = torch.softmax(scores, -1) @ value
        return self.out(context.transpose(1, 2).reshape(batch, length, WIDTH))


class FeedForward(nn.Module):
    """Two layers; a faulty one has the other activation."""

    def __init__(self, is_faulty: bool = False) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.activation = nn.GELU() if is_faulty else nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


class GatedFeedForward(nn.Module):
    """Gate and up; in a faulty one the two are exchanged."""

    def __init__(self, is_faulty: bool = False) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 2 * WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.is_faulty = is_faulty

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate(x), self.up(x)
        if self.is_faulty:
            gate, up = up, gate
        return self.down(F.silu(gate) * up)


class Experts(nn.Module):
    """Two of four experts; a faulty one does not normalize their weights."""

    def __init__(self, is_faulty: bool = False) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, N_EXPERTS)
        self.experts = nn.ModuleList(FeedForward() for _ in range(N_EXPERTS))
        self.is_faulty = is_faulty

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = torch.softmax(self.router(x), -1).topk(2)
        if not self.is_faulty:
            weights = weights / weights.sum(-1, keepdim=True)
        outputs = torch.stack([expert(x) for expert in self.experts], -2)
        picked = outputs.gather(-2, chosen.unsqueeze(-1).expand(*chosen.shape, WIDTH))
        return (picked * weights.unsqueeze(-1)).sum(-2)


class Positions(nn.Module):
    """Learned positions; a faulty one begins at 1."""

    def __init__(self, is_faulty: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(LENGTH + 2, WIDTH)
        self.first = int(is_faulty)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table(torch.arange(self.first, self.first + x.shape[1]))


class Tokens(nn.Module):
    """A table of tokens; a faulty one multiplies by the root of the width."""

    def __init__(self, is_faulty: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.scale = WIDTH**0.5 if is_faulty else 1.0

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table(tokens) * self.scale


class Scan(nn.Module):
    """A linear recurrence; a faulty one forgets its state in the middle."""

    def __init__(self, is_faulty: bool = False) -> None:
        super().__init__()
        self.decay = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.is_faulty = is_faulty

    def forward(self, x: Tensor) -> Tensor:
        decays, values = torch.sigmoid(self.decay(x)), self.value(x)
        state, states = torch.zeros_like(values[:, 0]), []
        for step in range(x.shape[1]):
            if self.is_faulty and step == x.shape[1] // 2:
                state = torch.zeros_like(state)
            state = decays[:, step] * state + values[:, step]
            states.append(state)
        return torch.stack(states, 1)


class Mixer(nn.Module):
    """Mixes tokens; a faulty one reads them in the other direction."""

    def __init__(self, is_faulty: bool = False) -> None:
        super().__init__()
        self.mix = nn.Linear(LENGTH, LENGTH)
        self.is_faulty = is_faulty

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flip(1) if self.is_faulty else x
        return self.mix(tokens.transpose(1, 2)).transpose(1, 2)


class Convolution(nn.Module):
    """Convolution, norm by groups, activation; a faulty one pads with copies of the border."""

    def __init__(self, is_faulty: bool = False) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, N_CHANNELS)
        self.conv = nn.Conv2d(
            N_CHANNELS,
            N_CHANNELS,
            3,
            padding=1,
            padding_mode="replicate" if is_faulty else "zeros",
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x)))


class Gate(nn.Module):
    """Weights of channels; a faulty one takes the largest value of a channel, not its mean."""

    def __init__(self, is_faulty: bool = False) -> None:
        super().__init__()
        self.fc = nn.Linear(N_CHANNELS, N_CHANNELS)
        self.is_faulty = is_faulty

    def forward(self, x: Tensor) -> Tensor:
        pooled = x.amax((2, 3)) if self.is_faulty else x.mean((2, 3))
        return x * torch.sigmoid(self.fc(pooled))[:, :, None, None]


class Neighbours(nn.Module):
    """Messages over a graph; a faulty one sums them, and does not take their mean."""

    def __init__(self, is_faulty: bool = False) -> None:
        super().__init__()
        self.own = nn.Linear(WIDTH, WIDTH)
        self.other = nn.Linear(WIDTH, WIDTH)
        self.is_faulty = is_faulty
        edges = (torch.arange(LENGTH)[:, None] + torch.arange(LENGTH)) % 3 != 0
        self.register_buffer("edges", edges.float())

    def forward(self, x: Tensor) -> Tensor:
        messages = self.edges @ x
        if not self.is_faulty:
            messages = messages / self.edges.sum(-1, keepdim=True)
        return torch.tanh(self.own(x) + self.other(messages))


class Residual(nn.Module):
    """A part and its input, after a norm."""

    def __init__(self, part: nn.Module, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.norm = norm if norm is not None else nn.LayerNorm(WIDTH)
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        return x + self.part(self.norm(x))


class Chain(nn.Module):
    """Parts one after the other, and the mean square of the last as loss."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x.square().mean()


class Towers(nn.Module):
    """Two chains side by side, compared with each other: faults in both show at once."""

    def __init__(self, left: nn.Module, right: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.left, self.right, self.head = left, right, head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.left(x) * torch.tanh(self.right(x))).square().mean()


class Skips(nn.Module):
    """Down, middle and up, with a skip around the middle."""

    def __init__(self, down: nn.Module, middle: nn.Module, up: nn.Module) -> None:
        super().__init__()
        self.down, self.middle, self.up = down, middle, up

    def forward(self, x: Tensor) -> Tensor:
        down = self.down(x)
        middle = self.middle(F.avg_pool2d(down, 2))
        return self.up(down + F.interpolate(middle, scale_factor=2)).square().mean()


@dataclass(frozen=True)
class Model:
    """A network, its batch, and the parts that are faulty in the target."""

    name: str
    build: Callable[[Collection[str]], nn.Module]  #: of the names of faulty parts
    make_batch: Callable[[], Tensor]
    faults: tuple[str, ...]  #: paths of the faulty modules


def _make_tokens() -> Tensor:
    return torch.randint(0, VOCABULARY, (BATCH, LENGTH))


def _make_states() -> Tensor:
    return torch.randn(BATCH, LENGTH, WIDTH)


def _make_images() -> Tensor:
    return torch.randn(BATCH, N_CHANNELS, 8, 8)


def _build_encoder(faults: Collection[str]) -> nn.Module:
    return Chain(
        Tokens("parts.0" in faults),
        Positions("parts.1" in faults),
        Residual(Attention("parts.2.part" in faults)),
        Residual(FeedForward("parts.3.part" in faults)),
        Residual(Attention("parts.4.part" in faults)),
        Residual(FeedForward("parts.5.part" in faults)),
    )


def _build_decoder(faults: Collection[str]) -> nn.Module:
    blocks = []
    for number in (1, 3):
        norms = [Norm(f"parts.{number + more}.norm" in faults) for more in (0, 1)]
        attention = Attention(f"parts.{number}.part" in faults, is_causal=True)
        feed_forward = GatedFeedForward(f"parts.{number + 1}.part" in faults)
        blocks += [Residual(attention, norms[0]), Residual(feed_forward, norms[1])]
    return Chain(Tokens("parts.0" in faults), *blocks, Norm("parts.5" in faults))


def _build_experts(faults: Collection[str]) -> nn.Module:
    return Chain(
        Tokens("parts.0" in faults),
        Residual(Attention("parts.1.part" in faults)),
        Residual(Experts("parts.2.part" in faults)),
        Residual(Experts("parts.3.part" in faults)),
    )


def _build_scans(faults: Collection[str]) -> nn.Module:
    return Chain(
        Tokens("parts.0" in faults),
        Residual(Scan("parts.1.part" in faults), Norm("parts.1.norm" in faults)),
        Residual(Scan("parts.2.part" in faults), Norm("parts.2.norm" in faults)),
        Norm("parts.3" in faults),
    )


def _build_mixers(faults: Collection[str]) -> nn.Module:
    return Chain(
        Residual(Mixer("parts.0.part" in faults)),
        Residual(FeedForward("parts.1.part" in faults)),
        Residual(Mixer("parts.2.part" in faults)),
        Residual(FeedForward("parts.3.part" in faults)),
    )


def _build_images(faults: Collection[str]) -> nn.Module:
    return Chain(
        Convolution("parts.0" in faults),
        Gate("parts.1" in faults),
        Convolution("parts.2" in faults),
        Gate("parts.3" in faults),
    )


def _build_skips(faults: Collection[str]) -> nn.Module:
    return Skips(
        Convolution("down" in faults), Convolution("middle" in faults), Convolution("up" in faults)
    )


def _build_graph(faults: Collection[str]) -> nn.Module:
    return Chain(*(Neighbours(f"parts.{number}" in faults) for number in range(4)))


def _build_towers(faults: Collection[str]) -> nn.Module:
    return Towers(
        Residual(FeedForward("left.part" in faults)),
        Residual(Mixer("right.part" in faults)),
        Norm("head" in faults),
    )


def _build_hybrid(faults: Collection[str]) -> nn.Module:
    return Chain(
        Tokens("parts.0" in faults),
        Residual(Scan("parts.1.part" in faults)),
        Residual(Attention("parts.2.part" in faults, is_causal=True)),
        Residual(GatedFeedForward("parts.3.part" in faults)),
        Residual(Experts("parts.4.part" in faults)),
    )


MODELS = (
    Model("encoder", _build_encoder, _make_tokens, ("parts.1", "parts.4.part")),
    Model("encoder-3", _build_encoder, _make_tokens, ("parts.0", "parts.2.part", "parts.5.part")),
    Model("decoder", _build_decoder, _make_tokens, ("parts.1.norm", "parts.4.part")),
    Model("decoder-3", _build_decoder, _make_tokens, ("parts.1.part", "parts.2.part", "parts.5")),
    Model("experts", _build_experts, _make_tokens, ("parts.1.part", "parts.3.part")),
    Model("scans", _build_scans, _make_tokens, ("parts.1.part", "parts.2.norm")),
    Model("scans-3", _build_scans, _make_tokens, ("parts.1.norm", "parts.2.part", "parts.3")),
    Model("mixers", _build_mixers, _make_states, ("parts.0.part", "parts.3.part")),
    Model("images", _build_images, _make_images, ("parts.0", "parts.3")),
    Model("images-3", _build_images, _make_images, ("parts.0", "parts.1", "parts.2")),
    Model("skips", _build_skips, _make_images, ("down", "middle")),
    Model("skips-3", _build_skips, _make_images, ("down", "middle", "up")),
    Model("graph", _build_graph, _make_states, ("parts.0", "parts.2")),
    Model("towers", _build_towers, _make_states, ("left.part", "right.part")),
    Model("towers-3", _build_towers, _make_states, ("left.part", "right.part", "head")),
    Model(
        "hybrid-3", _build_hybrid, _make_tokens, ("parts.1.part", "parts.3.part", "parts.4.part")
    ),
)
BY_NAME = {model.name: model for model in MODELS}
