"""Sums of products whose equation is not recorded: found from the shapes."""

from __future__ import annotations

import numpy as np
import pytest

from dumpdiff.operators import compute_interpretations, compute_relative_distance

RNG = np.random.default_rng(3)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bld,dn->bldn", [(2, 7, 6), (6, 4)]),
        ("bld,bln,bld->bldn", [(2, 7, 6), (2, 7, 4), (2, 7, 6)]),
        ("bdn,bn->bd", [(2, 6, 4), (2, 4)]),
        ("bhqd,bhkd->bhqk", [(2, 3, 5, 8), (2, 3, 5, 8)]),
        ("bqhd,bkhd->bhqk", [(2, 5, 3, 8), (2, 6, 3, 8)]),
        ("bhqk,bkhd->bqhd", [(2, 3, 5, 6), (2, 6, 3, 8)]),
    ],
)
def test_one_equation_gives_the_output(equation, shapes):
    operands = [RNG.standard_normal(shape) for shape in shapes]
    expected = np.einsum(equation, *operands)
    interpretations = compute_interpretations("einsum", operands, output_shape=expected.shape)
    distances = sorted(compute_relative_distance(output, expected) for _, output in interpretations)
    assert distances[0] < 1e-15
    assert all(distance > 0.1 for distance in distances[1:])


def test_shapes_without_an_equation():
    operands = [RNG.standard_normal((2, 3)), RNG.standard_normal((4, 5))]
    assert list(compute_interpretations("einsum", operands, output_shape=(2, 7))) == []
