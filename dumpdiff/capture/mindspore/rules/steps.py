"""Rules for the dumped steps."""

from __future__ import annotations

from collections.abc import Iterator

from ..fields import COMMON
from ..iteration import find_bad_characters, parse_iterations
from ..settings import EXCEPTION, Settings
from ..violations import Rule, Violation

ITERATION = f"{COMMON}.iteration"

CHARACTERS = Rule(
    "iteration-characters",
    "error",
    "An iteration is 'all', or has only digits, '-' and '|'; no spaces.",
    framework="iteration only supports digits, {'-', '|'}, or just \"all\" but got:",
)
DEAD_PART = Rule(
    "iteration-part",
    "ignored",
    "Each part between '|' is a number or a range first-last with first <= last; "
    "any other part is ignored.",
)
NO_STEP = Rule(
    "iteration-none", "writes nothing", "At least one part of the iteration selects a step."
)
BEFORE_FIRST = Rule(
    "initial-iteration",
    "writes nothing",
    "The first step has the number initial_iteration; a lower number never occurs.",
)
RULES = (CHARACTERS, DEAD_PART, NO_STEP, BEFORE_FIRST)

_GRAMMAR = "write 'all', or numbers and ranges separated by '|', as in '0|5-8'"


def find_violations(settings: Settings) -> Iterator[Violation]:
    """Yield the violations that concern the selected steps."""
    text = settings.common.get("iteration")
    if text is None:
        return
    bad_characters = find_bad_characters(text)
    if bad_characters or not text:
        yield CHARACTERS.build_violation(
            ITERATION, f"{text!r} {_describe_bad_iteration(text, bad_characters)}; {_GRAMMAR}"
        )
        return
    steps = parse_iterations(text)
    if not steps.selects_all and not steps.ranges:
        part, reason = steps.unreachable_parts[0]
        yield NO_STEP.build_violation(
            ITERATION, f"{text!r} selects no step: in {part!r} {reason}; {_GRAMMAR}"
        )
        return
    for part, reason in steps.unreachable_parts:
        yield DEAD_PART.build_violation(
            ITERATION, f"{part!r} in {text!r} selects no step: {reason}; {_GRAMMAR}"
        )
    first = 0
    if settings.target.version >= (2, 6):
        first = settings.common.get("initial_iteration", 0)
    if steps.last is not None and steps.last < first and settings.op_debug_mode != EXCEPTION:
        yield BEFORE_FIRST.build_violation(
            f"{COMMON}.initial_iteration",
            f"the first step has the number {first}, so that {text!r} selects no step; "
            f"the first two steps are '{first}-{first + 1}'",
        )


def _describe_bad_iteration(text: str, bad_characters: str) -> str:
    if not text:
        return "is empty"
    if text.lower() == "all":
        return "must be written in lower case"
    if bad_characters == " ":
        return f"has spaces; without them it is {text.replace(' ', '')!r}"
    return f"contains {bad_characters!r}"
