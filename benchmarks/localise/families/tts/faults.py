"""Faults of the speech synthesizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from claims import Anywhere, Claim, Ratio, Values, Words

from families.fault import Fault, change_model, change_optimizer
from families.tts.architecture import HIDDEN, Model, compute_noam_rate


def _claim_frames(faulty: Model, clean: Model) -> Sequence[Claim]:
    """Claim the share of frames that are no padding."""
    *_, durations, _, _, mels = clean.batch()
    return [Ratio(float(durations.sum()) / (mels.shape[0] * mels.shape[1]))]


def _claim_rate(faulty: Model, clean: Model) -> Sequence[Claim]:
    return [Ratio(faulty.optimizer.learning_rate / clean.optimizer.learning_rate)]


FAULTS: Mapping[str, Fault] = {
    "norm_first": Fault(
        "the predictors have their norm before the relu, not behind it",
        "layer-order",
        change_model(is_norm_first=True),
        equivalents=("input-source",),
    ),
    "last_squashed": Fault(
        "tanh behind the last convolution of the postnet too",
        "missing-step",
        change_model(is_last_squashed=True),
        lambda *_: [Anywhere("(?i)tanh")],
        equivalents=("activation-kind", "input-source"),
    ),
    "sines_first": Fault(
        "the table of positions has all sines, then all cosines, where the weights want them in "
        "turn",
        "time-embedding-order",
        change_model(are_sines_first=True),
        equivalents=("split-order", "axes-swapped", "rope-layout", "heads-permuted", "input-order"),
    ),
    "projection_half": Fault(
        "the projection to mels in float16",
        "low-precision",
        change_model(is_projection_half=True),
        lambda *_: [Words(r"\bfloat16")],
    ),
    "energy_early": Fault(
        "energy is predicted from what has no pitch yet, as in another library",
        "input-source",
        change_model(is_energy_early=True),
        equivalents=("skip-source", "missing-term", "missing-step", "skip-missing", "layer-order"),
    ),
    "first_bin": Fault(
        "rows of the tables of pitch and energy are counted from 1, as if row 0 were for padding",
        "position-offset",
        change_model(first_bin=1),
        lambda *_: [Anywhere(r"shift|offset|added|adds|row|constant|\b1\b")],
        equivalents=(
            "constant-offset",
            "row-shift",
            "weight-rows",
            "label-shift",
            "input-source",
            "argument",
            "missing-step",
            "missing-term",
        ),
    ),
    "padded_frames": Fault(
        "the losses of mels are divided by the number of all frames, padding too",
        "loss-reduction",
        change_model(are_padded_frames_counted=True),
        _claim_frames,
        equivalents=("constant-factor", "scale", "pooling", "loss-weight"),
    ),
    "squared_mels": Fault(
        "mean squared error of the mels, as in the first FastSpeech, not the absolute one",
        "loss-kind",
        change_model(mel_loss="mse"),
        lambda *_: [Anywhere(r"squar|l1|L1|mse|MSE|absolute")],
        equivalents=("activation-kind", "missing-step"),
    ),
    "duration_gradient": Fault(
        "the encoder gets a fifth of the duration predictor's gradient",
        "gradient-scaled",
        change_model(duration_gradient=0.2),
        lambda faulty, clean: [Ratio(faulty.duration_gradient / clean.duration_gradient)],
    ),
    "postnet_stopped": Fault(
        "the postnet reads detached mels",
        "gradient-stopped",
        change_model(is_postnet_stopped=True),
    ),
    "noam_dimension": Fault(
        "Noam's learning rate without the root of the hidden size",
        "learning-rate",
        change_optimizer(learning_rate=compute_noam_rate(1, 1)),
        _claim_rate,
        optimizer=True,
    ),
    "beta": Fault(
        "Adam with the framework's beta2, 0.999 for 0.98",
        "beta",
        change_optimizer(beta2=0.999),
        lambda faulty, clean: [Values(faulty.optimizer.beta2, clean.optimizer.beta2)],
        optimizer=True,
    ),
    "frames_unmasked": Fault(
        "padding is not masked in the scores of the decoder",
        "mask-missing",
        change_model(are_frames_masked=False),
        lambda *_: [Anywhere("mask|fill")],
        equivalents=("mask-kind", "missing-step"),
    ),
    "embedding_scale": Fault(
        "what positions are added to is multiplied by the root of the hidden size, as in ESPnet",
        "constant-factor",
        change_model(embedding_scale=HIDDEN**0.5),
        lambda faulty, clean: [Ratio(faulty.embedding_scale / clean.embedding_scale)],
        equivalents=("scale", "missing-step", "residual-scale"),
    ),
    "predictor_bias": Fault(
        "the convolutions of the predictors have no bias, the default of MindSpore's",
        "bias-missing",
        change_model(has_predictor_bias=False),
        lambda *_: [Anywhere("bias")],
        equivalents=("missing-term", "missing-step"),
    ),
    "postnet_alone": Fault(
        "the refined mels are the postnet's output, without the mels that it reads",
        "skip-missing",
        change_model(is_postnet_added=False),
        equivalents=("missing-term", "missing-step"),
    ),
    "first_position": Fault(
        "positions are counted from 1, as in the first FastSpeech, where 0 is padding's",
        "position-offset",
        change_model(first_position=1),
        lambda *_: [Anywhere(r"shift|offset|added|row|position|-?\b1\b")],
        equivalents=("row-shift", "constant-offset", "argument", "input-source"),
    ),
    "durations_plain": Fault(
        "the duration predictor learns the logarithm of the frames, not of one more",
        "loss-target",
        change_model(min_duration=1),
        lambda *_: [Anywhere(r"(?i)log|clamp|clip|max|add|offset|constant|target|label|\b1\b")],
        equivalents=("constant-offset", "missing-term", "missing-step", "clamp", "position-offset"),
    ),
    "speaker_late": Fault(
        "the speaker is added behind pitch and energy: their predictors do not know it",
        "layer-order",
        change_model(is_speaker_late=True),
        equivalents=("input-source", "missing-term", "missing-step", "skip-source", "skip-missing"),
    ),
    "postnet_eps": Fault(
        "the batch norms of the postnet have the eps of Keras, 1e-3",
        "epsilon",
        change_model(postnet_eps=1e-3),
        lambda faulty, clean: [Values(faulty.postnet_eps, clean.postnet_eps)],
        equivalents=("argument",),
    ),
    "running_statistics": Fault(
        "the batch norms of the postnet are left in evaluation, a cell's state before set_train",
        "running-statistics",
        change_model(has_running_statistics=True),
        equivalents=("argument", "norm-kind", "norm-missing", "input-source"),
    ),
    "first_gradient": Fault(
        "the gradient of a repeated phoneme is that of its first frame: those of the others are "
        "not added up",
        "gradient-stopped",
        change_model(has_first_gradient=True),
        equivalents=(
            "gradient-scaled",
            "missing-term",
            "missing-step",
            "pooling",
            "input-source",
        ),
    ),
    "pitch_stopped": Fault(
        "the predictor of the pitch reads detached phonemes, an option of ESPnet",
        "gradient-stopped",
        change_model(is_pitch_stopped=True),
        equivalents=("missing-term",),
    ),
    "padding_kept": Fault(
        "padding is not set to zero behind the halves of a block, so that convolutions read it",
        "mask-missing",
        change_model(is_padding_zeroed=False),
        equivalents=("missing-step", "mask-kind"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("norm_first", "mindspore"),
    ("last_squashed", "mindspore"),
    ("sines_first", "mindspore"),
    ("projection_half", "mindspore"),
    ("energy_early", "pytorch"),
    ("first_bin", "pytorch"),
    ("padded_frames", "pytorch"),
    ("squared_mels", "pytorch"),
    ("duration_gradient", "mindspore"),
    ("postnet_stopped", "pytorch"),
    ("noam_dimension", "pytorch"),
    ("beta", "mindspore"),
    ("frames_unmasked", "mindspore"),
    ("embedding_scale", "pytorch"),
    ("predictor_bias", "mindspore"),
    ("postnet_alone", "pytorch"),
    ("first_position", "mindspore"),
    ("durations_plain", "pytorch"),
    ("speaker_late", "pytorch"),
    ("postnet_eps", "mindspore"),
    ("running_statistics", "pytorch"),
    ("first_gradient", "mindspore"),
    ("pitch_stopped", "mindspore"),
    ("padding_kept", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "aligned": ("", "aligned"),
    "written": ("written", ""),
}
