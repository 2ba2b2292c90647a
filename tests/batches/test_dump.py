"""The batch that a network read is found in real dumps of both frameworks."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dumpdiff.batches import compare, read_batches
from dumpdiff.batches.dump import is_counting
from dumpdiff.model.errors import DumpError

sys.path.insert(0, str(Path(__file__).parents[2] / "fixtures"))

import model_spec

Dump = Callable[[str], Path]


@pytest.mark.parametrize("name", ["demo_mindspore", "demo_pytorch"])
def test_tokens_and_labels_are_those_of_the_script(dump: Dump, name: str) -> None:
    tokens, labels = model_spec.clean(model_spec.Size(layers=3, hidden=32, ffn=88)).batch()
    batch = read_batches(dump(name))
    np.testing.assert_array_equal(batch.tokens, tokens)
    np.testing.assert_array_equal(batch.labels, labels)
    assert batch.vocabulary == 128


@pytest.mark.parametrize("name", ["ms_graph_bug_w1", "v6.0_api_stack", "v4.0.T2_api_stack"])
def test_all_dumps_of_one_model_contain_the_same_batch(dump: Dump, name: str) -> None:
    comparison = compare(read_batches(dump("ms_graph")), read_batches(dump(name)))
    common_findings = [finding for finding in comparison.findings if not finding.side]
    states = {(finding.name, finding.state) for finding in common_findings}
    assert (comparison.verdict, states) == ("agree", {("token ids", "agree"), ("labels", "agree")})


def test_ids_are_recovered_from_embeddings_if_integers_were_not_recorded(
    dump: Dump,
) -> None:
    batch = read_batches(dump("v1.0_api_stack"))
    np.testing.assert_array_equal(batch.tokens, read_batches(dump("v6.0_api_stack")).tokens)
    assert batch.notes == (
        "no ids were recorded: they were recovered from the rows that the embedding returned",
    )
    assert compare(batch, read_batches(dump("ms_graph"))).missing == (
        "labels: not found in the target",
    )


def test_equal_statistics_are_inconclusive(dump: Dump) -> None:
    comparison = compare(
        read_batches(dump("ms_graph")), read_batches(dump("v6.0_api_stack_summary"))
    )
    assert comparison.verdict == "inconclusive"
    assert (
        comparison.findings[0].summary
        == "max 121, min 5 on both sides; this is no proof, dump whole tensors"
    )


def test_different_statistics_differ(dump: Dump) -> None:
    comparison = compare(
        read_batches(dump("demo_mindspore")), read_batches(dump("v6.0_api_stack_summary"))
    )
    assert comparison.verdict == "differ"
    assert comparison.findings[0].summary == "max 127 against 121, min 1 against 5"


def test_equal_checksums_agree(dump: Dump) -> None:
    checksums = read_batches(dump("v6.0_api_stack_md5"))
    assert compare(checksums, checksums).verdict == "agree"
    comparison = compare(checksums, read_batches(dump("v6.0_api_stack")))
    assert (comparison.verdict, comparison.findings[0].summary) == (
        "inconclusive",
        "the two dumps recorded different statistics of them, which cannot be compared",
    )


def test_a_dump_without_integer_inputs_of_embeddings_is_rejected(dump: Dump) -> None:
    with pytest.raises(DumpError, match="no embedding in it reads integers"):
        read_batches(dump("edge_v6.0_all_filterOFF"))


@pytest.mark.parametrize(
    ("ids", "counts"),
    [
        ([[0, 1, 2, 3]], True),
        ([[0, 1, 0, 1], [0, 1, 2, 3]], True),
        ([[5, 6, 7, 8]], True),
        ([[0, 2, 1, 3]], False),
        ([[0, 0, 0, 0]], False),
        ([[7]], False),
    ],
)
def test_positions_are_recognized_by_counting(ids: list[list[int]], counts: bool) -> None:
    assert is_counting(np.array(ids)) == counts


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("masked") / "out"
    command = [sys.executable, Path(__file__).with_name("masked_network.py"), out]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return out


@pytest.mark.record
def test_masks_positions_and_micro_batches_are_found(masked: Path) -> None:
    expected = np.load(masked / "given.npz")
    batch = read_batches(masked / "dump")
    assert set(batch.arrays) == {"tokens", "labels", "loss_mask", "positions"}
    for name in batch.arrays:
        np.testing.assert_array_equal(batch.arrays[name], expected[name])
    assert compare(batch, read_batches(masked / "given.npz")).verdict == "agree"


@pytest.mark.record
def test_labels_that_are_shifted_twice_differ(masked: Path) -> None:
    comparison = compare(
        read_batches(masked / "dump", step=1), read_batches(masked / "dump", step=0)
    )
    assert comparison.verdict == "differ"
    assert comparison.to_stage().headline == (
        "labels: the target's are the reference's, shifted forward by 1 (2 ahead of the inputs,"
        " against 1)"
    )


def test_one_of_two_dumps_must_be_selected(dump: Dump, tmp_path: Path) -> None:
    (process,) = (dump("demo_pytorch") / "step0").iterdir()
    for name in ("proc1", "proc2"):
        shutil.copytree(process, tmp_path / "step0" / name)
    with pytest.raises(DumpError, match="the dump holds 2 matching dumps; give the folder of one"):
        read_batches(tmp_path)
