"""The batch of a first step from whatever holds it; what that is, is judged by content."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from .. import checkpoints, readers
from ..model.errors import DumpError
from . import dump, saved_file
from .batch import Batch
from .first_step import DEFAULT_PACKING, Packing, pack_first_step, assign_ranks
from .token_files import TokenFile, open_token_file, find_prefix

_SPOKEN = {"megatron": "Megatron-LM", "mindformers": "MindSpore Transformers"}


def read_batches(
    path: str | Path,
    packing: Packing = DEFAULT_PACKING,
    *,
    step: int | None = None,
    rank: int | None = None,
) -> Batch:
    """What one side is given in its first step.

    ``path`` is a dump, a saved batch (npz, npy, torch, safetensors) or a dataset of Megatron (``NAME`` of NAME.bin and
    NAME.idx; a blend as in ``--data-path``: ``"0.3 NAME 0.7 OTHER"``), which ``packing`` says how to cut. ``step`` and
    ``rank`` choose a part of a dump; ``rank`` chooses the samples of one data-parallel rank of a dataset.

    Raises DumpError if it holds no batch that can be read.
    """
    blend = _blend(str(path))
    if blend:
        return _dataset(str(path), blend, packing, rank)
    place = Path(path)
    if not place.exists():
        raise DumpError(f"{path}: no such file or folder, and no {place.name}.idx beside it")
    try:
        parts = readers.find_parts(place)
    except DumpError as no_dump:
        try:
            return saved_file.read_saved_batch(checkpoints.open(place))
        except DumpError as no_file:
            raise (no_dump if place.is_dir() else no_file) from None
    return dump.read_dump_batch(str(path), parts, step, rank)


def _blend(text: str) -> list[tuple[float | None, Path]]:
    """(weight, prefix) of each dataset as ``--data-path`` takes them; [] if ``text`` names none."""
    single = find_prefix(text)
    if single is not None:
        return [(None, single)]
    words = text.split()
    if len(words) < 2:
        return []
    weights: list[float | None] = [None] * len(words)
    if len(words) % 2 == 0 and all(map(_is_number, words[::2])):
        weights, words = [float(word) for word in words[::2]], words[1::2]
    prefixes = [find_prefix(word) for word in words]
    missing = [word for word, prefix in zip(words, prefixes, strict=True) if prefix is None]
    if len(missing) == len(words):
        return []
    if missing:
        raise DumpError(f"{missing[0]}.idx: no such file")
    return [
        (weight, prefix)
        for weight, prefix in zip(weights, prefixes, strict=True)
        if prefix is not None
    ]


def _is_number(word: str) -> bool:
    try:
        return float(word) > 0
    except ValueError:
        return False


def _dataset(
    path: str, blend: list[tuple[float | None, Path]], packing: Packing, rank: int | None
) -> Batch:
    opened: list[tuple[float | None, TokenFile]] = [
        (weight, open_token_file(prefix)) for weight, prefix in blend
    ]
    rows, ranks = pack_first_step(opened, packing), assign_ranks(packing)
    if rank is not None:
        if rank >= packing.data_parallel:
            raise DumpError(
                f"rank {rank} of {packing.data_parallel} data-parallel ranks; say how many with --data-parallel"
            )
        rows, ranks = rows[ranks == rank], ranks[ranks == rank]
    batch = Batch(
        path=path,
        kind="dataset",
        source=_described([data for _, data in opened], packing),
        arrays={"tokens": rows[:, :-1], "labels": rows[:, 1:]},
        ranks=ranks,
    )
    return replace(batch, notes=tuple(_notes(opened, packing)))


def _described(opened: list[TokenFile], packing: Packing) -> str:
    sequences = sum(len(data.lengths) for data in opened)
    documents, tokens = (
        sum(data.documents for data in opened),
        sum(_tokens(data) for data in opened),
    )
    many = f"{len(opened)} datasets, " if len(opened) > 1 else ""
    asked = "one epoch" if packing.samples is None else f"{packing.samples:,} samples"
    return (
        f"dataset packed as by {_SPOKEN[packing.loader]} (seed {packing.seed}, split {packing.split}, {asked}):"
        f" {many}{documents:,} documents, {sequences:,} sequences, {tokens:,} tokens of {opened[0].dtype}"
    )


def _tokens(data: TokenFile) -> int:
    return int(data.lengths.sum(dtype=np.int64))


def _notes(opened: list[tuple[float | None, TokenFile]], packing: Packing) -> list[str]:
    notes = []
    if packing.samples is None:
        notes.append(
            "packed as one epoch; a training of several has another order: say its samples with --samples"
        )
    if any(weight is not None for weight, _ in opened) and len(opened) == 1:
        notes.append("a dataset with a weight is prepared with 0.5 % more samples than one without")
    if any(data.modes is not None for _, data in opened):
        notes.append("a multimodal dataset: its tokens are read, its modes are not")
    return notes
