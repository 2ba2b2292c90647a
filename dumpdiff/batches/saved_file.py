"""A batch that a user saved: arrays under the names that training scripts give them."""

from __future__ import annotations

import numpy as np

from ..checkpoints import Checkpoint, Entry
from ..model.arrays import AnyArray
from ..model.dtypes import is_discrete
from ..model.errors import DumpError
from .batch import FIELDS, Batch

#: What Megatron-LM (gpt_dataset.py), MindSpore Transformers (blended_megatron_dataloader.py), transformers call them.
_NAMES = {
    "tokens": ("tokens", "input_ids", "token_ids", "ids", "text"),
    "labels": ("labels", "label", "targets", "target", "target_ids"),
    "loss_mask": ("loss_mask", "loss_masks", "label_mask"),
    "positions": ("position_ids", "positions", "position_id"),
}
_MEANT = {name: field for field, names in _NAMES.items() for name in names}
_BOTH = "text"  #: of Megatron: tokens with one more, for the labels


def read_saved_batch(saved: Checkpoint) -> Batch:
    """The batch; several arrays of one field (``0.tokens``, ``1.tokens``: micro-batches) are joined in their order.

    Raises DumpError if no array is called as token ids are.
    """
    entries: dict[str, list[Entry]] = {}
    for entry in saved.entries:
        field = _MEANT.get(entry.name.replace("/", ".").rpartition(".")[2].lower())
        if field is not None:
            entries.setdefault(field, []).append(entry)
    if "tokens" not in entries and len(saved.entries) == 1 and is_discrete(saved.entries[0].dtype):
        entries["tokens"] = [saved.entries[0]]
    if "tokens" not in entries:
        held = ", ".join(entry.name for entry in saved.entries[:6])
        raise DumpError(
            f"{saved.path}: no token ids among {held}; expected one of {', '.join(_NAMES['tokens'])}"
        )
    arrays = {field: _joined(saved, entries[field]) for field in FIELDS if field in entries}
    if entries["tokens"][0].name.lower().endswith(_BOTH) and "labels" not in arrays:
        arrays["tokens"], arrays["labels"] = arrays["tokens"][:, :-1], arrays["tokens"][:, 1:]
    samples = len(arrays["tokens"])
    for field, array in arrays.items():
        if len(array) != samples and not (field == "positions" and len(array) == 1):
            raise DumpError(
                f"{saved.path}: {entries[field][0].name} has {len(array)} rows, the tokens have {samples}"
            )
    if "positions" in arrays:
        arrays["positions"] = np.broadcast_to(
            arrays["positions"], (samples, arrays["positions"].shape[1])
        )
    return Batch(str(saved.path), "file", f"saved batch ({saved.format})", arrays)


def _joined(saved: Checkpoint, entries: list[Entry]) -> AnyArray:
    rows = []
    for entry in entries:
        array = saved.read_array(entry)
        if array.ndim > 2 and array.size == array.shape[0] * array.shape[-1]:
            array = array.reshape(array.shape[0], array.shape[-1])
        if array.ndim not in (1, 2) or array.size == 0:
            raise DumpError(
                f"{saved.path}: {entry.name} has shape {array.shape}, expected (samples, length)"
            )
        rows.append(np.atleast_2d(array))
    if len({array.shape[1] for array in rows}) > 1:
        raise DumpError(
            f"{saved.path}: {entries[0].name} and {entries[1].name} differ in length; save one batch a file"
        )
    whole: AnyArray = np.concatenate(rows)
    if _MEANT.get(entries[0].name) == "loss_mask":
        return whole.astype(np.float64)
    if whole.dtype.kind == "f" and not np.array_equal(whole, np.floor(whole)):
        raise DumpError(f"{saved.path}: {entries[0].name} holds fractions, which are no ids")
    return whole.astype(np.int64)
