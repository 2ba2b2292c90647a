"""The first batch of token files equals that of Megatron's own dataset bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dumpdiff.batches import Packing, read_batches
from dumpdiff.batches.first_step import assign_ranks
from dumpdiff.model.errors import DumpError

from .input_files import draw_samples, write_token_files

COUNT = 6


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("datasets")
    return {
        "a": write_token_files(folder / "a"),
        "b": write_token_files(folder / "b", documents=25, seed=2, dtype=np.int32),
        "many": write_token_files(folder / "many", documents=1500, seed=3, longest=12),
    }


@pytest.mark.parametrize("seed", [1234, 7])
@pytest.mark.parametrize("split", ["1, 0, 0", "90,10,0", "0.5,0.25,0.25"])
@pytest.mark.parametrize("length", [16, 33])
@pytest.mark.parametrize(
    "samples", [8, 30, 137, 300]
)  # within an epoch, and with a last epoch shuffled separately or not
def test_one_dataset_is_packed_as_by_megatron(
    files: dict[str, Path], seed: int, split: str, length: int, samples: int
) -> None:
    packing = Packing(length, COUNT, seed=seed, split=split, samples=samples)
    batch = read_batches(files["a"], packing)
    tokens, labels = draw_samples(
        ([str(files["a"])], None), COUNT, length=length, samples=samples, split=split, seed=seed
    )
    assert batch.tokens is not None
    assert batch.labels is not None
    np.testing.assert_array_equal(batch.tokens, tokens)
    np.testing.assert_array_equal(batch.labels, labels)


def test_the_default_split_is_that_of_megatron(files: dict[str, Path]) -> None:
    tokens, _ = draw_samples(
        ([str(files["many"])], None), COUNT, length=64, samples=50, split="969,30,1"
    )
    np.testing.assert_array_equal(
        read_batches(files["many"], Packing(64, COUNT, samples=50)).tokens, tokens
    )


@pytest.mark.parametrize("samples", [20, 137])
@pytest.mark.parametrize(
    ("names", "weights"), [("a", [1.0]), ("ab", [0.3, 0.7]), ("ab", None), ("aab", [3, 2, 5])]
)
def test_datasets_are_blended_as_by_megatron(
    files: dict[str, Path], names: str, weights: list[float] | None, samples: int
) -> None:
    prefixes = [str(files[name]) for name in names]
    path = (
        " ".join(f"{w} {p}" for w, p in zip(weights, prefixes, strict=True))
        if weights
        else " ".join(prefixes)
    )
    tokens, _ = draw_samples((prefixes, weights), COUNT, length=16, samples=samples, split="1,0,0")
    batch = read_batches(path, Packing(16, COUNT, split="1,0,0", samples=samples))
    np.testing.assert_array_equal(batch.tokens, tokens)


def test_pad_tokens_become_zero_unless_they_end_documents(files: dict[str, Path]) -> None:
    tokens, _ = draw_samples(
        ([str(files["a"])], None), COUNT, length=16, samples=30, split="1,0,0", pad=17
    )
    padded = Packing(16, COUNT, split="1,0,0", samples=30, pad=17)
    end_of_document = Packing(16, COUNT, split="1,0,0", samples=30, pad=17, eod=17)
    unpadded = Packing(16, COUNT, split="1,0,0", samples=30)
    np.testing.assert_array_equal(read_batches(files["a"], padded).tokens, tokens)
    np.testing.assert_array_equal(
        read_batches(files["a"], end_of_document).tokens, read_batches(files["a"], unpadded).tokens
    )


def test_loaders_pack_the_same_samples_but_distribute_them_differently(
    files: dict[str, Path],
) -> None:
    batches = [
        read_batches(files["a"], Packing(16, 8, 2, 2, split="1,0,0", samples=30, loader=loader))
        for loader in ("megatron", "mindformers")
    ]
    np.testing.assert_array_equal(batches[0].tokens, batches[1].tokens)
    assert [batch.ranks.tolist() for batch in batches if batch.ranks is not None] == [
        [0, 0, 1, 1, 0, 0, 1, 1],  # micro-batches in turn
        [0, 1, 0, 1, 0, 1, 0, 1],
    ]


def test_mindspore_distributes_single_samples() -> None:
    import mindspore.dataset as ds

    class Numbers:
        def __getitem__(self, i: int) -> tuple[np.ndarray]:
            return (np.array([i]),)

        def __len__(self) -> int:
            return 12

    owner = np.full(12, -1)
    for rank in range(3):
        shard = ds.GeneratorDataset(
            Numbers(), ["number"], shuffle=False, num_shards=3, shard_id=rank
        )
        for item in shard.create_dict_iterator(num_epochs=1, output_numpy=True):
            owner[item["number"]] = rank
    np.testing.assert_array_equal(
        assign_ranks(Packing(global_batch=12, data_parallel=3, loader="mindformers")), owner
    )


def test_a_rank_of_a_dataset_has_only_its_samples(files: dict[str, Path]) -> None:
    packing = Packing(16, 8, 2, 2, split="1,0,0", samples=30)
    all_ranks, second_rank = (
        read_batches(files["a"], packing),
        read_batches(files["a"], packing, rank=1),
    )
    assert all_ranks.tokens is not None
    np.testing.assert_array_equal(second_rank.tokens, all_ranks.tokens[[2, 3, 6, 7]])
    with pytest.raises(DumpError, match="rank 2 of 2 data-parallel ranks"):
        read_batches(files["a"], packing, rank=2)


@pytest.mark.parametrize(
    ("packing", "message"),
    [
        (Packing(), "set their length with --seq-length"),
        (Packing(100_000), "a sample takes 100,001"),
        (Packing(16, 1000), "set the samples of the whole training with --samples"),
        (Packing(16, split="0,1,1"), "split '0,1,1': expected up to three weights"),
        (Packing(16, split="x"), "split 'x'"),
        (Packing(16, samples=10**15), "more than Megatron can number"),
    ],
)
def test_datasets_that_cannot_be_packed_are_rejected_in_one_line(
    files: dict[str, Path], packing: Packing, message: str
) -> None:
    with pytest.raises(DumpError, match=message) as error:
        read_batches(files["a"], packing)
    assert "\n" not in str(error.value)
