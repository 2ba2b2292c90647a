"""Commands on rules: ``dumpdiff.rules.check``, ``.explain`` and ``.suggest``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..model.defaults import MIN_COVERAGE
from ..rulebook import Explanation, load_rules
from .inputs import PathLike
from .progress import Progress

if TYPE_CHECKING:
    from ..model.result import Result

__all__ = ["check", "explain", "suggest"]


def check(*files: PathLike) -> Mapping[str, int]:
    """Validate the shipped rules and further rule files, and count the rules of each kind.

    Raises
    ------
    RuleError
        With file and line, at the first rule that is wrong.
    """
    return load_rules(files).count_rules()


def explain(*names: str, rules: Sequence[PathLike] = ()) -> Mapping[str, Sequence[Explanation]]:
    """Return what each name is as a scope, a parameter and an operator, and which rules say so.

    Parameters
    ----------
    names
        Names as they appear in dumps, checkpoints or models.
    rules
        Rule files in addition to the shipped rules.

    Raises
    ------
    RuleError
        If a rule file is wrong.
    """
    book = load_rules(rules)
    return {name: book.explain_name(name) for name in names}


def suggest(
    target: PathLike | Result,
    reference: PathLike | None = None,
    *,
    rules: Sequence[PathLike] = (),
    progress: Progress | None = None,
) -> str:
    """Return the text of a rule file, inferred from two dumps that mostly agree.

    It holds what the dumps show and the rules do not contain yet.

    Parameters
    ----------
    target, reference
        Two dumps of one model; or the result of :func:`dumpdiff.align` alone.
    rules
        Rule files in addition to the shipped rules.

    Raises
    ------
    DumpError
        If a dump cannot be read.
    RuleError
        If a rule file is wrong.
    """
    from ..model.result import Result
    from ..rulebook.inference import infer_rule_text
    from .inputs import Inputs
    from .result_builder import build_result

    book = load_rules(rules)
    if isinstance(target, Result):
        return infer_rule_text(target, book)
    if reference is None:
        raise TypeError("suggest needs two dumps, or a result")
    inputs = Inputs(target, reference, rules=tuple(rules))
    result, _ = build_result(inputs, MIN_COVERAGE, (), progress)
    return infer_rule_text(result, book)
