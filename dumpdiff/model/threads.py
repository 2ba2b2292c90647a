"""Work on many arrays in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

#: Elements. Below this, to hand a task to another thread costs more than NumPy saves by releasing
#: the GIL.
_LARGE = 1 << 18
#: Reading is bound by memory: more threads gain little, and training hosts are shared.
_THREADS = 2

Result = TypeVar("Result")


def map_in_threads(
    work: Callable[[int], Result], items: Sequence[int], elements: Sequence[int]
) -> Iterator[Result]:
    """Yield the results of ``work`` on every item, small items first.

    ``elements`` are the numbers of array elements of the items.
    """
    large_items = []
    for item, count in zip(items, elements, strict=True):
        if count >= _LARGE:
            large_items.append(item)
        else:
            yield work(item)
    if large_items:
        with ThreadPoolExecutor(_THREADS) as pool:
            yield from pool.map(work, large_items)
