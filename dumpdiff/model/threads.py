"""Work on many arrays, in as many threads as help."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_LARGE = (
    1 << 18
)  # elements: below, handing a task to another thread costs more than NumPy saves by releasing the GIL
_THREADS = 2  # reading is bound by memory: more gain little, and training hosts are shared

Result = TypeVar("Result")


def map_in_threads(
    work: Callable[[int], Result], items: Sequence[int], elements: Sequence[int]
) -> Iterator[Result]:
    """Results of ``work`` on every item, small ones first; ``elements`` says how many array elements each concerns."""
    large = [item for item, count in zip(items, elements, strict=True) if count >= _LARGE]
    yield from (work(item) for item, count in zip(items, elements, strict=True) if count < _LARGE)
    if large:
        with ThreadPoolExecutor(_THREADS) as pool:
            yield from pool.map(work, large)
