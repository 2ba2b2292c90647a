"""Losses: another function at several places, other divisors, weights, smoothing and labels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dumpdiff.causes.cause_search import search_causes
from dumpdiff.causes.hypotheses import COMPOSITE_HYPOTHESES, HYPOTHESES
from dumpdiff.causes.hypotheses.composites.change import make_search
from dumpdiff.causes.hypotheses.composites.surplus_steps import list_repeated_surplus_steps
from dumpdiff.causes.hypothesis import Hypothesis
from dumpdiff.causes.interpretation import interpret_step
from dumpdiff.causes.region import Region, Step, StepInput
from dumpdiff.operators.losses import (
    compute_element_losses,
    compute_token_losses,
    find_threshold,
)
from dumpdiff.operators.softmax import log_softmax

from .fault_cases import make_fault_case, make_operands
from .test_composites import explain_region, make_region

RNG = np.random.default_rng(12)
BOXES, OTHER_BOXES = RNG.standard_normal((2, 24)), RNG.standard_normal((2, 24))
LOSSES = RNG.uniform(0.1, 2.0, (4, 6))
IS_OBJECT = (RNG.random((4, 6)) < 0.4).astype(float)

DISTANCES = [pair[0] - pair[1] for pair in (BOXES, OTHER_BOXES)]
COUNTED = make_region([
    ("sum", [("losses", LOSSES)]),
    ("sum", [("is_object", IS_OBJECT)]),
    ("div", [("0", 0), ("1", 0)]),
], {0: (), 1: (), 2: ()})  # fmt: skip


@pytest.mark.parametrize("kinds", [
    ("square", "square"), ("mse_loss", "mse_loss"), ("square", "mse_loss"),
])  # fmt: skip
def test_another_function_of_all_differences_is_named(kinds: tuple[str, str]) -> None:
    """One function computes the losses of all terms, written out or as one op."""
    faulty = np.asarray(sum(np.abs(difference).mean() for difference in DISTANCES))
    assert explain_region(make_terms(*kinds), faulty) == (
        "loss-kind",
        "L1 loss at 2 places; the reference has mean squared error",
    )


def make_terms(*kinds: str) -> Region:
    """Return the sum of two squared errors: of kind ``square`` written out, else one op."""
    calls, ends = [], []
    for kind, (prediction, target) in zip(kinds, (BOXES, OTHER_BOXES), strict=True):
        tensors = [(f"x{len(calls)}", prediction), (f"y{len(calls)}", target)]
        if kind == "square":
            calls += [("sub", tensors), ("square", [("last", 0)]), ("mean", [("last", 0)])]
        else:
            calls.append((kind, tensors))
        ends.append(len(calls) - 1)
    calls.append(("add", [(str(end), 0) for end in ends]))
    return make_region(calls, dict.fromkeys((*ends, len(calls) - 1), ()))


def test_a_sum_is_divided_by_the_number_of_all_elements() -> None:
    count = int(IS_OBJECT.sum())
    assert explain_region(COUNTED, np.asarray(LOSSES.mean())) == (
        "loss-reduction",
        f"sums divided by 24, the number of all; the reference divides by {count}, computed by 1",
    )


def test_a_sum_is_divided_by_a_count_that_the_other_side_computes() -> None:
    region = make_region([("mean", [("losses", LOSSES)])], {0: ()})
    count = int(IS_OBJECT.sum())
    faulty = np.asarray(LOSSES.sum() / count)
    case = make_fault_case(faulty, region.steps[-1].output, {}, scope="block")
    case = replace(case, load_region=lambda: region, load_faulty_region=lambda: COUNTED)
    cause = search_causes([case], COMPOSITE_HYPOTHESES, checked_only=True).causes[0]
    assert cause.name == "loss-reduction"
    assert (
        f"sums divided by {count}; the reference divides by the number of all elements (24)"
        in cause.text
    )


@pytest.mark.parametrize(("own_weight", "weight", "sentence"), [
    (1.0, 3.0, "binary cross-entropy of logits, of which positive ones count 3 times (mean); "
               "the reference has binary cross-entropy of logits (mean)"),
    (2.5, 1.0, "binary cross-entropy of logits (mean); the reference has "
               "binary cross-entropy of logits, of which positive ones count 2.5 times (mean)"),
])  # fmt: skip
def test_positive_elements_count_by_another_weight(
    own_weight: float, weight: float, sentence: str
) -> None:
    logits = RNG.standard_normal((4, 6)).astype(np.float32).astype(float)
    losses = compute_element_losses("bce_with_logits", logits, IS_OBJECT)
    faulty, faithful = (
        np.asarray((np.where(IS_OBJECT == 1, each, 1.0) * losses).mean())
        for each in (weight, own_weight)
    )
    operands = {"logits": logits, "targets": IS_OBJECT}
    case = make_fault_case(faulty, faithful, operands, scope="loss", is_near_loss=True)
    cause = search_causes([case], HYPOTHESES).causes[0]
    assert cause.name == "loss-weight"
    assert sentence in cause.text


def test_class_weights_of_a_loss_are_all_one() -> None:
    logits, labels = RNG.standard_normal((12, 5)), RNG.integers(0, 5, 12)
    weights = np.linspace(0.5, 1.5, 5)
    losses = compute_token_losses(logits, labels)
    faithful = np.asarray((losses * weights[labels]).sum() / weights[labels].sum())
    inputs = tuple(
        StepInput(value, array, name, False, True)
        for value, array, name in ((10, logits, "logits"), (11, labels, "labels"))
    )
    step = Step("cross_entropy_0", "cross_entropy", inputs, {"weight": weights}, 0, faithful)
    name, output = next(iter(step.interpret(step.list_arrays())))
    assert output == pytest.approx(float(faithful))
    region = Region((replace(step, interpretation=name),), None, ())
    assert explain_region(region, np.asarray(losses.mean())) == (
        "loss-weight",
        "all weights of the classes 1 in cross_entropy_0; the reference has weights of 0.5 to 1.5",
    )


N_CLASSES = 12
LOGITS = (4 * RNG.standard_normal((16, N_CLASSES))).astype(np.float32).astype(float)
LABELS = LOGITS.argmax(axis=1)
SEQUENCES = LABELS.reshape(2, 8)


def explain_loss(
    faulty: float, faithful: float, numbers: tuple[float, ...] = ()
) -> tuple[str, str]:
    """Return (cause, sentence) of a loss of logits and labels in two sequences.

    ``numbers``: those that the records hold.
    """
    case = make_fault_case(
        np.asarray(faulty), np.asarray(faithful), {}, scope="loss", numbers=numbers
    )
    operands = {"logits": LOGITS, "labels": LABELS, "tokens": LOGITS.reshape(2, 8, N_CLASSES)}
    case = replace(case, operands=make_operands(operands))
    causes = search_causes([case], HYPOTHESES).causes
    if not causes:
        return "", ""
    text = causes[0].text.partition("behaves as ")[2].partition("; residual")[0]
    return causes[0].name, text


def smooth_by_others(share: float) -> float:
    """Return the loss whose share is divided among the classes that are not the label."""
    hard = compute_token_losses(LOGITS, LABELS)
    others = (-log_softmax(LOGITS).sum(axis=-1) - hard) / (N_CLASSES - 1)
    return float(((1 - share) * hard + share * others).mean())


def smooth_by_all(share: float) -> float:
    """Return the loss whose share is divided among all classes."""
    hard = compute_token_losses(LOGITS, LABELS)
    return float(((1 - share) * hard - share * log_softmax(LOGITS).mean(axis=-1)).mean())


BY_OTHERS = "label smoothing = 0.1, shared by all classes but the label's"
BY_ALL = "label smoothing = 0.1"


@pytest.mark.parametrize(("faulty", "faithful", "sentence"), [
    (smooth_by_others(0.1), smooth_by_all(0.1), f"{BY_OTHERS}; the reference has {BY_ALL}"),
    (smooth_by_all(0.1), smooth_by_others(0.1), f"{BY_ALL}; the reference has {BY_OTHERS}"),
])  # fmt: skip
def test_a_recorded_smoothing_is_shared_by_all_classes_or_all_but_the_labels(
    faulty: float, faithful: float, sentence: str
) -> None:
    assert explain_loss(faulty, faithful, (0.1,)) == ("label-smoothing", sentence)


def test_a_free_smoothing_is_shared_by_others_where_the_loss_shows_it() -> None:
    assert explain_loss(smooth_by_others(0.1), smooth_by_all(0.0)) == (
        "label-smoothing",
        f"{BY_OTHERS}; the reference has label smoothing = 0",
    )


@pytest.mark.parametrize(("shift", "end"), [(-1, -1), (1, 0)])
def test_shifted_labels_may_leave_out_the_ends_of_sequences(shift: int, end: int) -> None:
    losses = compute_token_losses(LOGITS, np.roll(LABELS, shift)).reshape(2, 8)
    is_counted = np.ones((2, 8), bool)
    is_counted[:, end] = False
    faithful = float(compute_token_losses(LOGITS, LABELS).mean())
    assert explain_loss(float(losses[is_counted].mean()), faithful) == (
        "label-shift",
        f"labels shifted by {shift}; the reference has labels shifted by 0",
    )


def test_what_both_sides_of_a_loss_are_divided_by_is_missing() -> None:
    energies, labels = RNG.standard_normal(6), RNG.standard_normal(6)
    is_atom = (np.arange(8) < RNG.integers(2, 8, 6)[:, None]).astype(float)
    region = make_region([
        ("sum", [("is_atom", is_atom)]),
        ("div", [("energies", energies), ("0", 0)]),
        ("div", [("labels", labels), ("0", 0)]),
        ("mse_loss", [("1", 0), ("2", 0)]),
    ], {0: (6,), 3: ()})  # fmt: skip
    faulty = np.asarray(np.mean((energies - labels) ** 2))
    case = make_fault_case(faulty, region.steps[-1].output, {}, scope="loss")
    case = replace(case, load_region=lambda: region, kinds=("sum", "div", "mse_loss"))
    hypothesis = Hypothesis("missing-step", make_search(list_repeated_surplus_steps))
    (cause,) = search_causes([case], [hypothesis], checked_only=True).causes
    assert "without div by 0 at all 2 places" in cause.text


def test_lengths_of_all_sequences_count_the_padding() -> None:
    logits = RNG.standard_normal((9, 3, 5))
    labels = RNG.integers(1, 5, (3, 3))
    lengths, counts = np.array([9, 7, 6]), np.array([3, 2, 2])
    call = [("scores", log_softmax(logits)), ("labels", labels)]
    regions = [
        make_region([("ctc_loss", [*call, ("steps", steps), ("counts", counts)])], {0: ()})
        for steps in (lengths, np.full(3, 9))
    ]
    faithful, faulty = (region.steps[-1].output for region in regions)
    case = make_fault_case(faulty, faithful, {}, scope="loss")
    (all_steps,) = make_operands({"all": np.full(3, 9)})
    case = replace(case, load_region=lambda: regions[0], faulty_operands=(all_steps,))
    (cause, *_) = search_causes([case], COMPOSITE_HYPOTHESES, checked_only=True).causes
    assert cause.name == "mask-missing"
    assert "sequences of lengths [9 9 9]; the reference takes [9 7 6]" in cause.text


#: Losses and weights of three images; each counts another number of pixels.
PIXELS = RNG.uniform(0.5, 1.5, (3, 4, 5))
COUNTS = (np.arange(20).reshape(4, 5) < np.array([20, 13, 6])[:, None, None]).astype(float)


def test_the_mean_of_all_pixels_in_place_of_the_mean_of_the_images() -> None:
    region = make_region([
        ("sum", [("losses", PIXELS * COUNTS)]),
        ("sum", [("weights", COUNTS)]),
        ("div", [("0", 0), ("1", 0)]),
        ("mean", [("last", 0)]),
    ], {0: (3,), 1: (3,), 3: ()})  # fmt: skip
    pooled = np.asarray((PIXELS * COUNTS).sum() / COUNTS.sum())
    assert explain_region(region, pooled) == (
        "loss-reduction",
        "the sums of all 3 groups divided by their common count; the reference divides each by "
        "its own: [20 13 6]",
    )


def test_the_mean_of_the_images_in_place_of_the_mean_of_all_pixels() -> None:
    """Both terms of the loss are means of all pixels, so both are changed at once."""
    terms = (PIXELS * COUNTS, PIXELS**2 * COUNTS)
    region = make_region([
        ("sum", [("losses", terms[0])]),
        ("sum", [("weights", COUNTS)]),
        ("div", [("0", 0), ("1", 0)]),
        ("sum", [("squares", terms[1])]),
        ("div", [("3", 0), ("1", 0)]),
        ("add", [("2", 0), ("4", 0)]),
    ], dict.fromkeys(range(6), ()))  # fmt: skip
    by_image = [np.mean(term.sum(axis=(1, 2)) / COUNTS.sum(axis=(1, 2))) for term in terms]
    assert explain_region(region, np.asarray(sum(by_image))) == (
        "loss-reduction",
        "the mean of the means of 3 groups, of counts [20 13 6]; the reference divides the sum of "
        "all groups by their common count",
    )


def test_the_sums_of_a_loss_are_divided_by_the_count_of_the_other_side() -> None:
    """Both divide by a count of their own: of all sampled anchors, and of those with an object."""
    is_sampled = IS_OBJECT.copy()
    is_sampled[:2] = 1.0
    regions = [
        make_region([
            ("sum", [("losses", LOSSES)]),
            ("sum", [("counted", counted)]),
            ("div", [("0", 0), ("1", 0)]),
        ], {0: (), 1: (), 2: ()})
        for counted in (IS_OBJECT, is_sampled)
    ]  # fmt: skip
    faithful, faulty = (region.steps[-1].output for region in regions)
    case = make_fault_case(faulty, faithful, {}, scope="loss")
    case = replace(case, load_region=lambda: regions[0], load_faulty_region=lambda: regions[1])
    causes = search_causes([case], COMPOSITE_HYPOTHESES, checked_only=True).causes
    (cause,) = [cause for cause in causes if cause.name == "loss-reduction"]
    counts = int(is_sampled.sum()), int(IS_OBJECT.sum())
    assert "sums divided by {}; the reference divides by {},".format(*counts) in cause.text


def test_every_prediction_is_compared_with_every_label_if_an_axis_too_many_is_broadcast() -> None:
    predictions, labels = RNG.standard_normal((2, 6))
    faithful = compute_element_losses("smooth_l1_loss", predictions, labels, 0.5).mean()
    pairs = compute_element_losses("smooth_l1_loss", predictions[:, None], labels, 0.5).mean()
    operands = {"predictions": predictions, "labels": labels}
    case = make_fault_case(np.asarray(pairs), np.asarray(faithful), operands, scope="loss")
    case = replace(case, faulty_operands=case.operands)
    cause = search_causes([case], HYPOTHESES).causes[0]
    assert cause.name == "loss-target"
    assert "smooth L1 loss with beta = 0.5, of every prediction and every target" in cause.text


def test_a_divergence_has_its_arguments_exchanged() -> None:
    log_p, log_q = log_softmax(RNG.standard_normal((2, 5, 7)))
    region = make_region([
        ("kl_div", [("prior", log_q), ("posterior", log_p)]),
        ("sum", [("last", 0)]),
    ], {1: ()})  # fmt: skip
    faulty = np.asarray(np.sum(np.exp(log_q) * (log_q - log_p)))
    assert explain_region(region, faulty) == ("input-order", "kl_div with its arguments exchanged")


def test_the_threshold_that_the_elements_of_a_loss_show_is_another_one() -> None:
    """MindSpore records no beta of SmoothL1Loss."""
    predictions, labels = RNG.standard_normal((2, 24))
    losses = compute_element_losses("smooth_l1_loss", predictions, labels, 1 / 9)
    inputs = tuple(
        StepInput(value, array, name, False, True)
        for value, array, name in ((10, predictions, "deltas"), (11, labels, "targets"))
    )
    step = interpret_step(Step("loss_0", "smooth_l1_loss", inputs, {}, 0, losses), 1e-5)
    assert step is not None
    mean = Step("mean_1", "mean", (StepInput(0, losses, "loss_0", False, False),), {}, 1,
                np.asarray(losses.mean()))  # fmt: skip
    last_step = interpret_step(mean, 1e-5)
    assert last_step is not None
    faulty = compute_element_losses("smooth_l1_loss", predictions, labels, 1.0).mean()
    assert explain_region(Region((step, last_step), None, ()), np.asarray(faulty)) == (
        "loss-threshold",
        "smooth L1 loss with beta = 1; the reference has 0.111111",
    )


@pytest.mark.parametrize("kind", ["smooth_l1_loss", "huber_loss"])
@pytest.mark.parametrize("threshold", [0.1, 2.5])
def test_the_elements_of_a_loss_show_its_threshold(kind: str, threshold: float) -> None:
    distances = np.abs(RNG.standard_normal(24))
    losses = compute_element_losses(kind, distances, np.zeros(24), threshold)
    is_visible = kind == "smooth_l1_loss" or distances.max() > threshold
    found = find_threshold(kind, distances, losses)
    assert found == pytest.approx(threshold if is_visible else found)
    assert find_threshold(kind, distances, np.exp(distances)) == 0.0
