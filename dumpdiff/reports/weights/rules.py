"""A rule file with the parameter names that two checkpoints teach: for ``align --rules``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ...rulebook import load_rules
from ...rulebook.inference import escape_comment, format_scope_section, infer_scope_lines
from ...weight_comparison import WeightsResult

_HEAD = """\
# Parameter names learned from two checkpoints of one model, where their values agree.
# Give this file with --rules; `dumpdiff rules check FILE` validates it.
# target    {target}
# reference {reference}
"""
_NOTHING = "# Nothing to write: the rules know every parameter that both checkpoints have.\n"


def to_text(result: WeightsResult, rules: Sequence[str | Path]) -> str:
    """Return the text of the rule file; ``rules`` are the files that the result was made with.

    It has only comments if there is nothing to learn.
    """
    book = load_rules(rules)
    scope_lines: Counter[tuple[tuple[str, ...], str, str]] = Counter()
    for target_name, reference_name in result.correspondence.items():
        scope_lines.update(infer_scope_lines(target_name, reference_name, book))
    lines = list(format_scope_section(scope_lines))
    target, reference = escape_comment(result.target.path), escape_comment(result.reference.path)
    head = _HEAD.format(target=target, reference=reference)
    body = "\n" + "\n".join(lines) + "\n" if lines else _NOTHING
    return head + body
