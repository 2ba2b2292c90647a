"""The U-Net in NumPy: sizes, knobs, weights and batch.

Images (batch, 3, 16, 16) and noise are mixed by the schedule of their time steps; the net predicts
the noise. Two resolutions; the lower one has attention. Weights:

    conv_in, conv_out, downsample, upsample   3x3 convolutions with bias
    time.1, time.2                            linear layers of the time embedding
    down.0, down.1, middle.0, middle.1, up.1, up.0
                            residual blocks: norm1, conv1, time, norm2, conv2, and shortcut (1x1) if
                            the number of channels changes
    down.1.attention, middle.attention        norm, q, k, v, o
    norm_out                                  group norm
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

N_STEPS = 1000  #: of the noise schedule
MAX_PERIOD = 10000.0
#: Residual blocks: name, channels in and out. Those of the way up also read a skip connection.
BLOCKS = (
    ("down.0", 16, 16),
    ("down.1", 16, 32),
    ("middle.0", 32, 32),
    ("middle.1", 32, 32),
    ("up.1", 64, 32),
    ("up.0", 48, 16),
)
ATTENTIONS = ("down.1.attention", "middle.attention")


@dataclass(frozen=True)
class Model:
    """Everything a net needs. Knobs say what one place computes beyond its weights."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: 'names', 'unfolded', 'expanded' (PyTorch) or 'decomposition' (both), see the nets
    variant: str = ""
    batch_size: int = 2
    image: int = 16  #: pixels along an edge
    width: int = 16  #: channels of the higher resolution
    groups: int = 4
    heads: int = 4
    time_dim: int = 32

    middle_groups: int = 4  #: of the norms in middle.0
    down_eps: float = 1e-5  #: of the norms in down.1
    up_activation: str = "silu"  #: of up.1: 'silu' or 'gelu' (erf)
    #: 'symmetric': one row around; 'same': none before and one after, as some frameworks' "same"
    downsample_padding: str = "symmetric"
    resize_mode: str = "nearest"  #: 'nearest' or 'bilinear'
    time_order: str = "cos_sin"  #: which half comes first
    attention_scale: float = 1.0  #: in middle.attention, on top of 1 / sqrt(head_dim)
    skip_source: str = "block"  #: what up.0 reads: the output of down.0 'block', or of 'conv_in'
    skip_order: str = "hidden_first"  #: of the concatenation in up.1; or 'skip_first'
    is_skip_detached: bool = False  #: no gradient through the skip connection of up.0
    loss_target: str = "noise"  #: or 'images'
    loss_kind: str = "mse"  #: or 'l1'
    frequency_shift: int = 0  #: frequencies of the time steps are those of so many fewer
    output_scale: float = 1.0  #: of the sum in middle.1
    has_middle_skip: bool = True  #: middle.0 adds its input
    softmax_axis: int = -1  #: of the scores (batch, heads, queries, keys) in middle.attention
    is_time_added_late: bool = False  #: in up.1 behind the second norm, not before it
    step_scale: float = 1.0  #: of the time steps in their embedding
    time_gradient: float = 1.0  #: the gradient of the time embedding is multiplied by it
    schedule_offset: int = 0  #: added to the time steps where they read the schedule
    is_variance_unbiased: bool = False  #: the norms of middle.1 divide by one element less
    is_time_activated: bool = True  #: silu of the time embedding, in each block
    are_heads_interleaved: bool = False  #: in middle.attention, a head has every heads-th channel
    are_angles_half: bool = False  #: time steps times frequencies in float16
    first_padding: str = "zeros"  #: of conv_in; or 'reflect'
    snr_limit: float = 0.0  #: > 0: a loss counts min(ratio, limit) / ratio of signal to noise
    are_pixels_unmoved: bool = False  #: in middle.attention, channels are read as if they were last
    is_attention_input_normed: bool = False  #: middle.attention adds its input behind the norm
    is_softmax_gradient_partial: bool = False  #: in middle.attention, that of the sum is missing
    is_norm_mean_constant: bool = False  #: in norm_out, the gradient through the mean is missing
    is_shortcut_activated: bool = False  #: the 1x1 ones read what conv1 reads, not the input

    def schedule(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the shares of image and noise (N_STEPS,), float32, by time step."""
        betas = np.linspace(1e-4, 0.02, N_STEPS)
        image_share = np.cumprod(1 - betas)
        return tuple(np.sqrt(share).astype(np.float32) for share in (image_share, 1 - image_share))

    def batch(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return images and noise, float32 (batch, 3, image, image), and time steps, int32."""
        rng = np.random.default_rng(22)
        shape = (self.batch_size, 3, self.image, self.image)
        images, noise = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
        steps = np.array([17, 431], dtype=np.int32)
        return images, noise, steps


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(21)
    model = Model("unet", weights)
    width, wide = model.width, 2 * model.width
    weights.add_linear("conv_in", width, 3, 3, 3)
    weights.add_linear("time.1", model.time_dim, width)
    weights.add_linear("time.2", model.time_dim, model.time_dim)
    for name, n_in, n_out in BLOCKS:
        weights.add_norm(f"{name}.norm1", n_in)
        weights.add_linear(f"{name}.conv1", n_out, n_in, 3, 3)
        weights.add_linear(f"{name}.time", n_out, model.time_dim)
        weights.add_norm(f"{name}.norm2", n_out)
        weights.add_linear(f"{name}.conv2", n_out, n_out, 3, 3)
        if n_in != n_out:
            weights.add_linear(f"{name}.shortcut", n_out, n_in, 1, 1)
    for name in ATTENTIONS:
        weights.add_norm(f"{name}.norm", wide)
        for projection in "qkvo":
            weights.add_linear(f"{name}.{projection}", wide, wide)
    weights.add_linear("downsample", width, width, 3, 3)
    weights.add_linear("upsample", wide, wide, 3, 3)
    weights.add_norm("norm_out", width)
    weights.add_linear("conv_out", 3, width, 3, 3)
    return model
