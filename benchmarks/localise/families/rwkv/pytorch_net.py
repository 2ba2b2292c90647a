"""RWKV-5 in PyTorch, with the modules of Hugging Face's port and its loop over the steps.

Variant 'written': the loop with einsum over vectors, mixtures by lerp, norm of the heads and loss
in plain arithmetic.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from pytorch.gradient import scaled_gradient
from torch import Tensor, nn

from families.rwkv.architecture import EPS, HEAD_DIM, HEADS, HIDDEN, LAYERS, VOCAB, Model


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return RwkvForCausalLM(model)


def copy_parameter(values: np.ndarray) -> nn.Parameter:
    """Return a parameter with these values."""
    return nn.Parameter(torch.from_numpy(np.array(values)))


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the weight and the bias at ``path`` into a module."""
    for name, _ in list(module.named_parameters()):
        setattr(module, name, copy_parameter(model.weights[f"{path}.{name}"]))
    return module


def load_linear(model: Model, path: str) -> nn.Module:
    """Return the linear layer at ``path``."""
    n_out, n_in = model.weights[f"{path}.weight"].shape
    return load(nn.Linear(n_in, n_out, bias=False), model, path)


class StraightExp(torch.autograd.Function):
    """An exponential whose gradient passes as it is."""

    @staticmethod
    def forward(context, x: Tensor) -> Tensor:
        return torch.exp(x)

    @staticmethod
    def backward(context, gradient: Tensor) -> Tensor:
        return gradient


