"""Two dumps of 2,000 calls with a known answer: one is an edited copy of the other."""

import model_spec  # noqa: F401  (fixtures are on the path: see conftest)
import pytest
import synthesise

from dumpdiff import align

from .verdicts import assert_aligned, describe_result, get_first_divergence

pytestmark = pytest.mark.record

LAYERS = 29


def insert_call(dump):
    return synthesise.inserted(dump, "Tensor.__mul__.40.forward")


def remove_call(dump):
    return synthesise.removed(dump, "Functional.silu.12.forward")


def repeat_call(dump):
    return synthesise.doubled(dump, "Functional.linear.80.forward")


def swap_calls(dump):
    """Swap queries and keys of layer 15."""
    return synthesise.swapped(
        dump, "Functional.linear.105.forward", "Functional.linear.106.forward"
    )


def apply_all_edits(dump):
    return swap_calls(repeat_call(remove_call(insert_call(dump))))


EDITS = {
    "nothing": lambda dump: dump,
    "one call inserted": insert_call,
    "one call removed": remove_call,
    "one call recomputed": repeat_call,
    "two calls swapped": swap_calls,
    "all four": apply_all_edits,
}


@pytest.fixture(scope="module")
def real(recorded):
    options = (
        "--layers",
        str(LAYERS),
        "--hidden",
        "16",
        "--ffn",
        "24",
        "--task",
        "statistics",
        "--level",
        "L1",
    )
    return synthesise.load(recorded("pytorch", *options))


@pytest.fixture(scope="module", params=[False, True], ids=["exact", "noise of 1e-7"])
def reference(request, real, tmp_path_factory):
    """The dump as recorded, or as another machine would have written it: its folder."""
    folder = tmp_path_factory.mktemp("reference")
    synthesise.save(synthesise.noisy(real) if request.param else real, folder)
    return folder


@pytest.fixture(scope="module", params=EDITS.values(), ids=EDITS)
def answer(request, real, reference, tmp_path_factory):
    """(result, the edited dump) of one edit against one reference."""
    target = request.param(real)
    folder = tmp_path_factory.mktemp("target")
    synthesise.save(target, folder)
    return align(folder, reference), target


def test_the_dump_has_2000_calls(real):
    assert len(real.records) > 2000


def test_an_edit_that_changes_no_value_is_no_divergence(answer):
    result, _ = answer
    assert_aligned(result)


def test_every_pair_is_right(answer):
    result, target = answer
    origins = target.origins()
    remaining_ops = set(origins.values())
    pairs = result.pairs[result.pairs["reference_op"].isin(remaining_ops)]
    wrong_pairs = [
        (target_op, reference_op)
        for target_op, reference_op in zip(pairs["target_op"], pairs["reference_op"], strict=True)
        if origins[target_op] != reference_op
    ]
    assert not wrong_pairs, f"{len(wrong_pairs)} of {len(pairs)}, first {wrong_pairs[:3]}"


def test_every_op_that_has_a_partner_is_paired_with_it(answer):
    result, target = answer
    origins = target.origins()
    pairs = zip(result.pairs["target_op"], result.pairs["reference_op"], strict=True)
    correctly_paired = {
        reference_op for target_op, reference_op in pairs if origins[target_op] == reference_op
    }
    partners = [name for name in origins.values() if name is not None]
    missing = [name for name in partners if name not in correctly_paired]
    assert not missing, f"{len(missing)} of {len(origins)}, first {missing[:3]}"


def test_a_call_that_only_one_side_has_is_not_called_unmatched_if_all_that_follows_agrees(answer):
    result, _ = answer
    assert result.coverage["target"]["forward"]["share"] > 0.99
    assert result.coverage["reference"]["forward"]["share"] > 0.99


@pytest.mark.parametrize(
    "culprit",
    ["Tensor.__add__.102.forward", "Functional.linear.101.forward", "Tensor.__add__.4.forward"],
    ids=["a residual in the middle", "a projection in the middle", "the first residual"],
)
def test_an_output_0_1_percent_too_large_is_the_first_divergence(
    real, reference, tmp_path, culprit
):
    synthesise.save(synthesise.scaled(real, culprit), tmp_path)
    result = align(tmp_path, reference)
    first = get_first_divergence(result)
    assert first.reference_ops == (culprit,), describe_result(result)
    assert first.target_ops == (culprit,), describe_result(result)
    assert first.kind == "introduced"
    assert first.metrics["error"] == pytest.approx(1e-3, rel=0.05)


def test_a_fault_is_located_among_edits(real, reference, tmp_path):
    culprit = "Tensor.__add__.102.forward"
    target = apply_all_edits(synthesise.scaled(real, culprit))
    synthesise.save(target, tmp_path)
    result = align(tmp_path, reference)
    assert get_first_divergence(result).reference_ops == (culprit,), describe_result(result)
    assert target.origins()[get_first_divergence(result).target_ops[0]] == culprit
