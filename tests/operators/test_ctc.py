"""The loss of paths without places, in float64, against PyTorch's operator."""

from __future__ import annotations

import numpy as np
import pytest

from dumpdiff.operators import compute_interpretations

torch = pytest.importorskip("torch")

STEPS, SEQUENCES, CLASSES, LONGEST = 9, 4, 6, 4


def make_inputs(seed: int = 0):
    """Return logarithms of probabilities, labels, numbers of steps and of labels; some repeat."""
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.standard_normal((STEPS, SEQUENCES, CLASSES)))
    labels = torch.from_numpy(rng.integers(1, CLASSES, (SEQUENCES, LONGEST)))
    labels[0] = labels[0, 0]
    n_steps = torch.from_numpy(rng.integers(STEPS - 2, STEPS + 1, SEQUENCES))
    n_labels = torch.tensor([LONGEST, 2, 1, 0])
    return [logits.log_softmax(-1), labels, n_steps, n_labels]


def compute_outputs(inputs, shape, **keywords):
    arrays = [tensor.numpy() for tensor in inputs]
    return dict(compute_interpretations("ctc_loss", arrays, keywords, output_shape=shape))


@pytest.mark.parametrize(("reduction", "name"), [
    ("none", "by sequence, blank 0"), ("mean", "mean, blank 0"), ("sum", "sum, blank 0"),
])  # fmt: skip
def test_the_losses_are_those_of_the_framework(reduction, name):
    inputs = make_inputs()
    expected = torch.nn.functional.ctc_loss(*inputs, reduction=reduction).numpy()
    computed = compute_outputs(inputs, expected.shape, blank=0)[name]
    np.testing.assert_allclose(computed, expected, rtol=1e-12)


def test_labels_may_follow_one_another_in_one_row():
    log_probabilities, labels, n_steps, n_labels = make_inputs(1)
    flat = torch.cat([row[:length] for row, length in zip(labels, n_labels, strict=True)])
    inputs = [log_probabilities, flat, n_steps, n_labels]
    expected = torch.nn.functional.ctc_loss(*inputs).item()
    assert compute_outputs(inputs, ())["mean, blank 0"] == pytest.approx(expected, rel=1e-12)


def test_a_blank_that_was_not_recorded_may_be_the_last_class():
    log_probabilities, labels, n_steps, n_labels = make_inputs(2)
    inputs = [log_probabilities, labels - 1, n_steps, n_labels]
    expected = torch.nn.functional.ctc_loss(*inputs, blank=CLASSES - 1, reduction="sum").item()
    computed = compute_outputs(inputs, ())[f"sum, blank {CLASSES - 1}"]
    assert computed == pytest.approx(expected, rel=1e-12)


def test_labels_without_a_path_cost_nothing_if_the_call_says_so():
    inputs = make_inputs(3)
    inputs[2] = torch.tensor([2, STEPS, STEPS, STEPS])  # too few for four equal labels
    expected = torch.nn.functional.ctc_loss(*inputs, reduction="none", zero_infinity=True).numpy()
    (computed,) = compute_outputs(inputs, (SEQUENCES,), blank=0, zero_infinity=1.0).values()
    np.testing.assert_allclose(computed, expected, rtol=1e-12)
    assert computed[0] == 0


def test_more_steps_than_there_are_cannot_be_run():
    inputs = make_inputs()
    inputs[2] = inputs[2] + STEPS
    assert compute_outputs(inputs, ()) == {}
