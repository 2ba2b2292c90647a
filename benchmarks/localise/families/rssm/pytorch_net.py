"""The world model in PyTorch, with modules named as in NM512's code.

Variant 'distributions': torch.distributions, modules named as in SheepRL, priors of all steps at
once, the posterior's layer in two parts, states chosen by where.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Independent, OneHotCategorical, kl_divergence

from families.rssm.architecture import (
    BINS,
    CENTERS,
    CHANNELS,
    CLASSES,
    DETER,
    DYNAMICS_WEIGHT,
    EMBED,
    EPS,
    FREE_NATS,
    GRID,
    GROUPS,
    REPRESENTATION_WEIGHT,
    SPACING,
    STEPS,
    UNIMIX,
    UPDATE_OFFSET,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return DistributionLoss(model) if model.variant == "distributions" else WorldModel(model)


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


def load_norm(model: Model, path: str, eps: float = EPS) -> nn.LayerNorm:
    """Return the layer norm behind the layer at ``path``."""
    width = len(model.weights[f"{path}.norm.weight"])
    return load(nn.LayerNorm(width, eps=eps), model, f"{path}.norm")


def load_block(model: Model, path: str, *last: nn.Module) -> nn.Sequential:
    """Return a linear layer, its norm, SiLU, and what comes last."""
    return nn.Sequential(load_linear(model, path), load_norm(model, path), nn.SiLU(), *last)


def load_conv(model: Model, n: int) -> nn.Conv2d:
    """Return a convolution of the encoder."""
    n_out, n_in = model.weights[f"encoder.{n}.weight"].shape[:2]
    return load(nn.Conv2d(n_in, n_out, 4, 2, padding=1, bias=False), model, f"encoder.{n}")


def load_deconv(model: Model, n: int) -> nn.ConvTranspose2d:
    """Return a transposed convolution of the decoder."""
    path = f"decoder.{n}"
    n_in, n_out = model.weights[f"{path}.weight"].shape[:2]
    has_bias = f"{path}.bias" in model.weights
    return load(nn.ConvTranspose2d(n_in, n_out, 4, 2, padding=1, bias=has_bias), model, path)


class ImgChLayerNorm(nn.Module):
    """Layer norm of the channels of each pixel."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.norm = load_norm(model, path)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvEncoder(nn.Module):
    """Vectors (batch, steps, EMBED) of images."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        layers = []
        for n in range(len(CHANNELS)):
            layers += [load_conv(model, n), ImgChLayerNorm(model, f"encoder.{n}"), nn.SiLU()]
        self.layers = nn.Sequential(*layers)

    def forward(self, obs: Tensor) -> Tensor:
        x = self.layers(obs.reshape((-1, *obs.shape[-3:])))
        return x.reshape((*obs.shape[:2], EMBED))


class ConvDecoder(nn.Module):
    """Images of features (batch, steps, FEATURES)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._linear_layer = load_linear(model, "decoder.start")
        self.layers = nn.Sequential(
            load_deconv(model, 0),
            ImgChLayerNorm(model, "decoder.0"),
            nn.SiLU(),
            load_deconv(model, 1),
        )

    def forward(self, features: Tensor) -> Tensor:
        x = self._linear_layer(features).reshape(-1, CHANNELS[1], GRID, GRID)
        x = self.layers(x)
        return x.reshape(features.shape[:2] + x.shape[1:])


