"""The sentences that results store, found in the code that makes them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import dumpdiff
from dumpdiff.diagnosis import likelihoods
from dumpdiff.diagnosis.decision import LEADS

PACKAGE = Path(dumpdiff.__file__).parent

_DIAGNOSIS_MODULES = (
    *("advice", "case", "decision", "log_observations", "observations", "places", "stages"),
    "symptom",
)

#: Where findings, causes, evidence and notes are put into words. The reasons of
#: ``divergence/tables.py`` are translated where tables are shown.
SOURCES = (
    *sorted((PACKAGE / "causes").rglob("*.py")),
    *(PACKAGE / "diagnosis" / f"{name}.py" for name in _DIAGNOSIS_MODULES),
    *sorted((PACKAGE / "invariants").glob("*.py")),
    *sorted((PACKAGE / "weight_comparison").glob("*.py")),
    *sorted((PACKAGE / "verification").glob("*.py")),
    *(file for file in sorted((PACKAGE / "divergence").glob("*.py")) if file.stem != "tables"),
    *(
        PACKAGE / path
        for path in (
            "api/invariants.py",
            "api/layouts.py",
            "api/pipeline.py",
            "api/shard_evidence.py",
            "batches/batch.py",
            "batches/checks.py",
            "batches/comparison.py",
            "batches/rank_distribution.py",
            "batches/relation.py",
            "communication/exchanges.py",
            "comparison/baseline.py",
            "comparison/new_weights.py",
            "comparison/permuted_rows.py",
            "gradient_norms/comparison.py",
            "gradient_norms/patterns.py",
            "gradient_norms/row.py",
            "golden_reference/comparison.py",
            "graph/statistics.py",
            "optimizers/comparison.py",
            "optimizers/summary.py",
            "run_settings/checklist.py",
            "run_settings/comparison.py",
            "run_divergence/run.py",
            "sharding/layouts.py",
            "sharding/merge.py",
            "training_logs/comparison.py",
            "training_logs/drift.py",
            "training_logs/migration_standard.py",
            "training_logs/shifts.py",
        )
    ),
)

#: Strings that no result stores: messages of the progress bar, names of interpretations.
OTHER_STRINGS = {
    "comparing the baseline",
    "merging the ranks",
    "reading rank {part.rank} of the {side}",
    "reading the baseline",
    "reading rank {rank}",
    "searching for dumps",
    "statistics of the baseline",
    "statistics of the {side}",
    "a value without consumers",
    "record contradicts",
    "records contradict",
    "{description}; the {faithful_side} {contrast}",
}

#: Kinds of observations, symptoms, places, shifts: words for the code, which are not printed.
KINDS = {
    "step shift",
    *likelihoods.LIKELIHOODS,
    *LEADS,
    *likelihoods.PLACES,
    *("first norm", "learning rate", "recorded tokens", "recorded weights", "saved batches"),
    *("few norms", "most norms", "norms by a factor", "update rates", "update rules"),
    *("explained {kind}", "rates {check.verdict}", "{kind} agree", "{kind} differ"),
    *("{phase} values", "{place} settings differ"),
}

#: Parts that are no clauses -> a clause that holds them.
EXAMPLES = {
    "look at {_format_findings(findings)}:": "look at finding 7:",
    "look at {_format_findings(findings)}, and at the dataflow around it:": "look at finding 7 "
    "(the first of 7 there), and at the dataflow around it:",
    "no hypothesis explains {_format_findings(findings)}; all that were tested:": "no hypothesis "
    "explains finding 7; all that were tested:",
    "statistics show where the runs diverge, whole tensors show why; what to dump next around "
    "{_format_findings(findings)}:": "statistics show where the runs diverge, whole tensors show "
    "why; what to dump next around finding 7 (the first of 7 there):",
    "{count} parameters in the dumps agree{ranks}": "7 parameters in the dumps agree, on 1 of 8 "
    "ranks",
    "{values} and {ops} of the {side}": "7 of 8 values and 7 of 8 ops of the target",
    "only {coverage} of the {side}'s {phase} ops could be compared, {dumps.min_coverage} are "
    "required": "only 7% of the target's forward ops could be compared, 50% are required",
    "1 {'+' if factor > 1 else '-'} {abs(factor - 1)} times": "1 + 0.003 times the reference's",
    "model chunks": "the 4 model chunks of the target were merged to one run",
    "{count} of them are {abs(shift)} layers {direction} in the reference": "7 of them are 2 "
    "layers further in the reference",
    "{', '.join(names[:-1])} and {names[-1]}": "inconclusive: Adam, Lion and SGD explain these "
    "steps equally well",
    "{name} (step {step}) {target} against {reference}": "first loss (step 1) 7 against 7",
    "{name} (step {step}) {target} against {reference}, off by {format_number(absolute)} "
    "({_format_percent(absolute, scale)})": "second loss (step 2) 7 against 7, off by 7 (2 %)",
    "{n_target} sample{plural} of {target_length} tokens": "7 samples of 7 tokens",
    "each of {heads} heads": "rows of each of 4 heads in halves where the other side has pairs: "
    "another RoPE layout",
    "the weight": "8 rows of the weight in pairs where the other side has halves: another RoPE "
    "layout",
    "{what} has {step.describe(wrong, results[position])}": "the gradient has norm 7 on rank 7",
    "{actual} reads its output, {step.describe(output.rank, output.tensor)}": "no call reads its "
    "output, norm 7 on rank 7",
    "; the {other_side} {statement.contrast}": "the target has softmax",
    "{place} of the reference": "x of the reference behaves as all zeros",
    "a causal mask shifted by {shift} diagonal{plural}, which hides from diagonal "
    "{first_hidden + shift} on": "a causal mask shifted by 2 diagonals, which hides from diagonal "
    "3 on",
    "{description} (effective scale {scale} against {faithful_scale})": "attention scores 4 times "
    "the target's (effective scale 1 against 4)",
    "without the factor of {step.name} ({step.kind} {factor})": "without the factor of Mul (mul 2)",
    "without the number of {step.name} ({step.kind} {addend})": "without the number of A (add 1)",
    "{region.steps[number].name} ({region.steps[number].kind}) of part {other_number} of the "
    "{own.n_parts} {whole} {own.name}": "Mul (mul) of part 1 of the 4 gates x",
    "{'an' if is_given else 'a'} {state} of zeros in {step.name}": "an initial state of zeros in A",
    "{steps} without {text}": "layer norm of x without its weight",
    "{word} the bias {operand.parameter}": "twice the bias b",
    "layer {layer} {('forward', 'backward')[direction]}": "layer 1 backward",
    "weight_hh{words} transposed, gate by gate": "weight_hh of layer 1 transposed, gate by gate",
    "{thing} {factor} times the {case.faithful_side}'s": "a weight 2 times the target's",
    "the {self.reduction}": "the sum divided by 8",
    "a label smoothing that is {abs(share)} {'larger' if share > 0 else 'smaller'}": "a label "
    "smoothing that is 0.1 larger",
    "{more_or_fewer} tokens counted: {int(faulty.sum())}": "more tokens counted: 8",
    "other {words}": "other keys and values",
    "columns ": "columns 0 to 7 of w",
    "{step_input.name} as ": "x as columns 0 to 7 of w",
    "{count}elements are NaN, Inf or masked on one side only": "3 elements are NaN, Inf or masked "
    "on one side only",
    "{format_argument(str(row.argument))} {row.target} against {row.reference}": "scalar argument "
    "eps 1 against 2",
    "at least {2 * MAX_REGION_END} {side}": "at least 8 target",
    "{ops_t[0]} vs {ops_r[0]}{n_norms}: momentum {momentum_t} against {momentum_r}; the running "
    "statistics after the step differ": "a vs b and 3 more: momentum 1 against 2",
    "both sides recorded {subject} could be compared. {advice}": "both sides recorded the "
    "optimizer, but none of it could be compared. ",
    "both sides recorded new weights, but the step changes none of them by more than the "
    "tolerance{_ADVICE_FOR_STEPS}": "both sides recorded new weights, but the step changes none "
    "of them by more than the tolerance",
    "the {own} does not train {subject}; the {other} does": "the target does not train 1 of 2 "
    "parameters: w; the reference does",
    "the optimizer of the {own} does not update {subject}; that of the {other} does": "the "
    "optimizer of the target does not update 1 of 2 parameters: w; that of the reference does",
    "{n_records} {records} another record or its file": "7 records contradict another record or "
    "its file",
    "{name} {row[f'{name}_dump']}, was {row[f'{name}_reference']}": "shape 2x3, was 3x2",
    "no op inside {verb} that; {place} has {format_statistics(trace, other)}": "no op inside read "
    "that; Linear.0 output.0 has max 7",
    "the {name} must be {lower}": "the max must be 7",
    "{place}, such as {numbers}": "7 of 7 elements differ, such as 7 where it computes 7",
    "{_ELEMENT} {place} of axis {axis}": "element 7 of axis 1",
    "{_ELEMENT} {length - 1} of axis {axis}": "element 7 of axis 1",
    "{name} at {len(numbers)} places": "tanh at 7 places",
    "rolled {' and '.join(texts)} of {shape}": "the rows of up.weight rolled by 1 along axis 0 and "
    "by 2 along axis 1 of (7, 7)",
    "{step_input.name} with {axes} exchanged": "x with axes -3 and -1 exchanged",
    "reversed along axis {axis} of {shape}": "its rows reversed along axis 1 of (7, 7)",
    "read with axes {first} and {second} of {shape} exchanged": "the rows of up.weight read "
    "with axes 0 and 1 of (7, 7) exchanged",
    "{axis_name} read with axes {lengths[0]} and {lengths[1]} exchanged": "columns read with axes "
    "2 and 3 exchanged",
    "{name}, of which positive ones count {self.positive_weight} times": "binary cross-entropy of "
    "logits, of which positive ones count 3 times (mean)",
    "a factor of {faulty.factor} ({faulty.op}), without its {name}": "a factor of 2 (Mul-op1), "
    "without its exponential",
    "has {faithful.factor}, its {name} ({faithful.op})": "has 7, its exponential (Mul-op1)",
    "has {faithful.factor}, of which that is the {name} ({faithful.op})": "has 7, of which that is "
    "the exponential (Mul-op1)",
    "the {len(merged.ranks)} {kind} of the {side} were merged to one run": "the 2 ranks of the "
    "target were merged to one run",
}


def find_sentences() -> Iterator[tuple[str, str]]:
    """Yield (place, sentence) for the strings of the code that have words, an example for each."""
    for file in SOURCES:
        for line, text in _find_strings(ast.parse(file.read_text(encoding="utf-8"))):
            sentence = EXAMPLES.get(text)
            if sentence is None:
                is_part = text != text.strip(" ,;") or text in OTHER_STRINGS | KINDS
                is_command = text.startswith(("dumpdiff ", "eval "))
                sentence = "" if is_part or is_command else _PLACEHOLDER.sub("7", text)
            if sentence:
                yield f"{file.relative_to(PACKAGE)}:{line}", sentence


_PLACEHOLDER = re.compile(r"\{(?:[^{}]|\{[^}]*\})*\}")


def list_strings() -> set[str]:
    """Return all strings of the code, with placeholders as they are written there."""
    trees = (ast.parse(file.read_text(encoding="utf-8")) for file in SOURCES)
    return {text for tree in trees for _, text in _find_strings(tree)}


def _find_strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of strings of several words; no docstrings and no error messages."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
        elif isinstance(node, ast.Raise):
            skipped.update(map(id, ast.walk(node)))
        elif isinstance(node, ast.JoinedStr):
            skipped.update(id(part) for part in node.values if isinstance(part, ast.Constant))
        elif isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            skipped.update(map(id, ast.walk(node.format_spec)))
    for node in ast.walk(tree):
        if id(node) in skipped or not isinstance(node, ast.Constant | ast.JoinedStr):
            continue
        text = _read_string(node)
        if " " in text and re.search("[a-z]{2}", _PLACEHOLDER.sub("", text)):
            yield node.lineno, text


def _read_string(node: ast.Constant | ast.JoinedStr) -> str:
    """Return a string with its placeholders as they are written; '' for other constants."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    text = ""
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            text += f"{{{ast.unparse(part.value)}}}"
        elif isinstance(part, ast.Constant):
            text += str(part.value)
    return text
