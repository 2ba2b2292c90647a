"""A parameter of which one side has no gradient is named."""

import pytest
from traces import locate_divergence, remove_ops

import dumpdiff

LOST = "Module.transformer.h.0.attn.v_proj.Linear.parameters_grad.0"


def list_notes(result):
    return [note for note in result.notes if "has no gradient of" in note]


@pytest.mark.parametrize("target", ["pt_gpt2", "ms_gpt2"])
def test_a_lost_record_of_gradients_is_named(trace, target) -> None:
    result = locate_divergence(trace(target), remove_ops(trace("pt_gpt2"), LOST))
    (note,) = list_notes(result)
    assert note.startswith("the reference has no gradient of 2 of 37 parameters that the target")
    assert "transformer.h.0.attn.v_proj.weight, transformer.h.0.attn.v_proj.bias; frozen" in note


def test_more_than_three_parameters_are_counted(trace) -> None:
    clean = trace("pt_gpt2")
    names = clean.ops["name"]
    lost = names[(clean.ops["kind"] == "parameters_grad") & names.str.contains("h.1.attn")]
    (note,) = list_notes(locate_divergence(remove_ops(clean, *lost), clean))
    assert note.startswith("the target has no gradient of 8 of 37 parameters")
    assert "and 5 more; frozen" in note


def test_a_parameter_that_both_sides_froze_is_not_named(trace) -> None:
    frozen = remove_ops(trace("pt_gpt2"), LOST)
    assert list_notes(locate_divergence(frozen, frozen)) == []


def test_tied_weights_have_one_gradient(trace) -> None:
    clean = trace("pt_gpt2")
    head = remove_ops(clean, "Module.lm_head.Linear.parameters_grad.0")
    assert list_notes(locate_divergence(head, clean)) == []
    assert list_notes(locate_divergence(clean, clean)) == []


@pytest.fixture(scope="module", params=[False, True], ids=["target", "reference"])
def result(dump, request):
    """Return the result of a run with detached keys, in both directions."""
    names = ("attention_detached", "attention_written")
    folders = [dump("pt_variants") / name for name in names]
    return dumpdiff.align(*(folders[::-1] if request.param else folders), explained=())


class TestUntrainedParameters:
    """The record of detached keys has no gradient of their weight, and no update."""

    def test_they_are_the_first_finding(self, result):
        assert result.verdict == "diverged"
        finding = result.findings[0]
        assert (finding.kind, finding.phase, finding.scope) == ("missing", "backward", "module")
        assert "2 of 6 parameters: module.key, module.key_bias" in finding.title
        assert [cause.name for cause in finding.causes] == ["gradient-stopped"]
        assert all((finding.target_ops, finding.reference_ops))

    def test_they_are_no_lost_record(self, result):
        assert list_notes(result) == []

    def test_what_the_record_lacks_after_a_difference_is_none_of_its_own(self, result):
        """The gradient of the embedding is not recorded; the update reads it."""
        assert {finding.phase for finding in result.findings} == {"backward"}


@pytest.mark.parametrize(
    ("still", "moved"),
    [
        ("ms_update_assign_sub_still", "pt_update_sgd"),
        ("pt_update_adam_still", "ms_update_adam"),
    ],
)
class TestUnchangedParameters:
    """With a learning rate of 0 the update leaves vectors as they were."""

    def test_they_are_a_finding_in_either_direction(self, trace, still, moved):
        for is_exchanged in (False, True):
            traces = (trace(moved), trace(still)) if is_exchanged else (trace(still), trace(moved))
            (finding,) = locate_divergence(*traces).findings
            own, other = ("reference", "target") if is_exchanged else ("target", "reference")
            assert finding.phase == "optimizer"
            assert finding.title.startswith(f"the optimizer of the {own} does not change")
            assert finding.title.endswith(f"that of the {other} does")
            assert [cause.name for cause in finding.causes] == ["update-missing"]
            assert all((finding.target_ops, finding.reference_ops))

    def test_what_neither_side_changes_is_none(self, trace, still, moved):
        assert locate_divergence(trace(still), trace(still)).findings == ()
        assert locate_divergence(trace(moved), trace(moved)).findings == ()
