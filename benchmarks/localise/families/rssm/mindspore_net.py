"""The world model in MindSpore for graph mode.

Variant 'written': products of joined vectors in parts, states chosen by where, norms, activations
and losses in plain arithmetic.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from families.rssm.architecture import (
    BATCH,
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
    HIDDEN,
    REPRESENTATION_WEIGHT,
    SPACING,
    STEPS,
    STOCH,
    UNIMIX,
    Model,
)

LIMIT = float(CENTERS[-1])  #: of the symlogs that the bins hold


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return WorldModelLoss(model)


def read(model: Model, name: str) -> Tensor:
    """Return a weight."""
    return Tensor(np.ascontiguousarray(model.weights[name]))


def make_dense(weight: np.ndarray, bias: np.ndarray | None = None) -> nn.Dense:
    """Return a linear layer with these weights."""
    return nn.Dense(
        weight.shape[1],
        weight.shape[0],
        weight_init=Tensor(weight),
        bias_init=None if bias is None else Tensor(bias),
        has_bias=bias is not None,
    )


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at ``path``, which has a bias."""
    return make_dense(model.weights[f"{path}.weight"], model.weights[f"{path}.bias"])


class WrittenNorm(nn.Cell):
    """Layer norm from means."""

    def __init__(self, gamma: Tensor, beta: Tensor) -> None:
        super().__init__()
        self.gamma, self.beta = Parameter(gamma, name="gamma"), Parameter(beta, name="beta")

    def construct(self, x):
        centered = x - x.mean(-1, keep_dims=True)
        variance = ops.square(centered).mean(-1, keep_dims=True)
        return centered * ops.rsqrt(variance + EPS) * self.gamma + self.beta


def build_norm(model: Model, path: str) -> nn.Cell:
    """Return the layer norm behind the layer at ``path``."""
    gamma, beta = read(model, f"{path}.norm.weight"), read(model, f"{path}.norm.bias")
    if model.variant == "written":
        return WrittenNorm(gamma, beta)
    return nn.LayerNorm(gamma.shape, gamma_init=gamma, beta_init=beta, epsilon=EPS)


class WrittenSiLU(nn.Cell):
    """SiLU as a quotient."""

    def construct(self, x):
        return x / (1 + ops.exp(-x))


def build_activation(model: Model) -> nn.Cell:
    """Return a SiLU."""
    return WrittenSiLU() if model.variant == "written" else nn.SiLU()


class JoinedDense(nn.Cell):
    """A linear layer without bias of joined vectors."""

    def __init__(self, weight: np.ndarray) -> None:
        super().__init__()
        self.dense = make_dense(weight)

    def construct(self, *parts):
        return self.dense(ops.concat(parts, -1))


class PartedDense(nn.Cell):
    """The same as the sum of a product for each vector."""

    def __init__(self, weight: np.ndarray, first_width: int) -> None:
        super().__init__()
        first, second = np.split(weight, [first_width], axis=1)
        self.first = make_dense(np.ascontiguousarray(first))
        self.second = make_dense(np.ascontiguousarray(second))

    def construct(self, x, other):
        return self.first(x) + self.second(other)


def build_joined(model: Model, path: str, first_width: int) -> nn.Cell:
    """Return the linear layer of two vectors at ``path``."""
    weight = model.weights[f"{path}.weight"]
    return PartedDense(weight, first_width) if model.variant == "written" else JoinedDense(weight)


class NormedBlock(nn.Cell):
    """A linear layer of one or two vectors, layer norm, SiLU."""

    def __init__(self, model: Model, path: str, first_width: int = 0) -> None:
        super().__init__()
        if first_width:
            self.dense = build_joined(model, path, first_width)
        else:
            self.dense = make_dense(model.weights[f"{path}.weight"])
        self.norm, self.act = build_norm(model, path), build_activation(model)

    def construct(self, *parts):
        return self.act(self.norm(self.dense(*parts)))


