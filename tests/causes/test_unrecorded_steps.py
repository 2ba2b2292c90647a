"""Steps that no recorder shows, long regions and steps of another order, on recorded pairs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from traces import compare_traces, find_tensor, find_value

import dumpdiff
from dumpdiff import Finding
from dumpdiff.causes.comparison_index import ComparisonIndex
from dumpdiff.causes.region_builder import build_region
from dumpdiff.causes.unrecorded_ops import UnrecordedSource, find_unrecorded_op

Explain = Callable[[str, bool], Finding]


@pytest.fixture(scope="module")
def explain(dump: Callable[[str], Path]) -> Explain:
    """Return the first finding of a form against the plain form of its model, or the reverse."""
    folder = dump("pt_unrecorded")

    def find_first(form: str, is_mirrored: bool) -> Finding:
        paths = [folder / form, folder / f"{form.partition('_')[0]}_plain"]
        result = dumpdiff.align(*(reversed(paths) if is_mirrored else paths))
        assert result.first_divergence is not None
        return result.first_divergence

    return find_first


@pytest.mark.parametrize("is_mirrored", [False, True])
@pytest.mark.parametrize("op", ["gelu", "clamp", "edges", "joined"])
def test_a_missing_bias_is_found_behind_an_op_that_is_not_recorded(
    explain: Explain, op: str, is_mirrored: bool
) -> None:
    """The sum is computed again, and what gelu, a clamp, a padding or a joint make of it."""
    finding = explain(f"{op}_unbiased", is_mirrored)
    assert finding.kind == "region"
    cause = finding.causes[0]
    assert cause.name == "bias-missing"
    side = " of the reference" if is_mirrored else ""
    assert cause.text.startswith(f"net{side} behaves as without its bias (net.bias); residual ")
    assert cause.residual < 1e-6


@pytest.mark.parametrize(
    ("op", "reader", "step"),
    [
        ("gelu", "Functional.conv1d.0.forward", "an unrecorded gelu"),
        ("clamp", "Functional.conv1d.0.forward", "an unrecorded clamp"),
        ("edges", "Functional.conv1d.0.forward", "an unrecorded pad"),
        ("joined", "Functional.linear.0.forward", "an unrecorded concat"),
    ],
)
def test_the_region_has_the_op_that_is_not_recorded(
    dump: Callable[[str], Path], op: str, reader: str, step: str
) -> None:
    """It computes the recorded output again, in float64."""
    folder = dump("pt_unrecorded")
    traces = [dumpdiff.read(folder / f"{op}_{form}") for form in ("unbiased", "plain")]
    index = ComparisonIndex(compare_traces(*traces))
    output = traces[1].array(find_tensor(traces[1], reader, "output.0")).astype(float)
    value = find_value(index.flows[1], reader, "output.0")
    region = build_region(index, 1, value, output, 1e-6)
    assert region is not None
    names = [each.name for each in region.steps]
    assert names == ["Tensor.__add__.0.forward", step, reader]
    assert region.unchanged == pytest.approx(output, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("is_mirrored", [False, True])
def test_the_first_step_of_a_long_region_is_the_cause(explain: Explain, is_mirrored: bool) -> None:
    """The values that were compared are 80 steps behind it."""
    finding = explain("long_elu", is_mirrored)
    assert "Tensor.__add__.39.forward" in finding.target_ops
    cause = finding.causes[0]
    assert cause.name == "activation-kind"
    own, other = ("tanh", "elu") if is_mirrored else ("elu", "tanh")
    assert cause.text.startswith(f"net behaves as {own}; the reference has {other}; residual ")
    assert cause.residual < 1e-6


@pytest.mark.parametrize("is_mirrored", [False, True])
def test_features_that_one_side_adds_later_are_of_another_order(
    explain: Explain, is_mirrored: bool
) -> None:
    cause = explain("later_sum", is_mirrored).causes[0]
    assert cause.name == "layer-order"
    faulty, other = ("net of the reference", "target") if is_mirrored else ("net", "reference")
    assert cause.text.startswith(
        f"{faulty} behaves as add applied later, in Tensor.__add__.0.forward; the {other} has it "
        "in Tensor.__add__.0.forward; residual "
    )


@pytest.mark.parametrize("is_mirrored", [False, True])
def test_a_mask_that_is_left_out_in_calls_of_another_order(
    explain: Explain, is_mirrored: bool
) -> None:
    """The last call of one side is the first one of the other side."""
    finding = explain("calls_unmasked", is_mirrored)
    cause = finding.causes[0]
    assert cause.name == "mask-missing"
    assert "no mask (Tensor.masked_fill.3.forward)" in cause.text
    ops = [finding.target_ops, finding.reference_ops]
    unmasked_ops, masked_ops = reversed(ops) if is_mirrored else ops
    assert unmasked_ops == ("Torch.softmax.0.forward",)
    assert masked_ops == ("Tensor.masked_fill.3.forward", "Torch.softmax.3.forward")


@pytest.mark.parametrize("is_mirrored", [False, True])
def test_parts_of_several_widths_lead_to_the_op_before_they_are_joined(
    explain: Explain, is_mirrored: bool
) -> None:
    finding = explain("blocks_cut", is_mirrored)
    assert "Tensor.__mul__.0.forward" in " ".join((*finding.target_ops, *finding.reference_ops))
    assert finding.causes[0].name == "mask-missing"
    assert "Tensor.__lt__.0.forward in Tensor.__mul__.0.forward" in finding.causes[0].text


@pytest.mark.parametrize("forms", [("elu", "plain"), ("plain", "elu")])
def test_rows_that_a_matching_chose_by_what_differs_are_no_finding(
    dump: Callable[[str], Path], forms: tuple[str, str]
) -> None:
    folder = dump("pt_unrecorded")
    (finding,) = dumpdiff.align(*(folder / f"matching_{form}" for form in forms)).findings
    assert finding.causes[0].name == "activation-kind"


def test_a_joined_part_is_found_whose_axes_were_moved_and_whose_numbers_repeat() -> None:
    """As of samples outside of a map, which are zero."""
    rng = np.random.default_rng(8)
    levels = [np.maximum(rng.standard_normal((6, 1, 5)), 0) for _ in range(2)]
    output = np.concatenate([each.reshape(2, 3, 5) for each in levels], axis=-1).transpose(0, 2, 1)
    sources = [
        UnrecordedSource(number, array.size, lambda array=array: array)
        for number, array in enumerate(levels)
    ]
    op = find_unrecorded_op(sources, output, 1e-6)
    assert op is not None
    assert (op.kind, [value for value, _ in op.inputs]) == ("concat", [0, 1])
    joined = np.concatenate([array.reshape(-1) for _, array in op.inputs])
    np.testing.assert_array_equal(joined[op.places].reshape(output.shape), output)


def test_joined_parts_are_found_in_whatever_order_they_are() -> None:
    """As positions of patches in a row of pixels, behind that of the class token."""
    rng = np.random.default_rng(8)
    class_token, image, other = (rng.standard_normal(shape) for shape in ((9,), (9, 2, 3), (12,)))
    patches = image.reshape(9, 6).T
    output = np.concatenate([class_token[None], patches])
    sources = [
        UnrecordedSource(number, array.size, lambda array=array: array)
        for number, array in enumerate((other, image, class_token))
    ]
    op = find_unrecorded_op(sources, output, 1e-6)
    assert op is not None
    assert (op.kind, [value for value, _ in op.inputs]) == ("concat", [1, 2])
    joined = np.concatenate([array.reshape(-1) for _, array in op.inputs])
    np.testing.assert_array_equal(joined[op.places].reshape(output.shape), output)
