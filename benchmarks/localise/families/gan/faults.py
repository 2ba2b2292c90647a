"""Faults of image-to-image translation."""

from __future__ import annotations

from collections.abc import Mapping

from claims import Anywhere, Ratio, Values

from families.fault import Fault, change_model, change_optimizer

FAULTS: Mapping[str, Fault] = {
    "zero_padding": Fault(
        "the convolutions of the residual blocks are padded with zeros, not by reflection",
        "padding-mode",
        change_model(block_padding="zeros"),
        equivalents=("missing-step", "argument"),
    ),
    "affine_missing": Fault(
        "a norm of a residual block has no weight and bias, the default of InstanceNorm2d",
        "affine-missing",
        change_model(has_block_affine=False),
        equivalents=("missing-step", "missing-term", "norm-kind"),
    ),
    "slope": Fault(
        "the leaky rectifiers have the slope 0.01, the framework's default, not 0.2",
        "argument",
        change_model(slope=0.01),
        lambda faulty, clean: [Values(faulty.slope, clean.slope)],
        equivalents=("activation-kind", "constant-factor", "scale"),
    ),
    "shuffle_order": Fault(
        "the pixel shuffle reads a pixel's offset before its channel, as depth_to_space does",
        "axes-swapped",
        change_model(is_shuffle_channels_last=True),
        equivalents=("channel-order", "split-order", "input-order", "heads-permuted"),
    ),
    "judge_sigmoid": Fault(
        "the discriminator ends in a sigmoid, left over from binary cross-entropy",
        "missing-step",
        change_model(has_judge_sigmoid=True),
        lambda *_: [Anywhere(r"(?i)sigmoid")],
        equivalents=("activation-kind",),
    ),
    "real_label": Fault(
        "real images have the label 0.9 in the discriminator's loss, one-sided label smoothing",
        "loss-target",
        change_model(real_label=0.9),
        lambda faulty, clean: [Values(faulty.real_label, clean.real_label)],
        equivalents=(
            "label-smoothing",
            "argument",
            "constant-offset",
            "constant-factor",
            "scale",
            "missing-step",
        ),
    ),
    "first_feature_missing": Fault(
        "feature matching leaves out the activations of the discriminator's first layer",
        "missing-term",
        change_model(first_feature=1),
        equivalents=("loss-weight", "loss-reduction", "missing-step", "input-source"),
    ),
    "condition_order": Fault(
        "the discriminator joins the image with its source in the other order",
        "input-order",
        change_model(is_image_first=True),
        equivalents=("channel-order", "input-source"),
    ),
    "fake_attached": Fault(
        "generated images keep their gradient in the discriminator's loss",
        "gradient-stopped",
        change_model(is_fake_detached=False),
    ),
    "trunk_gradient": Fault(
        "the gradient of the residual blocks' output is halved, averaged once too often over ranks",
        "gradient-scaled",
        change_model(trunk_gradient=0.5),
        lambda faulty, clean: [Ratio(faulty.trunk_gradient / clean.trunk_gradient)],
    ),
    "uncorrected": Fault(
        "Adam without bias correction, as AdamWeightDecay",
        "bias-correction",
        change_optimizer(bias_correction=False),
        optimizer=True,
        equivalents=("update-rule", "learning-rate"),
    ),
    "default_rate": Fault(
        "Adam has the framework's default learning rate, 1e-3, not 2e-4",
        "learning-rate",
        change_optimizer(learning_rate=1e-3),
        lambda faulty, clean: [
            Ratio(faulty.optimizer.learning_rate / clean.optimizer.learning_rate)
        ],
        optimizer=True,
    ),
    "features_raw": Fault(
        "feature matching compares what the discriminator's layers return before their activation",
        "input-source",
        change_model(are_features_raw=True),
        equivalents=("layer-order", "missing-step", "activation-kind"),
    ),
    "default_beta": Fault(
        "Adam has the framework's default beta1, 0.9, not 0.5",
        "beta",
        change_model(beta1=0.9),
        lambda faulty, clean: [Values(faulty.beta1, clean.beta1)],
        optimizer=True,
    ),
    "logistic_loss": Fault(
        "scores have the logistic loss of the first adversarial networks, not that of squares",
        "loss-kind",
        change_model(score_loss="logistic"),
        lambda *_: [Anywhere(r"(?i)bce|entropy|logistic|sigmoid|softplus|squar|mse|logits|log")],
        equivalents=("missing-step", "activation-kind", "loss-target", "input-source"),
    ),
    "gradient_slope": Fault(
        "a fused leaky rectifier has the slope 0.2, but its backward pass the default one, 0.01",
        "gradient-scaled",
        change_model(gradient_slope=0.01),
        lambda *_: [Anywhere(r"(?i)slope|leaky|negative|\b0\.01\b|\b0\.05\b|\b0\.2\b|\b20\b")],
        equivalents=("activation-kind", "argument", "straight-through", "constant-factor"),
    ),
    "image_smooth": Fault(
        "generated images are compared with their targets by smooth L1 with the threshold 1",
        "loss-kind",
        change_model(is_image_smooth=True),
        lambda *_: [Anywhere(r"(?i)smooth|huber|squar|mse|\bl[12]\b|abs|beta|threshold")],
        equivalents=("activation-kind", "loss-threshold", "missing-step", "input-source"),
    ),
    "variance_unbiased": Fault(
        "instance norms of one's own divide by the root of torch.var, which is unbiased",
        "biased-variance",
        change_model(is_variance_unbiased=True),
        lambda *_: [Anywhere(r"(?i)bias|bessel|varian|n - 1|\b0\.99\d*|\b1\.00\d+")],
        equivalents=("argument", "constant-factor", "scale", "norm-kind"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("zero_padding", "mindspore"),
    ("affine_missing", "pytorch"),
    ("slope", "pytorch"),
    ("shuffle_order", "mindspore"),
    ("judge_sigmoid", "pytorch"),
    ("real_label", "mindspore"),
    ("first_feature_missing", "pytorch"),
    ("condition_order", "mindspore"),
    ("fake_attached", "mindspore"),
    ("trunk_gradient", "pytorch"),
    ("uncorrected", "mindspore"),
    ("default_rate", "pytorch"),
    ("features_raw", "mindspore"),
    ("default_beta", "pytorch"),
    ("logistic_loss", "pytorch"),
    ("gradient_slope", "mindspore"),
    ("image_smooth", "mindspore"),
    ("variance_unbiased", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "written": ("", "written"),
    "joined": ("joined", ""),
}