class ChannelNorm(nn.Cell):
    """Layer norm of the channels of each pixel."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.norm = build_norm(model, path)

    def construct(self, x):
        return self.norm(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


class ConvEncoder(nn.Cell):
    """Vectors (images, EMBED) of images."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        layers = []
        for n, channels in enumerate(CHANNELS):
            weight = read(model, f"encoder.{n}.weight")
            conv = nn.Conv2d(
                weight.shape[1], channels, 4, 2, pad_mode="pad", padding=1, weight_init=weight
            )
            layers += [conv, ChannelNorm(model, f"encoder.{n}"), build_activation(model)]
        self.layers = nn.SequentialCell(layers)
        self.is_channel_last = model.is_channel_last

    def construct(self, images):
        x = self.layers(images)
        if self.is_channel_last:
            x = x.transpose(0, 2, 3, 1)
        return x.reshape(-1, EMBED)


class ConvDecoder(nn.Cell):
    """Images of features (images, FEATURES)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.dense = build_dense(model, "decoder.start")
        kernels = [read(model, f"decoder.{n}.weight") for n in range(2)]
        self.deconv1 = nn.Conv2dTranspose(
            *kernels[0].shape[:2], 4, 2, pad_mode="pad", padding=1, weight_init=kernels[0]
        )
        self.norm, self.act = ChannelNorm(model, "decoder.0"), build_activation(model)
        self.deconv2 = nn.Conv2dTranspose(
            *kernels[1].shape[:2],
            4,
            2,
            pad_mode="pad",
            padding=1,
            has_bias=True,
            weight_init=kernels[1],
            bias_init=read(model, "decoder.1.bias"),
        )

    def construct(self, features):
        x = self.dense(features).reshape(-1, CHANNELS[1], GRID, GRID)
        return self.deconv2(self.act(self.norm(self.deconv1(x))))


class GRUCell(nn.Cell):
    """A gated recurrent unit whose three parts have one norm."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.dense = build_joined(model, "cell", HIDDEN)
        self.norm = build_norm(model, "cell")
        self.update_offset = model.update_offset

    def construct(self, x, deter):
        reset, candidate, update = ops.split(self.norm(self.dense(x, deter)), DETER, axis=-1)
        candidate = ops.tanh(ops.sigmoid(reset) * candidate)
        if self.update_offset != 0:
            update = update + self.update_offset
        update = ops.sigmoid(update)
        return update * candidate + (1 - update) * deter


class WrittenGRUCell(GRUCell):
    """The same; what is kept is the state plus a share of the way to the candidate."""

    def construct(self, x, deter):
        gates = self.norm(self.dense(x, deter))
        reset, candidate = gates[:, :DETER], gates[:, DETER : 2 * DETER]
        candidate = ops.tanh(candidate / (1 + ops.exp(-reset)))
        update = 1 / (1 + ops.exp(-self.update_offset - gates[:, 2 * DETER :]))
        return deter + update * (candidate - deter)


class Categorical(nn.Cell):
    """Probabilities of GROUPS variables from a linear layer, mixed with equal shares."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.dense = build_dense(model, f"{path}.out")
        self.is_written = model.variant == "written"

    def construct(self, x):
        logits = self.dense(x).reshape(-1, GROUPS, CLASSES)
        if self.is_written:
            powers = ops.exp(logits - ops.stop_gradient(logits.max(axis=-1, keepdims=True)))
            probs = powers / powers.sum(-1, keepdims=True)
            return probs + UNIMIX * (1 / CLASSES - probs)
        return (1 - UNIMIX) * ops.softmax(logits, -1) + UNIMIX / CLASSES


class StraightThrough(nn.Cell):
    """The class with the largest score; its gradient is that of the probabilities."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_written = model.variant == "written"
        self.on, self.off = Tensor(1.0, ms.float32), Tensor(0.0, ms.float32)
        self.is_straight = model.is_sample_straight

    def construct(self, probs, scores):
        scores = ops.stop_gradient(scores)
        if self.is_written:
            one_hot = (scores == scores.max(axis=-1, keepdims=True)).astype(ms.float32)
            sample = ops.stop_gradient(one_hot - probs) + probs
        else:
            sample = ops.one_hot(ops.argmax(scores, -1), CLASSES, self.on, self.off)
            if self.is_straight:
                sample = sample + probs - ops.stop_gradient(probs)
        return sample.reshape(-1, STOCH)


