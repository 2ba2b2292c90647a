"""What two checkpoints teach about names, as the text of a rule file: for ``align --rules``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ...rulebook import load_rules
from ...rulebook.scope_suggestions import infer_scope_lines
from ...rulebook.suggestions import escape_comment, format_scope_section
from ...weight_comparison import WeightsResult

_HEAD = """\
# What two checkpoints of one model taught about names, where their values agree. Give it with --rules;
# `dumpdiff rules check FILE` validates it.
# target    {target}
# reference {reference}
"""
_NOTHING = "# Nothing to write: the rules know every parameter that both have.\n"


def rules_of(result: WeightsResult, rules: Sequence[str | Path]) -> str:
    """The text of a rule file, or of a comment alone; ``rules`` are the files the result was made with."""
    book = load_rules(rules)
    pairs = result.correspondence.items()
    wanted = Counter(
        line for ours, theirs in pairs for line in infer_scope_lines(ours, theirs, book)
    )
    lines = list(format_scope_section(wanted))
    head = _HEAD.format(
        target=escape_comment(result.target.path), reference=escape_comment(result.reference.path)
    )
    return head + ("\n" + "\n".join(lines) + "\n" if lines else _NOTHING)
