"""What a canonical name says about a parameter."""

from __future__ import annotations

import pytest

from dumpdiff.gradient_norms.parameter_path import (
    FIRST_IN_BACKWARD,
    LAST_IN_BACKWARD,
    compute_depth,
    find_layer,
    is_vector,
    strip_layer,
)


@pytest.mark.parametrize(
    ("path", "layer", "depth", "kind", "vector"),
    [
        ("embedding.weight", None, LAST_IN_BACKWARD, "embedding.weight", False),
        ("layers.3.attention.q.weight", 3, 3, "attention.q.weight", False),
        ("layers.10.input_norm.weight", 10, 10, "input_norm.weight", True),
        ("layers.0.mlp.up_proj.bias", 0, 0, "mlp.up_proj.bias", True),
        ("final_norm.weight", None, FIRST_IN_BACKWARD, "final_norm.weight", True),
        ("head.weight", None, FIRST_IN_BACKWARD, "head.weight", False),
        ("something.else", None, None, "something.else", False),
    ],
)
def test_layer_depth_and_kind_follow_from_the_canonical_name(
    path: str, layer: int | None, depth: int | None, kind: str, vector: bool
) -> None:
    assert (find_layer(path), compute_depth(path), strip_layer(path), is_vector(path)) == (
        layer,
        depth,
        kind,
        vector,
    )