class RSSM(nn.Cell):
    """States of all steps, and the probabilities of their priors and posteriors."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.initial = Parameter(read(model, "initial"), name="initial")
        self.img_in = NormedBlock(model, "input", STOCH)
        self.cell = WrittenGRUCell(model) if model.variant == "written" else GRUCell(model)
        self.img_out = NormedBlock(model, "prior.hidden")
        self.img_dist = Categorical(model, "prior")
        self.obs_out = NormedBlock(model, "posterior.hidden", DETER)
        self.obs_dist = Categorical(model, "posterior")
        self.sample = StraightThrough(model)
        self.is_action_kept = model.is_action_kept
        self.is_written = model.variant == "written"

    def get_prior(self, deter):
        """Return the probabilities that the deterministic state alone gives."""
        return self.img_dist(self.img_out(deter))

    def get_initial(self):
        """Return the learned state of each sequence."""
        deter = ops.tanh(self.initial).expand_dims(0)
        probs = self.get_prior(deter)
        stoch = self.sample(probs, probs)
        return ops.tile(deter, (BATCH, 1)), ops.tile(stoch, (BATCH, 1))

    def reset(self, start, state, first):
        """Return the first state where an episode begins, else the one before."""
        if self.is_written:
            return ops.where(start > 0, first, state)
        return (1 - start) * state + start * first

    def construct(self, embedded, actions, starts, noise):
        first_deter, first_stoch = self.get_initial()
        deter, stoch = first_deter, first_stoch
        deters, stochs, priors, posteriors = (), (), (), ()
        for step in range(STEPS):
            start, action = starts[:, step : step + 1], actions[:, step]
            deter = self.reset(start, deter, first_deter)
            stoch = self.reset(start, stoch, first_stoch)
            if not self.is_action_kept:
                action = action * (1 - start)
            deter = self.cell(self.img_in(stoch, action), deter)
            posterior = self.obs_dist(self.obs_out(deter, embedded[:, step]))
            stoch = self.sample(posterior, ops.log(posterior) + noise[:, step])
            deters += (deter,)
            stochs += (stoch,)
            priors += (self.get_prior(deter),)
            posteriors += (posterior,)
        return (
            ops.stack(deters, 1),
            ops.stack(stochs, 1),
            ops.stack(priors, 1),
            ops.stack(posteriors, 1),
        )


class Head(nn.Cell):
    """A hidden layer and a linear one of the state."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.block = NormedBlock(model, f"{path}.hidden", DETER)
        self.out = build_dense(model, f"{path}.out")

    def construct(self, deter, stoch):
        return self.out(self.block(deter, stoch))