class Mixture(nn.Module):
    """What a layer reads of a token and of the one before it."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.are_mixtures_exchanged = model.are_mixtures_exchanged
        self.is_lerp = model.variant == "written"

    def mix(self, hidden: Tensor, shifted: Tensor, share: Tensor) -> Tensor:
        if self.is_lerp:
            return torch.lerp(shifted, hidden, share)
        if self.are_mixtures_exchanged:
            return hidden * (1 - share) + shifted * share
        return hidden * share + shifted * (1 - share)


class HeadNorm(nn.GroupNorm):
    """The norm of each head in plain arithmetic."""

    def forward(self, x: Tensor) -> Tensor:
        heads = x.view(-1, HEADS, HEAD_DIM)
        variance, mean = torch.var_mean(heads, dim=-1, correction=0, keepdim=True)
        normed = ((heads - mean) / torch.sqrt(variance + self.eps)).flatten(1)
        return torch.addcmul(self.bias, normed, self.weight)


class RwkvSelfAttention(Mixture):
    """Linear attention with a decay for each row of the state."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__(model)
        self.model = model
        self.time_shift = nn.ZeroPad2d((0, 0, 1, -1))
        self.time_mix_key = copy_parameter(model.weights[f"{path}.mix_k"])
        self.time_mix_value = copy_parameter(model.weights[f"{path}.mix_v"])
        self.time_mix_receptance = copy_parameter(model.weights[f"{path}.mix_r"])
        self.time_mix_gate = copy_parameter(model.weights[f"{path}.mix_g"])
        self.time_decay = copy_parameter(model.weights[f"{path}.decay"])
        self.time_first = copy_parameter(model.weights[f"{path}.bonus"])
        self.key, self.value, self.receptance, self.gate, self.output = (
            load_linear(model, f"{path}.{name}") for name in "kvrgo"
        )
        norm_class = HeadNorm if model.variant == "written" else nn.GroupNorm
        self.ln_x = load(norm_class(HEADS, HIDDEN, eps=model.head_eps), model, f"{path}.norm")
        self.first_state: Tensor | None = None  #: else zeros
        self.last_state: Tensor | None = None

    def attend(self, r: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the outputs (batch, seq, HIDDEN) of the recurrence."""
        batch, seq, _ = r.shape
        r = r.view(batch, seq, HEADS, HEAD_DIM).transpose(1, 2)
        k = k.view(batch, seq, HEADS, HEAD_DIM).permute(0, 2, 3, 1)
        v = v.view(batch, seq, HEADS, HEAD_DIM).transpose(1, 2)
        log_decay = self.time_decay
        if self.model.decay_gradient != 1:
            log_decay = scaled_gradient(log_decay, self.model.decay_gradient)
        if self.model.is_decay_softplus:
            decay = torch.exp(-F.softplus(log_decay))
        elif self.model.is_decay_straight:
            decay = StraightExp.apply(-torch.exp(log_decay))
        else:
            decay = torch.exp(-torch.exp(log_decay))
        if self.model.is_decay_of_values:
            decay = decay.view(HEADS, 1, HEAD_DIM)
        else:
            decay = decay.view(HEADS, HEAD_DIM, 1)
        first = self.time_first.view(HEADS, HEAD_DIM, 1)
        state = self.first_state
        if state is None:
            state = torch.zeros(batch, HEADS, HEAD_DIM, HEAD_DIM)
        outputs = []
        for step in range(seq):
            attention = k[..., step : step + 1] @ v[:, :, step : step + 1]
            next_state = attention + decay * state
            if self.model.is_state_late:
                state = next_state
            outputs.append(r[:, :, step : step + 1] @ (first * attention + state))
            state = next_state
        self.last_state = state
        return torch.cat(outputs, dim=2).transpose(1, 2).reshape(batch, seq, HIDDEN)

    def attend_by_vectors(self, r: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the same: the bonus and the state are read apart."""
        r, k, v = (x.unflatten(-1, (HEADS, HEAD_DIM)) for x in (r, k, v))
        decay = torch.exp(-self.time_decay.exp()).view(HEADS, HEAD_DIM, 1)
        first = self.time_first.view(HEADS, HEAD_DIM)
        state = r.new_zeros(len(r), HEADS, HEAD_DIM, HEAD_DIM)
        outputs = []
        for r_step, k_step, v_step in zip(r.unbind(1), k.unbind(1), v.unbind(1), strict=True):
            own_share = (r_step * first * k_step).sum(-1, keepdim=True)
            earlier = torch.einsum("bhi,bhij->bhj", r_step, state)
            outputs.append(torch.addcmul(earlier, own_share, v_step))
            state = torch.einsum("bhi,bhj->bhij", k_step, v_step).addcmul(decay, state)
        return torch.stack(outputs, dim=1).flatten(2)

    def forward(self, hidden: Tensor) -> Tensor:
        if self.model.is_first_repeated:
            steps_before = (torch.arange(hidden.shape[1]) - 1).clamp(min=0)
            shifted = hidden.index_select(1, steps_before)
        else:
            shifted = self.time_shift(hidden)
        if self.model.is_shift_stopped:
            shifted = shifted.detach()
        k = self.key(self.mix(hidden, shifted, self.time_mix_key))
        v = self.value(self.mix(hidden, shifted, self.time_mix_value))
        r = self.receptance(self.mix(hidden, shifted, self.time_mix_receptance))
        gate = F.silu(self.gate(self.mix(hidden, shifted, self.time_mix_gate)))
        attend = self.attend_by_vectors if self.model.variant == "written" else self.attend
        y = attend(r, k, v)
        if self.model.head_divisor != 1:
            y = y / self.model.head_divisor
        if self.model.is_gate_first:
            y = self.ln_x((y * gate).view(-1, HIDDEN)).view(hidden.shape)
            return self.output(y)
        y = self.ln_x(y.view(-1, HIDDEN)).view(hidden.shape)
        return self.output(y * gate)


class RwkvFeedForward(Mixture):
    """Squared relu between two linear layers, with a gate."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__(model)
        self.is_shift_cyclic, self.is_relu_squared = model.is_shift_cyclic, model.is_relu_squared
        self.time_shift = nn.ZeroPad2d((0, 0, 1, -1))
        self.time_mix_key = copy_parameter(model.weights[f"{path}.mix_k"])
        self.time_mix_receptance = copy_parameter(model.weights[f"{path}.mix_r"])
        self.key, self.receptance, self.value = (
            load_linear(model, f"{path}.{name}") for name in ("key", "r", "value")
        )

    def forward(self, hidden: Tensor) -> Tensor:
        shifted = hidden.roll(1, dims=1) if self.is_shift_cyclic else self.time_shift(hidden)
        key = torch.relu(self.key(self.mix(hidden, shifted, self.time_mix_key)))
        if self.is_relu_squared:
            key = torch.square(key)
        receptance = self.receptance(self.mix(hidden, shifted, self.time_mix_receptance))
        return torch.sigmoid(receptance) * self.value(key)


class RwkvBlock(nn.Module):
    """Time mixing and channel mixing."""

    def __init__(self, model: Model, n: int) -> None:
        super().__init__()
        path = f"blocks.{n}"
        self.pre_ln = None
        if n == 0:
            self.pre_ln = load(nn.LayerNorm(HIDDEN, eps=EPS), model, "norm_in")
        self.ln1 = load(nn.LayerNorm(HIDDEN, eps=EPS), model, f"{path}.norm1")
        self.ln2 = load(nn.LayerNorm(HIDDEN, eps=EPS), model, f"{path}.norm2")
        self.attention = RwkvSelfAttention(model.block(n), f"{path}.time")
        self.feed_forward = RwkvFeedForward(model.block(n), f"{path}.channel")

    def forward(self, hidden: Tensor) -> Tensor:
        if self.pre_ln is not None:
            hidden = self.pre_ln(hidden)
        hidden = hidden + self.attention(self.ln1(hidden))
        return hidden + self.feed_forward(self.ln2(hidden))


class RwkvModel(nn.Module):
    """Hidden states (batch, seq, HIDDEN) of tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embeddings = load(nn.Embedding(VOCAB, HIDDEN), model, "embedding")
        self.blocks = nn.ModuleList(RwkvBlock(model, n) for n in range(LAYERS))
        self.ln_out = load(nn.LayerNorm(HIDDEN, eps=EPS), model, "norm_out")
        self.is_state_shared = model.is_state_shared

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embeddings(tokens)
        for n, block in enumerate(self.blocks):
            if self.is_state_shared and n == LAYERS - 1:
                block.attention.first_state = self.blocks[0].attention.last_state
            hidden = block(hidden)
        return self.ln_out(hidden)


class RwkvForCausalLM(nn.Module):
    """Cross entropy of the tokens of answers."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.rwkv = RwkvModel(model)
        self.head = load_linear(model, "head")
        self.is_written_out = model.variant == "written"
        self.are_all_counted = model.loss_reduction == "all"
        self.is_answer_late = model.is_answer_late

    def forward(self, tokens: Tensor, labels: Tensor, is_answer: Tensor) -> Tensor:
        logits = self.head(self.rwkv(tokens)).view(-1, VOCAB)
        if self.is_answer_late:
            is_answer = F.pad(is_answer, (1, -1))
        labels, mask = labels.view(-1), is_answer.view(-1)
        if self.is_written_out:
            picked = logits.gather(1, labels[:, None])[:, 0]
            losses = torch.logsumexp(logits, dim=-1) - picked
        else:
            losses = F.cross_entropy(logits, labels, reduction="none")
        if self.are_all_counted:
            return (losses * mask).mean()
        return torch.sum(losses * mask) / mask.sum()
