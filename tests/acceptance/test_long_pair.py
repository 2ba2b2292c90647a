"""Two dumps of 2,000 calls whose right answer is known: one is the other, edited as a change of the code would."""

import model_spec  # noqa: F401  (fixtures are on the path: see conftest)
import pytest
import synthesise

from dumpdiff import align

from .verdicts import assert_aligned, get_first_divergence, describe_result

pytestmark = pytest.mark.record

LAYERS = 29


def inserted(dump):
    return synthesise.inserted(dump, "Tensor.__mul__.40.forward")


def removed(dump):
    return synthesise.removed(dump, "Functional.silu.12.forward")


def doubled(dump):
    return synthesise.doubled(dump, "Functional.linear.80.forward")


def swapped(dump):
    """Queries and keys of layer 15 in the other order."""
    return synthesise.swapped(
        dump, "Functional.linear.105.forward", "Functional.linear.106.forward"
    )


def all_four(dump):
    return swapped(doubled(removed(inserted(dump))))


EDITS = {
    "nothing": lambda dump: dump,
    "one call inserted": inserted,
    "one call removed": removed,
    "one call recomputed": doubled,
    "two calls swapped": swapped,
    "all four": all_four,
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
    still_there = set(origins.values())
    pairs = result.pairs[result.pairs["reference_op"].isin(still_there)]
    wrong = [
        (ours, theirs)
        for ours, theirs in zip(pairs["target_op"], pairs["reference_op"], strict=True)
        if origins[ours] != theirs
    ]
    assert not wrong, f"{len(wrong)} of {len(pairs)}, first {wrong[:3]}"


def test_every_op_that_has_a_partner_is_paired_with_it(answer):
    result, target = answer
    origins = target.origins()
    found = {
        theirs
        for ours, theirs in zip(
            result.pairs["target_op"], result.pairs["reference_op"], strict=True
        )
        if origins[ours] == theirs
    }
    missing = [name for name in origins.values() if name is not None and name not in found]
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
    target = all_four(synthesise.scaled(real, culprit))
    synthesise.save(target, tmp_path)
    result = align(tmp_path, reference)
    assert get_first_divergence(result).reference_ops == (culprit,), describe_result(result)
    assert target.origins()[get_first_divergence(result).target_ops[0]] == culprit
