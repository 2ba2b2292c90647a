"""Global weather forecasting in NumPy: sizes, knobs, weights, constant tables and batch.

In the manner of Pangu-Weather (https://arxiv.org/abs/2211.02556), with a spectral branch of
FourCastNet (https://arxiv.org/abs/2202.11214) and forecasts of normalized differences as in
GraphCast (https://arxiv.org/abs/2212.12794). A state has SURFACE variables and UPPER variables on
LEVELS of pressure, on a grid of LATITUDES, poles included, and LONGITUDES. It is normalized by the
mean and deviation of each variable, and level. A step reads a state, the CONSTANTS (land, soil,
topography) and the sun's height of its time as channels of the surface.

Patches are embedded by convolutions of stride PATCH and kernel KERNEL: the grid goes on around the
globe in longitude, its first and last latitude are repeated (1 and 2 times), and a level of zeros
is added on top. The surface is the first of DEPTHS layers of tokens. A block is

    x = x + norm1(attention(x));  x = x + norm2(down(gelu(up(x))))

with attention in windows of WINDOW tokens (depth, row, column). Scores get a bias from a table of
positions, absolute ones in depth and row, relative ones in column, for each kind of window; a kind
is a window's place in depth and row. Every second block has its tokens rolled back by SHIFT; tokens
that the roll brought from the top or the other pole attend only to each other, while columns go on
around the globe. Two blocks; four neighbors merged, normed and reduced; a block, a spectral branch
and a shifted block; upsampling, whose channels are cells (row, column, channels), with a norm and a
linear layer; a shifted block. Its output, joined to that of the second block (first), is recovered
by transposed convolutions, and cropped.

The spectral branch adds to x, of norm(x): discrete Fourier transform of each row of a layer, the
first MODES of it; two block-diagonal complex linear layers, with a relu between them; soft
shrinkage; and the inverse transform. Outputs times DIFFERENCES, the deviations of a step's
differences relative to those of a state, are added to the state, for STEPS steps. The loss is

    sum over steps of STEP_WEIGHTS * (upper + SURFACE_WEIGHT * surface)
        + ANOMALY_WEIGHT * (1 - correlation)

upper and surface are mean L1 errors times weights of variables, levels and latitudes: levels by
their pressure, latitudes by their cosine, both with mean 1. The correlation is that of the last
step's anomalies from the climatology, summed over the globe with the latitudes' weights, mean of
samples, variables and levels. Weights:

    embed.surface, embed.upper           (channels, variables, [2,] KERNEL, KERNEL) with bias
    encoder.N, middle.N, decoder.0       attention.{qkv,o} linear, attention.table (positions,
                                         kinds, heads), norm1, mlp.{up,down} linear, norm2
    merge.norm, merge.reduction          (4 * channels), (2 * channels, 4 * channels)
    spectral.norm, spectral.{0,1}        weight (2, SPECTRAL_BLOCKS, in, out), bias (2, ...): real
                                         and imaginary parts
    upsample.expand, norm, mix           linear without bias around a norm
    recover.surface, recover.upper       (2 * channels, variables, [2,] 2, 2) with bias
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

BATCH, STEPS = 2, 2
LATITUDES, LONGITUDES = 15, 24
PRESSURES = (1000, 850, 500, 250, 50)  #: of levels, from the ground
SURFACE, UPPER, LEVELS, CONSTANTS = 4, 5, len(PRESSURES), 3
SURFACE_CHANNELS = SURFACE + CONSTANTS + 1
SOILS = 7
PATCH, KERNEL = 2, 4
DEPTHS = 1 + (LEVELS + 1) // PATCH
GRIDS = ((DEPTHS, 8, 12), (DEPTHS, 4, 6))  #: depth, rows and columns of tokens
CHANNELS, HEADS, MLP_RATIO = (18, 36), (3, 6), 2
WINDOW, SHIFT = (2, 2, 3), (1, 1, 1)
TOKENS = WINDOW[0] * WINDOW[1] * WINDOW[2]  #: of a window
MASKED = -100.0  #: added to scores of tokens that are no neighbors
MODES, SPECTRAL_BLOCKS, SHRINKAGE = 3, 4, 0.01
EPS = 1e-5
SURFACE_MEANS = (100960.0, -0.05, 0.19, 278.5)  #: pressure, wind u and v, temperature
SURFACE_DEVIATIONS = (1330.0, 5.5, 4.8, 21.2)
SURFACE_DIFFERENCES = (0.35, 0.55, 0.6, 0.3)
SURFACE_VARIABLE_WEIGHTS = (1.5, 0.77, 0.77, 3.0)
UPPER_MEANS = (  #: geopotential, humidity, temperature, wind u and v
    (740.0, 13750.0, 54100.0, 101200.0, 199300.0),
    (7.0, 4.6, 0.86, 0.13, 0.03),
    (281.0, 274.5, 252.9, 222.7, 212.4),
    (-0.1, 1.4, 6.5, 13.3, 5.6),
    (0.2, 0.15, -0.02, -0.03, 0.01),
)
UPPER_DEVIATIONS = (
    (1070.0, 1470.0, 3350.0, 5540.0, 7200.0),
    (5.9, 4.1, 1.08, 0.17, 0.04),
    (17.1, 15.6, 13.1, 8.5, 14.2),
    (6.1, 8.2, 12.0, 17.5, 15.3),
    (5.3, 6.3, 9.2, 13.4, 7.1),
)
UPPER_DIFFERENCES = (0.25, 0.6, 0.3, 0.45, 0.65)
UPPER_VARIABLE_WEIGHTS = (3.0, 0.6, 1.5, 0.77, 0.54)
SURFACE_WEIGHT, STEP_WEIGHTS, ANOMALY_WEIGHT = 0.25, (1.0, 0.7), 0.8
SEED = 2211


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'written' (MindSpore): norms, softmax and the correlation in
    #: plain arithmetic, own layers for q, k and v, biases by one-hot vectors, one product for both
    #: parts of the transform, patches recovered by products; 'fused' (PyTorch): other names, fused
    #: attention with bias and mask as one tensor, tokens stay on their grid, patches by unfolding
    variant: str = ""
    are_columns_masked: bool = False  #: columns do not go on around the globe
    are_cells_last: bool = False  #: upsampled channels are (channels, row, column); MindSpore only
    are_modes_single: bool = False  #: the inverse has no conjugate modes; MindSpore only
    is_inverse_gradient_undivided: bool = False  #: by the number of columns; MindSpore only
    is_correlation_joint: bool = False  #: sums are those of the batch; MindSpore only
    longitude_padding: str = "circular"  #: or 'replicate'; PyTorch only
    are_differences_scaled: bool = True  #: else outputs are added as they are; PyTorch only
    is_state_detached: bool = False  #: between two steps; PyTorch only
    is_padding_gradient_cropped: bool = False  #: nothing from around the globe; PyTorch only
    are_level_weights_reversed: bool = False  #: the highest level's first
    are_constants_upside_down: bool = False  #: the south pole's row first
    first_row: int = 0  #: of recovered latitudes that stay; MindSpore only
    is_sun_still: bool = False  #: the first step's height in all steps; PyTorch only

    def level_weights(self) -> np.ndarray:
        """Return the weights of levels, float32 (LEVELS,)."""
        pressures = PRESSURES[::-1] if self.are_level_weights_reversed else PRESSURES
        return (np.array(pressures) / np.mean(pressures)).astype(np.float32)

    def mask(self, stage: int) -> np.ndarray:
        """Return what is added to scores after a roll, float32 (columns, kinds, TOKENS, TOKENS) of
        windows.
        """
        regions = np.zeros(GRIDS[stage])
        for axis in range(3 if self.are_columns_masked else 2):
            n, window, shift = GRIDS[stage][axis], WINDOW[axis], SHIFT[axis]
            numbers = np.repeat([0, 1, 2], (n - window, window - shift, shift))
            regions = 3 * regions + np.expand_dims(numbers, [k for k in range(3) if k != axis])
        windows = partition(regions[None, ..., None])[..., 0]
        is_other = windows[..., :, None] != windows[..., None, :]
        return np.where(is_other, MASKED, 0.0).astype(np.float32)

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return, float32 in the units of the variables, the sun's height and constants apart:

        surface (BATCH, STEPS + 1, SURFACE, LATITUDES, LONGITUDES) and upper states (BATCH,
        STEPS + 1, UPPER, LEVELS, LATITUDES, LONGITUDES), the first of them known; the sun's height
        (BATCH, STEPS, LATITUDES, LONGITUDES); constants (CONSTANTS, LATITUDES, LONGITUDES);
        climatologies of surface and upper states at the last step.
        """
        rng = np.random.default_rng(SEED + 1)
        surface, surface_climatology = _draw_states(
            rng, SURFACE_MEANS, SURFACE_DEVIATIONS, SURFACE_DIFFERENCES
        )
        upper, upper_climatology = _draw_states(
            rng, UPPER_MEANS, UPPER_DEVIATIONS, np.array(UPPER_DIFFERENCES)[:, None]
        )
        latitudes = np.deg2rad(np.linspace(90, -90, LATITUDES))[:, None]
        longitudes = 2 * np.pi * np.arange(LONGITUDES) / LONGITUDES
        hours = np.array([0.6, 3.9])[:, None] + np.pi / 2 * np.arange(STEPS)
        declinations = np.array([0.35, -0.2])[:, None, None, None]
        sun = np.sin(latitudes) * np.sin(declinations) + np.cos(latitudes) * np.cos(
            declinations
        ) * np.cos(longitudes + hours[:, :, None, None])
        constants = _draw_constants(rng)
        if self.are_constants_upside_down:
            constants = constants[:, ::-1]
        arrays = (
            surface,
            upper,
            np.maximum(sun, 0),
            constants,
            surface_climatology,
            upper_climatology,
        )
        return tuple(np.ascontiguousarray(values, np.float32) for values in arrays)


