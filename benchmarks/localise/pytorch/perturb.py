"""One operator whose result is off: noise inside it, so that a recorder sees its output with the
noise.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

SEED = 5


class Perturbed(TorchDispatchMode):
    """While it is entered, kernel number ``n`` that returns new floating-point values returns
    others.

    ``relative`` is the norm of the difference over that of the output. Below autograd and below the
    recorder: neither sees an operator too many. What a recorder computes for itself, it computes
    without gradients: not counted.
    """

    def __init__(self, n: int, relative: float) -> None:
        super().__init__()
        self.n, self.relative = n, relative
        self.seen = 0

    def __torch_dispatch__(self, kernel, types, args=(), kwargs=None):
        result = kernel(*args, **(kwargs or {}))
        first = result[0] if isinstance(result, tuple) else result
        if kernel.is_view or not torch.is_grad_enabled() or not isinstance(first, Tensor):
            return result
        if first.dtype.is_floating_point:
            if self.seen == self.n:
                add_noise(first, self.relative)
            self.seen += 1
        return result


def add_noise(values: Tensor, relative: float) -> None:
    """In place; the same noise for the same shape. Bare kernels, which no recorder wraps."""
    aten = torch.ops.aten
    random = torch.Generator().manual_seed(SEED)
    noise = aten.randn.generator(values.shape, generator=random)
    factor = (
        relative
        * float(aten.norm(aten._to_copy(values, dtype=torch.float32)))
        / float(aten.norm(noise))
    )
    aten.add_(values, aten.mul(noise, factor))


def perturb(net: nn.Module, where: str, relative: float) -> None:
    """Let the first kernel that the module ``where`` runs (``MODULE:N``: number N, from 0) be off
    by ``relative``.
    """
    name, _, n = where.partition(":")
    modules = dict(net.named_modules())
    if name not in modules:
        raise SystemExit(
            f"no module {name!r}; there are: {', '.join(sorted(filter(None, modules)))}"
        )
    mode = Perturbed(int(n or 0), relative)

    def enter(*_: object) -> None:
        mode.seen = 0
        mode.__enter__()

    def leave(*_: object) -> None:
        mode.__exit__(None, None, None)
        if mode.seen <= mode.n:
            raise SystemExit(f"{name} runs {mode.seen} kernels: no number {mode.n}")

    modules[name].register_forward_pre_hook(enter)
    modules[name].register_forward_hook(leave)
