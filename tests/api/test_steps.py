"""Several steps of a real training, recorded with msprobe."""

from collections.abc import Callable
from pathlib import Path

import pytest

import dumpdiff
from dumpdiff import RunResult
from dumpdiff.api import run_alignment
from dumpdiff.model.inheritance import Inheritance

Dumps = Callable[[str], Path]


def align(target: Path, reference: Path) -> RunResult:
    run = dumpdiff.align(target, reference, jobs=1)
    assert isinstance(run, RunResult)
    return run


def test_a_correct_training_is_aligned_in_every_step(dump: Dumps) -> None:
    run = align(dump("parallel_pt_steps3"), dump("parallel_pt_steps3_again"))

    assert (run.verdict, run.steps) == ("aligned", (0, 1, 2))


@pytest.mark.parametrize("is_swapped", [False, True])
def test_another_learning_rate_from_step_1_on_is_the_update_of_step_1(
    dump: Dumps, is_swapped: bool
) -> None:
    pair = [dump("parallel_pt_steps3_learning_rate"), dump("parallel_pt_steps3_again")]
    run = align(*(reversed(pair) if is_swapped else pair))

    assert [task.verdict for task in run.tasks] == ["aligned", "diverged", "diverged"]
    first = run.first_divergence
    assert first is not None
    assert (first.step, first.finding.phase) == (1, "optimizer")
    assert first.place == "step 1"
    numbers = ("0.99998", "0.99999")
    expected, other = reversed(numbers) if is_swapped else numbers
    assert first.title.endswith(f"scalar argument {expected} against {other}")
    assert {finding.step for finding in run.findings} == {1}, "later steps follow from it"


def test_a_step_is_compared_again_with_what_it_inherited(
    dump: Dumps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its task then says what was allowed, so that the answer says it, too."""
    inheritance = Inheritance({}, 1e-6)

    def find_inheritance(task, tasks):
        return inheritance if task.step == 1 else None

    monkeypatch.setattr(run_alignment, "find_inheritance", find_inheritance)
    run = align(dump("parallel_pt_steps3"), dump("parallel_pt_steps3_again"))

    assert [task.inheritance for task in run.tasks] == [None, inheritance, None]
    assert "weights differ by up to 1.0e-6" in run.notes[0]
