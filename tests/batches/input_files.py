"""Inputs of tests: token files that Megatron writes, batches that Megatron draws, a tokenizer."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Megatron warns about missing GPU packages
    from megatron.core.datasets.blended_megatron_dataset_builder import (
        BlendedMegatronDatasetBuilder,
    )
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

VOCABULARY = 500


class Ids:
    """The attributes that Megatron's dataset requires of a tokenizer."""

    vocab_size = VOCABULARY
    eod = eos = 0
    unique_identifiers: dict[str, str] = {"class": "Ids"}  # noqa: RUF012
    special_tokens_dict: dict[str, int] = {}  # noqa: RUF012

    def __init__(self, pad: int = -1) -> None:
        self.pad = pad


def write_token_files(
    prefix: Path, documents: int = 40, seed: int = 1, dtype: type = np.uint16, longest: int = 60
) -> Path:
    """Write NAME.bin and NAME.idx; documents of more than eight tokens are two sequences each."""
    rng = np.random.default_rng(seed)
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for _ in range(documents):
        length = int(rng.integers(1, longest))
        tokens = torch.tensor(rng.integers(0, VOCABULARY, length))
        builder.add_document(tokens, [length] if length < 9 else [4, length - 4])
    builder.finalize(f"{prefix}.idx")
    return prefix


def draw_samples(
    blend: tuple[Sequence[str], Sequence[float] | None],
    count: int,
    *,
    length: int,
    samples: int,
    split: str,
    seed: int = 1234,
    pad: int = -1,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the first tokens and labels of Megatron's own dataset, (count, length) each."""
    config = GPTDatasetConfig(
        random_seed=seed, sequence_length=length, blend=blend, split=split, tokenizer=Ids(pad),
        reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False,
        create_attention_mask=False,
    )  # fmt: skip
    sizes: list[Any] = [samples, 0, 0]
    training = BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()[0]
    items = [training[i] for i in range(count)]
    tokens = np.stack([item["tokens"].numpy() for item in items])
    labels = np.stack([item["labels"].numpy() for item in items])
    return tokens, labels


def write_index(
    path: Path,
    lengths: Sequence[int] = (4, 5),
    *,
    magic: bytes = b"MMIDIDX\x00\x00",
    version: int = 1,
    code: int = 8,
    sequences: int | None = None,
    borders: int | None = None,
    places: Sequence[int] | None = None,
    end: bytes = b"",
) -> Path:
    """Write an index, possibly invalid, next to a .bin of the correct size; return the prefix."""
    count = len(lengths) if sequences is None else sequences
    documents = list(range(len(lengths) + 1))
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]) * 2 if places is None else places
    header = struct.pack(
        "<9sQBQQ", magic, version, code, count, len(documents) if borders is None else borders
    )
    arrays = (np.array(lengths, "<i4"), np.array(starts, "<i8"), np.array(documents, "<i8"))
    path.with_name(f"{path.name}.idx").write_bytes(
        header + b"".join(array.tobytes() for array in arrays) + end
    )
    path.with_name(f"{path.name}.bin").write_bytes(
        np.arange(min(max(sum(lengths), 0), 99), dtype="<u2").tobytes()
    )
    return path


def write_tokenizer(folder: Path) -> Path:
    """Write a byte-level tokenizer.json, trained on one line; <pad> is 0, </s> is 1."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<pad>", "</s>"], initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(["did both runs see the same batch, token by token?"], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"
