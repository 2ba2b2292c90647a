"""What a dump will cost, told by one that is there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import readers
from ..model.trace import Trace

if TYPE_CHECKING:
    from ..capture.cost_from_dump import Expected
    from ..capture.msprobe import Options


def expected_mindspore(config: Mapping[str, Any], like: str | Path) -> Expected:
    """What a valid dump configuration of MindSpore will cost, if the run is like that of the dump ``like``."""
    from ..capture.cost_from_dump import like_mindspore

    return like_mindspore(config, _first(like), str(like))


def expected_msprobe(options: Options, like: str | Path) -> Expected:
    """What msprobe will write, asked for by ``options``, if the run is like that of the dump ``like``."""
    from ..capture.cost_from_dump import like_msprobe

    return like_msprobe(options, _first(like), str(like))


def _first(dump: str | Path) -> Trace:
    """The trace of the first part of a dump, whatever it holds: one step of one rank stands for the others."""
    return readers.read(readers.find(dump)[0])
