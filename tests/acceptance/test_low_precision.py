"""float32 against bfloat16, at two sizes: rounding is no divergence, a wrong weight is found."""

import pytest

from .verdicts import assert_aligned, assert_compared, assert_located, get_first_divergence

pytestmark = pytest.mark.record

SIZES = {"2 layers of 64": ((), 2), "4 layers of 128": (("--layers", "4", "--hidden", "128"), 4)}
BF16, STATISTICS, FAULT = ("--dtype", "bf16"), ("--task", "statistics"), ("--fault", "w1")


@pytest.fixture(scope="module")
def pair(recorded, compared):
    """``pair(BF16, ())``: two PyTorch recordings with these options, compared."""
    return lambda target, reference: compared(
        recorded("pytorch", *target), recorded("pytorch", *reference)
    )


@pytest.mark.parametrize(("size", "layers"), SIZES.values(), ids=SIZES)
class TestWholeTensors:
    @pytest.mark.parametrize(
        ("target", "reference"), [(BF16, ()), ((), BF16)], ids=["in bf16", "against bf16"]
    )
    def test_rounding_is_no_divergence(self, pair, size, layers, target, reference):
        result = pair((*target, *size), (*reference, *size))
        assert_aligned(result)
        assert_compared(result, "reference", forward=0.9, backward=0.9)

    @pytest.mark.parametrize("reference", [BF16, ()], ids=["both in bf16", "against fp32"])
    def test_a_weight_that_is_1_percent_too_large_is_found(self, pair, size, layers, reference):
        result = pair((*BF16, *size, *FAULT), (*reference, *size))
        assert_located(result, "w1", layers)
        assert get_first_divergence(result).kind == "parameter"
        assert len(result.findings) == 1


@pytest.mark.parametrize(
    "reference", [(*BF16, *STATISTICS), ()], ids=["both in bf16", "against fp32"]
)
class TestStatistics:
    def test_rounding_is_no_divergence(self, pair, reference):
        assert_aligned(pair((*BF16, *STATISTICS), reference))

    def test_a_weight_that_is_1_percent_too_large_is_found(self, pair, reference):
        result = pair((*BF16, *STATISTICS, *FAULT), reference)
        assert_located(result, "w1")
        assert len(result.findings) == 1


@pytest.mark.parametrize("fault", ["gelu", "mask"])
@pytest.mark.parametrize("reference", [BF16, ()], ids=["both in bf16", "against fp32"])
def test_a_fault_above_a_loss_that_happens_to_agree_is_a_finding(pair, fault, reference):
    """The loss changes by less than bfloat16 resolves; it is no evidence for earlier values."""
    assert_located(pair((*BF16, "--fault", fault), reference), fault)
