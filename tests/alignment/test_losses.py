"""The loss is paired with the loss, not with a value that the other loss is computed from."""

import pytest
from traces import (
    align_traces,
    edit_tensors,
    find_tensor,
    find_value,
    load_shipped_rules,
    locate_divergence,
    remove_ops,
    remove_tensors,
    rename_kind,
    replace_arrays,
    scale_tensors,
    start_matching,
)

from dumpdiff import read
from dumpdiff.alignment.anchors import pair_losses
from dumpdiff.alignment.losses import find_loss, find_unscaled_losses
from dumpdiff.graph import build_flow
from dumpdiff.model.trace import (
    BACKWARD,
    FORWARD,
    Source,
    Trace,
    build_op_table,
    build_tensor_table,
)

#: The target's loss: the mean of the log-likelihoods, plus a term for smoothed labels.
SUM = "Default/n-WithLoss/n-TinyLlama/layers-CellList/0-Block/input_norm-RMSNorm/Add-op30"
#: The ops that compute that term, whose factor is 0 here.
SMOOTHING = ("Expand/_SumExt/ReduceSum-op4", "Default/n-WithLoss/Div-op1", "Expand/_Muls/Mul-op1")
#: The reference's loss.
CROSS_ENTROPY = "Functional.cross_entropy.0.forward"


def scale_loss(trace, factor):
    """Scale what the last op of the loss writes, in the record and in its file."""
    scaled_trace = replace_arrays(trace, SUM, "output.0", lambda array: array * factor)
    return scale_tensors(scaled_trace, [find_tensor(trace, SUM, "output.0")], factor)


@pytest.fixture
def smoothed_pair(trace):
    """Labels are smoothed in the target: only its loss differs, not the mean before it."""
    target = trace("ms_graph")
    return scale_loss(target, 1.01), trace("v6.0_api_stack")


@pytest.fixture
def scaled_pair(trace):
    """The target's loss is 1024 times the mean, a number that nothing computes."""
    target = rename_kind(trace("ms_graph"), SUM, "Mul")
    target = remove_tensors(target, [find_tensor(target, SUM, "input.1")])
    target = remove_ops(target, *SMOOTHING)
    return scale_loss(target, 1024), trace("v6.0_api_stack")


def find_losses(trace):
    flow = build_flow(trace)
    kinds = [load_shipped_rules().resolve_kind(kind) for kind in flow.trace.ops["kind"]]
    return find_unscaled_losses(flow, kinds, find_loss(flow))


@pytest.mark.parametrize(
    ("name_of_dump", "name"), [("ms_graph", SUM), ("v6.0_api_stack", CROSS_ENTROPY)]
)
def test_the_loss_is_the_only_scalar_that_no_forward_op_reads(trace, name_of_dump, name):
    flow = build_flow(trace(name_of_dump))
    assert find_loss(flow) == find_value(flow, name, "output.0")


@pytest.mark.parametrize("first", [0, 1])
def test_of_several_scalars_it_is_the_one_that_the_backward_pass_starts_from(first):
    """Terms may be joined by an op that no record shows."""
    calls = [0, 1, first, 1 - first]
    ops = build_op_table(
        {
            "name": [f"Tensor.mean.{call}" for call in calls],
            "kind": ["Tensor.mean"] * 4,
            "level": ["op"] * 4,
            "phase": [FORWARD] * 2 + [BACKWARD] * 2,
            "forward": [-1, -1, first, 1 - first],
        }
    )
    numbers = [3.0, 5.0, 7.0, 11.0, 1.0, 13.0, 0.5, 17.0]
    slots = ["input.0", "output.0"] * 4
    tensors = build_tensor_table(
        {
            "op": [0, 0, 1, 1, 2, 2, 3, 3],
            "slot": slots,
            "slot_kind": [slot.partition(".")[0] for slot in slots],
            "dtype": ["float32"] * 8,
            "shape": [(8,), (), (8,), (), (), (8,), (), (8,)],
            "size": [8, 1, 8, 1, 1, 8, 1, 8],
            **dict.fromkeys(("max", "min", "mean", "norm"), numbers),
        }
    )
    flow = build_flow(Trace(Source("/dump", "msprobe", "", "pytorch"), ops, tensors))
    assert find_loss(flow) == flow.tensor_class[1 + 2 * first]


def test_a_loss_that_is_asked_whether_it_is_finite_is_one(dump):
    flow = build_flow(read(dump("pt_scalings") / "scalings_checked"))
    assert find_value(flow, "Torch.isfinite.0.forward", "input.0") == find_loss(flow)


def test_a_loss_with_a_second_term_is_no_multiple(smoothed_pair, scaled_pair):
    assert len(find_losses(smoothed_pair[0])) == 1
    assert len(find_losses(scaled_pair[0])) == 3  # times 1024, times 1


@pytest.mark.parametrize(("dtype", "is_paired"), [("float32", True), ("int64", False)])
def test_a_count_is_no_partner_of_a_loss(trace, dtype, is_paired):
    """Batch norm counts its batches in a scalar that no forward op reads again, either."""
    clean_trace = trace("v6.0_api_stack")
    row = find_tensor(clean_trace, CROSS_ENTROPY, "output.0")
    matching = start_matching(clean_trace, edit_tensors(clean_trace, row, dtype=dtype))
    pair_losses(matching)
    loss = find_value(matching.target, CROSS_ENTROPY, "output.0")
    assert (matching.partners_t[loss] >= 0) == is_paired


@pytest.mark.parametrize("is_exchanged", [False, True])
def test_a_smoothed_loss_is_compared_with_the_loss(smoothed_pair, is_exchanged):
    pair = smoothed_pair[::-1] if is_exchanged else smoothed_pair
    alignment = align_traces(*pair)
    losses = [find_loss(flow) for flow in (alignment.target, alignment.reference)]
    assert alignment.partners[losses[0]] == losses[1]
    result = locate_divergence(*pair)
    assert result.verdict == "diverged"
    names = result.findings[0].target_ops, result.findings[0].reference_ops
    assert {names[0][-1], names[1][-1]} == {SUM, CROSS_ENTROPY}


@pytest.mark.parametrize("is_exchanged", [False, True])
def test_a_scaled_loss_is_compared_before_the_scaling(scaled_pair, is_exchanged):
    pair = scaled_pair[::-1] if is_exchanged else scaled_pair
    result = locate_divergence(*pair)
    assert (result.verdict, result.findings) == ("aligned", ())
