"""What is asked of weights: are these the same, which rule moved them, how does another framework have them?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..rulebook import load_rules
from .progress import Progress, say

if TYPE_CHECKING:
    from ..conversion import Converted, Reading, Wanted
    from ..optimizers.comparison import Comparison as Moves
    from ..optimizers.run_analysis import Moved
    from ..weight_comparison import WeightsResult


def weights(
    target: str | Path,
    reference: str | Path,
    *,
    rules: Sequence[str | Path] = (),
    progress: Progress | None = None,
) -> WeightsResult:
    """Do two checkpoints hold the same weights? ``target`` is the one under test, ``reference`` the trusted one.

    Any two formats and layouts can be compared; ``rules`` are further rule files. Memory stays within a few hundred
    megabytes, whatever the checkpoints' size.

    Raises DumpError if a checkpoint cannot be read, RuleError for a wrong rule file.
    """
    from .. import checkpoints
    from ..weight_comparison import compare

    book = load_rules([Path(file) for file in rules])
    return compare(checkpoints.open(target), checkpoints.open(reference), book, progress)


def convert(
    source: str | Path,
    folder: str | Path | None,
    wanted: Wanted,
    reading: Reading | None = None,
    *,
    like: str | Path | None = None,
    resume: bool = False,
    verify: bool = True,
    rules: Sequence[str | Path] = (),
    progress: Progress | None = None,
) -> Converted:
    """Write the weights of ``source`` into ``folder`` as another framework has them; only plan it if that is None.

    ``wanted`` says as what, ``reading`` what the files of the source do not, ``like`` is a checkpoint whose names to
    use; with ``resume`` an interrupted conversion goes on; ``verify`` compares what was written with the source.

    Raises DumpError for what cannot be read, converted or written, RuleError for a wrong rule file.
    """
    from .. import checkpoints
    from ..conversion import Reading, planned
    from ..conversion import convert as converted

    book, opened = load_rules([Path(file) for file in rules]), checkpoints.open(source)
    said, example = reading or Reading(), None if like is None else checkpoints.open(like)
    if folder is None:
        return planned(opened, said, wanted, book, example)
    return converted(
        opened,
        Path(folder),
        said,
        wanted,
        book,
        like=example,
        resume=resume,
        verify=verify,
        progress=progress,
    )


def optimizer(
    target: str | Path,
    reference: str | Path | None = None,
    *,
    settings: str | Path | None = None,
    progress: Progress | None = None,
) -> Moved | Moves:
    """Which rule moved the weights of a run; with ``reference``, of two runs, and what is different.

    Each is a folder with ``weights_0``, ``gradients_1``, ``weights_1``, ..., or such paths with commas between them, or
    a dump of several steps, see :mod:`dumpdiff.optimizers.inputs`; ``settings`` is a file of what is known of both.

    Raises DumpError if nothing can be read or followed there.
    """
    from ..optimizers.comparison import compared
    from ..optimizers.inputs import read_run

    given = [target] if reference is None else [target, reference]
    found = []
    for at, path in enumerate(given):
        say(progress, f"recomputing {path}", at / len(given))
        found.append(read_run(str(path), settings))
    return found[0] if reference is None else compared(*found)
