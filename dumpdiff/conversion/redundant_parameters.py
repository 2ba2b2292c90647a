"""Parameters that other frameworks do not store: copies of embedding and head, and padding."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from ..model.errors import DumpError
from ..weight_comparison.families import ModelConfig
from .rows import Rows

_PREDICTION_COPY = re.compile(r"^mtp\.\d+\.(embedding|head)\.weight$")


def drop_tied_head(parameters: dict[str, Rows], config: ModelConfig) -> dict[str, Rows]:
    """Drop a head that is a copy of the embedding, if the settings say that the two are tied."""
    head, embedding = parameters.get("head.weight"), parameters.get("embedding.weight")
    if not config.tied or head is None or embedding is None or not _are_equal(head, embedding):
        return parameters
    remaining = dict(parameters)
    del remaining["head.weight"]
    return remaining


def _are_equal(rows: Rows, other: Rows) -> bool:
    """Return whether two parameters are equal in every bit."""
    if (rows.shape, rows.dtype) != (other.shape, other.dtype):
        return False
    chunks = zip(rows.read_chunks(), other.read_chunks(), strict=True)
    return all(np.array_equal(chunk, other_chunk) for chunk, other_chunk in chunks)


def drop_prediction_copies(
    parameters: dict[str, Rows], sources: Mapping[str, str]
) -> dict[str, Rows]:
    """Drop the embedding and the head of prediction layers, which must be those of the model."""
    remaining = {}
    for path, rows in parameters.items():
        match = _PREDICTION_COPY.match(path)
        if match is None:
            remaining[path] = rows
            continue
        original = parameters.get(f"{match[1]}.weight", parameters.get("embedding.weight"))
        if original is None or not _are_equal(rows, original):
            raise DumpError(
                f"{sources[path]} is not the model's {match[1]}: a prediction layer with one of its"
                " own is not converted"
            )
    return remaining


def drop_padding(parameters: dict[str, Rows], config: ModelConfig) -> dict[str, Rows]:
    """Resize embedding and head to the vocabulary. Raises DumpError if they have fewer rows."""
    vocabulary = config.vocabulary
    if vocabulary is None:
        return parameters
    resized = dict(parameters)
    for path in ("embedding.weight", "head.weight", "head.bias"):
        if path not in resized:
            continue
        n_rows = resized[path].shape[0]
        if n_rows < vocabulary:
            raise DumpError(f"{path} has {n_rows} rows, less than a vocabulary of {vocabulary}")
        if n_rows > vocabulary:
            resized[path] = resized[path].resize(vocabulary)
    return resized
