"""Recorded pairs in which a layer is one op on one side and written out on the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import dumpdiff
from dumpdiff import Result


@pytest.fixture(scope="module")
def align_recorded(dump: Callable[[str], Path]) -> Callable[[str, str], Result]:
    """Return the result of two recorded forms of one model."""

    def align(target: str, reference: str) -> Result:
        folder = dump(f"pt_{target.partition('_')[0]}")
        return dumpdiff.align(folder / target, folder / reference)

    return align


@pytest.mark.parametrize(
    ("form", "other"),
    [
        ("segments_steps", "segments_none"),
        ("projection_written", "projection_none"),
        ("scan_written", "scan_none"),
        ("patches_unfolded", "patches_none"),
    ],
)
def test_sound_forms_are_aligned(
    align_recorded: Callable[[str, str], Result], form: str, other: str
) -> None:
    assert align_recorded(form, other).verdict == "aligned"


@pytest.mark.parametrize("is_mirrored", [False, True])
def test_both_states_of_a_layer_are_reset_between_segments(
    align_recorded: Callable[[str, str], Result], is_mirrored: bool
) -> None:
    names = ("segments_reset", "segments_none")
    target, reference = names[::-1] if is_mirrored else names
    result = align_recorded(target, reference)
    cause = result.findings[0].causes[0]
    assert cause.name == "hidden-state-reset"
    assert "an initial state of zeros in Torch.lstm.1.forward (lstm)" in cause.text
    assert cause.residual < 1e-6


@pytest.mark.parametrize("is_mirrored", [False, True])
def test_heads_are_cut_from_other_columns_of_a_projection(
    align_recorded: Callable[[str, str], Result], is_mirrored: bool
) -> None:
    names = ("projection_strided", "projection_none")
    target, reference = names[::-1] if is_mirrored else names
    cause = align_recorded(target, reference).findings[0].causes[0]
    assert cause.name == "heads-permuted"
    assert "columns 0, 2, 4, ..." in cause.text
    assert "columns 0 to 3" in cause.text


@pytest.mark.parametrize("is_mirrored", [False, True])
def test_the_two_directions_are_joined_in_the_other_order(
    align_recorded: Callable[[str, str], Result], is_mirrored: bool
) -> None:
    names = ("directions_exchanged", "directions_none")
    target, reference = names[::-1] if is_mirrored else names
    cause = align_recorded(target, reference).findings[0].causes[0]
    assert cause.name == "input-order"
    assert "the two parts joined along axis 2 exchanged" in cause.text


def test_a_gru_of_two_directions_that_is_written_out_has_no_finding(
    align_recorded: Callable[[str, str], Result],
) -> None:
    assert not align_recorded("both_steps", "both_none").findings


@pytest.mark.parametrize("is_mirrored", [False, True])
@pytest.mark.parametrize(
    ("form", "cause", "sentence"),
    [
        ("unreversed", "scan-direction", "the outputs of the backward direction not reversed back"),
        ("starts", "scan-direction", "both directions reading the sequence from its start"),
        (
            "exchanged",
            "weight-swapped",
            "the weights of layer 0 forward and layer 0 backward exchanged",
        ),
        ("joined", "input-order", "the two parts joined along axis 2 exchanged"),
        ("scaled", "constant-factor", "a factor of 2.82843 of the sequence that the gru reads"),
        (
            "states",
            "input-order",
            "layer 0 forward, layer 0 backward beginning with the states of "
            "layer 0 backward, layer 0 forward",
        ),
    ],
)
def test_a_fault_of_a_recurrent_layer_of_two_directions_is_named(
    align_recorded: Callable[[str, str], Result],
    form: str,
    cause: str,
    sentence: str,
    is_mirrored: bool,
) -> None:
    names = ("both_none", f"both_{form}") if is_mirrored else (f"both_{form}", "both_none")
    first_cause = align_recorded(*names).findings[0].causes[0]
    assert first_cause.name == cause
    assert sentence in first_cause.text
    assert first_cause.residual < 1e-6


@pytest.mark.parametrize("is_mirrored", [False, True])
@pytest.mark.parametrize(
    ("form", "other", "cause", "sentence"),
    [
        (
            "scan_ahead",
            "scan_none",
            "causal-shift",
            "what is cut from Functional.conv1d.0.forward shifted by -1 along axis 2",
        ),
        ("scan_rate", "scan_none", "decay-exponent", "without Torch.exp.0.forward (exp)"),
        ("patches_channels", "patches_none", "channel-order", "channels of an input in reverse"),
        (
            "patches_unbiased",
            "patches_none",
            "bias-missing",
            "without part 2 of the 3 parts of its bias (qkv.bias)",
        ),
    ],
)
def test_one_change_of_a_layer_is_named(
    align_recorded: Callable[[str, str], Result],
    form: str,
    other: str,
    cause: str,
    sentence: str,
    is_mirrored: bool,
) -> None:
    target, reference = (other, form) if is_mirrored else (form, other)
    first_cause = align_recorded(target, reference).findings[0].causes[0]
    assert first_cause.name == cause
    assert sentence in first_cause.text
    assert first_cause.residual < 1e-6


@pytest.mark.parametrize("is_mirrored", [False, True])
def test_the_sum_that_lacks_the_gradient_of_a_step_is_named(
    align_recorded: Callable[[str, str], Result], is_mirrored: bool
) -> None:
    names = ("scan_stopped", "scan_none")
    target, reference = names[::-1] if is_mirrored else names
    finding = align_recorded(target, reference).findings[0]
    stopped_ops = finding.reference_ops if is_mirrored else finding.target_ops
    assert "Tensor.__add__.7.backward" in stopped_ops
    assert finding.causes[0].name == "gradient-stopped"
