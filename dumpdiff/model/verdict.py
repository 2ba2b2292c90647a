"""The words for what a comparison concludes, and the exit code of each.

Three words are used for a whole comparison and for each of its rows, in code, JSON and reports:

- ``agree``: everything that was compared is the same, within its tolerance.
- ``differ``: at least one difference that can make the runs diverge.
- ``inconclusive``: too little was given, recorded or printed to decide.

A row may have further states that are no answer to "is it the same?": ``coarse`` (too few printed
digits), ``warning`` (unusual, but the same on both sides), ``unsupported`` (one framework has no
such option), ``unused`` (has no effect in these runs). An item of the checklist is a statement, so
its answer is ``holds`` or ``fails``: an expected value can be wrong although both runs have it.

Words for *how* two things are related (``identical``, ``rounded``, ...) are no verdicts and are
defined where they are computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

#: Of every comparison except ``align``.
Verdict = Literal["agree", "differ", "inconclusive"]

#: Of ``align``; these words are published in docs/result.schema.json.
AlignmentVerdict = Literal["aligned", "diverged", "inconclusive"]

# States of a value in ``align``, see ``VALUE_STATES``.
AGREEING = "agreeing"
INTRODUCED = "introduced"
PROPAGATED = "propagated"
AMPLIFIED = "amplified"
ISOLATED = "isolated"
INCOMPARABLE = "incomparable"
RECONVERGED = "reconverged"
UNPAIRED = "unpaired"

#: The state of a value in ``align``, worst first, and what it means. Every value has exactly one.
#: The words are published in docs/result.schema.json.
VALUE_STATES: Mapping[str, str] = {
    INTRODUCED: "differs, and everything that it was computed from agrees",
    AMPLIFIED: "differs far more than what it was computed from",
    PROPAGATED: "differs, and so does something that it was computed from",
    ISOLATED: "differs, but everything that was computed from it agrees: a record is wrong",
    AGREEING: "within the tolerance",
    RECONVERGED: "intermediate value of another decomposition, which agrees after it",
    INCOMPARABLE: "has a partner, but nothing to compare it by",
    UNPAIRED: "has no partner, and no agreeing value shows that it is one of another decomposition",
}

#: States of compared values that differ, and are not excused by another decomposition.
DIFFERING_STATES = (INTRODUCED, AMPLIFIED, PROPAGATED, ISOLATED)

#: 0 and 1 mean what they mean for diff(1); 2 is taken by unusable input (below), 3 is the next
#: number.
EXIT_CODES: Mapping[str, int] = {
    "agree": 0,
    "aligned": 0,
    "differ": 1,
    "diverged": 1,
    "inconclusive": 3,
    # ``optimizer`` with a single run compares nothing: it says whether one rule explains the
    # updates.
    "explained": 0,
    "ambiguous": 3,
    "unexplained": 3,
    "did not move": 3,
}

#: Of the outcome of ``triage``: the verdict, or the cause if one is known. Causes begin at 11, so
#: that a script can tell them from the verdicts and from the codes below.
OUTCOME_EXIT_CODES: Mapping[str, int] = {
    "agree": 0,
    "differ": 1,
    "inconclusive": 3,
    "settings": 11,
    "data": 12,
    "weights": 13,
    "forward": 14,
    "backward": 15,
    "optimizer": 16,
    "schedule": 17,
    "precision": 18,
    "long run": 19,
}

# Exit codes of a command that did not finish. Python's own 1 for a crash, and click's 1 for an
# interrupt, would read as "differ".
UNUSABLE_INPUT = 2  #: wrong usage, or input or output that cannot be used; the code that click uses
CRASHED = 70  #: a bug in dumpdiff; EX_SOFTWARE of sysexits.h
INTERRUPTED = 128 + 2  #: Ctrl-C; a shell reports 128 + the number of the signal (SIGINT is 2)
CLOSED_PIPE = 128 + 13  #: the program that reads the output ended; SIGPIPE is 13
