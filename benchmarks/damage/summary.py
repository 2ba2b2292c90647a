"""Format the outcomes as Markdown, for a terminal and for a section of docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from answers import CRASHED, EXIT_CODE, REPORTED, SILENT, TOLD
from kinds import KINDS
from outcomes import FORMS, UNDAMAGED, Outcome
from records import SUBJECTS
from table import format_share, format_table

_INTRODUCTION = """# Damage

`make benchmark-damage` takes a pair of sound recordings that dumpdiff calls *aligned*, damages \
one recorded value of one
side, and asks whether the answer tells it. The pairs are those of six models: graph mode of \
MindSpore against msprobe of
PyTorch, and two PyTorch runs with other names or operators. A damage that changes a tensor by \
less than 1 % of its norm
(the sign of a symmetric tensor, a factor of zeros) is no case.

- **exit code**: the answer is no longer *aligned*. **terminal**: that, or a line of the printed \
answer names the op or
  the file, or counts what no line counted before. **reported**: that, or the tables of the \
result (pairs, ops without a
  partner, problems) hold a new state of an op that reads or writes the value.
- **silent**: *aligned*, exit code 0, and nothing in the answer. Counts that change in a table of \
hundreds, and reasons
  that excuse a value (*reconverged*), report nothing.
- **tuned**: damages that were examined during the development of dumpdiff. **held out**: damages \
that were not: one
  model, and a fifth of the others.
- **of what is read**: reported, of the damages in files that `align` opened. Files that hold a \
value which is known from
  another file are not opened. **with --verify**: reported if `align` is asked to read all files.
"""

_TOTALS = """## All damages

{table}

{undamaged}
"""

_KINDS = """## By kind of damage

Share that is reported, and in brackets the share that the terminal tells.

{table}

*factor 1.3 everywhere*: all records of one value. All other kinds damage a single record; of \
whole tensors of msprobe the
recorded statistics stay as they are. *swapped*: the numbers of another record of the same size. \
*one statistic*: one of
max, min, mean and norm alone. *truncated*: half of the file is missing; a text file ends in the \
middle of the record.
*deleted*: the file, the row, or the entry of the call is missing, and no other record holds the \
value; *deleted copy*:
others hold it.
"""

_SUBJECTS = """## By damaged value

{table}
"""

_PARTS: dict[str, Callable[[Outcome], bool]] = {
    "tuned": lambda outcome: not outcome.held_out,
    "held out": lambda outcome: outcome.held_out,
}


def format_document(outcomes: Sequence[Outcome]) -> str:
    """Return the whole section."""
    damaged = [outcome for outcome in outcomes if outcome.kind != UNDAMAGED]
    undamaged = [outcome for outcome in outcomes if outcome.kind == UNDAMAGED]
    kinds = [kind for kind in KINDS if any(o.kind == kind for o in damaged)]
    parts = [
        _INTRODUCTION,
        _TOTALS.format(table=_format_totals(damaged), undamaged=_format_undamaged(undamaged)),
        _KINDS.format(table=_format_shares(damaged, "kind", kinds)),
        _SUBJECTS.format(table=_format_shares(damaged, "subject", SUBJECTS)),
    ]
    return "\n".join(parts).rstrip() + "\n"


def format_failures(outcomes: Sequence[Outcome], held_out: bool) -> str:
    """Return the damages that the terminal does not tell, the worst first; held-out ones on
    request only.
    """
    failures = [o for o in outcomes if o.kind != UNDAMAGED and o.level not in TOLD]
    failures.sort(key=lambda o: (o.level != CRASHED, o.level != SILENT, o.form, o.kind, o.name))
    lines = []
    for outcome in failures:
        if outcome.held_out and not held_out:
            continue
        facts = [outcome.subject]
        if outcome.is_read is not None:
            facts.append("file read" if outcome.is_read else "file not read")
        if outcome.verified_level:
            facts.append(f"with --verify: {outcome.verified_level}")
        lines.append(f"{outcome.level}: {outcome.name} ({', '.join(facts)})")
        lines += [f"    {line}" for line in outcome.lines]
        lines.append(f"    --model {outcome.model} --form {outcome.form} --keep DIR {outcome.id}")
    false_alarms = [o for o in outcomes if o.kind == UNDAMAGED and o.verdict != "aligned"]
    for outcome in false_alarms:
        if not outcome.held_out or held_out:
            lines.append(f"{outcome.verdict} without damage: {outcome.pair} [{outcome.form}]")
            lines += [f"    {line}" for line in outcome.lines]
    n_hidden = sum(o.held_out for o in (*failures, *false_alarms))
    if n_hidden and not held_out:
        lines.append(f"{n_hidden} held-out answers are wrong too.")
    return "\n".join(lines)


def _format_totals(damaged: Sequence[Outcome]) -> str:
    head = (
        "part", "form", "damages", "reported", "terminal", "exit code", "silent", "crashed",
        "of what is read", "with --verify",
    )  # fmt: skip
    rows = []
    for part, belongs in _PARTS.items():
        for form in FORMS:
            group = [o for o in damaged if belongs(o) and o.form == form]
            if not group:
                continue
            rows.append(
                [
                    part,
                    form,
                    len(group),
                    format_share(o.level in REPORTED for o in group),
                    format_share(o.level in TOLD for o in group),
                    format_share(o.level == EXIT_CODE for o in group),
                    sum(o.level == SILENT for o in group),
                    sum(o.level == CRASHED for o in group),
                    format_share(o.level in REPORTED for o in group if o.is_read),
                    format_share(o.verified_level in REPORTED for o in group if o.verified_level),
                ]
            )
    return format_table(head, rows)


def _format_undamaged(undamaged: Sequence[Outcome]) -> str:
    n_alarms = sum(o.verdict == "diverged" for o in undamaged)
    n_inconclusive = sum(o.verdict not in ("aligned", "diverged") for o in undamaged)
    return (
        f"Without damage: {len(undamaged)} pairs of dumps, {n_alarms} false alarms, "
        f"{n_inconclusive} inconclusive (these were not damaged)."
    )


def _format_shares(damaged: Sequence[Outcome], field: str, values: Iterable[str]) -> str:
    """Return a table with one row for each value of a field, and columns by part and form."""
    columns = [(part, form) for part in _PARTS for form in FORMS]
    head = [field]
    for part, form in columns:
        head += [f"{form}, {part}", "damages"]
    rows = []
    for value in values:
        row: list[object] = [value]
        for part, form in columns:
            group = [
                o
                for o in damaged
                if getattr(o, field) == value and o.form == form and _PARTS[part](o)
            ]
            reported = format_share(o.level in REPORTED for o in group)
            told = format_share(o.level in TOLD for o in group)
            row += [f"{reported} ({told})" if group else "-", len(group)]
        rows.append(row)
    return format_table(head, rows)
