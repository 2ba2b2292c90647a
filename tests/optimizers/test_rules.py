"""The arithmetic of the rules: properties that hold for all gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dumpdiff.optimizers.adafactor import Adafactor
from dumpdiff.optimizers.adam import EARLY, INSIDE, OUTSIDE, Adam
from dumpdiff.optimizers.fit import Attempt, UpdateData, fit_rule
from dumpdiff.optimizers.gradient_scaling import (
    GLOBAL_NORM,
    STEP_FACTORS,
    TENSOR_NORM,
    GradientScaling,
)
from dumpdiff.optimizers.history import (
    History,
    adopt_narrow_dtype,
    build_history,
    compute_half_ulp,
    detect_stored_dtype,
)
from dumpdiff.optimizers.lamb import NORM_LIMITED, RATIO_LIMITED, Lamb
from dumpdiff.optimizers.muon import MATCHED, Muon, orthogonalize
from dumpdiff.optimizers.rule import DECOUPLED, L2, HyperparameterValues, Rule
from dumpdiff.optimizers.search import RULES
from dumpdiff.optimizers.sgd import DAMPENED, MOMENTUM, NESTEROV, PLAIN, SGD

SHAPE, STEPS = (6, 4), 3
VALUES = {
    "alpha": 0.99,
    "lion_beta2": 0.99,
    "accumulator": 0.0,
    "momentum_decay": 0.004,
    "slow_share": 5e-4,
    "beta3": 0.9999,
    "moment_exponent": 0.8,
    "step_limit": 1.0,
    "smallest_size": 1e-3,
    "beta1": 0.9,
    "beta2": 0.99,
    "epsilon": 1e-8,
    "momentum": 0.9,
    "dampening": 0.2,
    "decay": 0.1,
}
ONES = np.ones(STEPS)

seeds = st.integers(0, 2**32 - 1)
rates = st.floats(1e-5, 1.0)


def draw_history(seed: int, **fields: Any) -> History:
    """Return a parameter that does not move, with these fields."""
    generator = np.random.default_rng(seed)
    weights = np.repeat(generator.standard_normal((1, 24)), STEPS + 1, axis=0)
    return History(
        "w",
        SHAPE,
        **{"weights": weights, "gradients": generator.standard_normal((STEPS, 24)), **fields},
    )


def compute_directions(
    rule: Rule, history: History, factors: np.ndarray = ONES, **other_values: float
) -> np.ndarray:
    """Return the directions of all steps, with a linear decay."""
    values: HyperparameterValues = {**VALUES, **other_values}
    direction, decayed = rule.compute_terms(history, factors, values)
    return direction if decayed is None else direction + values["decay"] * decayed


@given(seeds, st.floats(1e-3, 1e3))
def test_adam_is_invariant_to_a_factor_on_all_gradients(seed: int, factor: float) -> None:
    for rule in (Adam(), Adam(corrected=False)):
        history = draw_history(seed)
        np.testing.assert_allclose(
            compute_directions(rule, history, factor * ONES, epsilon=0),
            compute_directions(rule, history, epsilon=0),
            rtol=1e-9,
        )


@given(seeds)
def test_the_first_step_of_adam_is_the_sign_of_the_gradient(seed: int) -> None:
    history = draw_history(seed)
    np.testing.assert_allclose(
        compute_directions(Adam(), history, epsilon=0)[0], np.sign(history.gradients[0]), rtol=1e-9
    )


@given(seeds, st.floats(0.5, 0.99), st.floats(0.5, 0.9999))
def test_without_correction_steps_are_longer_by_a_known_factor(
    seed: int, beta1: float, beta2: float
) -> None:
    history, betas = draw_history(seed), {"beta1": beta1, "beta2": beta2, "epsilon": 0.0}
    t = np.arange(1, STEPS + 1)[:, None]
    longer = (1 - beta1**t) / np.sqrt(1 - beta2**t)
    np.testing.assert_allclose(
        compute_directions(Adam(corrected=False), history, **betas),
        longer * compute_directions(Adam(), history, **betas),
        rtol=1e-7,
    )


@given(seeds)
def test_epsilon_in_each_place_at_the_first_step(seed: int) -> None:
    history = draw_history(seed)
    g, correction = history.gradients[0], 1 - VALUES["beta2"]
    for place, denominator in (
        (OUTSIDE, np.abs(g) + 0.01),
        (EARLY, np.abs(g) + 0.01 / np.sqrt(correction)),
        (INSIDE, np.sqrt(g**2 + 0.01)),
    ):
        np.testing.assert_allclose(
            compute_directions(Adam(epsilon=place), history, epsilon=0.01)[0],
            g / denominator,
            rtol=1e-9,
        )


@given(seeds, st.floats(0, 0.5))
def test_l2_decay_is_a_gradient_of_the_weights(seed: int, decay: float) -> None:
    history = draw_history(seed)
    added = draw_history(seed, gradients=history.gradients + decay * history.weights[:-1])
    for kind in (PLAIN, MOMENTUM, NESTEROV, DAMPENED):
        np.testing.assert_allclose(
            compute_directions(SGD(kind, L2), history, decay=decay),
            compute_directions(SGD(kind), added),
            rtol=1e-9,
            atol=1e-12,
        )
    np.testing.assert_allclose(
        compute_directions(Adam(decay=L2), history, decay=decay),
        compute_directions(Adam(), added),
        rtol=1e-9,
        atol=1e-12,
    )


@given(seeds)
def test_rules_are_their_reductions_when_a_number_is_zero(seed: int) -> None:
    history = draw_history(seed)
    zero = {
        "slow_share": 0.0,
        "momentum": 0.0,
        "decay": 0.0,
        "dampening": 0.0,
        "beta1": 0.0,
        "epsilon": 0.0,
    }
    for rule in [rule for rule in RULES if rule.family != "Muon"]:
        for simpler in rule.reductions:
            np.testing.assert_allclose(
                compute_directions(rule, history, **zero),
                compute_directions(simpler, history, **zero),
                rtol=1e-12,
            )


@given(seeds, st.floats(1e-3, 1e3))
def test_lamb_moves_each_tensor_by_the_norm_of_its_weights(seed: int, factor: float) -> None:
    history = draw_history(seed)
    norms = np.linalg.norm(history.weights[:-1], axis=1)
    directions = compute_directions(Lamb(decay=DECOUPLED), history, factor * ONES)
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1), norms, rtol=1e-9)


@given(seeds)
def test_lamb_limits_the_norm_of_the_weights_or_the_ratio(seed: int) -> None:
    history = draw_history(seed)
    heavy = draw_history(seed, weights=100 * history.weights)
    limited = compute_directions(Lamb(limit=NORM_LIMITED), heavy)
    np.testing.assert_allclose(np.linalg.norm(limited, axis=1), 10.0, rtol=1e-9)
    clipped = compute_directions(Lamb(limit=RATIO_LIMITED), heavy)
    np.testing.assert_allclose(clipped, compute_directions(Adam(), heavy), rtol=1e-9)


@given(seeds)
def test_adafactor_of_a_matrix_of_rank_one_is_the_sign_at_first(seed: int) -> None:
    generator = np.random.default_rng(seed)
    rows, columns = generator.standard_normal(SHAPE[0]), generator.standard_normal(SHAPE[1])
    gradient = np.outer(rows, columns).reshape(-1)
    history = draw_history(seed, gradients=np.stack([gradient] * STEPS))
    directions = compute_directions(Adafactor(is_relative=False), history)
    np.testing.assert_allclose(directions, np.sign(history.gradients), rtol=1e-9)


@given(seeds, st.floats(0.01, 10.0))
def test_a_step_of_adafactor_has_a_limited_root_mean_square(seed: int, limit: float) -> None:
    history = draw_history(seed)
    directions = compute_directions(Adafactor(is_relative=False), history, step_limit=limit)
    assert np.all(np.sqrt(np.mean(directions**2, axis=1)) <= limit * (1 + 1e-9))
    sizes = np.sqrt(np.mean(history.weights[:-1] ** 2, axis=1, keepdims=True))
    relative = compute_directions(Adafactor(), history, step_limit=limit)
    np.testing.assert_allclose(relative, sizes * directions, rtol=1e-9)


@given(seeds, st.floats(-10, 10))
def test_sgd_is_linear(seed: int, factor: float) -> None:
    history = draw_history(seed)
    for kind in (PLAIN, MOMENTUM, NESTEROV, DAMPENED):
        np.testing.assert_allclose(
            compute_directions(SGD(kind), history, factor * ONES),
            factor * compute_directions(SGD(kind), history),
            atol=1e-9,
        )


@given(seeds)
def test_moments_continue_a_run(seed: int) -> None:
    """Two steps, and one more from their moments, are three steps."""
    history = draw_history(seed)
    beta1, beta2 = VALUES["beta1"], VALUES["beta2"]
    first, second, buffer = np.zeros(24), np.zeros(24), history.gradients[0]
    for t, g in enumerate(history.gradients[:2]):
        first, second = beta1 * first + (1 - beta1) * g, beta2 * second + (1 - beta2) * g**2
        buffer = VALUES["momentum"] * buffer + g if t else buffer
    later_fields = {
        "weights": history.weights[2:],
        "gradients": history.gradients[2:],
        "previous_steps": 2,
    }
    later = draw_history(seed, first_moment=first, second_moment=second, **later_fields)
    np.testing.assert_allclose(
        compute_directions(Adam(), later, np.ones(1))[0],
        compute_directions(Adam(), history)[2],
        rtol=1e-9,
    )
    np.testing.assert_allclose(
        compute_directions(
            SGD(MOMENTUM), draw_history(seed, first_moment=buffer, **later_fields), np.ones(1)
        )[0],
        compute_directions(SGD(MOMENTUM), history)[2],
        rtol=1e-9,
    )


@given(seeds, st.integers(2, 12), st.integers(2, 12), st.floats(1e-3, 1e3))
def test_muon_moves_along_a_nearly_orthogonal_matrix(
    seed: int, rows: int, columns: int, factor: float
) -> None:
    matrix = np.random.default_rng(seed).standard_normal((rows, columns))
    factor_matrix = orthogonalize(matrix)
    np.testing.assert_allclose(orthogonalize(matrix.T), factor_matrix.T, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(orthogonalize(factor * matrix), factor_matrix, rtol=1e-6, atol=1e-9)
    u, values, v = np.linalg.svd(matrix, full_matrices=False)
    stretched = np.einsum("ia,ij,aj->a", u, factor_matrix, v)  # the singular vectors are unchanged
    large = values > 0.05 * np.linalg.norm(
        values
    )  # five iterations do not reach the smallest values
    assert np.all((stretched[large] > 0.6) & (stretched[large] < 1.3))


def test_the_scale_of_muon_is_that_of_adamw() -> None:
    history = draw_history(0)
    original, matched = (
        compute_directions(Muon(), history),
        compute_directions(Muon(scale=MATCHED), history),
    )
    np.testing.assert_allclose(matched / original, 0.2 * np.sqrt(6) / np.sqrt(6 / 4))


@given(seeds, st.floats(0.01, 100))
def test_a_clipped_gradient_is_no_longer_than_the_limit(seed: int, limit: float) -> None:
    history = draw_history(seed)
    for kind in (GLOBAL_NORM, TENSOR_NORM):
        factors = GradientScaling(kind).compute_factors(history, history.norms, {"clip": limit})
        assert np.all(factors * history.norms <= limit * (1 + 1e-12))
        assert np.all(factors[history.norms <= limit] == 1)


def test_free_factors_are_relative_to_the_first_step() -> None:
    assert GradientScaling(STEP_FACTORS).list_hyperparameters(3) == ("factor 2", "factor 3")
    factors = GradientScaling(STEP_FACTORS).compute_factors(
        draw_history(0), ONES, {"factor 2": 0.5, "factor 3": 2.0}
    )
    assert factors.tolist() == [1.0, 0.5, 2.0]


@given(
    seeds,
    rates,
    st.floats(0, 0.5),
    st.sampled_from([rule for rule in RULES if rule.decay == DECOUPLED]),
)
@settings(max_examples=50)
def test_learning_rate_and_decoupled_decay_are_solved_for(
    seed: int, rate: float, decay: float, rule: Rule
) -> None:
    values = {**VALUES, "decay": decay}
    history = draw_history(seed, stored_dtype="float64")
    weights = [history.weights[0]]
    for t in range(STEPS):
        current = draw_history(
            seed, weights=np.stack([*weights, *[weights[-1]] * (STEPS + 1 - len(weights))])
        )
        weights.append(weights[-1] - rate * compute_directions(rule, current, **values)[t])
    fit = fit_rule(
        Attempt(
            rule,
            GradientScaling(),
            UpdateData((draw_history(seed, weights=np.stack(weights)),), history.norms),
            values,
        )
    )
    assert fit.rates == pytest.approx([rate] * STEPS, rel=1e-6)
    assert fit.values["decay"] == pytest.approx(decay, rel=1e-5, abs=1e-7)
    assert fit.residual < 1e-6


@given(st.lists(st.floats(-1e4, 1e4, width=32).filter(lambda x: abs(x) > 1e-30), min_size=1))
def test_half_an_ulp(values: list[float]) -> None:
    array = np.array(values, dtype=np.float32)
    expected = np.spacing(np.abs(array)).astype(np.float64) / 2
    np.testing.assert_array_equal(compute_half_ulp(array.astype(np.float64), "float32"), expected)


def test_a_parameter_of_few_values_has_the_narrow_type_of_the_others() -> None:
    values = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    bfloat = (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
    gradients = [np.ones(100, np.float32)]
    narrow = build_history("narrow", [bfloat, 2 * bfloat], gradients)
    few = build_history("few", [np.ones(100), np.full(100, 0.99609375)], gradients)
    wide = build_history("wide", [np.ones(100), np.full(100, 0.999)], gradients)
    dtypes = [history.stored_dtype for history in adopt_narrow_dtype([narrow, few, wide])]
    assert dtypes == ["bfloat16", "bfloat16", "float64"]


def test_the_stored_dtype_is_detected_from_the_values() -> None:
    values = np.random.default_rng(0).standard_normal(100)
    single = values.astype(np.float32)
    bfloat = (single.view(np.uint32) & 0xFFFF0000).view(np.float32)
    assert detect_stored_dtype(single.astype(np.float64), "float32") == "float32"
    assert detect_stored_dtype(bfloat.astype(np.float64), "float32") == "bfloat16"
    assert detect_stored_dtype(values.astype(np.float16).astype(np.float64), "float32") == "float16"
    assert detect_stored_dtype(np.ones(100), "float32") == "float32"  # equal numbers prove nothing


def test_a_history_of_a_large_parameter_is_a_sample_with_the_norm_of_all() -> None:
    weights = np.random.default_rng(0).standard_normal(200_000).astype(np.float32)
    history = build_history("w", [weights, 2 * weights], [weights])
    assert 15_000 < history.weights.shape[1] <= 1 << 14
    np.testing.assert_array_equal(history.weights[1], 2 * history.weights[0])
    assert history.norms == pytest.approx([np.linalg.norm(weights)], rel=1e-5)
    assert 1_800 < history.take_search_sample().weights.shape[1] <= 1 << 11
    assert history.take_search_sample().norms == history.norms


def test_a_matrix_is_kept_completely_if_requested() -> None:
    matrix = np.ones((200, 200), np.float32)
    assert build_history("w", [matrix, matrix], [matrix]).is_complete
    assert not build_history("w", [matrix, matrix], [matrix], keep_matrix=False).is_complete


@pytest.mark.parametrize("sizes", [(4, 4, 5), (4, 5, 4)])
def test_a_history_of_other_sizes_is_refused(sizes: tuple[int, int, int]) -> None:
    before, gradient, after = (np.ones(size, np.float32) for size in sizes)
    with pytest.raises(ValueError, match="w: 2 weights and 1 gradients"):
        build_history("w", [before, after], [gradient])
