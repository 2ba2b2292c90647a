"""Parts of one value: gates of a cell, or other pieces of a projection, taken for each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dumpdiff.causes.cause_search import search_causes
from dumpdiff.causes.hypotheses import COMPOSITE_HYPOTHESES
from dumpdiff.causes.hypotheses.composites.parts import describe_other_columns
from dumpdiff.operators.activations import sigmoid

from .fault_cases import make_fault_case, make_operand
from .test_composites import make_region

GATES = np.random.default_rng(17).standard_normal((3, 32))
PARTS = np.split(GATES, 4, axis=1)


def explain(region, faulty, **fields):
    """Return (cause, sentence without place and residual); the gates are next to the region."""
    case = make_fault_case(faulty, region.steps[-1].output, {}, scope="cell")
    operands = (
        make_operand("Add-op2", GATES),
        *(make_operand(f"Split-op0.{number}", part) for number, part in enumerate(PARTS)),
    )
    case = replace(case, operands=operands, load_region=lambda: region, **fields)
    causes = search_causes([case], COMPOSITE_HYPOTHESES, checked_only=True).causes
    text = causes[0].text.removeprefix("cell behaves as ").partition("; residual")[0]
    return causes[0].name, text


def test_activation_of_another_gate():
    region = make_region([("tanh", [("g", PARTS[2])])])
    assert explain(region, np.tanh(PARTS[3])) == (
        "gate-order",
        "tanh_0 (tanh) of part 3 of the 4 gates Add-op2; the reference reads part 2",
    )


def test_number_added_to_a_gate():
    region = make_region([("add", [("f", PARTS[1]), ("one", 1.0)]), ("sigmoid", [("last", 0.0)])])
    assert explain(region, sigmoid(PARTS[1])) == (
        "forget-bias",
        "0 added to a gate before its sigmoid, in add_0; the reference adds 1",
    )


def test_other_part_of_a_projection():
    weight = np.random.default_rng(1).standard_normal((8, 8))
    region = make_region([("matmul", [("keys", PARTS[0]), ("out.weight", weight)])])
    faulty = region.steps[0].compute([PARTS[1], weight])
    assert explain(region, faulty) == (
        "split-order",
        "matmul_0 (matmul) of part 1 of the 4 parts Add-op2; the reference reads part 0",
    )


def test_columns_of_one_value_are_recognized_after_they_were_repeated() -> None:
    whole = np.random.default_rng(2).standard_normal((2, 5, 12))
    b, c = whole[:, 0, 4:8], whole[:, 0, 8:12]
    case = make_fault_case(c, b, {"projection": whole})
    repeated_b, repeated_c = (np.repeat(part[:, None], 3, axis=1) for part in (b, c))
    assert describe_other_columns(case, repeated_b, repeated_c) == (
        "split-order",
        "columns 8 to 11 of projection",
        "reads columns 4 to 7",
    )
    assert describe_other_columns(case, repeated_b, 2 * repeated_c) is None


def test_other_places_of_a_convolution_are_a_shift_of_the_sequence() -> None:
    whole = np.random.default_rng(2).standard_normal((2, 3, 8))
    operand = make_operand("conv", whole, kind="convolution")
    case = replace(make_fault_case(whole[..., 2:], whole[..., :6], {}), operands=(operand,))
    assert describe_other_columns(case, whole[..., :6], whole[..., 2:]) == (
        "causal-shift",
        "columns 2 to 7 of conv",
        "reads columns 0 to 5",
    )
