"""Several model chunks on a rank: a real recording of two stages with two chunks each."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dumpdiff import read
from dumpdiff.graph import Flow, build_flow
from dumpdiff.model.trace import FORWARD, Source, Trace, build_op_table, build_tensor_table
from dumpdiff.sharding.model_chunks import split_model_chunks

Dumps = Callable[[str], Path]


@pytest.fixture(scope="module")
def ranks(dump: Dumps) -> list[Flow]:
    return [build_flow(read(dump("parallel_pt_deep_vpp2"), rank=rank)) for rank in (0, 1)]


def list_parameters(flow: Flow) -> set[str]:
    return set(flow.trace.tensors["parameter"]) - {""}


def test_a_chunk_names_its_modules_as_a_model_of_its_own(ranks: list[Flow]) -> None:
    first, second = split_model_chunks(ranks[0])
    assert "embedding.word_embeddings.weight" in list_parameters(first)
    for chunk in (first, second):
        assert "decoder.layers.0.mlp.linear_fc1.weight" in list_parameters(chunk)
        assert {scope.split(".")[0] for scope in chunk.trace.ops["scope"]} <= {
            "", "embedding", "decoder",
        }  # fmt: skip
    _, last = split_model_chunks(ranks[1])
    assert "decoder.final_layernorm.weight" in list_parameters(last)


def test_every_op_belongs_to_one_chunk(ranks: list[Flow]) -> None:
    for flow in ranks:
        chunks = split_model_chunks(flow)
        names = [name for chunk in chunks for name in chunk.trace.ops["name"]]
        assert sorted(names) == sorted(flow.trace.ops["name"])


def test_what_is_sent_and_received_belongs_to_the_chunk_that_computes_it(
    ranks: list[Flow],
) -> None:
    """Two micro-batches: the last chunk sends gradients only, the one before activations, too."""
    for chunk, n_transfers in zip(split_model_chunks(ranks[1]), (8, 4), strict=True):
        kinds = chunk.trace.ops["kind"].tolist()
        transfers = [kind for kind in kinds if kind in ("Distributed.isend", "Distributed.recv")]
        assert len(transfers) == n_transfers


def test_the_update_of_a_weight_is_in_its_chunk(ranks: list[Flow]) -> None:
    for flow in ranks:
        for chunk in split_model_chunks(flow):
            kinds = chunk.trace.ops["kind"].tolist()
            assert kinds.count("Tensor.addcdiv_") == len(list_parameters(chunk))


@pytest.mark.parametrize("name", ["parallel_pt_deep_tp1", "parallel_pt_tp2"])
def test_a_rank_of_one_model_is_not_split(dump: Dumps, name: str) -> None:
    flow = build_flow(read(dump(name)))
    assert split_model_chunks(flow) == [flow]


def test_modules_of_a_sequential_are_no_chunks() -> None:
    """They are numbered, too, but nothing is sent or received between them."""
    scopes = ["0.linear", "0.norm", "", "1.linear"]
    ops = build_op_table(
        {
            "name": [f"Functional.linear.{number}.forward" for number in range(4)],
            "kind": ["Functional.linear"] * 4,
            "phase": [FORWARD] * 4,
            "scope": scopes,
        }
    )
    trace = Trace(Source("/dump", "msprobe", "", "pytorch"), ops, build_tensor_table({"op": []}))
    flow = build_flow(trace)
    assert split_model_chunks(flow) == [flow]
