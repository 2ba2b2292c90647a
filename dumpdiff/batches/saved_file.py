"""A batch that a user saved: arrays with the names that training scripts use."""

from __future__ import annotations

import numpy as np

from ..checkpoints import Checkpoint, Entry
from ..model.arrays import AnyArray
from ..model.dtypes import is_discrete
from ..model.errors import DumpError
from .batch import FIELDS, Batch

#: Field -> its names in Megatron-LM (gpt_dataset.py), MindSpore Transformers
#: (blended_megatron_dataloader.py) and transformers.
_NAMES = {
    "tokens": ("tokens", "input_ids", "token_ids", "ids", "text"),
    "labels": ("labels", "label", "targets", "target", "target_ids"),
    "loss_mask": ("loss_mask", "loss_masks", "label_mask"),
    "positions": ("position_ids", "positions", "position_id"),
}
_FIELD_BY_NAME = {name: field for field, names in _NAMES.items() for name in names}
#: Megatron's name of tokens that have one more column, for the labels.
_TOKENS_AND_LABELS = "text"
#: Arrays that are listed in a message, at most.
_MAX_LISTED_NAMES = 6


def read_saved_batch(checkpoint: Checkpoint) -> Batch:
    """Read the batch; several arrays of a field (``0.tokens``, ``1.tokens``) are joined in order.

    Raises DumpError if no array has a name of token ids.
    """
    entries_by_field = _find_fields(checkpoint)
    arrays = {}
    for field in FIELDS:
        if field in entries_by_field:
            arrays[field] = _join_arrays(checkpoint, entries_by_field[field])
    tokens_name = entries_by_field["tokens"][0].name.lower()
    if tokens_name.endswith(_TOKENS_AND_LABELS) and "labels" not in arrays:
        text = arrays["tokens"]
        arrays["tokens"], arrays["labels"] = text[:, :-1], text[:, 1:]
    n_samples = len(arrays["tokens"])
    if "positions" in arrays and len(arrays["positions"]) == 1:
        length = arrays["positions"].shape[1]
        arrays["positions"] = np.broadcast_to(arrays["positions"], (n_samples, length))
    for field, array in arrays.items():
        if len(array) != n_samples:
            raise DumpError(
                f"{checkpoint.path}: {entries_by_field[field][0].name} has {len(array)} rows, the"
                f" tokens have {n_samples}"
            )
    return Batch(str(checkpoint.path), "file", f"saved batch ({checkpoint.format})", arrays)


def _find_fields(checkpoint: Checkpoint) -> dict[str, list[Entry]]:
    """Return the entries of each field; a single array of integers is the tokens."""
    entries_by_field: dict[str, list[Entry]] = {}
    for entry in checkpoint.entries:
        last_name = entry.name.replace("/", ".").rpartition(".")[2].lower()
        field = _FIELD_BY_NAME.get(last_name)
        if field is not None:
            entries_by_field.setdefault(field, []).append(entry)
    if "tokens" in entries_by_field:
        return entries_by_field
    if len(checkpoint.entries) == 1 and is_discrete(checkpoint.entries[0].dtype):
        entries_by_field["tokens"] = [checkpoint.entries[0]]
        return entries_by_field
    names = ", ".join(entry.name for entry in checkpoint.entries[:_MAX_LISTED_NAMES])
    raise DumpError(
        f"{checkpoint.path}: no token ids among {names}; expected one of"
        f" {', '.join(_NAMES['tokens'])}"
    )


def _join_arrays(checkpoint: Checkpoint, entries: list[Entry]) -> AnyArray:
    """Join the arrays of one field, as int64 ids or as a float64 loss mask."""
    arrays = [_read_rows(checkpoint, entry) for entry in entries]
    if len({array.shape[1] for array in arrays}) > 1:
        raise DumpError(
            f"{checkpoint.path}: {entries[0].name} and {entries[1].name} differ in length; save"
            " one batch per file"
        )
    joined_array: AnyArray = np.concatenate(arrays)
    if _FIELD_BY_NAME.get(entries[0].name) == "loss_mask":
        return joined_array.astype(np.float64)
    if joined_array.dtype.kind == "f" and not np.array_equal(joined_array, np.floor(joined_array)):
        raise DumpError(f"{checkpoint.path}: {entries[0].name} holds fractions, which are no ids")
    return joined_array.astype(np.int64)


def _read_rows(checkpoint: Checkpoint, entry: Entry) -> AnyArray:
    """Read an array as (samples, length); axes of length 1 between them are removed."""
    array = checkpoint.read_array(entry)
    if array.ndim > 2 and array.size == array.shape[0] * array.shape[-1]:
        array = array.reshape(array.shape[0], array.shape[-1])
    if array.ndim not in (1, 2) or array.size == 0:
        raise DumpError(
            f"{checkpoint.path}: {entry.name} has shape {array.shape}, expected (samples, length)"
        )
    return np.atleast_2d(array)
