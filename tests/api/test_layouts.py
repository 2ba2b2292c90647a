"""Runs of other layouts: real recordings of one model on one, two and four ranks."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import dumpdiff
from dumpdiff import readers
from dumpdiff.cli import main
from dumpdiff.model.errors import DumpError
from dumpdiff.model.result import Result
from dumpdiff.model.trace import Trace
from dumpdiff.readers.parts import Part

Dumps = Callable[[str], Path]


def align(dump: Dumps, target: str, reference: str) -> Result:
    result = dumpdiff.align(dump(target), dump(reference))
    assert isinstance(result, Result)
    return result


@pytest.mark.parametrize(
    ("target", "reference"),
    [
        ("parallel_pt_tp2", "parallel_pt_tp1"),
        ("parallel_pt_tp1", "parallel_pt_tp2"),
        ("parallel_pt_tp2_dp2", "parallel_pt_tp1"),
        ("parallel_pt_tp2_dp2", "parallel_pt_tp2"),
        ("parallel_ms_tp2", "parallel_pt_tp1"),
        ("parallel_pt_padded_tp2", "parallel_pt_padded_tp1"),
        # two stages with two model chunks each, and two micro-batches
        ("parallel_pt_deep_vpp2", "parallel_pt_deep_tp1"),
        ("data_parallel_ddp", "data_parallel_one"),
        # gradients of keys' biases are zero but for rounding, only once all slices are added up
        ("data_parallel_ulysses", "data_parallel_one"),
        # both cut the batch, and the target also holds the sum that it divides
        ("data_parallel_ulysses", "data_parallel_ddp"),
    ],
)
def test_correct_runs_of_other_layouts_are_aligned(
    dump: Dumps, target: str, reference: str
) -> None:
    result = align(dump, target, reference)
    assert result.verdict == "aligned"
    assert result.findings == ()
    for side in ("target", "reference"):
        forward = result.coverage[side]["forward"]
        assert forward["compared"] + forward["reconverged"] >= 0.95 * forward["ops"]


@pytest.mark.parametrize("is_swapped", [False, True])
def test_another_epsilon_on_one_rank(dump: Dumps, is_swapped: bool) -> None:
    pair = ["parallel_pt_tp2_norm_eps", "parallel_pt_tp1"]
    result = align(dump, *(reversed(pair) if is_swapped else pair))
    assert result.verdict == "diverged"
    assert "Tensor.__add__.8.forward" in result.findings[0].title


def test_another_epsilon_in_the_second_model_chunk_of_a_rank(dump: Dumps) -> None:
    """The chunk numbers its layers from 0; the finding has the number in the whole model."""
    result = align(dump, "parallel_pt_deep_vpp2_norm_eps", "parallel_pt_deep_tp1")
    assert result.verdict == "diverged"
    assert result.findings[0].scope == "layers.2.input_norm"
    assert "(chunk 1 of rank 0)" in result.findings[0].title
    assert "the 4 model chunks of the target were merged to one run" in result.notes


def test_sums_that_are_missing_are_found(dump: Dumps) -> None:
    result = align(dump, "parallel_pt_tp2_not_reduced", "parallel_pt_tp1")
    assert result.findings[0].scope == "layers.0.mlp.down_proj"
    assert result.findings[0].target_ops == ("Functional.linear.3.forward",)


def test_a_gradient_that_is_reduced_twice_is_found_from_statistics(dump: Dumps) -> None:
    """The first step of Adam divides a gradient by its own size: every new weight agrees."""
    result = align(dump, "parallel_pt_dp2_reduced_twice", "parallel_pt_tp1")
    assert result.verdict == "diverged"
    assert result.findings[0].target_ops == ("Distributed.all_reduce.16.forward",)
    assert result.findings[0].metrics["norm_ratio"] == 2.0


def test_gradients_that_are_zeroed_between_micro_batches_are_found(dump: Dumps) -> None:
    """The optimizer reads what the last micro-batch has: that is the total, not a summand."""
    result = align(dump, "parallel_pt_acc2_batch_lost", "parallel_pt_tp1")
    assert result.verdict == "diverged"
    assert result.findings[0].target_ops == (
        "Module.decoder.final_layernorm.RMSNorm.parameters_grad.1 (micro-batch 1 of rank 0)",
    )


def test_the_layout_is_part_of_the_result(dump: Dumps) -> None:
    result = align(dump, "parallel_pt_tp2", "parallel_pt_tp1")
    layout = {name: relation for name, relation, _ in result.details["layouts"]["target"]}
    assert layout["decoder.layers.#.mlp.linear_fc1.weight"] == "2 shards"
    assert layout["decoder.layers.#.mlp.linear_fc2: Functional.linear output.0"] == "sum of 2 ranks"
    assert "decoder.layers.#.input_layernorm.weight" not in layout
    assert "the 2 ranks of the target were merged to one run" in result.notes


@pytest.mark.parametrize("option", ["baseline", "weights_target", "weights_reference", "verify"])
def test_what_works_on_single_ranks_only_is_refused(dump: Dumps, option: str) -> None:
    """It is not ignored: the answer would claim more than was done."""
    value: object = True if option == "verify" else dump("parallel_pt_tp1")
    with pytest.raises(DumpError, match=f"--{option.replace('_', '-')} works on single ranks"):
        dumpdiff.align(dump("parallel_pt_tp2"), dump("parallel_pt_tp1"), **{option: value})


def test_the_layout_is_printed_on_request(dump: Dumps) -> None:
    arguments = ["align", str(dump("parallel_pt_tp2")), str(dump("parallel_pt_tp1")), "-v"]
    lines = CliRunner().invoke(main, arguments).stdout.splitlines()
    start = lines.index("spread over ranks")
    table = [line.strip() for line in lines[start + 1 : lines.index("", start)]]
    assert "target decoder.layers.#.mlp.linear_fc1.weight: 2 shards (4)" in table


@pytest.mark.parametrize("is_swapped", [False, True])
def test_a_run_that_lacks_a_rank_is_not_merged_without_it(
    dump: Dumps, tmp_path: Path, is_swapped: bool
) -> None:
    """Its collectives name the rank. With one layout on both sides the others are compared."""
    complete = dump("parallel_pt_tp2_dp2")
    incomplete = tmp_path / "incomplete"
    shutil.copytree(complete, incomplete, ignore=shutil.ignore_patterns("rank3"))
    pair = [complete, incomplete] if is_swapped else [incomplete, complete]
    side = "reference" if is_swapped else "target"

    run = dumpdiff.align(*pair, jobs=1)

    assert (run.verdict, run.ranks) == ("inconclusive", (0, 1, 2))
    assert run.unpaired == (f"the {side} has no rank 3 of step 0",)
    with pytest.raises(DumpError, match="the target exchanges values with rank 3, which its dump"):
        dumpdiff.align(incomplete, dump("parallel_pt_tp2"))


def test_a_rank_that_cannot_be_read_is_said_to_be_missing(dump: Dumps, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(dump("parallel_pt_tp2_dp2"), damaged)
    (damaged / "step0" / "rank3" / "dump.json").write_text("{")

    run = dumpdiff.align(damaged, dump("parallel_pt_tp2_dp2"), jobs=1)

    assert run.verdict == "inconclusive"
    assert run.notes[0] == "the target has no rank 3 of step 0"


def copy_ranks(source: Path, folder: Path, *ranks: int) -> Path:
    """Return a dump with some of the ranks of another."""
    for rank in ranks:
        shutil.copytree(source / "step0" / f"rank{rank}", folder / "step0" / f"rank{rank}")
    return folder


def test_ranks_that_both_runs_lack_are_said(dump: Dumps, tmp_path: Path) -> None:
    """The collectives of the recorded ranks name the others."""
    source = dump("parallel_pt_tp2_dp2")
    target = copy_ranks(source, tmp_path / "target", 0, 2)
    reference = copy_ranks(source, tmp_path / "reference", 0, 2)

    run = dumpdiff.align(target, reference, jobs=1)

    assert run.unread == (
        "ranks 1 and 3 are in neither dump and were not compared; others exchange values with them",
    )


def test_a_run_of_one_recorded_rank_says_which_others_it_has(dump: Dumps, tmp_path: Path) -> None:
    """It is not compared with another layout: its parameters are shards."""
    rank_0 = copy_ranks(dump("parallel_pt_tp2"), tmp_path / "rank_0", 0)
    note = "rank 1 is in neither dump and was not compared; others exchange values with it"

    equal = dumpdiff.align(rank_0, copy_ranks(dump("parallel_pt_tp2_again"), tmp_path / "again", 0))
    assert equal.verdict == "aligned"
    assert note in equal.notes
    with pytest.raises(DumpError, match="the target exchanges values with rank 1, which its dump"):
        dumpdiff.align(rank_0, dump("parallel_pt_tp1"))


def test_runs_that_both_lack_ranks_are_not_merged_without_them(dump: Dumps, tmp_path: Path) -> None:
    target = copy_ranks(dump("parallel_pt_tp2_dp2"), tmp_path / "target", 0, 2)
    with pytest.raises(DumpError, match="the target exchanges values with ranks 1 and 3, which"):
        dumpdiff.align(target, dump("parallel_pt_tp1"))


def test_every_rank_is_read_once(dump: Dumps, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if runs of another number of ranks have parameters of the same sizes."""
    paths = []
    read_part = readers.read_part

    def count_part(part: Part) -> Trace:
        paths.append(part.path)
        return read_part(part)

    monkeypatch.setattr(readers, "read_part", count_part)
    align(dump, "parallel_pt_tp2_dp2", "parallel_pt_tp2")
    assert len(paths) == len(set(paths)) == 6


def test_a_rule_file_decides_about_a_relation(dump: Dumps, tmp_path: Path) -> None:
    """Also in the answer; where both runs have one layout, it is said that nothing used it."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "relations:\n  target:\n"
        "    decoder.layers.#.mlp.linear_fc1.weight: {relation: concatenated, factor: 0.5}\n"
    )
    result = dumpdiff.align(dump("parallel_pt_tp2"), dump("parallel_pt_tp1"), rules=[rules])
    assert result.verdict == "diverged"
    assert "linear_fc1.weight" in result.findings[0].title
    target = dump("parallel_pt_tp2") / "step0" / "rank0"
    same = dumpdiff.align(target, target.with_name("rank1"), rules=[rules])
    assert any("no relation was used" in note for note in same.notes)
