"""A variational autoencoder of waveforms in NumPy: sizes, knobs, weights and batch.

Strided convolutions with weight norm (https://arxiv.org/abs/1602.07868, section 2) read the
waveform after pre-emphasis; each is followed by a group norm and snake, x + sin(alpha x)^2 / alpha
(https://arxiv.org/abs/2006.08195, section 4). Gated, dilated, causal convolutions
(https://arxiv.org/abs/1609.03499, section 2) read what is drawn from the posterior. A transposed
convolution and a repetition bring back the length. The loss is that of a Laplace distribution, plus
the divergence of the posterior. The noise of the posterior is a part of the batch. Weights:

    encoder.N.conv        direction (CHANNELS, inputs, ENCODER_KERNEL), magnitude (CHANNELS, 1, 1),
                          bias
    encoder.N.norm, encoder.N.alpha (1, CHANNELS, 1)
    posterior             convolution of one step, to mean and logarithm of the variance
    entry                 convolution of one step, from LATENT
    blocks.N.dilated      direction (2 * CHANNELS, CHANNELS, KERNEL), magnitude, bias
    blocks.N.skip, blocks.N.residual       convolutions of one step; the last block has no residual
    upsampling            transposed convolution (CHANNELS, HALF, ENCODER_KERNEL), with bias
    upsampling.alpha (1, HALF, 1)
    output                convolution (2, HALF, 3), to mean and logarithm of the scale
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

BATCH, SAMPLES, CHANNELS, HALF, LATENT = 3, 48, 16, 8, 6
STAGES, ENCODER_KERNEL, STRIDE, GROUPS = 2, 4, 2, 4
STEPS = SAMPLES // STRIDE**STAGES
KERNEL, DILATIONS = 3, (1, 2, 4)
BLOCKS = len(DILATIONS)
EMPHASIS, EPS = 0.97, 1e-5
KL_WEIGHT = 0.02  #: of the divergence of a sequence
SEED = 101


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault.

    Knobs of stages and blocks are those of the last one.
    """

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'distributions' (PyTorch): torch.distributions, interpolation;
    #: 'written' (PyTorch): weight norm, group norm and dilated convolutions in plain arithmetic,
    #: snake by cosines; 'unfolded' (MindSpore): convolutions of one step by linear layers, dilated
    #: ones tap by tap, the terms of the loss in other forms
    variant: str = ""
    is_activated_first: bool = False  #: snake before the group norm
    deviation_factor: float = 0.5  #: the deviation is exp(deviation_factor * log_variance)
    latent_gradient: float = 1.0  #: the gradient of what is drawn is multiplied by it
    dilation: int = DILATIONS[-1]
    is_magnitude_of_all: bool = False  #: weight norm over the whole weight, not output by output
    are_gates_first: bool = False  #: the first half of the channels is the gate
    is_upsampling_half: bool = False  #: the transposed convolution in bfloat16
    is_snake_divided: bool = True  #: by alpha, behind the transposed convolution
    is_tiled: bool = False  #: the sequence is repeated as a whole, not sample by sample
    has_log_scale: bool = True  #: the logarithm of the scale is a term of the loss
    kl_reduction: str = "sequences"  #: the divergence is summed over a sequence; or 'elements'
    is_mean_stopped: bool = False  #: no gradient from the divergence to the mean
    is_padded_around: bool = False  #: the dilated convolution sees later steps, too
    groups: int = GROUPS  #: of the group norm
    residual_scale: float = 1.0  #: of the residual sum in front of the last block
    is_sample_stopped: bool = False  #: no gradient flows through what is drawn from the posterior
    is_first_emphasized: bool = False  #: the first sample, too, as if it came after itself
    #: the gradient of all causal paddings begins at the padding; MindSpore only
    is_padding_gradient_early: bool = False
    is_target_emphasized: bool = False  #: waveforms of the loss; PyTorch only

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        """Return waveforms (BATCH, 1, SAMPLES) and noise (BATCH, LATENT, STEPS), float32."""
        rng = np.random.default_rng(SEED + 1)
        times = np.arange(SAMPLES)
        pitches = rng.uniform(0.1, 0.6, (BATCH, 1, 1))
        waves = np.sin(pitches * times) + 0.5 * rng.standard_normal((BATCH, 1, SAMPLES))
        noise = rng.standard_normal((BATCH, LATENT, STEPS))
        return waves.astype(np.float32), noise.astype(np.float32)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    rng = weights.rng

    def add_normed(path: str, n_outputs: int, n_inputs: int, kernel: int) -> None:
        direction = rng.standard_normal((n_outputs, n_inputs, kernel))
        magnitude = rng.uniform(0.7, 1.6, (n_outputs, 1, 1))
        weights[f"{path}.direction"] = direction.astype(np.float32)
        weights[f"{path}.magnitude"] = magnitude.astype(np.float32)
        weights.add_bias(path, n_outputs)

    def add_alpha(path: str, n_channels: int) -> None:
        weights[f"{path}.alpha"] = rng.uniform(0.5, 2.0, (1, n_channels, 1)).astype(np.float32)

    for n in range(STAGES):
        add_normed(f"encoder.{n}.conv", CHANNELS, CHANNELS if n else 1, ENCODER_KERNEL)
        weights.add_norm(f"encoder.{n}.norm", CHANNELS)
        add_alpha(f"encoder.{n}", CHANNELS)
    weights.add_linear("posterior", 2 * LATENT, CHANNELS, 1)
    weights.add_linear("entry", CHANNELS, LATENT, 1)
    for n in range(BLOCKS):
        add_normed(f"blocks.{n}.dilated", 2 * CHANNELS, CHANNELS, KERNEL)
        weights.add_linear(f"blocks.{n}.skip", CHANNELS, CHANNELS, 1)
        if n < BLOCKS - 1:
            weights.add_linear(f"blocks.{n}.residual", CHANNELS, CHANNELS, 1)
    weights.add_matrix("upsampling", CHANNELS, HALF, ENCODER_KERNEL)
    weights.add_bias("upsampling", HALF)
    add_alpha("upsampling", HALF)
    weights.add_linear("output", 2, HALF, 3)
    return Model("wave", weights)
