"""Small PyTorch models of three kinds, trained for some steps with or without a recorder."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.nn import functional

WIDTH = 32


class Block(nn.Module):
    """Attention and gated feed-forward, as in Llama."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up, self.down = (
            nn.Linear(WIDTH, 2 * WIDTH, bias=False),
            nn.Linear(WIDTH, 2 * WIDTH, bias=False),
            nn.Linear(2 * WIDTH, WIDTH, bias=False),
        )
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        scores = self.wq(h) @ self.wk(h).transpose(-1, -2) * self.scale
        x = x + self.wo(torch.softmax(scores, dim=-1) @ self.wv(h))
        return x + self.down(functional.silu(self.gate(x)) * self.up(x))


class Llama(nn.Module):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, WIDTH)
        self.layers = nn.ModuleList(Block(factor * WIDTH**-0.5) for factor in (1.0, scale, 1.0))
        self.head = nn.Linear(WIDTH, 64, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class RenamedLlama(nn.Module):
    """The same model, whose modules have other names."""

    def __init__(self) -> None:
        super().__init__()
        model = Llama()
        self.tok, self.blocks, self.out = model.embedding, model.layers, model.head

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tok(tokens)
        for block in self.blocks:
            x = block(x)
        return self.out(x)


class Experts(nn.Module):
    """An embedding, four experts of which each token has two, and a head."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, WIDTH)
        self.router = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH)) for _ in range(4)
        )
        self.head = nn.Linear(WIDTH, 64)
        self.scale = scale

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        weights, chosen = torch.softmax(self.router(x) * self.scale, dim=-1).topk(2, dim=-1)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            share = (weights * (chosen == number)).sum(-1, keepdim=True)
            y = y + share * expert(x)
        return self.head(x + y)


class Convolutions(nn.Module):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 64)
        self.scale = scale

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.stem(images)))
        x = x + self.scale * self.conv(x)
        return self.head(x.mean((2, 3)))


def train(
    make_model: Callable[[], nn.Module],
    record: Callable[[nn.Module], AbstractContextManager[object]] = lambda model: nullcontext(),
    n_steps: int = 1,
) -> list[float]:
    """Return the losses of some steps of training; ``record`` is entered around all of them."""
    torch.manual_seed(0)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = torch.Generator().manual_seed(1)
    losses = []
    with record(model):
        for _ in range(n_steps):
            if isinstance(model, Convolutions):
                inputs = torch.randn((4, 3, 8, 8), generator=batches)
                labels = torch.randint(64, (4,), generator=batches)
            else:
                tokens = torch.randint(64, (2, 17), generator=batches)
                inputs, labels = tokens[:, :-1], tokens[:, 1:].flatten()
            loss = functional.cross_entropy(model(inputs).reshape(-1, 64), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses
