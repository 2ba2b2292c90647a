"""A real dump is sound; one damaged file or record of it is found and named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import dumpdiff
from dumpdiff.model.trace import Source, Trace, build_op_table, build_tensor_table
from dumpdiff.rulebook import load_rules
from dumpdiff.tensor_files import npy
from dumpdiff.verification import Verification, verify_trace

from .damage import change_npy, find_file, link_dump, replace_bytes

Dump = Callable[[str], Path]

#: A product in the MindSpore dump, whose output the three projections of a layer read.
MUL = "0-Block/input_norm-RMSNorm/Mul-op0"
LINEAR = "Functional.linear.4.forward"


@pytest.mark.parametrize(
    ("name", "n_files", "n_checks"),
    [
        ("ms_graph", 2471, 10_865),
        ("v6.0_api_stack", 1004, 5_266),
        ("edge_v6.0_all_filterOFF", 388, 1_672),
        ("v6.0_module_dump", 15, 68),
    ],
)
def test_real_dumps_do_not_contradict_themselves(
    dump: Dump, name: str, n_files: int, n_checks: int
) -> None:
    verification = dumpdiff.verify(dump(name))
    assert verification.contradictions == ()
    assert verification.verdict == "agree"
    assert (verification.files_read, verification.files_total) == (n_files, n_files)
    assert sum(check.checked for check in verification.checks) == n_checks


@pytest.mark.parametrize("name", ["ms_gpt2", "pt_none", "ms_mf_none", "v6.0_api_stack_md5"])
def test_without_whole_tensors_nothing_can_be_recomputed(dump: Dump, name: str) -> None:
    verification = dumpdiff.verify(dump(name))
    assert verification.contradictions == ()
    assert verification.verdict == "inconclusive"
    assert verification.missing[0].startswith("the dump has no whole tensors")


def test_a_dump_that_two_processes_wrote_differs(dump: Dump) -> None:
    verification = dumpdiff.verify(dump("v2.0_corrupt_2proc"))
    assert verification.verdict == "differ"
    assert "892 records damaged or lost: names with different" in verification.headline
    # an op of one process after one of the other
    assert {item.kind for item in verification.contradictions} == {"result"}


class TestFilesOfMindSpore:
    """npy files without statistics: each is held against the ops that read and write the value."""

    @pytest.fixture
    def damaged(self, dump: Dump, tmp_path: Path) -> Path:
        return link_dump(dump("ms_graph"), tmp_path)

    @pytest.mark.parametrize(
        "change",
        [
            pytest.param(np.zeros_like, id="zeros"),
            pytest.param(lambda array: array * 2, id="doubled"),
            pytest.param(lambda array: array * 1.3, id="factor"),
            pytest.param(np.negative, id="sign"),
            pytest.param(lambda array: np.full_like(array, np.nan), id="nan"),
            pytest.param(
                lambda array: array + np.eye(1, array.size, 5)[0].reshape(array.shape), id="one"
            ),
        ],
    )
    @pytest.mark.parametrize("slot", ["input.0", "output.0"])
    def test_a_changed_file_is_an_edge_with_two_values(self, damaged: Path, change, slot) -> None:
        file = find_file(damaged, MUL, slot)
        change_npy(file, change)
        verification = dumpdiff.verify(damaged)
        assert verification.verdict == "differ"
        kinds = {item.kind for item in verification.contradictions}
        assert kinds == {"edge"}
        op_names = [item.message for item in verification.contradictions]
        assert all(MUL in message for message in op_names)

    def test_a_file_of_another_op_is_found_by_its_shape(self, damaged: Path) -> None:
        file, other = (
            find_file(damaged, MUL, "output.0"),
            find_file(damaged, "Gather-op0", "input.0"),
        )
        replace_bytes(file, other.read_bytes())
        verification = dumpdiff.verify(damaged)
        (problem,) = [problem for problem in verification.damage if problem.file == file.name]
        assert problem.op.endswith(MUL)
        assert "the graph has float32" in problem.message

    def test_a_truncated_file_is_named(self, damaged: Path) -> None:
        file = find_file(damaged, MUL, "output.0")
        content = file.read_bytes()
        replace_bytes(file, content[: len(content) // 2])
        (problem,) = dumpdiff.verify(damaged).damage
        assert problem.file == file.name
        assert "cut short" in problem.message

    def test_a_deleted_file_is_a_slot_that_its_like_have(self, damaged: Path) -> None:
        find_file(damaged, MUL, "output.0").unlink()
        (item,) = dumpdiff.verify(damaged).contradictions
        assert (item.kind, item.slot) == ("missing", "output.0")
        assert item.op.endswith(MUL)
        assert item.computed == "other Mul ops have this slot"


class TestFilesOfPyTorch:
    """npy files with recorded statistics."""

    @pytest.fixture
    def damaged(self, dump: Dump, tmp_path: Path) -> Path:
        return link_dump(dump("v6.0_api_stack"), tmp_path)

    @pytest.mark.parametrize(
        "change",
        [
            pytest.param(np.zeros_like, id="zeros"),
            pytest.param(lambda array: array * 1.001, id="factor"),
            pytest.param(np.negative, id="sign"),
            pytest.param(lambda array: np.full_like(array, np.inf), id="inf"),
        ],
    )
    def test_a_changed_file_has_other_statistics_than_its_record(
        self, damaged: Path, change
    ) -> None:
        file = find_file(damaged, LINEAR, "input.1")
        change_npy(file, change)
        (item,) = dumpdiff.verify(damaged).contradictions
        assert (item.kind, item.op, item.slot) == ("statistics", LINEAR, "input.1")
        assert item.file.endswith(file.name)
        array = npy.open_array(file)
        if np.isfinite(array).all():
            assert f"max {array.max():.6g}" in item.computed
            assert f"norm {np.linalg.norm(array.astype(float)):.6g}" in item.computed

    def test_a_file_of_another_dtype_and_one_of_another_size(self, damaged: Path) -> None:
        file = find_file(damaged, LINEAR, "input.1")
        array = np.array(npy.open_array(file))
        file.unlink()
        np.save(file, array.astype(np.float64))
        (item,) = dumpdiff.verify(damaged).contradictions
        assert (item.kind, item.recorded, item.computed) == (
            "dtype",
            "recorded as float32",
            "the file holds float64",
        )
        np.save(file, array[1:])
        (item,) = dumpdiff.verify(damaged).contradictions
        assert (item.kind, item.slot) == ("shape", "input.1")

    def test_every_file_is_opened(self, damaged: Path) -> None:
        files = [find_file(damaged, LINEAR, slot) for slot in ("input.0", "input.1", "output.0")]
        for file in files:
            replace_bytes(file, b"\x93NUMPY garbage")
        verification = dumpdiff.verify(damaged)
        assert [item.kind for item in verification.contradictions] == ["file"] * 3
        assert verification.files_read == 1004


class TestStatisticsOnly:
    """One number of a dump.json is changed."""

    @pytest.fixture
    def change_leaf(self, dump: Dump, tmp_path: Path) -> Callable[..., Verification]:
        copy = link_dump(dump("pt_none"), tmp_path)

        def change(statistic: str, factor: float) -> Verification:
            (file,) = copy.rglob("dump.json")
            content = json.loads(file.read_text())
            leaf = content["data"][LINEAR]["input_args"][0]
            leaf[statistic] *= factor
            replace_bytes(file, json.dumps(content).encode())
            return dumpdiff.verify(copy)

        return change

    @pytest.mark.parametrize(
        ("statistic", "factor", "kind", "reason"),
        [
            ("Max", float("nan"), "impossible", "NaN or Inf must be in all of them"),
            ("Min", float("inf"), "impossible", "NaN or Inf must be in all of them"),
            ("Max", -1, "impossible", "the mean is above max"),
            ("Norm", 0.01, "impossible", "the norm is too small for them"),
            ("Norm", 100, "impossible", "the norm is too large for them"),
            ("Norm", -1, "impossible", "the norm is too small for them"),
            ("Max", 2, "copy", "is recorded with another max"),
            ("Min", 1.3, "copy", "is recorded with another min"),
            ("Norm", 1.3, "copy", "is recorded with another norm"),
        ],
    )
    def test_one_wrong_statistic_of_an_input_is_found(
        self, change_leaf, statistic: str, factor: float, kind: str, reason: str
    ) -> None:
        verification = change_leaf(statistic, factor)
        assert verification.verdict == "differ"
        items = [item for item in verification.contradictions if item.op == LINEAR]
        assert [(item.kind, item.slot) for item in items][:1] == [(kind, "input.0")]
        assert reason in items[0].computed

    def test_nothing_else_is_reported(self, change_leaf) -> None:
        verification = change_leaf("Norm", 100)
        assert {item.tensor for item in verification.contradictions} == {74}
        assert verification.headline.startswith("1 record contradicts another record or its file")


def test_every_byte_of_a_large_file_counts() -> None:
    """A reader takes the fingerprint of a large file from parts of it; a verification does not."""
    values = np.zeros(1 << 20, dtype=np.float32)
    damaged = values.copy()
    damaged[300_001] = 1e-3
    arrays = {"written.npy": values, "read.npy": damaged}
    source = Source("/dump", "mindspore", "", "mindspore")
    tensors = build_tensor_table(
        {
            "op": [0, 1],
            "slot": ["output.0", "input.0"],
            "slot_kind": ["output", "input"],
            "dtype": ["float32"] * 2,
            "size": [1 << 20] * 2,
            "source_tensor": [-1, 0],
            "file": list(arrays),
            "content": [7, 7],
        }
    )
    ops = build_op_table({"name": ["writer", "reader"], "kind": ["Mul", "Add"]})
    trace = Trace(source, ops, tensors, (), arrays.__getitem__)
    (item,) = verify_trace(trace, load_rules()).contradictions
    assert (item.kind, item.op, item.slot) == ("edge", "reader", "input.0")
    assert item.computed == "it differs from the file that writer output.0 wrote"


def test_a_norm_that_a_statistic_csv_prints_as_nan_is_damage(dump: Dump, tmp_path: Path) -> None:
    copy = link_dump(dump("ms_gpt2"), tmp_path)
    (file,) = copy.rglob("statistic.csv")
    header, row, *rows = file.read_text().splitlines()
    *cells, _, _ = row.split(",")
    replace_bytes(file, "\n".join([header, ",".join([*cells, "nan", ""]), *rows]).encode())
    (problem,) = dumpdiff.verify(copy).damage
    assert problem.message.startswith("mean or norm is NaN although max and min are finite")
    assert problem.op in row
