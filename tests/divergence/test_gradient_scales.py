"""Gradients that one side multiplies before their norm is taken."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from traces import edit_tensors, find_op, locate_divergence

from dumpdiff.divergence.gradient_scales import (
    _find_final_multiple,
    _find_unrecorded_multiple,
    _is_multiple,
    find_normed_gradient,
)
from dumpdiff.graph import build_flow, find_gradients
from dumpdiff.rulebook import load_rules


def test_a_gradient_doubled_before_clipping_is_one_finding_that_names_the_factor(trace):
    result = locate_divergence(trace("ms_update_adam"), trace("pt_update_adam_double"))
    assert result.verdict == "diverged"
    (finding,) = result.findings
    assert finding.phase == "optimizer"
    assert finding.metrics["norm_ratio"] == 0.5
    assert all(name.startswith("Tensor.mul_.") for name in finding.reference_ops)
    (cause,) = finding.causes
    assert (cause.name, cause.parameters) == ("gradient-scaled", {"factor": 0.5})
    assert "0.5 times the reference's" in finding.title


def test_gradients_scaled_alike_are_no_finding(trace):
    double = trace("pt_update_adam_double")
    result = locate_divergence(double, double)
    assert (result.verdict, result.findings) == ("aligned", ())


def test_an_average_that_one_side_leaves_out_is_found(trace):
    """Both call mul_ on the sum over two ranks, one by 0.5 and one by 1.0: its result is 2 g."""
    average = trace("pt_update_adam_double")
    tensors = average.tensors
    kinds = average.ops["kind"].to_numpy()[tensors["op"]]
    first_clip = find_op(average, "Torch.vector_norm.0.forward")
    is_average = (kinds == "Tensor.mul_") & (tensors["op"] < first_clip)
    plain = replace(average, tensors=build_flow(average).tensors.assign(file=""))
    gradients = plain.tensors[is_average & (tensors["slot"] == "input.0")]
    results = plain.tensors[is_average & (tensors["slot"] == "output.0")]
    columns = ["max", "min", "mean", "norm"]
    unscaled = plain.tensors.copy()
    # the result of mul_ is its input, as if by 1.0, and so is what the norm reads
    unscaled.loc[results.index, columns] = gradients[columns].to_numpy()
    norms = unscaled[(kinds == "Torch.vector_norm") & (tensors["slot"] == "input.0")].index[:-1]
    unscaled.loc[norms, columns] = gradients[columns].to_numpy()
    result = locate_divergence(plain, replace(plain, tensors=unscaled))
    scale_findings = [finding for finding in result.findings if "norm is taken" in finding.title]
    assert result.verdict != "aligned"
    assert [finding.metrics["norm_ratio"] for finding in scale_findings] == [2.0]


@pytest.mark.parametrize("name", ["ms_update_adam", "pt_update_adam", "pt_update_adam_double"])
def test_the_gradient_that_enters_the_norm_is_the_last_before_clipping(trace, name):
    flow = build_flow(trace(name))
    kinds = [load_rules().resolve_kind(kind) for kind in flow.trace.ops["kind"]]
    parameters = pd.Series(flow.list_column("parameter"))
    (weight,) = parameters.index[parameters == "second.weight"]
    gradient = find_gradients(flow, kinds).by_value[weight]
    normed = find_normed_gradient(flow, kinds, gradient)
    expected_factor = 2.0 if name.endswith("double") else 1.0
    assert flow.norms[normed] == pytest.approx(expected_factor * flow.norms[gradient], rel=1e-6)


def test_a_gradient_without_a_norm_has_none(trace):
    clean = trace("pt_update_sgd")
    is_norm = (clean.ops["kind"] == "Torch.vector_norm").to_numpy()[clean.tensors["op"]]
    bare = edit_tensors(clean, clean.tensors.index[is_norm].tolist(), trusted=False)
    flow = build_flow(bare)
    kinds = [load_rules().resolve_kind(kind) for kind in flow.trace.ops["kind"]]
    for weight, gradient in find_gradients(flow, kinds).by_value.items():
        if flow.list_column("parameter")[weight]:
            assert find_normed_gradient(flow, kinds, gradient) == -1


def test_a_correct_run_multiplies_no_weight_gradient_after_the_backward_pass(trace):
    """The last value of the backward pass is the gradient itself."""
    clean_trace = trace("ms_mf_none")
    flow = build_flow(clean_trace)
    kinds = [load_rules().resolve_kind(kind) for kind in flow.trace.ops["kind"]]
    names = flow.list_column("parameter")
    gradients = {
        gradient for value, gradient in find_gradients(flow, kinds).by_value.items() if names[value]
    }
    multiples = {value: _find_final_multiple(flow, kinds, value) for value in gradients}
    assert len(multiples) > 10
    assert set(multiples.values()) == {-1}


@pytest.mark.parametrize(("factor", "is_multiple"), [(0.5, True), (None, False)])
def test_a_multiple_that_was_not_recorded_is_what_the_paired_op_reads(trace, factor, is_multiple):
    """The reference's norm reads the gradient; the target's reads a value that no op computes."""
    reference = build_flow(trace("pt_update_adam"))
    op = find_op(reference.trace, "Torch.vector_norm.0.forward")
    (gradient,) = (value for value in reference.reads[op] if reference.sizes[value] > 1)
    tensors = reference.tensors.assign(file="", hash="")
    row = next(row for row in reference.get_tensor_ids(op) if tensors["size"].iat[row] > 1)
    columns = ["max", "min", "mean", "norm"]
    numbers = tensors.loc[row, columns].to_numpy(dtype=float)
    changed_numbers = numbers * [3, 1, 1, 1] if factor is None else numbers * factor
    edited = tensors.copy()
    edited.loc[row, columns] = changed_numbers
    edited.loc[row, "source_tensor"] = -1
    target = build_flow(replace(reference.trace, tensors=edited))
    value = _find_unrecorded_multiple(reference, gradient, {op: op}, target)
    if is_multiple:
        assert value in target.reads[op]
        assert target.norms[value] == pytest.approx(factor * reference.norms[gradient])
    else:
        assert value == -1


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([2.0, -1.0, 0.2], True),
        ([2.0, -1.0, np.nan], True),  # MindSpore records no mean
        ([2.0, -1.1, 0.2], False),
        ([np.nan, np.nan, 0.2], False),
    ],
)
def test_a_multiple_is_one_in_all_recorded_statistics(numbers, expected):
    assert _is_multiple(np.array(numbers), np.array([1.0, -0.5, 0.1]), 2.0) == expected
