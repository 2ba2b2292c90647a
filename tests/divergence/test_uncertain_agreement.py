"""What statistics do not show of the inputs of an op that diverges, on a recorded run."""

import pytest
from traces import find_dependents, locate_divergence, scale_tensors

#: Tokens of other ranks: compared with both ends of the own ones, then hidden.
COMPARED, JOINED, HIDING = "Tensor.__ge__.0.forward", "Tensor.__or__.0.forward", "masked_fill.2"
WORDS = "nor which elements are hidden"


@pytest.fixture
def diverge(trace):
    """Return the first finding if what an op computes, and all behind it, is another value."""
    reference = trace("parallel_pt_tp1")

    def diverge(name):
        wrong = scale_tensors(reference, find_dependents(reference, name), 1.3)
        return locate_divergence(wrong, reference).findings[0]

    return diverge


def test_the_ops_that_made_a_mask_belong_to_what_reads_it(diverge):
    finding = diverge(f"Tensor.{HIDING}.forward")
    for ops in (finding.target_ops, finding.reference_ops):
        assert {COMPARED, JOINED, f"Tensor.{HIDING}.forward"} <= set(ops)
    assert any(WORDS in fact and JOINED in fact for fact in finding.evidence)


def test_an_op_that_reads_no_mask_diverges_alone(diverge):
    finding = diverge("Functional.silu.0.forward")
    assert finding.target_ops == finding.reference_ops == ("Functional.silu.0.forward",)
    assert not any(WORDS in fact for fact in finding.evidence)
