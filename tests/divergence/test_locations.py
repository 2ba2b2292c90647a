"""The ops of a finding: those after the last agreement, and the one before an omitted addition."""

from traces import locate_divergence, scale_result, select_ops, skip_op

PROJECTION, SCORES = "Functional.linear.6.forward", "Torch.matmul.2.forward"
MASKED, SOFTMAX = "Tensor.__add__.3.forward", "Functional.softmax.1.forward"


class TestABiasThatIsNotAdded:
    """The product agrees with the other side's; what is wrong is that no addition follows."""

    def test_the_location_names_the_product_and_its_consumer(self, trace):
        (finding,) = locate_divergence(trace("ms_gpt2"), trace("pt_gpt2_no_bias")).findings
        assert finding.reference_ops == (PROJECTION, SCORES)
        assert [name.rpartition("/")[2] for name in finding.target_ops] == [
            "BiasAdd-op0",
            "BatchMatMul-op2",
        ]
        assert finding.scope == "layers.1.attention.q"

    def test_either_side_can_omit_the_bias(self, trace):
        (finding,) = locate_divergence(trace("pt_gpt2_no_bias"), trace("ms_gpt2")).findings
        assert finding.target_ops == (PROJECTION, SCORES)

    def test_the_first_op_of_a_dump_can_omit_it(self, trace):
        """A dump may begin anywhere: op 0 is an op like any other."""
        reference = trace("pt_gpt2_no_bias")
        names = reference.ops["name"].tolist()
        reference = select_ops(reference, range(names.index(PROJECTION), len(names)))
        finding = locate_divergence(trace("ms_gpt2"), reference).findings[0]
        assert reference.ops["name"].iat[0] == PROJECTION
        assert finding.reference_ops == (PROJECTION, SCORES)

    def test_a_linear_call_that_adds_the_bias_itself_omits_nothing(self, trace):
        assert locate_divergence(trace("ms_gpt2"), trace("pt_gpt2")).findings == ()


def test_a_sum_with_what_is_no_parameter_is_named_on_its_own_side_alone(trace):
    """A mask is not there where it is not added: nothing says after which op it is missing."""
    clean_trace = trace("pt_none")
    diverged_trace = scale_result(
        scale_result(clean_trace, MASKED, 3.0), SOFTMAX, 1.07, and_after=True
    )
    finding = locate_divergence(skip_op(diverged_trace, MASKED), clean_trace).findings[0]
    assert (finding.target_ops, finding.reference_ops) == ((SOFTMAX,), (MASKED, SOFTMAX))
