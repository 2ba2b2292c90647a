"""What a dump says about itself that cannot all be true, one class for every kind of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ..model.trace import Problem

#: What contradicts what:
#:   file        a file of a tensor cannot be read
#:   shape       the file has another number of elements than its record
#:   dtype       the file has another dtype than its record
#:   statistics  the recorded statistics are not those of the file
#:   impossible  no tensor has these statistics
#:   edge        an op reads another value than the op wrote that produced it
#:   copy        the record equals another one in all statistics but one, which has to follow them
#:   parameter   records of one parameter hold different values
#:   gradient    a gradient has another shape than the value that it belongs to
#:   missing     a tensor of a recorded op was not recorded, those of its like were
#:   module      no op inside a module call read or wrote what the call read or wrote
#:   result      an op cannot have computed its output from its inputs, by their statistics
#:   output      the output is not what the operator computes from its recorded inputs
Kind = Literal[
    "file", "shape", "dtype", "statistics", "impossible", "edge", "copy", "parameter", "gradient",
    "missing", "module", "result", "output",
]  # fmt: skip

#: Contradictions of a kind that become a problem each; the rest is one problem with a count.
_MAX_PROBLEMS = 20


@dataclass(frozen=True)
class Contradiction:
    """A record, and what is known against it from the same dump."""

    kind: Kind
    tensor: int  #: id of the tensor
    op: str  #: the dump's own op name
    slot: str
    file: str  #: relative to the dump; '' if there are only statistics
    recorded: str  #: what the record says
    computed: str  #: what follows from the file, or from another record

    @property
    def message(self) -> str:
        """One clause that names the op and both sides of the contradiction."""
        return f"{self.op} {self.slot}: {self.recorded}, but {self.computed}"


@dataclass(frozen=True)
class Check:
    """One question to a dump: how often it could be asked, and which answers contradict."""

    name: str  #: what was compared with what
    checked: int  #: records that could be checked
    contradictions: tuple[Contradiction, ...] = ()
    not_checkable: int = 0  #: records that the question is about, but could not be asked of


def to_problems(contradictions: Iterable[Contradiction], index_file: str) -> tuple[Problem, ...]:
    """Return contradictions as problems of the trace.

    ``index_file`` is named where a record has no file. Each of the first 20 of a kind is a problem;
    the others of the kind are one.
    """
    by_kind: defaultdict[str, list[Contradiction]] = defaultdict(list)
    for contradiction in contradictions:
        by_kind[contradiction.kind].append(contradiction)
    problems = []
    for kind, items in by_kind.items():
        for item in items[:_MAX_PROBLEMS]:
            file = item.file or index_file
            problems.append(Problem(file, item.message, op=item.op, weakens=True))
        n_more = len(items) - _MAX_PROBLEMS
        if n_more > 0:
            message = f"more contradictions of the kind {kind!r}; dumpdiff verify lists them"
            problems.append(Problem(index_file, message, count=n_more, weakens=True))
    return tuple(problems)
