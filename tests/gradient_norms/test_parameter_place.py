"""Where in a model a parameter stands."""

from __future__ import annotations

import pytest

from dumpdiff.gradient_norms.parameter_place import (
    FIRST_BACK,
    LAST_BACK,
    compute_depth,
    is_vector,
    strip_layer,
    find_layer,
)


@pytest.mark.parametrize(
    ("path", "layer", "depth", "kind", "vector"),
    [
        ("embedding.weight", None, LAST_BACK, "embedding.weight", False),
        ("layers.3.attention.q.weight", 3, 3, "attention.q.weight", False),
        ("layers.10.input_norm.weight", 10, 10, "input_norm.weight", True),
        ("layers.0.mlp.up_proj.bias", 0, 0, "mlp.up_proj.bias", True),
        ("final_norm.weight", None, FIRST_BACK, "final_norm.weight", True),
        ("head.weight", None, FIRST_BACK, "head.weight", False),
        ("something.else", None, None, "something.else", False),
    ],
)
def test_a_canonical_name_says_it(
    path: str, layer: int | None, depth: int | None, kind: str, vector: bool
) -> None:
    assert (find_layer(path), compute_depth(path), strip_layer(path), is_vector(path)) == (
        layer,
        depth,
        kind,
        vector,
    )
