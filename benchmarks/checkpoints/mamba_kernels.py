"""The kernels of mamba-ssm in plain torch, so that real Megatron-core's Mamba runs on the CPU.

Megatron-core imports ``mamba_ssm``, which is built for a device only. These have the same
signatures. Source of the formulas: Dao and Gu, arXiv:2405.21060; mamba_ssm
ops/triton/{ssd_combined,layernorm_gated}.py (``rms_norm_ref``).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch.nn import functional

_PREFIX = "mamba_ssm.ops.triton"
#: Kernels of inference, which are not called.
_INFERENCE = "megatron.core.inference.contexts.attention_context.triton.tensor_ops"
_INFERENCE_NAMES = ("tensor_get_slice_after", "tensor_masked_update", "tensor_merge")


class GatedNorm(torch.nn.Module):
    """RMS norm over groups of the product with a gate (``RMSNorm`` of mamba_ssm)."""

    def __init__(self, size: int, eps: float, group_size: int, **_: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size))
        self._epsilon, self._group_size = eps, group_size

    def forward(self, values: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Return the norm of ``values * silu(gate)``, both (..., size)."""
        product = values * functional.silu(gate)
        groups = product.unflatten(-1, (-1, self._group_size))
        variance = groups.pow(2).mean(-1, keepdim=True)
        return (groups * torch.rsqrt(variance + self._epsilon)).flatten(-2) * self.weight


def scan(
    x: torch.Tensor,
    dt: torch.Tensor,
    rates: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    chunk_size: int,
    D: torch.Tensor,
    dt_bias: torch.Tensor,
    **_: Any,
) -> torch.Tensor:
    """Return the outputs (batch, length, heads, head size) of the recurrence, token by token.

    x (batch, length, heads, head size), dt (batch, length, heads), rates and D (heads), b and c
    (batch, length, groups, state).
    """
    heads_per_group = x.shape[2] // b.shape[2]
    b, c = (part.repeat_interleave(heads_per_group, 2) for part in (b, c))
    steps = functional.softplus(dt + dt_bias)
    state = x.new_zeros(x.shape[0], *x.shape[2:], b.shape[-1])
    outputs = []
    for token in range(x.shape[1]):
        decay = torch.exp(steps[:, token] * rates)
        inputs = steps[:, token, :, None] * x[:, token]
        state = state * decay[..., None, None] + inputs[..., None] * b[:, token, :, None]
        outputs.append((state * c[:, token, :, None]).sum(-1) + D[:, None] * x[:, token])
    return torch.stack(outputs, 1)


@contextmanager
def replace_kernels() -> Iterator[None]:
    """Let ``megatron.core.ssm`` find these kernels while it is imported."""
    names = (
        "mamba_ssm",
        "mamba_ssm.ops",
        _PREFIX,
        f"{_PREFIX}.layernorm_gated",
        f"{_PREFIX}.ssd_combined",
        _INFERENCE,
    )
    modules: dict[str, Any] = {name: ModuleType(name) for name in names}
    modules[f"{_PREFIX}.layernorm_gated"].RMSNorm = GatedNorm
    modules[f"{_PREFIX}.ssd_combined"].mamba_chunk_scan_combined = scan
    modules[f"{_PREFIX}.ssd_combined"].mamba_split_conv1d_scan_combined = None
    modules[_INFERENCE].__dict__.update(dict.fromkeys(_INFERENCE_NAMES))
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