class GRUCell(nn.Module):
    """A gated recurrent unit whose three parts have one norm."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            load_linear(model, "cell"), load_norm(model, "cell", model.cell_eps)
        )

    def forward(self, inputs: Tensor, state: Tensor) -> Tensor:
        parts = self.layers(torch.cat([inputs, state], -1))
        reset, cand, update = torch.split(parts, [DETER] * 3, -1)
        cand = torch.tanh(torch.sigmoid(reset) * cand)
        update = torch.sigmoid(update + UPDATE_OFFSET)
        return update * cand + (1 - update) * state


class RSSM(nn.Module):
    """States of all steps, and the log-probabilities of their priors and posteriors."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._is_zero = model.is_state_zero
        self._is_mixed = model.is_mixed
        if not self._is_zero:
            self.W = copy_parameter(model.weights["initial"])
        self._img_in_layers = load_block(model, "input")
        self._cell = GRUCell(model)
        self._img_out_layers = load_block(model, "prior.hidden")
        self._imgs_stat_layer = load_linear(model, "prior.out")
        self._obs_out_layers = load_block(model, "posterior.hidden")
        self._obs_stat_layer = load_linear(model, "posterior.out")

    def mix(self, logits: Tensor) -> Tensor:
        """Return logarithms of probabilities (..., GROUPS, CLASSES), mixed with equal shares."""
        logits = logits.unflatten(-1, (GROUPS, CLASSES))
        if not self._is_mixed:
            return F.log_softmax(logits, dim=-1)
        probs = F.softmax(logits, dim=-1)
        return torch.log((1.0 - UNIMIX) * probs + UNIMIX / CLASSES)

    def get_prior(self, deter: Tensor) -> Tensor:
        """Return the log-probabilities that the deterministic state alone gives."""
        return self.mix(self._imgs_stat_layer(self._img_out_layers(deter)))

    def sample(self, log_probs: Tensor, scores: Tensor) -> Tensor:
        """Return the classes of the largest scores; the gradient is that of the probabilities."""
        probs = log_probs.exp()
        sample = F.one_hot(scores.argmax(dim=-1), CLASSES).float()
        return (sample + probs - probs.detach()).flatten(-2)

    def initial(self, batch_size: int) -> tuple[Tensor, Tensor]:
        """Return the state with which an episode begins."""
        if self._is_zero:
            return torch.zeros(batch_size, DETER), torch.zeros(batch_size, GROUPS * CLASSES)
        deter = torch.tanh(self.W).repeat(batch_size, 1)
        prior = self.get_prior(deter)
        return deter, self.sample(prior, prior)

    def observe(
        self, embed: Tensor, action: Tensor, is_first: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return states, priors and posteriors."""
        init_deter, init_stoch = self.initial(len(embed))
        deter, stoch = init_deter, init_stoch
        steps = []
        for step in range(STEPS):
            first = is_first[:, step, None]
            deter = deter * (1.0 - first) + init_deter * first
            stoch = stoch * (1.0 - first) + init_stoch * first
            prev_action = action[:, step] * (1.0 - first)
            x = self._img_in_layers(torch.cat([stoch, prev_action], -1))
            deter = self._cell(x, deter)
            x = self._obs_out_layers(torch.cat([deter, embed[:, step]], -1))
            post = self.mix(self._obs_stat_layer(x))
            stoch = self.sample(post, post + noise[:, step])
            steps.append((deter, stoch, self.get_prior(deter), post))
        deters, stochs, priors, posts = (torch.stack(x, 1) for x in zip(*steps, strict=True))
        return deters, stochs, priors, posts


def compute_kl(post: Tensor, prior: Tensor) -> Tensor:
    """Return KL(post, prior) of log-probabilities, summed over the variables."""
    return F.kl_div(prior, post, reduction="none", log_target=True).sum(dim=(-2, -1))


def kl_loss(model: Model, post: Tensor, prior: Tensor) -> Tensor:
    """Return both divergences, weighted, of each step."""
    if model.is_divergence_reversed:
        dyn_loss = compute_kl(prior, post.detach())
        rep_loss = compute_kl(prior.detach(), post)
    else:
        dyn_loss = compute_kl(post.detach(), prior)
        rep_loss = compute_kl(post, prior.detach())
    dyn_loss = torch.clip(dyn_loss, min=FREE_NATS)
    rep_loss = torch.clip(rep_loss, min=FREE_NATS)
    return DYNAMICS_WEIGHT * dyn_loss + REPRESENTATION_WEIGHT * rep_loss


def symlog(x: Tensor) -> Tensor:
    """Return the logarithm of a size, with its sign."""
    return torch.sign(x) * torch.log(torch.abs(x) + 1.0)


class DiscDist(nn.Module):
    """Cross entropy of symlogs that are shared by the two nearest bins."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("buckets", torch.from_numpy(CENTERS), persistent=False)

    def forward(self, logits: Tensor, value: Tensor) -> Tensor:
        x = symlog(value)[..., None]
        below = torch.sum((self.buckets <= x).to(torch.int32), dim=-1) - 1
        above = BINS - torch.sum((self.buckets > x).to(torch.int32), dim=-1)
        below = torch.clip(below, 0, BINS - 1).long()
        above = torch.clip(above, 0, BINS - 1).long()
        equal = below == above
        dist_to_below = torch.where(equal, 1, torch.abs(self.buckets[below] - x[..., 0]))
        dist_to_above = torch.where(equal, 1, torch.abs(self.buckets[above] - x[..., 0]))
        total = dist_to_below + dist_to_above
        target = F.one_hot(below, BINS) * (dist_to_above / total)[..., None]
        target = target + F.one_hot(above, BINS) * (dist_to_below / total)[..., None]
        log_pred = logits - torch.logsumexp(logits, dim=-1, keepdim=True)
        return -(target * log_pred).sum(-1)


class WorldModel(nn.Module):
    """The mean loss of the valid steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder = ConvEncoder(model)
        self.dynamics = RSSM(model)
        self.heads = nn.ModuleDict(
            {
                "decoder": ConvDecoder(model),
                "reward": load_block(model, "reward.hidden", load_linear(model, "reward.out")),
                "cont": load_block(model, "continue.hidden", load_linear(model, "continue.out")),
            }
        )
        self.reward_dist = DiscDist()
        self.model = model

    def forward(
        self,
        image: Tensor,
        action: Tensor,
        reward: Tensor,
        is_first: Tensor,
        cont: Tensor,
        noise: Tensor,
        length: Tensor,
    ) -> Tensor:
        embed = self.encoder(image)
        deter, stoch, prior, post = self.dynamics.observe(embed, action, is_first, noise)
        loss = kl_loss(self.model, post, prior)

        feat = torch.cat([deter, stoch], -1)
        loss = loss + ((self.heads["decoder"](feat) - image) ** 2).sum(dim=(-3, -2, -1))
        reward_feat = feat.detach() if self.model.is_reward_detached else feat
        loss = loss + self.reward_dist(self.heads["reward"](reward_feat), reward)
        logits = self.heads["cont"](feat).squeeze(-1)
        loss = loss + F.binary_cross_entropy_with_logits(logits, cont, reduction="none")
        mask = (torch.arange(STEPS) < length[:, None]).float()
        return torch.sum(loss * mask) / torch.sum(mask)


class RecurrentModel(nn.Module):
    """The deterministic state from the state and the action before it."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.mlp = load_block(model, "input")
        self.linear, self.layer_norm = load_linear(model, "cell"), load_norm(model, "cell")

    def forward(self, x: Tensor, recurrent_state: Tensor) -> Tensor:
        gates = self.layer_norm(self.linear(torch.cat((self.mlp(x), recurrent_state), dim=-1)))
        reset, cand, update = gates.chunk(3, dim=-1)
        cand = (reset.sigmoid() * cand).tanh()
        return torch.lerp(recurrent_state, cand, (update + UPDATE_OFFSET).sigmoid())


class DistributionLoss(nn.Module):
    """The same loss from torch.distributions."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(load_conv(model, n) for n in range(len(CHANNELS)))
        self.conv_norms = nn.ModuleList(
            load_norm(model, f"encoder.{n}") for n in range(len(CHANNELS))
        )
        self.initial_recurrent_state = copy_parameter(model.weights["initial"])
        self.recurrent_model = RecurrentModel(model)
        self.transition_model = load_block(model, "prior.hidden", load_linear(model, "prior.out"))
        state_part, image_part = np.split(model.weights["posterior.hidden.weight"], [DETER], axis=1)
        self.of_state, self.of_image = copy_parameter(state_part), copy_parameter(image_part)
        self.representation_norm = load_norm(model, "posterior.hidden")
        self.representation_out = load_linear(model, "posterior.out")
        self.fc = load_linear(model, "decoder.start")
        self.deconvolutions = nn.ModuleList(load_deconv(model, n) for n in range(2))
        self.deconv_norm = load_norm(model, "decoder.0")
        self.reward_model = load_block(model, "reward.hidden", load_linear(model, "reward.out"))
        self.continue_model = load_block(
            model, "continue.hidden", load_linear(model, "continue.out")
        )
        self.register_buffer("bins", torch.from_numpy(CENTERS), persistent=False)

    def encode(self, images: Tensor) -> Tensor:
        """Return what images add to the posterior's layer, (batch, steps, HIDDEN)."""
        x = images.flatten(0, 1)
        for conv, norm in zip(self.convolutions, self.conv_norms, strict=True):
            x = F.silu(norm(conv(x).movedim(1, -1)).movedim(-1, 1))
        return F.linear(x.flatten(1), self.of_image).unflatten(0, images.shape[:2])

    def decode(self, latents: Tensor) -> Tensor:
        """Return images (batch, steps, COLORS, SIZE, SIZE)."""
        x = self.fc(latents.flatten(0, 1)).unflatten(1, (CHANNELS[1], GRID, GRID))
        x = self.deconv_norm(self.deconvolutions[0](x).movedim(1, -1)).movedim(-1, 1)
        return self.deconvolutions[1](F.silu(x)).unflatten(0, latents.shape[:2])

    def uniform_mix(self, logits: Tensor) -> OneHotCategorical:
        """Return the distribution of the variables, mixed with equal shares."""
        probs = logits.unflatten(-1, (GROUPS, CLASSES)).softmax(dim=-1)
        probs = torch.lerp(probs, torch.full_like(probs, 1 / CLASSES), UNIMIX)
        return OneHotCategorical(logits=probs.log(), validate_args=False)

    def straight_through(self, dist: OneHotCategorical, noise: Tensor) -> Tensor:
        """Return the classes of the largest scores; the gradient is that of the probabilities."""
        index = (dist.logits + noise).argmax(dim=-1, keepdim=True)
        sample = torch.zeros_like(dist.probs).scatter(-1, index, 1.0)
        return (dist.probs + (sample - dist.probs).detach()).flatten(-2)

    def compute_kl(self, posterior: Tensor, prior: Tensor) -> Tensor:
        """Return the divergence of the distributions with these log-probabilities."""
        p, q = (
            Independent(OneHotCategorical(logits=x, validate_args=False), 1)
            for x in (posterior, prior)
        )
        return kl_divergence(p, q).clamp(min=FREE_NATS)

    def compute_reward_loss(self, logits: Tensor, rewards: Tensor) -> Tensor:
        """Return the cross entropy of symlogs that are shared by the two nearest bins."""
        x = rewards.sign() * rewards.abs().log1p()
        above = torch.searchsorted(self.bins, x, right=True).clamp(1, BINS - 1)
        share = (x - self.bins[above - 1]) / SPACING
        index = torch.stack((above - 1, above), dim=-1)
        shares = torch.stack((1 - share, share), dim=-1)
        return -(logits.log_softmax(dim=-1).gather(-1, index) * shares).sum(dim=-1)

    def forward(
        self,
        images: Tensor,
        actions: Tensor,
        rewards: Tensor,
        is_first: Tensor,
        continues: Tensor,
        noise: Tensor,
        lengths: Tensor,
    ) -> Tensor:
        encoded = self.encode(images)
        first_recurrent = self.initial_recurrent_state.tanh().expand(len(images), -1)
        first_dist = self.uniform_mix(self.transition_model(first_recurrent))
        first_posterior = self.straight_through(first_dist, torch.zeros_like(first_dist.logits))
        recurrent, posterior = first_recurrent, first_posterior
        recurrents, posteriors, posterior_logits = [], [], []
        for step in range(STEPS):
            is_start = is_first[:, step, None] > 0
            recurrent = torch.where(is_start, first_recurrent, recurrent)
            posterior = torch.where(is_start, first_posterior, posterior)
            action = actions[:, step].masked_fill(is_start, 0.0)
            recurrent = self.recurrent_model(torch.cat((posterior, action), dim=-1), recurrent)
            x = F.linear(recurrent, self.of_state) + encoded[:, step]
            x = self.representation_out(F.silu(self.representation_norm(x)))
            dist = self.uniform_mix(x)
            posterior = self.straight_through(dist, noise[:, step])
            recurrents.append(recurrent)
            posteriors.append(posterior)
            posterior_logits.append(dist.logits)
        recurrent, posterior = torch.stack(recurrents, dim=1), torch.stack(posteriors, dim=1)
        posterior_logits = torch.stack(posterior_logits, dim=1)
        prior_logits = self.uniform_mix(self.transition_model(recurrent)).logits

        latents = torch.cat((recurrent, posterior), dim=-1)
        image_loss = F.mse_loss(self.decode(latents), images, reduction="none").sum(dim=(2, 3, 4))
        reward_loss = self.compute_reward_loss(self.reward_model(latents), rewards)
        logits = self.continue_model(latents).squeeze(-1)
        continue_loss = F.softplus(logits) - continues * logits
        kl_loss = DYNAMICS_WEIGHT * self.compute_kl(posterior_logits.detach(), prior_logits)
        kl_loss += REPRESENTATION_WEIGHT * self.compute_kl(posterior_logits, prior_logits.detach())
        valid = torch.arange(STEPS) < lengths[:, None]
        return (image_loss + reward_loss + continue_loss + kl_loss)[valid].mean()
