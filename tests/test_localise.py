"""The localisation benchmark on a small scale: its ground truth, its forms and its scores, on
pairs recorded now.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dumpdiff import align, read

LOCALISE = Path(__file__).parents[1] / "benchmarks" / "localise"
sys.path.insert(0, str(LOCALISE))

import dumps  # noqa: E402
import faults  # noqa: E402
import formats  # noqa: E402
import partners  # noqa: E402
import recordings  # noqa: E402
import score  # noqa: E402
import table  # noqa: E402
import truth  # noqa: E402

pytestmark = pytest.mark.record

#: Fault of fixtures/model_spec.py -> framework -> the op that is its root, as the recorder names
#: it.
ROOTS = {
    "eps": {"mindspore": "Add", "pytorch": "Tensor.__add__.12.forward"},
    "w1": {
        "mindspore": "network.backbone.layers.1.mlp.w1.weight",
        "pytorch": "Functional.linear.11.forward",
    },
}


@pytest.fixture(scope="module")
def recording(recorded):
    """``recording("pytorch", "eps")``: a dump of the fixtures' model with its fingerprints."""

    def load(framework, fault="none"):
        return dumps.load(recorded(framework, *([] if fault == "none" else ["--fault", fault])))

    return load


@pytest.mark.parametrize("framework", ["mindspore", "pytorch"])
class TestTruth:
    @pytest.mark.parametrize("fault", ROOTS)
    def test_the_root_is_found_from_the_numbers_alone(self, recording, framework, fault):
        found = truth.find_truth(recording(framework), recording(framework, fault))
        assert found.phase == "forward"
        assert found.first.rpartition("/")[2].startswith(ROOTS[fault][framework])
        assert found.first in found.ops
        assert found.effect > 1e-3

    def test_a_clean_recording_has_none(self, recording, framework):
        found = truth.find_truth(recording(framework), recording(framework))
        assert not found.ops
        assert not (found.changed == truth.CHANGED).any()

    def test_everything_that_follows_from_the_root_is_changed_and_nothing_before_it(
        self, recording, framework
    ):
        faulty = recording(framework, "eps")
        found = truth.find_truth(recording(framework), faulty)
        root = faulty.trace.ops["name"].tolist().index(found.first)
        before = [row for op in range(root) for row in faulty.writes[op]]
        forward = faulty.trace.ops["phase"] == "forward"
        loss = max(op for op in forward[forward].index if faulty.writes[op])
        if framework == "pytorch":  # the order of a graph says nothing of what depends on what
            assert (found.changed[before] != truth.CHANGED).all()
        assert (found.changed[faulty.writes[loss]] == truth.CHANGED).all()

    def test_a_recording_is_the_same_bits_again(
        self, recorded, recording, framework, tmp_path_factory
    ):
        again = dumps.load(
            recorded(framework, "--order", "qkv")
        )  # the default, recorded a second time
        assert dumps.is_same_recording(recording(framework), again)


class TestPartners:
    def test_most_values_of_a_clean_pair_have_a_partner(self, recording):
        ours, theirs = recording("mindspore"), recording("pytorch")
        known = partners.find_known_partners(ours, theirs)
        reference = {name for others in known.values() for name in others}
        assert len(reference) > 150

    def test_the_alignment_of_a_faulty_pair_is_judged_on_both_sides_of_the_fault(
        self, recording, recorded
    ):
        clean, faulty, reference = (
            recording("mindspore"),
            recording("mindspore", "eps"),
            recording("pytorch"),
        )
        result = align(recorded("mindspore", "--fault", "eps"), recorded("pytorch"))
        sides = [
            partners.Side(
                clean,
                faulty,
                dumps.pair_ops(clean, faulty),
                truth.find_truth(clean, faulty).changed,
            ),
            partners.Side(reference, reference, dumps.pair_ops(reference, reference)),
        ]
        pairs = list(
            zip(result.pairs["target"].tolist(), result.pairs["reference"].tolist(), strict=True)
        )
        outputs = [row for row, role in enumerate(reference.role) if role == "output"]
        quality = partners.judge_pairs(
            pairs, partners.find_known_partners(clean, reference), *sides, outputs
        )
        assert quality.before.right > 50
        assert quality.beyond.right > 50
        wrong = [
            (pairs[0][0], reference_row) for _, reference_row in pairs[1:]
        ]  # everything paired with one tensor
        assert (
            partners.judge_pairs(
                wrong, partners.find_known_partners(clean, reference), *sides, outputs
            ).before.right
            <= 3
        )


