"""A decision transformer in PyTorch, with the names and linear layers of Hugging Face's.

Variant 'fused': the names of the code for Atari on minGPT, tokens written into a tensor of zeros,
queries, keys and values apart, a built-in attention, losses of chosen steps.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from families.decision.architecture import (
    ACTION,
    BATCH,
    BINS,
    EPISODE,
    HEAD_DIM,
    HEADS,
    IGNORE,
    KINDS,
    LAYERS,
    NORM_EPS,
    POSITIONS,
    RETURN_SCALE,
    RETURN_WEIGHT,
    STATE_WEIGHT,
    STEPS,
    TOKENS,
    WIDE,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return FusedLoss(model) if model.variant == "fused" else DecisionTransformerLoss(model)


def read(model: Model, name: str) -> Tensor:
    """Return a weight."""
    return torch.from_numpy(model.weights[name]).clone()


def load(layer: nn.Module, model: Model, path: str) -> nn.Module:
    """Return a layer with the weight, and the bias if it has one, of a path."""
    layer.load_state_dict({name: read(model, f"{path}.{name}") for name in layer.state_dict()})
    return layer


def load_linear(model: Model, path: str) -> nn.Linear:
    """Return the linear layer at a path."""
    n_out, n_in = model.weights[f"{path}.weight"].shape
    return load(nn.Linear(n_in, n_out), model, path)


def load_norm(model: Model, path: str) -> nn.LayerNorm:
    """Return the layer norm at a path."""
    return load(nn.LayerNorm(WIDE, eps=NORM_EPS), model, path)


class Conv1D(nn.Module):
    """A linear layer as GPT-2 has it: its weight is (in, out)."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(read(model, f"{path}.weight").t().contiguous())
        self.bias = nn.Parameter(read(model, f"{path}.bias"))

    def forward(self, x: Tensor) -> Tensor:
        size_out = (*x.size()[:-1], len(self.bias))
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(size_out)


class GPT2Attention(nn.Module):
    """Attention to earlier tokens that are no padding."""

    def __init__(self, model: Model, layer_idx: int) -> None:
        super().__init__()
        causal_mask = torch.tril(torch.ones(TOKENS, TOKENS, dtype=torch.bool))
        self.register_buffer("bias", causal_mask.view(1, 1, TOKENS, TOKENS))
        self.c_attn = Conv1D(model, f"block.{layer_idx}.qkv")
        self.c_proj = Conv1D(model, f"block.{layer_idx}.out")
        self.scale_attn_by_inverse_layer_idx = model.are_scores_divided_by_layer
        self.layer_idx = layer_idx

    def forward(self, hidden_states: Tensor, attention_mask: Tensor) -> Tensor:
        query, key, value = (
            states.view(BATCH, TOKENS, HEADS, HEAD_DIM).transpose(1, 2)
            for states in self.c_attn(hidden_states).split(WIDE, dim=2)
        )
        attn_weights = torch.matmul(query, key.transpose(-1, -2)) / HEAD_DIM**0.5
        if self.scale_attn_by_inverse_layer_idx:
            attn_weights = attn_weights / float(self.layer_idx + 1)
        mask_value = torch.finfo(attn_weights.dtype).min
        attn_weights = attn_weights.masked_fill(~(self.bias & attention_mask), mask_value)
        attn_weights = F.softmax(attn_weights, dim=-1)
        attn_output = torch.matmul(attn_weights, value).transpose(1, 2).contiguous()
        return self.c_proj(attn_output.view(BATCH, TOKENS, WIDE))


class GPT2MLP(nn.Module):
    """Two linear layers around ReLU."""

    def __init__(self, model: Model, layer_idx: int) -> None:
        super().__init__()
        self.c_fc = Conv1D(model, f"block.{layer_idx}.up")
        self.c_proj = Conv1D(model, f"block.{layer_idx}.down")
        self.act = nn.ReLU()

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.c_proj(self.act(self.c_fc(hidden_states)))


class GPT2Block(nn.Module):
    """Attention and an mlp behind norms."""

    def __init__(self, model: Model, layer_idx: int) -> None:
        super().__init__()
        self.ln_1 = load_norm(model, f"block.{layer_idx}.norm1")
        self.attn = GPT2Attention(model, layer_idx)
        self.ln_2 = load_norm(model, f"block.{layer_idx}.norm2")
        self.mlp = GPT2MLP(model, layer_idx)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor) -> Tensor:
        hidden_states = self.attn(self.ln_1(hidden_states), attention_mask) + hidden_states
        return hidden_states + self.mlp(self.ln_2(hidden_states))


