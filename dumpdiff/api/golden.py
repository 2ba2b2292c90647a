"""Commands on golden references: ``dumpdiff.golden.record`` and ``.check``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..model.errors import DumpError
from .dumps import read
from .inputs import PathLike

if TYPE_CHECKING:
    from ..golden_reference import GoldenCheck, GoldenReference

__all__ = ["check", "record"]


def record(
    dump: PathLike,
    output: PathLike | None = None,
    *,
    step: int | None = None,
    rank: int | None = None,
) -> GoldenReference:
    """Return statistics and checksums of every result of a dump, to keep in a repository.

    Parameters
    ----------
    dump
        A dump of any format that docs/formats.md lists.
    output
        File to write.
    step, rank
        What to read; default: the first.

    Raises
    ------
    DumpError
        If nothing can be read, or the file cannot be written.
    """
    from ..golden_reference import build_reference, write_reference

    reference = build_reference(read(dump, step=step, rank=rank))
    if output is not None:
        write_reference(reference, Path(output))
    return reference


def check(
    dump: PathLike,
    reference: PathLike,
    *,
    tolerance: float = 0.0,
    step: int | None = None,
    rank: int | None = None,
) -> GoldenCheck:
    """Say which results of a dump are not those of a golden reference.

    Values belong together if op and slot have the same name, so both are of one framework and one
    model.

    Parameters
    ----------
    dump
        A dump of any format that docs/formats.md lists.
    reference
        File of :func:`record`.
    tolerance
        Largest allowed difference of a statistic, relative to the value. With 0, every element must
        be the same.
    step, rank
        What to read; default: the first.

    Returns
    -------
    GoldenCheck
        Verdict, counts, and every value that is not as recorded.

    Raises
    ------
    DumpError
        If the dump or the reference cannot be read, or they are of two frameworks.
    """
    from ..golden_reference import check_trace, read_reference

    golden = read_reference(Path(reference))
    recorded = record(dump, step=step, rank=rank)
    if recorded.framework != golden.framework:
        raise DumpError(
            f"{reference}: was recorded from {golden.framework}, {dump} is from "
            f"{recorded.framework}; to compare two frameworks: dumpdiff align"
        )
    return check_trace(recorded, golden, tolerance)