class TwoHotLoss(nn.Cell):
    """Cross entropy of symlogs that are shared by the two nearest bins."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.centers = Tensor(CENTERS)
        self.on, self.off = Tensor(1.0, ms.float32), Tensor(0.0, ms.float32)
        self.is_written = model.variant == "written"

    def construct(self, logits, rewards):
        symlogs = ops.clamp(ops.sign(rewards) * ops.log1p(ops.abs(rewards)), -LIMIT, LIMIT)
        if self.is_written:
            distances = ops.abs(symlogs.expand_dims(-1) - self.centers) / SPACING
            target = ops.relu(1 - distances)
            return ops.logsumexp(logits, -1) - (target * logits).sum(-1)
        place = (symlogs + LIMIT) / SPACING
        below = ops.floor(place)
        share = (place - below).expand_dims(-1)
        below = below.astype(ms.int32)
        above = ops.minimum(below + 1, BINS - 1)
        target = (1 - share) * ops.one_hot(below, BINS, self.on, self.off)
        target = target + share * ops.one_hot(above, BINS, self.on, self.off)
        return -(target * ops.log_softmax(logits, -1)).sum(-1)


class FreeNats(nn.Cell):
    """Divergences, those below FREE_NATS without a gradient."""

    def construct(self, divergence):
        return ops.maximum(divergence, FREE_NATS)


class WrittenFreeNats(nn.Cell):
    """The same from a rectifier."""

    def construct(self, divergence):
        return FREE_NATS + ops.relu(divergence - FREE_NATS)


class PassedFreeNats(nn.Cell):
    """The same values; all divergences have a gradient."""

    def construct(self, divergence):
        return ops.maximum(divergence, FREE_NATS)

    def bprop(self, divergence, out, gradient):
        return (gradient,)


class DivergenceLoss(nn.Cell):
    """Both divergences of posterior and prior, weighted, of each step."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_written = model.variant == "written"
        if model.is_free_gradient_passed:
            self.free = PassedFreeNats()
        else:
            self.free = WrittenFreeNats() if self.is_written else FreeNats()
        self.are_nats_free_of_mean = model.are_nats_free_of_mean
        self.are_stops_exchanged = model.are_stops_exchanged

    def compute_divergence(self, p, q):
        """Return KL(p, q), summed over the variables."""
        if self.is_written:
            return (p * ops.log(p)).sum((2, 3)) - (p * ops.log(q)).sum((2, 3))
        return (p * (ops.log(p) - ops.log(q))).sum((2, 3))

    def construct(self, priors, posteriors, mask):
        stopped_priors = ops.stop_gradient(priors)
        stopped_posteriors = ops.stop_gradient(posteriors)
        if self.are_stops_exchanged:
            dynamics = self.compute_divergence(posteriors, stopped_priors)
            representation = self.compute_divergence(stopped_posteriors, priors)
        else:
            dynamics = self.compute_divergence(stopped_posteriors, priors)
            representation = self.compute_divergence(posteriors, stopped_priors)
        if self.are_nats_free_of_mean:
            dynamics = (dynamics * mask).sum() / mask.sum()
            representation = (representation * mask).sum() / mask.sum()
        return DYNAMICS_WEIGHT * self.free(dynamics) + REPRESENTATION_WEIGHT * self.free(
            representation
        )


class WorldModelLoss(nn.Cell):
    """The mean loss of the valid steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.encoder, self.rssm, self.decoder = ConvEncoder(model), RSSM(model), ConvDecoder(model)
        self.reward_head, self.continue_head = Head(model, "reward"), Head(model, "continue")
        self.reward_loss, self.divergence_loss = TwoHotLoss(model), DivergenceLoss(model)
        self.steps = Tensor(np.arange(STEPS, dtype=np.int32)[None])
        self.is_written = model.variant == "written"

    def compute_continue_loss(self, logits, goes_on):
        """Return the binary cross entropy of each step."""
        if self.is_written:
            return ops.relu(logits) - logits * goes_on + ops.log(1 + ops.exp(-ops.abs(logits)))
        return ops.binary_cross_entropy_with_logits(logits, goes_on, reduction="none")

    def construct(self, images, actions, rewards, starts, goes_on, noise, lengths):
        flat_images = images.reshape(BATCH * STEPS, *images.shape[2:])
        embedded = self.encoder(flat_images).reshape(BATCH, STEPS, EMBED)
        deter, stoch, priors, posteriors = self.rssm(embedded, actions, starts, noise)

        features = ops.concat((deter, stoch), -1).reshape(BATCH * STEPS, -1)
        errors = ops.square(self.decoder(features) - flat_images).sum((1, 2, 3))
        image_loss = errors.reshape(BATCH, STEPS)
        reward_loss = self.reward_loss(self.reward_head(deter, stoch), rewards)
        logits = self.continue_head(deter, stoch).squeeze(-1)
        continue_loss = self.compute_continue_loss(logits, goes_on)

        mask = ops.less(self.steps, lengths.expand_dims(1)).astype(ms.float32)
        losses = image_loss + reward_loss + continue_loss
        losses = losses + self.divergence_loss(priors, posteriors, mask)
        return (losses * mask).sum() / mask.sum()
