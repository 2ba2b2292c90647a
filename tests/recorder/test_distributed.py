"""``dumpdiff.record`` under torchrun: two ranks over gloo, with FSDP2 and with DTensor."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dumpdiff
from dumpdiff.model.trace import Trace

pytest.importorskip("torch")

SCRIPT = Path(__file__).with_name("distributed_steps.py")
WAYS = ("shard_parameters", "split_layers")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Return the folder of the recordings and the lines that the ranks printed."""
    folder = tmp_path_factory.mktemp("distributed")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    process = subprocess.run(
        [*command, "2", str(SCRIPT), str(folder)], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return folder, process.stdout.splitlines()


def read(folder: Path, way: str, rank: int) -> Trace:
    return dumpdiff.read(folder / way / "step1" / f"rank{rank}")


def test_losses_are_bit_identical_with_and_without(run: tuple[Path, list[str]]) -> None:
    expected = {f"{way} {rank} True" for way in WAYS for rank in (0, 1)}
    assert expected <= set(run[1])


@pytest.mark.parametrize("way", WAYS)
def test_every_rank_has_both_steps_and_the_placements(
    way: str, run: tuple[Path, list[str]]
) -> None:
    for rank in (0, 1):
        for step in (0, 1):
            file = run[0] / way / f"step{step}" / f"rank{rank}" / "manifest.json"
            document = json.loads(file.read_text())
            assert document["complete"]
            placement = document["placements"]["0.up.weight"]
            assert placement["mesh"] == [2]
            assert placement["shape"] == [16, 8]
            assert placement["placements"] in (["S(0)"], ["Shard(dim=0)"])  # by version of PyTorch
        trace = read(run[0], way, rank)
        assert not trace.problems
        assert trace.source.rank == rank


@pytest.mark.parametrize("way", WAYS)
def test_parameters_gradients_and_updates_are_those_of_the_rank(
    way: str, run: tuple[Path, list[str]]
) -> None:
    tensors = [read(run[0], way, rank).tensors for rank in (0, 1)]
    for table in tensors:
        for column in ("gradient_of", "update_of"):
            assert "0.up.weight" in set(table[column])
    norms = [table.loc[table["update_of"] == "0.up.weight", "norm"].iloc[0] for table in tensors]
    assert norms[0] != norms[1]


def test_what_a_collective_wrote_is_measured_when_it_has_arrived(
    run: tuple[Path, list[str]],
) -> None:
    outputs = {}
    for way in WAYS:
        for rank in (0, 1):
            trace = read(run[0], way, rank)
            is_collective = (trace.ops["phase"] == "communication").to_numpy()
            rows = is_collective[trace.tensors["op"]] & (trace.tensors["slot_kind"] == "output")
            assert rows.any()
            outputs[way, rank] = trace.tensors.loc[rows, "norm"].to_numpy()
    for way in WAYS:  # gathered and reduced tensors are the same on all ranks
        common = np.intersect1d(outputs[way, 0], outputs[way, 1])
        assert common.size > 0
        assert np.isfinite(outputs[way, 0]).all()
