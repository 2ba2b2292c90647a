"""The benchmark of parallel runs: layouts, shards, the order of micro-batches, held-out faults."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

PARALLEL = Path(__file__).parents[1] / "benchmarks" / "parallel"
sys.path.insert(0, str(PARALLEL))

import cases  # noqa: E402
import network  # noqa: E402
import runs  # noqa: E402
import shards  # noqa: E402
from injections import Injection, parse_injection  # noqa: E402
from layouts import Layout, parse_layout  # noqa: E402

DENSE = network.get_network("dense")
WHOLE = network.build_weights(DENSE)
CORRECT = Injection()


def cut_all(text: str, injection: Injection = CORRECT) -> list[dict[str, np.ndarray]]:
    """Return the weights of every rank of a layout."""
    layout = parse_layout(text)
    return [shards.cut_weights(DENSE, layout, rank, injection) for rank in range(layout.n_ranks)]


class TestLayout:
    def test_a_layout_is_written_with_its_degrees(self):
        assert parse_layout("tp2-dp2") == Layout(tp=2, dp=2)
        assert parse_layout("tp2-sp").sp
        assert parse_layout("tp1").name == "tp1"
        with pytest.raises(ValueError, match="no layout: 'tp'"):
            parse_layout("tp")

    def test_ranks_of_one_tensor_parallel_group_are_neighbors(self):
        layout = parse_layout("tp2-dp2")
        assert layout.list_groups("tp") == [(0, 1), (2, 3)]
        assert layout.list_groups("dp") == [(0, 2), (1, 3)]
        assert layout.locate(3) == {"tp": 1, "cp": 0, "dp": 1, "pp": 0}

    def test_pipeline_stages_are_slowest(self):
        assert parse_layout("tp2-pp2").list_groups("pp") == [(0, 2), (1, 3)]


class TestShards:
    def test_rows_of_the_ranks_make_up_the_embedding(self):
        ranks = cut_all("tp4")
        rows = np.concatenate([weights["embedding"] for weights in ranks])
        assert np.array_equal(rows, WHOLE["embedding"])

    def test_each_rank_has_its_gate_above_its_up_projection(self):
        first, second = (weights["layers.1.fc1"] for weights in cut_all("tp2"))
        gates = np.concatenate([first[:32], second[:32]])
        assert np.array_equal(gates, WHOLE["layers.1.fc1"][:64])

    def test_norms_are_replicated(self):
        ranks = cut_all("tp2-dp2")
        assert all(np.array_equal(weights["final_norm"], WHOLE["final_norm"]) for weights in ranks)

    def test_a_padded_vocabulary_has_rows_of_zeros_at_its_end(self):
        padded, layout = network.get_network("padded"), parse_layout("tp2")
        last = shards.cut_weights(padded, layout, 1, CORRECT)["embedding"]
        assert last.shape == (48, 32)
        assert not last[-4:].any()
        assert last[-5].any()

    def test_a_stage_has_its_layers_and_the_last_one_a_copy_of_the_embedding(self):
        first, last = cut_all("pp2")
        assert {name.split(".")[1] for name in first if "." in name} == {"0", "1"}
        assert "final_norm" not in first
        assert np.array_equal(first["embedding"], last["embedding"])

    def test_a_fault_of_loading_is_on_its_rank_and_layer_only(self):
        clean = cut_all("tp2")
        faulty = cut_all("tp2", parse_injection("shard_twice@2/1"))
        assert np.array_equal(faulty[1]["layers.2.proj"], clean[0]["layers.2.proj"])
        changed_weights = [
            (rank, name)
            for rank in range(2)
            for name in clean[rank]
            if not np.array_equal(clean[rank][name], faulty[rank][name])
        ]
        assert changed_weights == [(1, "layers.2.proj")]


class TestCases:
    def test_a_fault_is_written_with_layer_and_ranks(self):
        assert parse_injection("norm_eps@3/0,2") == Injection("norm_eps", (0, 2), 3)
        assert parse_injection("data_sum").is_active("data_sum", rank=1)
        assert not parse_injection("norm_eps@3/0,2").is_active("norm_eps", rank=1, layer=3)

    def test_there_are_faults_of_every_kind_of_layout(self):
        layouts = {fault.layout for fault in cases.FAULTS}
        assert {"tp2", "tp2-sp", "dp2", "acc2", "pp2", "tp2-dp2", "tp2-pp2", "cp2"} <= layouts
        assert len(cases.FAULTS) == len({fault.name for fault in cases.FAULTS}) == 69

    def test_a_third_of_the_faults_of_each_framework_is_held_out(self):
        held_out = cases.list_held_out()
        for framework, count in ((runs.PYTORCH, 16), (runs.MINDSPORE, 5), (runs.MEGATRON, 1)):
            names = [fault.name for fault in cases.FAULTS if fault.framework == framework]
            assert len(held_out & set(names)) == count

    def test_recordings_of_held_out_faults_are_apart(self, tmp_path):
        for fault in cases.FAULTS:
            folder = cases.get_path(fault.recording, tmp_path).parent.name
            assert (folder == "held_out") == (fault.name in cases.list_held_out())

    def test_names_of_recordings_are_allowed_by_mindspore(self):
        for case in cases.list_cases():
            assert case.target.name.replace("-", "").replace("_", "").isalnum()
