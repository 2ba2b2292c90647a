"""What the norms that differ have in common, of real gradients changed by one effect at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dumpdiff.gradient_norms import Norms, compare
from gradient_norms.sides import (
    drop_names,
    get_depth,
    order_by_depth,
    scale_norms,
    select_parameters,
)


@pytest.mark.parametrize(
    ("factor", "summary", "cause"),
    [
        (
            65536.0,
            "all norms are 65536 times the reference's",
            "the loss scale is still in the gradients",
        ),
        (
            1 / 1024,
            "all norms are 1/1024 of the reference's",
            "the loss scale is still in the gradients",
        ),
        (8.0, "all norms are 8 times the reference's", "a sum instead of a mean over 8: devices"),
        (
            0.34423,
            "all norms are 0.34423 times the reference's",
            "one side was recorded after clipping",
        ),
    ],
)
def test_a_factor_of_all_norms_is_recognized(
    ms: Norms, pt: Norms, factor: float, summary: str, cause: str
) -> None:
    comparison = compare(scale_norms(ms, lambda path: factor), pt)
    assert (comparison.verdict, comparison.pattern_kind) == ("differ", "factor")
    assert comparison.factor == pytest.approx(factor, rel=1e-6)
    assert comparison.patterns[0].summary == summary
    assert comparison.patterns[0].cause.startswith(cause)
    assert not comparison.select_rows("differ")


def test_differences_beyond_the_factor_are_found(ms: Norms, pt: Norms) -> None:
    comparison = compare(
        scale_norms(ms, lambda path: 0.125 * (1.02 if path == "embedding.weight" else 1)), pt
    )
    assert [pattern.kind for pattern in comparison.patterns] == ["factor", "precision"]
    assert [row.path for row in comparison.select_rows("differ")] == ["embedding.weight"]


def scale_only(path: str, factor: float = 1.05) -> Callable[[str], float]:
    """Return an effect on the parameters whose name ends with ``path``."""
    return lambda name: factor if name.endswith(path) else 1.0


@pytest.mark.parametrize(
    ("effect", "pattern", "summary"),
    [
        (
            scale_only("embedding.weight", 1.02),
            "precision",
            "only the embedding's norm differs, by 2.0e-2",
        ),
        (
            scale_only("embedding.weight", 3.0),
            "embedding",
            "only the embedding's norm differs, by 2.0e0",
        ),
        (
            lambda path: 1.05 if get_depth(path) <= 1 else 1,
            "layer",
            "from layer 1 down to the embedding, those above it agree",
        ),
        (
            lambda path: 1.05
            if get_depth(path) <= 2 and path != "layers.2.mlp.down_proj.weight"
            else 1,
            "layer",
            "from layer 2 down to the embedding, those above it agree; of layer 2 still agree:"
            " mlp.down_proj.weight",
        ),
        (
            lambda path: 1.05 if "norm" in path else 1,
            "vectors",
            "only biases and norm weights differ, 18 of 18",
        ),
        (scale_only("attention.q.weight"), "module", "only attention.q.weight differ, in 4 layers"),
        (
            scale_only("layers.2.mlp.up_proj.weight"),
            "one-layer",
            "only layer 2 differs: mlp.up_proj.weight",
        ),
        (
            lambda path: 1.01 + len(path) % 7 / 20,
            "everything",
            "everywhere, including the head or the final norm",
        ),
        (
            scale_only("layers.2.mlp.up_proj.weight", 0.0),
            "no-gradient",
            "no gradient on the target for layers.2.mlp.up_proj.weight",
        ),
        (
            lambda path: np.nan if get_depth(path) <= 1 else 1,
            "nonfinite",
            "not finite on the target only: 23 norms, the first in the backward pass is layers.1.",
        ),
    ],
)
def test_the_location_of_the_differing_norms_is_recognized(
    ms: Norms, pt: Norms, effect: Callable[[str], float], pattern: str, summary: str
) -> None:
    comparison = compare(scale_norms(ms, effect), pt)
    assert (comparison.verdict, comparison.pattern_kind) == ("differ", pattern)
    assert comparison.patterns[0].summary.startswith(summary)
    assert comparison.to_stage().headline.startswith(summary)


def test_the_layer_where_the_backward_pass_diverges_is_named(ms: Norms, pt: Norms) -> None:
    (pattern,) = compare(
        scale_norms(ms, lambda path: 1.05 if get_depth(path) <= 1 else 1), pt
    ).patterns
    assert (pattern.layer, pattern.cause) == (
        1, "the backward pass, which runs from the last layer to the first, diverges in layer 1",
    )  # fmt: skip


def test_a_head_that_shares_the_embeddings_weight_is_recognized(ms: Norms, pt: Norms) -> None:
    indices = [index for index, name in enumerate(pt.names) if name != "lm_head.weight"]
    tied = select_parameters(pt, indices)
    comparison = compare(
        ms, scale_norms(tied, lambda path: 2.5 if path == "embedding.weight" else 1)
    )
    assert comparison.pattern_kind == "tied"


def test_the_first_of_lists_without_names_is_the_embedding(ms: Norms) -> None:
    order = order_by_depth(ms)
    changed = scale_norms(ms, lambda path: 1.006 if path == "embedding.weight" else 1)
    target, reference = drop_names(changed, order, digits=5), drop_names(ms, order, digits=5)
    assert compare(target, reference).pattern_kind == "precision"