class TestForms:
    @pytest.mark.parametrize("form", formats.FORMS)
    def test_the_same_fault_is_found_in_every_form(self, recorded, form):
        chosen = formats.FORMS[form]
        target = formats.make_form(chosen.target, recorded("mindspore", "--fault", "eps"))
        result = align(target, formats.make_form(chosen.reference, recorded("pytorch")))
        assert result.verdict == "diverged"
        assert result.findings[0].reference_ops == ("Tensor.__add__.12.forward",)

    def test_ops_without_a_graph_are_known_by_the_names_they_have_with_one(self, recorded):
        recording = recorded("mindspore", "--fault", "eps")
        trace = read(recording)
        renamed = formats.map_names(formats.FORMS["tensors-bare"], recording, trace)
        assert set(renamed.values()) == set(trace.ops["name"])

    def test_statistics_hold_no_tensor(self, recorded):
        folder = formats.make_form(formats.convert_to_msprobe_statistics, recorded("pytorch"))
        assert not (read(folder).tensors["file"] != "").any()

    def test_a_summary_in_the_words_of_ptdbg_has_the_calls_of_the_recording(self, recorded):
        recording = recorded("pytorch")
        calls = read(formats.make_form(formats.convert_to_ptdbg_summary, recording))
        assert calls.source.format == "ptdbg"
        assert not calls.problems
        whole = read(recording).ops
        forward = whole[(whole["level"] == "op") & (whole["phase"] == "forward")]
        assert (
            calls.ops.loc[calls.ops["phase"] == "forward", "name"].tolist()
            == forward["name"].tolist()
        )


@pytest.fixture(scope="module")
def scores(tmp_path_factory):
    """One model clean, with a wrong epsilon in MindSpore, and with a wrong weight in PyTorch."""
    work = tmp_path_factory.mktemp("localise")
    styles = (("--names", "legacy"), ("--names", "hf"))
    cases = [
        faults.Case("clean", "llama", "none", "", *styles),
        faults.Case("epsilon", "llama", "eps", "mindspore", *styles),
        faults.Case("weight", "llama", "weight_scaled", "pytorch", *styles),
    ]
    wanted = [
        one
        for case in cases
        for side in recordings.list_recordings(case)
        for one in (side, side.clean())
    ]
    assert recordings.make_recordings(wanted, work, 2, print) == {}
    return score.score_cases(cases, ("tensors", "statistics-bare"), work, 1, print)


class TestScore:
    def test_faults_are_found_and_nothing_else(self, scores):
        assert len(scores) == 6
        answers = {f"{s.case} [{s.form}]": (s.verdict, s.top1) for s in scores}
        assert all(
            verdict == ("aligned" if name.startswith("clean") else "diverged")
            for name, (verdict, _) in answers.items()
        ), answers
        assert all(top1 for name, (_, top1) in answers.items() if not name.startswith("clean")), (
            answers
        )

    def test_pairs_are_right_before_and_beyond_the_fault(self, scores):
        for one in scores:
            for where, tally in one.pairs.items():
                assert tally["right"] >= 0.97 * (tally["right"] + tally["wrong"]), (
                    one.case,
                    one.form,
                    where,
                    tally,
                )

    def test_the_tables_say_so(self, scores):
        text = table.format_document(scores, [], [])
        assert "| tuned | tensors | 2 | 100% | 100% |" in text
        assert "msprobe compare" not in text, "what was not measured is left out"
        assert table.format_failures(scores, held_out=False) == ""


def test_the_document_keeps_what_stands_around_the_section(tmp_path):
    file = tmp_path / "benchmarks.md"
    file.write_text("# Speed\n\nfast\n")
    table.write_section(file, "localise", "first\n")
    table.write_section(file, "localise", "second\n")
    text = file.read_text()
    assert text.startswith("# Speed\n\nfast\n")
    assert "second" in text
    assert "first" not in text
