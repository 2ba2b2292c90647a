"""Readers of the first batch. The kind of input is recognized by its content."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .. import checkpoints, readers
from ..model.errors import DumpError
from . import dump, saved_file
from .batch import Batch
from .first_step import DEFAULT_PACKING, Packing, assign_ranks, pack_first_step
from .token_files import TokenFile, find_prefix, open_token_file

_LOADER_NAMES = {"megatron": "Megatron-LM", "mindformers": "MindSpore Transformers"}


def read_batches(
    path: str | Path,
    packing: Packing = DEFAULT_PACKING,
    *,
    step: int | None = None,
    rank: int | None = None,
) -> Batch:
    """Read the batch of one side's first step.

    ``path`` is a dump, a saved batch (npz, npy, torch, safetensors) or a dataset of Megatron
    (``NAME`` of NAME.bin and NAME.idx; a blend as in ``--data-path``: ``"0.3 NAME 0.7 OTHER"``),
    which ``packing`` cuts into samples. ``step`` and ``rank`` select a part of a dump; ``rank``
    selects the samples of one data-parallel rank of a dataset.

    Raises DumpError if it contains no batch that can be read.
    """
    blend = _parse_blend(str(path))
    if blend:
        return _read_dataset(str(path), blend, packing, rank)
    location = Path(path)
    if not location.exists():
        raise DumpError(f"{path}: no such file or folder, and no {location.name}.idx next to it")
    try:
        parts = readers.find_parts(location)
    except DumpError as dump_error:
        try:
            return saved_file.read_saved_batch(checkpoints.open(location))
        except DumpError as file_error:
            if location.is_dir():
                raise dump_error from None
            message = f"{path}: neither a saved batch (npz, npy, torch, safetensors) nor a dump"
            raise DumpError(f"{message}: {_remove_path(file_error, path)}") from None
    return dump.read_dump_batch(str(path), parts, step, rank)


def _remove_path(error: DumpError, path: str | Path) -> str:
    """Return a message without the path that it begins with."""
    return str(error).removeprefix(f"{path}: ")


def _parse_blend(text: str) -> list[tuple[float | None, Path]]:
    """Return (weight, prefix) of each dataset as in ``--data-path``; [] if ``text`` names none."""
    single_prefix = find_prefix(text)
    if single_prefix is not None:
        return [(None, single_prefix)]
    words = text.split()
    if len(words) < 2:
        return []
    weights: list[float | None] = [None] * len(words)
    if len(words) % 2 == 0 and all(map(_is_weight, words[::2])):
        weights = [float(word) for word in words[::2]]
        words = words[1::2]
    blend: list[tuple[float | None, Path]] = []
    missing = []
    for weight, word in zip(weights, words, strict=True):
        prefix = find_prefix(word)
        if prefix is None:
            missing.append(word)
        else:
            blend.append((weight, prefix))
    if blend and missing:
        raise DumpError(f"{missing[0]}.idx: no such file")
    return blend


def _is_weight(word: str) -> bool:
    try:
        return float(word) > 0
    except ValueError:
        return False


def _read_dataset(
    path: str, blend: list[tuple[float | None, Path]], packing: Packing, rank: int | None
) -> Batch:
    token_files = [open_token_file(prefix) for _, prefix in blend]
    weights = [weight for weight, _ in blend]
    rows = pack_first_step(list(zip(weights, token_files, strict=True)), packing)
    ranks = assign_ranks(packing)
    if rank is not None:
        if rank >= packing.data_parallel:
            raise DumpError(
                f"there is no rank {rank} of {packing.data_parallel} data-parallel ranks; set their"
                " number with --data-parallel"
            )
        rows, ranks = rows[ranks == rank], ranks[ranks == rank]
    return Batch(
        path=path,
        kind="dataset",
        source=_describe_dataset(token_files, packing),
        arrays={"tokens": rows[:, :-1], "labels": rows[:, 1:]},
        ranks=ranks,
        notes=tuple(_list_notes(token_files, weights, packing)),
    )


def _describe_dataset(token_files: list[TokenFile], packing: Packing) -> str:
    n_sequences = sum(len(token_file.lengths) for token_file in token_files)
    n_documents = sum(token_file.documents for token_file in token_files)
    n_tokens = sum(_count_tokens(token_file) for token_file in token_files)
    n_datasets = f"{len(token_files)} datasets, " if len(token_files) > 1 else ""
    extent = "one epoch" if packing.samples is None else f"{packing.samples:,} samples"
    return (
        f"dataset packed as by {_LOADER_NAMES[packing.loader]} (seed {packing.seed}, split"
        f" {packing.split}, {extent}): {n_datasets}{n_documents:,} documents,"
        f" {n_sequences:,} sequences, {n_tokens:,} tokens of {token_files[0].dtype}"
    )


def _count_tokens(token_file: TokenFile) -> int:
    return int(token_file.lengths.sum(dtype=np.int64))


def _list_notes(
    token_files: list[TokenFile], weights: list[float | None], packing: Packing
) -> list[str]:
    notes = []
    if packing.samples is None:
        notes.append(
            "packed as one epoch; a training of several epochs has another order: set its samples"
            " with --samples"
        )
    if len(weights) == 1 and weights[0] is not None:
        notes.append("a dataset with a weight is prepared with 0.5 % more samples than one without")
    if any(token_file.modes is not None for token_file in token_files):
        notes.append("a multimodal dataset: its tokens are read, its modes are not")
    return notes
