"""The state-space model as Hugging Face writes Mamba's slow forward: a loop over the steps.

Variant 'separate': in_proj and x_proj are several layers. Variant 'stepwise': the loop computes
what enters each step, as a recurrent cell does, and the norm is PyTorch's operator.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from pytorch.gradient import scaled_gradient
from torch import Tensor, nn

from families.ssm.architecture import (
    DT_RANK,
    EPS,
    HIDDEN,
    INNER,
    KERNEL,
    LAYERS,
    STATE,
    VOCAB,
    Model,
)


def make_parameter(values: np.ndarray) -> nn.Parameter:
    return nn.Parameter(torch.from_numpy(np.array(values)))


def make_linear(weight: np.ndarray, bias: np.ndarray | None = None) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    linear.weight = make_parameter(weight)
    if bias is not None:
        linear.bias = make_parameter(bias)
    return linear


class RMSNorm(nn.Module):
    def __init__(self, weight: np.ndarray, eps: float = EPS, kind: str = "rms") -> None:
        super().__init__()
        self.weight = make_parameter(weight)
        self.variance_epsilon, self.is_centered = eps, kind == "layer"

    def forward(self, x: Tensor) -> Tensor:
        if self.is_centered:
            x = x - x.mean(-1, keepdim=True)
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + self.variance_epsilon))


class FusedRMSNorm(nn.Module):
    """The same with PyTorch's operator."""

    def __init__(self, weight: np.ndarray, eps: float = EPS) -> None:
        super().__init__()
        self.weight = make_parameter(weight)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Mixer(nn.Module):
    """Convolution, selective scan, gate."""

    def __init__(self, model: Model, prefix: str) -> None:
        super().__init__()
        self.model = model
        self.is_separate = model.variant == "separate"
        weights = {
            name.removeprefix(f"{prefix}."): values
            for name, values in model.weights.items()
            if name.startswith(f"{prefix}.")
        }
        if self.is_separate:
            self.branch_proj = make_linear(weights["in_proj.weight"][:INNER])
            self.gate_proj = make_linear(weights["in_proj.weight"][INNER:])
            dt, b, c = np.split(weights["x_proj.weight"], [DT_RANK, DT_RANK + STATE])
            self.dt_low, self.b_proj, self.c_proj = (make_linear(part) for part in (dt, b, c))
        else:
            self.in_proj = make_linear(weights["in_proj.weight"])
            self.x_proj = make_linear(weights["x_proj.weight"])
        self.conv1d = nn.Conv1d(INNER, INNER, KERNEL, groups=INNER, padding=KERNEL - 1)
        kernel = weights["conv.weight"]
        self.conv1d.weight = make_parameter(
            kernel[:, :, ::-1] if model.is_kernel_flipped else kernel
        )
        self.conv1d.bias = make_parameter(weights["conv.bias"])
        self.dt_proj = make_linear(
            weights["dt_proj.weight"], weights["dt_proj.bias"] if model.has_dt_bias else None
        )
        self.A_log = make_parameter(weights["A_log"])
        if model.has_skip:
            self.D = make_parameter(weights["D"])
        self.out_proj = make_linear(weights["out_proj.weight"])

    def project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the branch and the gate, (batch, seq, INNER) each."""
        if self.is_separate:
            return self.branch_proj(x), self.gate_proj(x)
        return self.in_proj(x).chunk(2, dim=-1)

    def select(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the step sizes before their projection, B and C."""
        if self.is_separate:
            parts = self.dt_low(x), self.b_proj(x), self.c_proj(x)
        else:
            parts = torch.split(self.x_proj(x), [DT_RANK, STATE, STATE], dim=-1)
        return (parts[0], parts[2], parts[1]) if self.model.are_b_c_swapped else parts

    def convolve(self, x: Tensor) -> Tensor:
        """Convolve (batch, seq, INNER) causally."""
        seq, shift = x.shape[1], self.model.conv_shift
        y = self.conv1d(x.transpose(1, 2))[..., shift : shift + seq].transpose(1, 2)
        return F.silu(y) if self.model.activation == "silu" else F.gelu(y)

    def scan(self, x: Tensor, dt: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Return the outputs (batch, seq, INNER) of the recurrence."""
        model = self.model
        a = -torch.exp(self.A_log) if model.is_decay_exponential else -self.A_log
        exponents = a[None, None] * dt[..., None]
        if model.is_decay_half:
            exponents = exponents.half()
        decay = torch.exp(exponents)
        if model.is_decay_half:
            decay = decay.float()
        if model.is_decay_stopped:
            decay = decay.detach()
        if model.discretization == "bilinear":
            divisor = 1 - exponents / 2
            decay = (1 + exponents / 2) / divisor
            entering = dt[..., None] / divisor * b[:, :, None, :] * x[..., None]
        elif model.discretization == "euler":
            entering = dt[..., None] * b[:, :, None, :] * x[..., None]
        else:
            entering = (decay - 1) / a * b[:, :, None, :] * x[..., None]
        state = torch.zeros(x.shape[0], INNER, STATE)
        outputs: list[Tensor] = []
        steps = range(x.shape[1])
        for step in reversed(steps) if model.is_reversed else steps:
            if step > 0 and step % model.chunk == 0:
                state = torch.zeros_like(state)
            if model.is_state_stopped:
                state = state.detach()
            state = decay[:, step] * state + entering[:, step]
            outputs.append(torch.matmul(state, c[:, step].unsqueeze(-1))[..., 0])
        if model.is_reversed:
            outputs.reverse()
        return torch.stack(outputs, dim=1)

    def scan_stepwise(self, x: Tensor, dt: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Return the outputs (batch, seq, INNER) of the recurrence, step by step."""
        a = -torch.exp(self.A_log)
        state = x.new_zeros(x.shape[0], INNER, STATE)
        outputs = []
        steps = zip(x.unbind(1), dt.unbind(1), b.unbind(1), c.unbind(1), strict=True)
        for x_step, dt_step, b_step, c_step in steps:
            decay = torch.exp(torch.einsum("bd,dn->bdn", dt_step, a))
            entering = torch.einsum("bd,bn->bdn", dt_step * x_step, b_step)
            state = torch.addcmul(entering, state, decay)
            outputs.append(torch.einsum("bdn,bn->bd", state, c_step))
        return torch.stack(outputs, dim=1)

    def compute_step_sizes(self, dt: Tensor) -> Tensor:
        """Return the step sizes (batch, seq, INNER)."""
        if self.model.is_dt_bias_late:
            return F.softplus(F.linear(dt, self.dt_proj.weight)) + self.dt_proj.bias
        dt = F.softplus(self.dt_proj(dt))
        if self.model.step_limit:
            dt = torch.clamp(dt, 0.0, self.model.step_limit)
        return dt

    def forward(self, x: Tensor) -> Tensor:
        branch, gate = self.project(x)
        if self.model.gate_gradient != 1:
            gate = scaled_gradient(gate, self.model.gate_gradient)
        u = self.convolve(branch)
        dt, b, c = self.select(u)
        scan = self.scan_stepwise if self.model.variant == "stepwise" else self.scan
        y = scan(u, self.compute_step_sizes(dt), b, c)
        if self.model.has_skip:
            y = y + (branch if self.model.is_skip_early else u) * self.D
        return self.out_proj(y * (F.silu(gate) if self.model.is_gate_activated else gate))


class Block(nn.Module):
    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        norm_class = FusedRMSNorm if model.variant == "stepwise" else RMSNorm
        self.norm = norm_class(model.weights[f"layers.{n}.norm.weight"], model.block(n).eps)
        self.mixer = Mixer(model.block(n), f"layers.{n}")
        self.is_residual_normed = model.block(n).residual == "after"

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return (y if self.is_residual_normed else x) + self.mixer(y)


class Backbone(nn.Module):
    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(VOCAB, HIDDEN)
        self.embeddings.weight = make_parameter(model.weights["embedding.weight"])
        self.layers = nn.ModuleList(Block(model, n) for n in range(LAYERS))
        self.norm_f = None
        if model.has_final_norm:
            self.norm_f = RMSNorm(model.weights["norm.weight"], kind=model.norm_kind)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        return x if self.norm_f is None else self.norm_f(x)


class ForCausalLM(nn.Module):
    def __init__(self, model: Model) -> None:
        super().__init__()
        self.backbone = Backbone(model)
        self.lm_head = nn.Linear(HIDDEN, VOCAB, bias=False)
        self.lm_head.weight = self.backbone.embeddings.weight
        self.are_labels_shifted = model.are_labels_shifted_twice

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        logits = self.lm_head(self.backbone(tokens))
        if self.are_labels_shifted:
            logits, labels = logits[:, :-1].contiguous(), labels[:, 1:].contiguous()
        return F.cross_entropy(logits.view(-1, VOCAB), labels.view(-1))


def build_loss(model: Model) -> nn.Module:
    """Return the loss with the weights and knobs of the model."""
    if not model.has_softplus:
        raise SystemExit("has_softplus is a knob of the MindSpore net")
    return ForCausalLM(model)
