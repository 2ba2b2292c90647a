"""MindSpore against PyTorch, recorded now: clean, with one fault, and hard to align."""

import pytest

from .verdicts import assert_aligned, assert_compared, assert_located, get_first_divergence

pytestmark = pytest.mark.record

CALLS_ONLY = ["--level", "L1", "--task", "statistics"]

#: What differs from the plain pair -> options of the MindSpore and of the PyTorch recording.
HARD = {
    "no name has a scope and the projections run in another order": (
        ["--style", "jit", "--order", "vkq"],
        [],
    ),
    "batched products on the MindSpore side": (["--attention", "bmm"], []),
    "attention is one fused call": ([], ["--attention", "sdpa"]),
    "MindSpore computes in float16": (["--dtype", "fp16"], []),
    "PyTorch computes in bfloat16": ([], ["--dtype", "bf16"]),
    "an optimizer step follows; PyTorch has plain names and batched products": (
        ["--optimizer"],
        ["--optimizer", "--names", "plain", "--attention", "bmm"],
    ),
    "PyTorch recorded statistics of calls only": ([], CALLS_ONLY),
    "PyTorch recorded modules only": ([], ["--level", "L0"]),
}


@pytest.fixture(scope="module")
def pair(recorded, compared):
    """``pair([], ["--level", "L1"])``: a MindSpore and a PyTorch recording, compared."""
    return lambda mindspore, pytorch: compared(
        recorded("mindspore", *mindspore), recorded("pytorch", *pytorch)
    )


def test_the_same_model_in_both_frameworks_is_aligned(pair):
    result = pair([], [])
    assert_aligned(result)
    assert_compared(result, "reference", forward=0.95, backward=0.95)


@pytest.mark.parametrize(("mindspore", "pytorch"), HARD.values(), ids=HARD)
def test_it_stays_aligned_when(pair, mindspore, pytorch):
    result = pair(mindspore, pytorch)
    assert_aligned(result)
    assert_compared(result, "reference", forward=0.85, backward=0.80)


@pytest.mark.parametrize("fault", ["eps", "attn_scale"])
class TestFault:
    def test_in_the_plain_pair(self, pair, fault):
        result = pair(["--fault", fault], [])
        assert_located(result, fault)
        assert len(result.findings) == 1

    def test_against_pytorch_statistics_of_calls_only(self, pair, fault):
        assert_located(pair(["--fault", fault], CALLS_ONLY), fault)

    def test_against_pytorch_modules_only(self, pair, fault):
        assert_located(pair(["--fault", fault], ["--level", "L0"]), fault)

    def test_against_fused_attention(self, pair, fault):
        assert_located(pair(["--fault", fault], ["--attention", "sdpa"]), fault)


def test_an_optimizer_step_that_could_not_be_compared_is_reported(pair):
    result = pair(*HARD["an optimizer step follows; PyTorch has plain names and batched products"])
    compared = result.coverage["target"]["optimizer"]["compared"]
    assert compared or any("optimizer" in note for note in result.notes)


def test_a_wrong_epsilon_is_the_addition_that_reads_it(pair):
    first = get_first_divergence(pair(["--fault", "eps"], []))
    assert first.reference_ops == ("Tensor.__add__.12.forward",)
    assert first.kind == "introduced"


def test_a_wrong_scale_is_the_product_that_reads_it(pair):
    first = get_first_divergence(pair(["--fault", "attn_scale"], []))
    assert first.reference_ops == ("Tensor.__mul__.16.forward",)
    assert (
        first.metrics["relative_l2"] == pytest.approx(0.75, rel=0.01)
        or "norm_ratio" in first.metrics
    )


def test_a_fault_is_located_without_any_scope_and_with_another_order(pair):
    assert_located(pair(["--fault", "eps", "--style", "jit", "--order", "vkq"], []), "eps")


def test_a_fault_larger_than_the_rounding_of_bfloat16_is_located(pair):
    assert_located(pair(["--fault", "attn_scale"], ["--dtype", "bf16"]), "attn_scale")


def test_mindspore_pynative_recorded_by_msprobe_is_aligned_too(recorded, compared):
    result = compared(recorded("mindspore_pynative", "--task", "statistics"), recorded("pytorch"))
    assert_aligned(result)
    assert_compared(result, "reference", forward=0.95, backward=0.90)
