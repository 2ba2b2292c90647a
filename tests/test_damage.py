"""The damage benchmark: a damage is what its kind says, in one record, and leaves no trace; and an
answer is searched for it as a person would.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from dumpdiff import read

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path[:0] = [str(BENCHMARKS / "damage"), str(BENCHMARKS / "localise")]

import answers  # noqa: E402
import copies  # noqa: E402
import damages  # noqa: E402
import formats  # noqa: E402
import kinds  # noqa: E402
import outcomes  # noqa: E402
import pairs  # noqa: E402
import recordings  # noqa: E402
import records  # noqa: E402
import summary  # noqa: E402

STATISTICS = ["max", "min", "mean", "norm"]
#: dump -> its form of statistics
DUMPS = {
    "demo_mindspore": formats.convert_to_statistic_csv,
    "demo_pytorch": formats.convert_to_msprobe_statistics,
}


@pytest.fixture(scope="module")
def recorded_tensors(dump):
    """``recorded_tensors("demo_pytorch")``: the records of a dump of whole tensors."""
    known = {name: records.list_records(dump(name)) for name in DUMPS}
    return known.get


@pytest.fixture
def make_copy(dump, tmp_path):
    """``make_copy("demo_pytorch", "statistics")``: a copy and the editor of its records."""

    def make(name, form):
        original = tmp_path / "recordings" / name  # other forms are written next to it
        original.parent.mkdir(exist_ok=True)
        original.symlink_to(dump(name))
        if form == "tensors":
            copy = copies.DumpCopy(original, tmp_path / name)
            return copy, copies.TensorFiles(copy)
        copy = copies.DumpCopy(formats.make_form(DUMPS[name], original), tmp_path / name)
        if name == "demo_mindspore":
            return copy, copies.StatisticRows(copy, original)
        return copy, copies.JsonEntries(copy, original)

    return make


@cache
def read_once(folder):
    return read(folder)


def hash_files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def list_changed_files(copy):
    """Return the files of a copy that are not links to the original, or are missing."""
    return [
        file.relative_to(copy.original)
        for file in sorted(copy.original.rglob("*"))
        if file.is_file()
        and not (
            (copy.folder / file.relative_to(copy.original)).exists()
            and file.samefile(copy.folder / file.relative_to(copy.original))
        )
    ]


def index_numbers(trace):
    """Return (op, slot) -> statistics, of the records that have any."""
    ops = trace.ops["name"].to_numpy()[trace.tensors["op"].to_numpy()]
    numbers = trace.tensors[STATISTICS].to_numpy()
    places = zip(ops, trace.tensors["slot"], numbers, strict=True)
    return {(op, slot): row for op, slot, row in places if not np.isnan(row).all()}


def draw(editor, known_records, name, form, kind):
    return damages.draw_damages(editor, known_records, (name, form, "target"), kind)


class TestRecords:
    @pytest.mark.parametrize(("name", "count"), [("demo_mindspore", 1390), ("demo_pytorch", 723)])
    def test_every_computed_tensor_of_a_dump_can_be_damaged(self, recorded_tensors, name, count):
        known = recorded_tensors(name)
        assert len(known) == count
        assert {record.subject for record in known} == set(records.SUBJECTS) - {"optimizer"}

    def test_a_dump_may_be_a_link(self, dump, recorded_tensors, tmp_path):
        link = tmp_path / "link"
        link.symlink_to(dump("demo_pytorch"))
        assert records.list_records(link) == recorded_tensors("demo_pytorch")

    def test_a_value_is_known_in_all_its_records(self, recorded_tensors):
        groups = records.group_by_content(recorded_tensors("demo_pytorch"))
        (weight,) = [
            group
            for group in groups.values()
            if any(
                record.name.endswith("lm_head.Linear.forward.0 parameter.weight")
                for record in group
            )
        ]
        assert {record.subject for record in weight} == {"parameter"}
        assert len(weight) >= 2


@pytest.mark.parametrize("name", DUMPS)
class TestTensors:
    @pytest.mark.parametrize("kind", kinds.TENSOR_DAMAGES)
    def test_one_file_holds_what_the_kind_says(self, recorded_tensors, make_copy, name, kind):
        copy, editor = make_copy(name, "tensors")
        for damage in draw(editor, recorded_tensors(name), name, "tensors", kind):
            assert list_changed_files(copy) == [Path(damage.record.file)]
            before = editor.read_values(damage.record)
            copy_editor = copies.TensorFiles(
                copies.DumpCopy(copy.folder, copy.folder.with_name(damage.id))
            )
            after = copy_editor.read_values(damage.record)
            assert (after.dtype, after.shape) == (before.dtype, before.shape)
            if kind == "factor 1.3":
                assert after == pytest.approx(1.3 * before, rel=1e-6)
            elif kind == "sign":
                assert (after == -before).all()
            elif kind == "NaN":
                assert np.isnan(after).sum() == 1
            elif kind == "zeros":
                assert not after.any()
            elif kind == "doubled":
                assert (after == 2 * before).all()
            else:
                assert (after != before).sum() == 1
                assert after.max() == pytest.approx(1.3 * np.abs(before).max(), rel=1e-6)
            copy.restore()
            assert list_changed_files(copy) == []

    def test_a_value_is_damaged_in_all_its_files(self, recorded_tensors, make_copy, name):
        copy, editor = make_copy(name, "tensors")
        for damage in draw(editor, recorded_tensors(name), name, "tensors", kinds.EVERYWHERE):
            files = sorted(Path(record.file) for record in damage.same_value)
            assert list_changed_files(copy) == files
            copy.restore()

    def test_a_swapped_file_holds_numbers_of_another(self, recorded_tensors, make_copy, name):
        copy, editor = make_copy(name, "tensors")
        known = recorded_tensors(name)
        for damage in draw(editor, known, name, "tensors", kinds.SWAPPED):
            (file,) = list_changed_files(copy)
            again = copies.TensorFiles(
                copies.DumpCopy(copy.folder, copy.folder.with_name(damage.id))
            )
            after = again.read_values(damage.record).astype(np.float64).ravel()
            donors = [record for record in known if record.size == damage.record.size]
            assert any(
                np.array_equal(editor.read_values(donor).astype(np.float64).ravel(), after)
                for donor in donors
                if donor.file != str(file)
            )
            copy.restore()

    def test_files_are_cut_in_half_or_deleted(self, recorded_tensors, make_copy, name):
        copy, editor = make_copy(name, "tensors")
        for kind, share in ((kinds.TRUNCATED, 0.5), (kinds.DELETED, 0), (kinds.DELETED_COPY, 0)):
            for damage in draw(editor, recorded_tensors(name), name, "tensors", kind):
                assert list_changed_files(copy) == [Path(damage.record.file)]
                path = copy.folder / damage.record.file
                size = path.stat().st_size if path.exists() else 0
                assert size == int(share * (copy.original / damage.record.file).stat().st_size)
                copy.restore()

    def test_the_original_is_never_written(self, recorded_tensors, make_copy, name):
        copy, editor = make_copy(name, "tensors")
        before = hash_files(copy.original)
        for kind in kinds.list_kinds(whole=True):
            for _ in draw(editor, recorded_tensors(name), name, "tensors", kind):
                copy.restore()
        assert hash_files(copy.original) == before
        assert list_changed_files(copy) == []


@pytest.mark.parametrize("name", DUMPS)
class TestStatistics:
    @pytest.mark.parametrize("kind", [*kinds.STATISTICS_DAMAGES, kinds.ONE_STATISTIC])
    def test_the_numbers_of_one_record_change_as_the_kind_says(
        self, recorded_tensors, make_copy, name, kind
    ):
        copy, editor = make_copy(name, "statistics")
        before = read_once(copy.original)
        for damage in draw(editor, recorded_tensors(name), name, "statistics", kind):
            after = read(copy.folder)
            assert not after.problems
            old, new = before.tensors[STATISTICS], after.tensors[STATISTICS]
            is_same = (old == new) | (old.isna() & new.isna())
            rows = np.flatnonzero(~is_same.all(axis=1))
            slots = {
                (
                    before.ops["name"].iat[before.tensors["op"].iat[row]],
                    before.tensors["slot"].iat[row],
                )
                for row in rows
            }
            assert slots == {(damage.record.op, damage.record.slot)}
            high, low, mean, norm = old.iloc[rows[0]]
            changed = new.iloc[rows[0]]
            expected = {
                "factor 1.3": (1.3 * high, 1.3 * low, 1.3 * mean, 1.3 * norm),
                "doubled": (2 * high, 2 * low, 2 * mean, 2 * norm),
                "zeros": (0, 0, 0 * mean, 0),
                "sign": (-low, -high, -mean, norm),
                "NaN": (np.nan,) * 4,
            }
            if kind in expected:
                assert tuple(changed) == pytest.approx(expected[kind], rel=1e-5, nan_ok=True)
            elif kind == kinds.ONE_STATISTIC:
                assert (~is_same.iloc[rows[0]]).sum() == 1
            else:
                assert changed["max"] == pytest.approx(1.3 * max(abs(high), abs(low)), rel=1e-5)
                assert changed["norm"] == pytest.approx(np.hypot(norm, changed["max"]), rel=1e-5)
            copy.restore()

    @pytest.mark.parametrize("kind", [kinds.DELETED, kinds.DELETED_COPY])
    def test_a_deleted_record_has_no_numbers(self, recorded_tensors, make_copy, name, kind):
        copy, editor = make_copy(name, "statistics")
        before = index_numbers(read_once(copy.original))
        for damage in draw(editor, recorded_tensors(name), name, "statistics", kind):
            after = index_numbers(read(copy.folder))
            missing = {place for place in before if place not in after}
            deleted = (damage.record.op, damage.record.slot)
            assert deleted in missing
            if name == "demo_mindspore":  # a row; of msprobe, the entry of the call
                assert missing == {deleted}
            assert {op for op, _ in missing} == {damage.record.op}
            assert (len(damage.same_value) > 1) == (kind == kinds.DELETED_COPY)
            copy.restore()

    def test_a_cut_file_ends_in_the_record(self, recorded_tensors, make_copy, name):
        copy, editor = make_copy(name, "statistics")
        for _ in draw(editor, recorded_tensors(name), name, "statistics", kinds.TRUNCATED):
            (file,) = list_changed_files(copy)
            content, whole = (
                (folder / file).read_bytes() for folder in (copy.folder, copy.original)
            )
            assert whole.startswith(content)
            assert len(content) < len(whole)
            copy.restore()


class TestClearDamage:
    def test_the_sign_of_a_symmetric_tensor_changes_no_statistic(self):
        symmetric = kinds.Statistics(3.0, -3.0, None, 10.0)
        negated = kinds.STATISTICS_DAMAGES["sign"](symmetric, 20)
        assert not kinds.is_clear_statistics_damage(symmetric, negated, 20)

    def test_a_mean_is_measured_against_the_root_mean_square(self):
        numbers = kinds.Statistics(3.0, -2.0, 0.001, 10.0)
        assert not kinds.is_clear_statistics_damage(numbers, replace(numbers, mean=0.002), 100)
        assert kinds.is_clear_statistics_damage(numbers, replace(numbers, mean=0.02), 100)

    def test_a_factor_of_zeros_is_no_damage(self):
        zeros = np.zeros(4)
        assert not kinds.is_clear_tensor_damage(zeros, 1.3 * zeros)
        assert kinds.is_clear_tensor_damage(np.ones(4), 1.3 * np.ones(4))


CLEAN = answers.Answer(
    verdict="aligned",
    findings=frozenset(),
    states={("MatMul-op0", "output.0", "linear.0", "output.0"): frozenset({"agreeing"})},
    unmatched=frozenset({("target", "Cast-op0", "reconverged: ...")}),
    problems=frozenset(),
    lines=("aligned: 100 % compared, noise 6.3e-7", "target  12  reconverged: ..."),
    read_files=frozenset(),
    counts={},
)


def locate(**changes):
    answer = replace(CLEAN, **changes)
    return answers.locate_damage(answer, CLEAN, "target", {"MatMul-op0"}, "MatMul.op0.npy")[0]


class TestAnswers:
    def test_the_same_answer_is_silent(self):
        assert locate() == "silent"

    @pytest.mark.parametrize(
        "line",
        [
            "aligned: 99 % compared, noise 8e-6",
            "target  13  reconverged: ...",
            "notes",
            "missing edges were bridged: 1 by execution order",
        ],
    )
    def test_other_counts_of_what_is_always_counted_are_silent(self, line):
        assert locate(lines=(*CLEAN.lines, line)) == "silent"

    @pytest.mark.parametrize(
        "line", ["  target MatMul.op0.npy: cut short", "1 value is beyond its tolerance"]
    )
    def test_a_line_that_names_or_counts_the_damage_tells_it(self, line):
        assert locate(lines=(*CLEAN.lines, line)) == "terminal"

    def test_a_count_that_was_zero_tells_it(self):
        clean = replace(CLEAN, lines=("beyond tolerance  0",))
        answer = replace(CLEAN, lines=("beyond tolerance  1",))
        assert answers.locate_damage(answer, clean, "target", {"MatMul-op0"}, "x")[0] == "terminal"

    def test_another_verdict_or_finding_is_an_exit_code(self):
        assert locate(verdict="inconclusive") == "exit code"
        assert locate(findings=frozenset({"f1"})) == "exit code"

    def test_the_tables_hold_the_op_with_another_state(self):
        pair = ("MatMul-op0", "output.0", "linear.0", "output.0")
        assert locate(states={pair: frozenset({"incomparable"})}) == "tables"
        other = ("MatMul-op1", "output.0", "linear.1", "output.0")
        assert locate(states={**CLEAN.states, other: frozenset({"incomparable"})}) == "silent"
        assert (
            locate(unmatched=CLEAN.unmatched | {("target", "MatMul-op0", "no partner")}) == "tables"
        )

    def test_an_excuse_is_no_report(self):
        excused = CLEAN.unmatched | {("target", "MatMul-op0", "reconverged: ...")}
        assert locate(unmatched=excused) == "silent"


@pytest.fixture(scope="module")
def eager_pair(dump, tmp_path_factory):
    """A pair of two copies of one recording, and the folder that holds them."""
    work = tmp_path_factory.mktemp("damage")
    pair = pairs.Pair(
        "llama-eager",
        recordings.Recording("pytorch", "llama", "none", ("--order", "vkq")),
        recordings.Recording("pytorch", "llama"),
    )
    for recording in pair.recordings:
        path = recordings.get_path(recording, work)
        shutil.copytree(dump("demo_pytorch"), path, copy_function=os.link)
        recordings.get_mark(recording, work).write_text("demo")
    return pair, work


class TestOutcomes:
    def test_a_pair_is_asked_as_it_is_and_with_each_damage(self, eager_pair):
        pair, work = eager_pair
        measured = outcomes.measure_pair(pair, "statistics", ["zeros", "deleted"], work)
        one_side = ["zeros", "zeros", "deleted", "deleted"]
        assert [outcome.kind for outcome in measured] == ["undamaged", *one_side, *one_side]
        assert measured[0].verdict == "aligned"
        assert {outcome.level for outcome in measured[1:]} <= set(answers.LEVELS)
        assert len({outcome.id for outcome in measured}) == 9

    def test_outcomes_are_kept_and_taken_again(self, eager_pair):
        pair, work = eager_pair
        reports = []
        options = ([pair], ["statistics"], ["sign"], work, 1, reports.append)
        measured = outcomes.measure_outcomes(*options)
        assert reports == ["damaged 1/1 llama-eager [statistics]"]
        assert outcomes.measure_outcomes(*options) == measured
        assert len(reports) == 1

    def test_a_damaged_pair_can_be_kept(self, eager_pair, tmp_path):
        pair, work = eager_pair
        (damage,) = [
            outcome
            for outcome in outcomes.measure_pair(pair, "tensors", ["deleted"], work)
            if outcome.side == "reference"
        ][:1]
        outcomes.measure_pair(pair, "tensors", ["deleted"], work, only=damage.id, keep=tmp_path)
        n_files = {side: sum(1 for _ in (tmp_path / side).rglob("*.pt")) for side in outcomes.SIDES}
        assert n_files["reference"] == n_files["target"] - 1


def make_outcome(level, *, kind="sign", held_out=False, form="tensors", verdict="aligned"):
    return outcomes.Outcome(
        "llama-eager", "llama", form, held_out, kind, "target", "gradient", "id", f"a {kind}",
        verdict, level,
    )  # fmt: skip


class TestSummary:
    def test_shares_are_counted_by_part_form_kind_and_subject(self):
        text = summary.format_document(
            [
                make_outcome("", kind="undamaged"),
                make_outcome("", kind="undamaged", verdict="diverged"),
                make_outcome("exit code"),
                make_outcome("terminal"),
                make_outcome("tables"),
                make_outcome("silent"),
                make_outcome("silent", held_out=True),
            ]
        )
        assert "| tuned | tensors | 4 | 75% | 50% | 25% | 1 | 0 | - | - |" in text
        assert "| held out | tensors | 1 | 0% | 0% | 0% | 1 | 0 | - | - |" in text
        assert "2 pairs of dumps, 1 false alarms" in text
        assert "| sign | 75% (50%) | 4 |" in text
        assert "| gradient | 75% (50%) | 4 |" in text

    def test_held_out_failures_have_no_name(self):
        failures = [make_outcome("silent"), make_outcome("silent", kind="NaN", held_out=True)]
        text = summary.format_failures(failures, held_out=False)
        assert "a sign" in text
        assert "a NaN" not in text
        assert "1 held-out answers are wrong too." in text
        assert "a NaN" in summary.format_failures(failures, held_out=True)


def test_every_model_has_a_graph_and_an_eager_pair():
    models = {pair.model for pair in pairs.PAIRS}
    assert models == {"llama", "gpt2", "gqa", "moe", "mla", "resnet"}
    for model in models:
        names = [pair.name for pair in pairs.PAIRS if pair.model == model]
        assert {f"{model}-clean-graph", f"{model}-eager"} <= set(names)