class GPT2Model(nn.Module):
    """States (BATCH, TOKENS, WIDE) of embedded tokens."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.wpe = load(nn.Embedding(POSITIONS, WIDE), model, "position")
        self.h = nn.ModuleList(GPT2Block(model, n) for n in range(LAYERS))
        self.ln_f = load_norm(model, "norm")

    def forward(
        self, inputs_embeds: Tensor, attention_mask: Tensor, position_ids: Tensor | None
    ) -> Tensor:
        if position_ids is None:
            position_ids = torch.arange(TOKENS, device=inputs_embeds.device).unsqueeze(0)
        attention_mask = attention_mask[:, None, None, :].bool()
        hidden_states = inputs_embeds + self.wpe(position_ids)
        for block in self.h:
            hidden_states = block(hidden_states, attention_mask)
        return self.ln_f(hidden_states)


class DecisionTransformerModel(nn.Module):
    """Predictions of the next state, the action and the next return."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder = GPT2Model(model)
        padding_idx = 0 if model.is_first_step_padding else None
        timesteps = nn.Embedding(EPISODE, WIDE, padding_idx=padding_idx)
        self.embed_timestep = load(timesteps, model, "embed.time")
        self.embed_return = load_linear(model, "embed.return")
        self.embed_state = load_linear(model, "embed.state")
        self.embed_action = load_linear(model, "embed.action")
        self.embed_ln = load_norm(model, "embed.norm")
        self.predict_state = load_linear(model, "head.state")
        self.predict_action = nn.Sequential(load_linear(model, "head.action"), nn.Tanh())
        self.predict_return = load_linear(model, "head.return")
        self.is_mask_tiled = model.is_mask_tiled
        self.are_positions_counted = model.are_positions_counted

    def stack_mask(self, attention_mask: Tensor) -> Tensor:
        """Return the mask of tokens."""
        stacked = torch.stack((attention_mask, attention_mask, attention_mask), dim=1)
        if not self.is_mask_tiled:
            stacked = stacked.permute(0, 2, 1)
        return stacked.reshape(BATCH, TOKENS)

    def forward(
        self,
        states: Tensor,
        actions: Tensor,
        returns_to_go: Tensor,
        timesteps: Tensor,
        attention_mask: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        time_embeddings = self.embed_timestep(timesteps)
        state_embeddings = self.embed_state(states) + time_embeddings
        action_embeddings = self.embed_action(actions) + time_embeddings
        returns_embeddings = self.embed_return(returns_to_go) + time_embeddings
        stacked_inputs = (
            torch.stack((returns_embeddings, state_embeddings, action_embeddings), dim=1)
            .permute(0, 2, 1, 3)
            .reshape(BATCH, TOKENS, WIDE)
        )
        stacked_inputs = self.embed_ln(stacked_inputs)
        position_ids = None
        if not self.are_positions_counted:
            position_ids = torch.zeros(BATCH, TOKENS, device=states.device, dtype=torch.long)
        x = self.encoder(stacked_inputs, self.stack_mask(attention_mask), position_ids)
        x = x.reshape(BATCH, STEPS, KINDS, WIDE).permute(0, 2, 1, 3)
        state_preds, return_preds = self.predict_state(x[:, 2]), self.predict_return(x[:, 2])
        return state_preds, self.predict_action(x[:, 1]), return_preds


class DecisionTransformerLoss(nn.Module):
    """Losses of actions, next states and next returns."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = DecisionTransformerModel(model)
        mean, deviation = model.statistics()
        self.register_buffer("state_mean", torch.from_numpy(mean))
        self.register_buffer("state_std", torch.from_numpy(deviation))
        self.are_pairs_late = model.are_pairs_late

    def forward(
        self,
        states: Tensor,
        actions: Tensor,
        rtg: Tensor,
        return_bins: Tensor,
        timesteps: Tensor,
        attention_mask: Tensor,
    ) -> Tensor:
        states = (states - self.state_mean) / self.state_std
        state_preds, action_preds, return_preds = self.model(
            states, actions, rtg / RETURN_SCALE, timesteps, attention_mask
        )
        is_real = attention_mask.reshape(-1) > 0
        action_preds = action_preds.reshape(-1, ACTION)[is_real]
        action_target = actions.reshape(-1, ACTION)[is_real]
        loss = torch.mean((action_preds - action_target) ** 2)

        pair_mask = attention_mask[:, 1:] if self.are_pairs_late else attention_mask[:, :-1]
        state_loss = ((state_preds[:, :-1] - states[:, 1:]) ** 2).mean(dim=-1)
        state_loss = (state_loss * pair_mask).sum() / pair_mask.sum()
        return_loss = F.cross_entropy(
            return_preds.reshape(-1, BINS), return_bins.reshape(-1), ignore_index=IGNORE
        )
        return loss + STATE_WEIGHT * state_loss + RETURN_WEIGHT * return_loss


class CausalSelfAttention(nn.Module):
    """Attention with a layer each for queries, keys and values, and a bias of scores."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        weights = read(model, f"{path}.qkv.weight").chunk(3)
        biases = read(model, f"{path}.qkv.bias").chunk(3)
        layers = []
        for weight, bias in zip(weights, biases, strict=True):
            layer = nn.Linear(WIDE, WIDE)
            layer.load_state_dict({"weight": weight, "bias": bias})
            layers.append(layer)
        self.query, self.key, self.value = layers
        self.proj = load_linear(model, f"{path}.out")

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.proj(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and an mlp behind norms."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.ln1, self.ln2 = load_norm(model, f"{path}.norm1"), load_norm(model, f"{path}.norm2")
        self.attn = CausalSelfAttention(model, path)
        self.mlp = nn.Sequential(
            load_linear(model, f"{path}.up"), nn.ReLU(), load_linear(model, f"{path}.down")
        )

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x), bias)
        return x + self.mlp(self.ln2(x))


