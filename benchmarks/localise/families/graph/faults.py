"""Faults of the graph network."""

from __future__ import annotations

from collections.abc import Mapping

from claims import Anywhere, Values, Words

from families.fault import Fault, change_model, change_weight

FAULTS: Mapping[str, Fault] = {
    "degree_offset": Fault(
        "the number of neighbours counts the node itself, for a table that does not",
        "row-shift",
        change_model(degree_offset=1),
        lambda *_: [Anywhere(r"shift|offset|added|\b1\b|row")],
        equivalents=("constant-offset", "position-offset"),
    ),
    "target_read": Fault(
        "the attention gathers its messages by the targets of the edges, not by their sources",
        "input-source",
        change_model(is_target_read=True),
        equivalents=("input-order",),
    ),
    "own_factor": Fault(
        "the own node counts once, its learned factor is left out",
        "missing-step",
        change_model(has_own_factor=False),
        equivalents=("missing-term", "constant-factor", "scale", "residual-scale", "zeroed"),
    ),
    "half_sums": Fault(
        "messages summed in bfloat16",
        "low-precision",
        change_model(are_sums_half=True),
        lambda *_: [Words("bfloat16")],
    ),
    "bonds_shared": Fault(
        "the attention reads the bonds' table of the layer before",
        "weight-swapped",
        change_model(are_bonds_shared=True),
        lambda *_: [Anywhere("bond")],
    ),
    "slope": Fault(
        "leaky relu with a framework's default of 0.01, not 0.2",
        "activation-kind",
        change_model(slope=0.01),
        lambda faulty, clean: [Values(faulty.slope, clean.slope)],
        equivalents=("argument",),
    ),
    "softmax_edges": Fault(
        "softmax over all edges, not over those to one node",
        "softmax-axis",
        change_model(softmax_over="edges"),
        equivalents=("reduction-axis",),
    ),
    "normalizer_stopped": Fault(
        "no gradient through the sum of the exponentials",
        "gradient-stopped",
        change_model(is_normalizer_stopped=True),
    ),
    "heads_last": Fault(
        "a node's values cut into heads in the other order of axes",
        "axes-swapped",
        change_model(are_heads_last=True),
        equivalents=("heads-permuted", "split-order"),
    ),
    "selu": Fault(
        "selu for elu behind the attention",
        "activation-kind",
        change_model(activation="selu"),
        lambda *_: [Words("selu", r"\belu")],
    ),
    "pooling": Fault(
        "a graph is the maximum of its nodes, not their mean",
        "pooling",
        change_model(pooling="max"),
        lambda *_: [Anywhere("max")],
    ),
    "beta": Fault(
        "smooth L1 with a framework's default of 1, not 0.5",
        "loss-threshold",
        change_model(beta=1.0),
        lambda faulty, clean: [Values(faulty.beta, clean.beta)],
        equivalents=("argument",),
    ),
    "loops_added": Fault(
        "the attention adds an edge from each node to itself, a library's default",
        "missing-term",
        change_model(has_loops=True),
        equivalents=("missing-step", "input-source", "batch", "mask-missing", "mask-kind"),
    ),
    "norm_of_all": Fault(
        "the layer norm is one of all nodes, not of each node",
        "norm-kind",
        change_model(is_norm_of_all=True),
        lambda *_: [Anywhere("norm|axis|axes|group")],
        equivalents=("reduction-axis", "norm-groups", "argument"),
    ),
    "value_gated": Fault(
        "the readout takes the sigmoid of its values and multiplies it by its gates",
        "gate-up-swapped",
        change_model(is_value_gated=True),
        equivalents=("input-order", "input-source", "layer-order", "weight-swapped"),
    ),
    "skip_missing": Fault(
        "the attention's output is normed without the nodes it was computed from",
        "skip-missing",
        change_model(has_skip=False),
        equivalents=("missing-term", "missing-step"),
    ),
    "norm_first": Fault(
        "the attention's output is normed before it is added to the nodes, not their sum",
        "layer-order",
        change_model(is_norm_first=True),
        equivalents=("residual-order", "input-source", "skip-source"),
    ),
    "value_transposed": Fault(
        "the square kernel of the attention's values, (in, out) in a checkpoint, loaded as it is",
        "weight-transposed",
        change_weight("attention.value.weight", lambda weight: weight.T),
        lambda *_: [Anywhere("transposed")],
    ),
    "bonds_unsummed": Fault(
        "bonds are in the attention's scores only, not in what it sums up, as GATConv has it",
        "missing-term",
        change_model(are_bonds_summed=False),
        equivalents=("input-source", "skip-missing", "missing-step"),
    ),
    "gradient_averaged": Fault(
        "sums of the first layer have the backward pass of means: it divides by the messages",
        "gradient-scaled",
        change_model(is_gradient_averaged=True),
        lambda *_: [Anywhere("(?i)row|count|number|degree|neighbo|edge|node|each|mean|divi")],
        equivalents=("pooling", "missing-step", "input-source"),
    ),
    "bonds_unordered": Fault(
        "the loader shuffles edges, but not their bonds: edges have the bonds of others",
        "batch",
        change_model(are_bonds_unordered=True),
        equivalents=("input-order", "row-shift", "input-source"),
    ),
    "output_unsqueezed": Fault(
        "predictions keep their last axis: (graphs, 1) against (graphs,) compares each of them "
        "with all labels",
        "missing-step",
        change_model(is_output_squeezed=False),
        equivalents=("loss-target", "loss-reduction", "axes-swapped", "input-source"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("degree_offset", "pytorch"),
    ("target_read", "mindspore"),
    ("own_factor", "pytorch"),
    ("half_sums", "pytorch"),
    ("bonds_shared", "pytorch"),
    ("slope", "pytorch"),
    ("softmax_edges", "mindspore"),
    ("normalizer_stopped", "pytorch"),
    ("heads_last", "mindspore"),
    ("selu", "mindspore"),
    ("pooling", "mindspore"),
    ("beta", "mindspore"),
    ("loops_added", "pytorch"),
    ("norm_of_all", "mindspore"),
    ("value_gated", "pytorch"),
    ("skip_missing", "mindspore"),
    ("norm_first", "pytorch"),
    ("value_transposed", "mindspore"),
    ("bonds_unsummed", "pytorch"),
    ("gradient_averaged", "mindspore"),
    ("bonds_unordered", "mindspore"),
    ("output_unsqueezed", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "incidence": ("", "incidence"),
    "written": ("", "written"),
    "scattered": ("scattered", ""),
}
