"""Faults of the policy."""

from __future__ import annotations

from collections.abc import Mapping

from claims import Anywhere, Ratio, Values, Words

from families.fault import Fault, change_model, change_optimizer

FAULTS: Mapping[str, Fault] = {
    "state_kept": Fault(
        "the state of the memory is kept where an episode begins",
        "mask-missing",
        change_model(is_state_reset=False),
        equivalents=("missing-step", "hidden-state-reset"),
    ),
    "reset_first": Fault(
        "the reset gate multiplies the state before its linear layer, as Keras's first form does",
        "layer-order",
        change_model(is_reset_first=True),
        equivalents=("input-source", "cell-form"),
    ),
    "cut_early": Fault(
        "advantages are cut at the step that begins an episode, not at the step before",
        "input-source",
        change_model(is_cut_early=True),
        equivalents=("mask-shifted", "row-shift"),
    ),
    "trace_decay": Fault(
        "advantages decay by the discount only, without lambda",
        "constant-factor",
        change_model(trace_decay=1.0),
        lambda faulty, clean: [Ratio(faulty.trace_decay / clean.trace_decay)],
        equivalents=("scale", "missing-step", "argument", "residual-scale"),
    ),
    "deviation_biased": Fault(
        "the deviation of the advantages is divided by their number, NumPy's default",
        "constant-factor",
        change_model(is_deviation_biased=True),
        lambda *_: [Anywhere(r"bias|correction|freedom|ddof|\b0\.97|\b1\.02")],
        equivalents=("scale", "argument", "biased-variance"),
    ),
    "action_mean": Fault(
        "the mean of the likelihoods' logarithms of an action's numbers, not their sum",
        "pooling",
        change_model(action_reduction="mean"),
        lambda *_: [Anywhere(r"sum|mean|\b3\b|0\.333")],
        equivalents=("constant-factor", "scale", "loss-reduction", "missing-step"),
    ),
    "entropy_sign": Fault(
        "entropy is added to the loss, not subtracted from it",
        "constant-factor",
        change_model(is_entropy_added=True),
        lambda *_: [Ratio(-1)],
        equivalents=("scale", "loss-weight"),
    ),
    "clip_range": Fault(
        "ratios are clipped at 0.1 around 1, not at 0.2",
        "loss-threshold",
        change_model(clip_range=0.1),
        lambda *_: [Words(r"\b(0\.1|0\.9|1\.1)\b", r"\b(0\.2|0\.8|1\.2)\b")],
        equivalents=("argument",),
    ),
    "value_target": Fault(
        "values are compared with the advantages, not with the returns",
        "loss-target",
        change_model(value_target="advantages"),
        equivalents=("missing-term", "missing-step", "input-source"),
    ),
    "baseline_open": Fault(
        "gradients reach the values through the advantages",
        "gradient-stopped",
        change_model(is_baseline_stopped=False),
    ),
    "critic_stopped": Fault(
        "no gradient from the values to the memory",
        "gradient-stopped",
        change_model(is_critic_stopped=True),
    ),
    "adam_eps": Fault(
        "Adam has the framework's eps, 1e-8, not 1e-5",
        "optimizer-epsilon",
        change_optimizer(eps=1e-8),
        lambda faulty, clean: [Values(faulty.optimizer.eps, clean.optimizer.eps)],
        row="32",
        optimizer=True,
    ),
    "clip_none": Fault(
        "gradients are not clipped",
        "clip",
        change_optimizer(clip=0.0),
        lambda *_: [Anywhere("times")],
        row="29",
        optimizer=True,
    ),
    "update_first": Fault(
        "the memory takes its first rows as the update gate, as Keras does, not as the reset gate",
        "gate-order",
        change_model(is_update_first=True),
        equivalents=("split-order", "input-order", "weight-rows", "input-source"),
    ),
    "elu": Fault(
        "the trunk ends in elu, RSL-RL's default, not in tanh",
        "activation-kind",
        change_model(last_activation="elu"),
        lambda *_: [Anywhere(r"\b(elu|tanh)\b")],
    ),
    "state_bias": Fault(
        "the memory has one bias, that of its input, none of its state",
        "bias-missing",
        change_model(has_state_bias=False),
        lambda *_: [Anywhere("bias")],
        equivalents=("zeroed", "missing-term", "missing-step"),
    ),
    "smooth_values": Fault(
        "values are compared by smooth L1, not by half of the squares",
        "loss-kind",
        change_model(value_loss="smooth"),
        lambda *_: [Anywhere(r"(?i)smooth|huber|l1")],
        equivalents=("loss-threshold", "clamp", "missing-step"),
    ),
    "norm_late": Fault(
        "the trunk's norm is behind the first tanh, not before it",
        "layer-order",
        change_model(is_norm_late=True),
        equivalents=("input-source", "input-order"),
    ),
    "values_unclipped": Fault(
        "the loss of values has no clipped term, as in the paper",
        "missing-step",
        change_model(are_values_clipped=False),
        equivalents=("clamp", "loss-threshold", "loss-kind", "missing-term", "input-source"),
    ),
    "memory_truncated": Fault(
        "the state of the memory is detached at each step: no gradient goes back in time",
        "gradient-stopped",
        change_model(is_memory_truncated=True),
        equivalents=("missing-term",),
    ),
    "advantages_uncentered": Fault(
        "advantages are divided by their deviation only, their mean is not subtracted",
        "missing-term",
        change_model(is_advantage_centered=False),
        equivalents=("missing-step", "constant-offset", "input-source", "norm-kind"),
    ),
    "state_gradient": Fault(
        "the gradient of the memory's state is halved in each step, as MuZero does",
        "gradient-scaled",
        change_model(state_gradient=0.5),
        lambda faulty, clean: [Ratio(faulty.state_gradient / clean.state_gradient)],
    ),
    "value_weight": Fault(
        "the loss of values has the weight 1, RSL-RL's default, not CleanRL's 0.5",
        "loss-weight",
        change_model(value_weight=1.0),
        lambda faulty, clean: [Ratio(faulty.value_weight / clean.value_weight)],
        equivalents=("constant-factor", "scale", "argument", "missing-step"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("state_kept", "mindspore"),
    ("reset_first", "mindspore"),
    ("cut_early", "pytorch"),
    ("trace_decay", "mindspore"),
    ("deviation_biased", "pytorch"),
    ("action_mean", "mindspore"),
    ("entropy_sign", "pytorch"),
    ("clip_range", "mindspore"),
    ("value_target", "pytorch"),
    ("baseline_open", "mindspore"),
    ("critic_stopped", "pytorch"),
    ("adam_eps", "mindspore"),
    ("clip_none", "pytorch"),
    ("update_first", "mindspore"),
    ("elu", "pytorch"),
    ("state_bias", "mindspore"),
    ("smooth_values", "pytorch"),
    ("norm_late", "mindspore"),
    ("values_unclipped", "pytorch"),
    ("memory_truncated", "pytorch"),
    ("advantages_uncentered", "mindspore"),
    ("state_gradient", "mindspore"),
    ("value_weight", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "distributions": ("", "distributions"),
    "merged": ("merged", ""),
}