class FusedLoss(nn.Module):
    """The same loss in other steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.ret_emb = load_linear(model, "embed.return")
        self.state_encoder = load_linear(model, "embed.state")
        self.action_embeddings = load_linear(model, "embed.action")
        self.global_pos_emb = nn.Parameter(read(model, "embed.time.weight")[None])
        self.ln_in = load_norm(model, "embed.norm")
        self.pos_emb = nn.Parameter(read(model, "position.weight")[None])
        self.blocks = nn.ModuleList(Block(model, f"block.{n}") for n in range(LAYERS))
        self.ln_f = load_norm(model, "norm")
        self.state_head = load_linear(model, "head.state")
        self.action_head = load_linear(model, "head.action")
        self.return_head = load_linear(model, "head.return")
        mean, deviation = model.statistics()
        self.register_buffer("mean", torch.from_numpy(mean))
        self.register_buffer("std", torch.from_numpy(deviation))
        is_later = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
        self.register_buffer("is_later", is_later, persistent=False)

    def embed(self, rtgs: Tensor, states: Tensor, actions: Tensor, timesteps: Tensor) -> Tensor:
        """Return tokens (BATCH, TOKENS, WIDE)."""
        token_embeddings = torch.zeros(BATCH, TOKENS, WIDE, device=states.device)
        token_embeddings[:, ::KINDS] = self.ret_emb(rtgs)
        token_embeddings[:, 1::KINDS] = self.state_encoder(states)
        token_embeddings[:, 2::KINDS] = self.action_embeddings(actions)
        all_global_pos_emb = self.global_pos_emb.expand(BATCH, -1, -1)
        index = timesteps.repeat_interleave(KINDS, dim=1).unsqueeze(-1).expand(-1, -1, WIDE)
        tokens = token_embeddings + torch.gather(all_global_pos_emb, 1, index)
        return self.ln_in(tokens) + self.pos_emb[:, :1]

    def forward(
        self,
        states: Tensor,
        actions: Tensor,
        rtgs: Tensor,
        bins: Tensor,
        timesteps: Tensor,
        mask: Tensor,
    ) -> Tensor:
        is_padding = mask.repeat_interleave(KINDS, dim=1)[:, None, None] == 0
        is_hidden = self.is_later | is_padding
        bias = torch.zeros(is_hidden.shape).masked_fill(is_hidden, torch.finfo(torch.float32).min)

        states = (states - self.mean) / self.std
        x = self.embed(rtgs / RETURN_SCALE, states, actions, timesteps)
        for block in self.blocks:
            x = block(x, bias)
        x = self.ln_f(x)
        of_state, of_action = x[:, 1::KINDS], x[:, 2::KINDS]

        is_real = mask.bool()
        is_pair = is_real[:, :-1]
        loss = F.mse_loss(self.action_head(of_state[is_real]).tanh(), actions[is_real])
        next_states = self.state_head(of_action[:, :-1][is_pair])
        loss = loss + STATE_WEIGHT * F.mse_loss(next_states, states[:, 1:][is_pair])
        log_probs = F.log_softmax(self.return_head(of_action[is_real]), dim=-1)
        return loss + RETURN_WEIGHT * F.nll_loss(log_probs, bins[is_real])
