"""Figures and values of any pair of a result, from its dumps, which are opened once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from threading import Lock

from ..causes.comparison_index import ComparisonIndex
from ..comparison import Comparison
from ..figures.pair_tensors import load_pair_tensors
from ..figures.tensor_figures import draw_tensors
from ..figures.value_windows import cut_window, find_largest_difference, find_window_start
from ..model.arrays import AnyArray
from ..model.errors import DumpError
from ..model.result import Result
from ..reports.alignment.html.pair_fragments import write_figures, write_values
from ..reports.language import translate

_OPEN_PAIRS = 4  #: pairs whose tensors stay open: those that a reader goes to and fro between


class PairViews:
    """The views of the pairs of one result; its dumps are read at the first request."""

    def __init__(self, result: Result, open_dumps: Callable[[], Comparison]) -> None:
        self._result = result
        self._open_dumps = open_dumps
        self._lock = Lock()  # a browser asks for several views at the same time
        self._load = lru_cache(_OPEN_PAIRS)(self._load_tensors)
        self._find_largest = lru_cache(_OPEN_PAIRS)(self._compute_largest)

    def write_figures(self, row: int) -> bytes:
        """Return the histogram and the difference map of a row of the pairs, as HTML.

        Raises DumpError that says why there is none.
        """
        target, reference, has_mask_fill = self._open(row)
        return write_figures(*draw_tensors(target, reference, has_mask_fill))

    def write_values(
        self, row: int, start: Sequence[int] | None, axes: tuple[int, int] | None
    ) -> bytes:
        """Return a window of the values of a row of the pairs, as HTML.

        It begins at the index ``start``, or around the largest difference. Raises DumpError that
        says why there is none.
        """
        target, reference, _ = self._open(row)
        with self._lock:
            largest = self._find_largest(row)
        if largest is None:
            raise DumpError(translate("Both tensors are empty."))
        index, difference = largest
        window = cut_window(target, reference, start or (), axes)
        if start is None:
            window = cut_window(target, reference, find_window_start(window, index), axes)
        return write_values(window, index, difference)

    def _open(self, row: int) -> tuple[AnyArray, AnyArray, bool]:
        with self._lock:
            return self._load(row)

    @cached_property
    def _index(self) -> ComparisonIndex:
        return ComparisonIndex(self._open_dumps())

    def _load_tensors(self, row: int) -> tuple[AnyArray, AnyArray, bool]:
        """Return both tensors of a row, and whether they can hold mask fill."""
        if not 0 <= row < len(self._result.pairs):
            raise DumpError(translate("The result has no pair {row}.", row=row))
        pair = self._result.pairs.iloc[row]
        value_pair = self._index.find_tensor_pair(int(pair["target"]), int(pair["reference"]))
        if value_pair is None or not self._has_names(row):
            raise DumpError(
                translate("The dumps no longer give pair {row}: run dumpdiff align again.", row=row)
            )
        arrays = load_pair_tensors(self._index, value_pair)
        if arrays is None:
            raise DumpError(
                translate(
                    "The values cannot be shown: a whole tensor is missing, damaged or too large."
                )
            )
        return (*arrays, value_pair.has_mask_fill)

    def _has_names(self, row: int) -> bool:
        """Return whether the tensors of a row still have the names that the result has."""
        pair = self._result.pairs.iloc[row]
        for side, flow in zip(("target", "reference"), self._index.flows, strict=True):
            tensor = int(pair[side])
            op = int(flow.tensors["op"].iat[tensor])
            names = flow.trace.ops["name"].iat[op], flow.tensors["slot"].iat[tensor]
            if names != (pair[f"{side}_op"], pair[f"{side}_slot"]):
                return False
        return True

    def _compute_largest(self, row: int) -> tuple[tuple[int, ...], float] | None:
        target, reference, _ = self._load(row)
        return find_largest_difference(target, reference)
