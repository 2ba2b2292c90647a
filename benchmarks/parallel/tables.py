"""Format the scores as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from cases import EQUAL, OTHER
from scores import CHECK, FORMS, Score

_INTRODUCTION = """# Parallel runs

`make benchmark-parallel` records a small Llama-like model in PyTorch (gloo), MindSpore (graph mode,
msrun) and megatron-core, spread over processes in different ways, and compares the runs. Faults are
put in on one rank or in one collective.

- **equal layout**: both runs are spread in the same way; rank is compared with rank.
- **other layout**: the reference ran on one device, or is spread otherwise.
- **check**: one run, no reference. Only faults that break a rule of every correct run count.
- **op**: the verdict is *diverged* and the first finding names the op at which the fault enters.
  **rank**: it names only ranks on which the fault is introduced.
- **held out**: faults that were not examined during the development, every third.
"""


def format_document(scores: Sequence[Score]) -> str:
    """Return the whole section."""
    parts = [_INTRODUCTION, "## Correct runs\n", _format_correct(scores)]
    parts += ["## Faults\n", _format_faults(scores), "## Check\n", _format_check(scores)]
    return "\n".join(parts)


def _format_correct(scores: Sequence[Score]) -> str:
    header = ("pairs", "form", "pairs", "aligned", "diverged", "inconclusive", "least coverage")
    rows = []
    for relation in (EQUAL, OTHER):
        for form in FORMS:
            group = [s for s in scores if s.is_correct and (s.relation, s.form) == (relation, form)]
            if group:
                verdicts = [score.verdict for score in group]
                counts = [verdicts.count(word) for word in ("aligned", "diverged", "inconclusive")]
                least = f"{100 * min(score.coverage for score in group):.0f} %"
                rows.append((relation, form, len(group), *counts, least))
    return _format_table(header, rows)


def _format_faults(scores: Sequence[Score]) -> str:
    header = ("faults", "form", "set", "number", "op", "op and rank", "aligned")
    rows = []
    for relation in (EQUAL, OTHER):
        for form in FORMS:
            for label, is_held_out in (("tuned", False), ("held out", True)):
                group = [
                    score
                    for score in scores
                    if not score.is_correct
                    and score.is_visible
                    and score.is_held_out == is_held_out
                    and (score.relation, score.form) == (relation, form)
                ]
                if group:
                    both = _share(group, lambda s: s.is_op_right and s.is_rank_right)
                    op = _share(group, lambda s: s.is_op_right)
                    missed = sum(score.verdict == "aligned" for score in group)
                    rows.append((relation, form, label, len(group), op, both, missed))
    return _format_table(header, rows)


def _format_check(scores: Sequence[Score]) -> str:
    header = ("runs", "form", "set", "number", "alarm", "right rank or group", "seconds")
    rows = []
    for form in FORMS:
        group = [s for s in scores if s.relation == CHECK and s.form == form]
        sets = {
            ("correct", ""): [s for s in group if s.is_correct],
            ("faults", "tuned"): [s for s in group if not s.is_correct and not s.is_held_out],
            ("faults", "held out"): [s for s in group if not s.is_correct and s.is_held_out],
        }
        for (runs, label), members in sets.items():
            visible = [score for score in members if score.is_visible]
            if visible:
                alarms = sum(score.verdict == "differ" for score in visible)
                right = _share(visible, lambda s: s.is_rank_right) if runs == "faults" else ""
                seconds = f"{median(score.seconds for score in visible):.1f}"
                rows.append((runs, form, label, len(visible), alarms, right, seconds))
    return _format_table(header, rows)


def format_failures(scores: Sequence[Score], held_out: bool) -> str:
    """Return the answers that were wrong; held-out cases only on request."""
    lines = []
    for score in sorted(scores, key=lambda score: (score.relation, score.name, score.form)):
        if is_right(score) or (score.is_held_out and not held_out):
            continue
        coverage = f", coverage {100 * score.coverage:.0f} %" if score.relation != CHECK else ""
        lines.append(f"{score.relation}, {score.form}: {score.name}: {score.verdict}{coverage}")
        if score.truth:
            lines.append(f"    expected: {score.truth}")
        lines += [f"    {title}" for title in score.titles]
    return "\n".join(lines)


def is_right(score: Score) -> bool:
    """Return whether the answer is what is expected of it."""
    if score.is_correct:
        return score.verdict in ("aligned", "agree") and not score.n_findings
    if not score.is_visible:
        return True
    if score.relation == OTHER:
        return score.is_op_right
    return score.is_op_right and score.is_rank_right


def _share(scores: Sequence[Score], is_counted: Callable[[Score], bool]) -> str:
    count = sum(map(is_counted, scores))
    return f"{count} ({100 * count / len(scores):.0f} %)"


def _format_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in lines) + "\n"