def latitude_weights() -> np.ndarray:
    """Return the weights of latitudes, float32 (LATITUDES,)."""
    cosines = np.cos(np.deg2rad(np.linspace(90, -90, LATITUDES)))
    return (cosines / cosines.mean()).astype(np.float32)


def partition(x: np.ndarray) -> np.ndarray:
    """Return tokens (batch, *grid, channels) as (batch * columns, kinds, TOKENS, channels)."""
    batch, *grid, channels = x.shape
    depths, rows, columns = (n // window for n, window in zip(grid, WINDOW, strict=True))
    x = x.reshape(batch, depths, WINDOW[0], rows, WINDOW[1], columns, WINDOW[2], channels)
    x = x.transpose(0, 5, 1, 3, 2, 4, 6, 7)
    return x.reshape(batch * columns, depths * rows, TOKENS, channels)


def count_windows(stage: int) -> tuple[int, int, int]:
    """Return the numbers of windows along the axes of a stage's grid."""
    depths, rows, columns = (n // window for n, window in zip(GRIDS[stage], WINDOW, strict=True))
    return depths, rows, columns


def position_index() -> np.ndarray:
    """Return the rows of a table of positions, int32 (TOKENS, TOKENS), of queries and keys."""
    depths, rows, columns = WINDOW
    axes = np.meshgrid(*(np.arange(n) for n in WINDOW), indexing="ij")
    depth, row, column = (axis.ravel() for axis in axes)
    index = depth[:, None] * depths + depth
    index = index * rows**2 + row[:, None] * rows + row
    index = index * (2 * columns - 1) + column[:, None] - column + columns - 1
    return index.astype(np.int32)


def fourier_tables() -> tuple[np.ndarray, np.ndarray]:
    """Return the cosines and negative sines of MODES, float32 (columns, MODES) each."""
    columns = GRIDS[1][2]
    angles = 2 * np.pi / columns * np.outer(np.arange(columns), np.arange(MODES))
    return np.cos(angles).astype(np.float32), -np.sin(angles).astype(np.float32)


def _draw_fields(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Return smooth fields (*shape, LATITUDES, LONGITUDES) of mean 0 and deviation 1."""
    columns = 2 * np.pi * np.arange(LONGITUDES) / LONGITUDES
    rows = np.pi * np.arange(LATITUDES) / (LATITUDES - 1)
    fields = 0.5 * rng.standard_normal((*shape, LATITUDES, LONGITUDES))
    for number in range(1, 6):
        phases = rng.uniform(0, 2 * np.pi, (2, *shape, 1, 1))
        wave = np.cos(number * columns + phases[0]) * np.sin(rows)[:, None]
        fields += rng.uniform(0.5, 1.5, (*shape, 1, 1)) * wave
        fields += np.cos(number * rows[:, None] + phases[1]) / number
    fields -= fields.mean(axis=(-2, -1), keepdims=True)
    return fields / fields.std(axis=(-2, -1), keepdims=True)


def _draw_states(
    rng: np.random.Generator, means: object, deviations: object, differences: object
) -> tuple[np.ndarray, np.ndarray]:
    """Return states of all steps and the climatology of the last one."""
    mean, deviation, difference = (
        np.asarray(values, float)[..., None, None] for values in (means, deviations, differences)
    )
    shape = mean.shape[:-2]
    climatology = 0.7 * _draw_fields(rng, 1, *shape)
    climatology = climatology + 0.1 * _draw_fields(rng, BATCH, *shape)
    states = [climatology + 0.7 * _draw_fields(rng, BATCH, *shape)]
    for _ in range(STEPS):
        drift = 0.8 * (np.roll(states[-1], 1, axis=-1) - states[-1])
        states.append(states[-1] + drift + 0.6 * difference * _draw_fields(rng, BATCH, *shape))
    return mean + deviation * np.stack(states, axis=1), mean + deviation * climatology


def _draw_constants(rng: np.random.Generator) -> np.ndarray:
    """Return masks of land, kinds of soil and topography."""
    height = _draw_fields(rng) + 0.3
    land = (height > 0).astype(float)
    blocks = rng.integers(1, SOILS + 1, (LATITUDES // 4 + 1, LONGITUDES // 4))
    soil = blocks.repeat(4, axis=0).repeat(4, axis=1)[:LATITUDES]
    topography = land * height
    return np.stack([land, land * soil / SOILS, topography])


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)

    def add_block(path: str, stage: int) -> None:
        channels, heads = CHANNELS[stage], HEADS[stage]
        depths, rows, _ = count_windows(stage)
        positions = (WINDOW[0] * WINDOW[1]) ** 2 * (2 * WINDOW[2] - 1)
        weights.add_linear(f"{path}.attention.qkv", 3 * channels, channels)
        weights.add_table(f"{path}.attention.table", positions, depths * rows, heads)
        weights.add_linear(f"{path}.attention.o", channels, channels)
        weights.add_norm(f"{path}.norm1", channels)
        weights.add_linear(f"{path}.mlp.up", MLP_RATIO * channels, channels)
        weights.add_linear(f"{path}.mlp.down", channels, MLP_RATIO * channels)
        weights.add_norm(f"{path}.norm2", channels)

    narrow, wide = CHANNELS
    weights.add_linear("embed.surface", narrow, SURFACE_CHANNELS, KERNEL, KERNEL)
    weights.add_linear("embed.upper", narrow, UPPER, PATCH, KERNEL, KERNEL)
    add_block("encoder.0", 0)
    add_block("encoder.1", 0)
    weights.add_norm("merge.norm", 4 * narrow)
    weights.add_matrix("merge.reduction", wide, 4 * narrow)
    add_block("middle.0", 1)
    weights.add_norm("spectral.norm", wide)
    size = wide // SPECTRAL_BLOCKS
    for n in range(2):
        shape = (2, SPECTRAL_BLOCKS, size)
        values = weights.rng.standard_normal((*shape, size)) / np.sqrt(2 * size)
        weights[f"spectral.{n}.weight"] = values.astype(np.float32)
        biases = 0.1 * weights.rng.standard_normal(shape)
        weights[f"spectral.{n}.bias"] = biases.astype(np.float32)
    add_block("middle.1", 1)
    weights.add_matrix("upsample.expand", 4 * narrow, wide)
    weights.add_norm("upsample.norm", narrow)
    weights.add_matrix("upsample.mix", narrow, narrow)
    add_block("decoder.0", 0)
    for name, variables, kernel in (
        ("surface", SURFACE, (PATCH, PATCH)),
        ("upper", UPPER, (PATCH, PATCH, PATCH)),
    ):
        values = weights.rng.standard_normal((2 * narrow, variables, *kernel))
        values *= 0.5 / np.sqrt(2 * narrow)
        weights[f"recover.{name}.weight"] = values.astype(np.float32)
        weights.add_bias(f"recover.{name}", variables)
    return Model("weather", weights)
