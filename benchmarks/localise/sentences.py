"""Compare the sentence of a cause with the fault: the numbers of both sides, and which has which.

What a right sentence says follows from the knobs and weights of the faulty and the clean model, as
:mod:`claims`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import families
import numpy as np
from architecture import Layer, Model, build_clean
from claims import (
    REFERENCE,
    TARGET,
    Anywhere,
    Claim,
    Order,
    Ratio,
    Sentence,
    Shift,
    Values,
    Words,
    parse_sentence,
)
from faults import Case, build


@dataclass(frozen=True)
class Fault:
    """A fault in one layer of a model, next to the model without it."""

    clean: Model
    faulty: Model
    layer_number: int

    @property
    def layers(self) -> tuple[Layer, Layer]:
        """The layer with and without the fault."""
        return self.faulty.layers[self.layer_number], self.clean.layers[self.layer_number]

    def get_weights(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return a weight with and without the fault."""
        key = name.format(n=self.layer_number)
        return self.faulty.weights[key], self.clean.weights[key]


Claims = Callable[[Fault], Sequence[Claim]]


def _compare_knob(name: str) -> Claims:
    """Claim a number of the layer, of both sides."""
    return lambda fault: [Values(*(getattr(layer, name) for layer in fault.layers))]


def _compare_factor(name: str) -> Claims:
    """Claim the quotient of a factor of the layer, and the two numbers."""

    def make_claims(fault: Fault) -> Sequence[Claim]:
        injected, clean = (getattr(layer, name) for layer in fault.layers)
        return [Ratio(injected / clean), Values(injected, clean)]

    return make_claims


def _compare_setting(name: str) -> Claims:
    return lambda fault: [Values(getattr(fault.faulty, name), getattr(fault.clean, name))]


def _compare_optimizer(name: str) -> Claims:
    return lambda fault: [
        Values(getattr(fault.faulty.optimizer, name), getattr(fault.clean.optimizer, name))
    ]


def _compare_optimizer_factor(name: str) -> Claims:
    return lambda fault: [Ratio(getattr(fault.faulty.optimizer, name))]


def _compare_group_beta(fault: Fault) -> Sequence[Claim]:
    return [Values(fault.faulty.optimizer.group_beta2, fault.clean.optimizer.beta2)]


def _compare_score_scale(fault: Fault) -> Sequence[Claim]:
    size = fault.clean.size
    default = (size.head_dim + size.rope_dim if size.q_rank else size.head_dim) ** -0.5
    injected, clean = (layer.score_scale for layer in fault.layers)
    return [Ratio(injected / clean), Values(injected * default, clean * default)]


def _compare_norm_kind(fault: Fault) -> Sequence[Claim]:
    names = {"rms": "RMS norm", "layer": "layer norm"}
    injected, _ = fault.layers
    return [Words(names[injected.input_norm_kind], names[fault.clean.size.norm])]


def _compare_masks(fault: Fault) -> Sequence[Claim]:
    texts = []
    for model, layer in zip((fault.faulty, fault.clean), fault.layers, strict=True):
        hidden = model.mask(layer)
        first_hidden = int(np.argmax(hidden[0])) if hidden.any() else None
        text = "no mask|has none"
        if first_hidden is not None:
            text = f"hides from diagonal {first_hidden}|a causal mask$"
        texts.append(text)
    return [Words(*texts)]


def _compare_activations(fault: Fault) -> Sequence[Claim]:
    names = {
        "gelu_erf": r"gelu \(erf\)",
        "gelu_tanh": r"gelu \(tanh\)",
        "relu": "relu",
        "silu": "silu",
    }
    defaults = {"gelu": "gelu_tanh", "": "relu"}
    default = defaults.get(fault.clean.size.mlp, "silu")
    return [Words(*(names[layer.activation or default] for layer in fault.layers))]


def _compare_weight_factor(name: str) -> Claims:
    def make_claims(fault: Fault) -> Sequence[Claim]:
        injected, clean = fault.get_weights(name)
        return [Ratio(float(np.median(injected / clean)))]

    return make_claims


def _name_filling(name: str) -> Claims:
    """Claim the one number that a weight is filled with."""

    def make_claims(fault: Fault) -> Sequence[Claim]:
        injected, _ = fault.get_weights(name)
        return [Words(f"filled with {abs(injected.flat[0]):g}")]

    return make_claims


def _name_row_blocks(name: str) -> Claims:
    """Claim how many rows of a permuted weight stay together."""

    def make_claims(fault: Fault) -> Sequence[Claim]:
        injected, clean = fault.get_weights(name)
        rows = {row.tobytes(): number for number, row in enumerate(clean)}
        order = np.array([rows[row.tobytes()] for row in injected])
        breaks = np.flatnonzero(np.diff(order) != 1) + 1
        length = int(np.gcd.reduce(np.append(breaks, len(order))))
        return [Order(tuple((order[::length] // length).tolist()), length)]

    return make_claims


def _name_changed_rows(name: str) -> Claims:
    def make_claims(fault: Fault) -> Sequence[Claim]:
        injected, clean = fault.get_weights(name)
        rows = np.flatnonzero((injected != clean).any(axis=1)).tolist()
        numbers = ", ".join(str(row) for row in rows)
        factor = float(np.median(injected[rows] / clean[rows]))
        return [Anywhere(rf"\({len(rows)} of {len(clean)}: {numbers}\)"), Ratio(factor)]

    return make_claims


def _count_tokens(fault: Fault) -> Sequence[Claim]:
    return [Values(*(float(model.batch()[2].sum()) for model in (fault.faulty, fault.clean)))]


def _name_positions(fault: Fault) -> Sequence[Claim]:
    injected, clean = (layer.position_offset for layer in fault.layers)
    return [Shift(injected - clean), Values(injected, clean)]


def _name_order(fault: Fault) -> Sequence[Claim]:
    return [Order(fault.faulty.batch_order, 1)]


def _name(*patterns: str) -> Claims:
    """Claim words that hold for both subjects; {n} is the number of the layer."""
    return lambda fault: [
        Anywhere(pattern.replace("{n}", str(fault.layer_number))) for pattern in patterns
    ]


def _say(injected: str, clean: str = "") -> Claims:
    return lambda _: [Words(injected, clean)]


_NOTHING: Claims = lambda _: []  # noqa: E731

#: Fault -> what a right sentence about it says. A fault with no number says nothing but its cause.
CLAIMS: Mapping[str, Claims] = {
    "eps": _compare_knob("input_eps"),
    "eps_large": _compare_knob("post_eps"),
    "eps_subtle": _compare_knob("post_eps"),
    "batch_norm_eps": _compare_knob("stage_eps"),
    "norm_kind": _compare_norm_kind,
    "norm_weight_ones": _name_filling("layers.{n}.input_norm.weight"),
    "latent_norm_ones": _name_filling("layers.{n}.attention.kv_norm.weight"),
    "zero_values": _name_filling("layers.{n}.attention.v.weight"),
    "zero_keys": _name_filling("layers.{n}.attention.k.weight"),
    "score_scale": _compare_score_scale,
    "score_scale_small": _compare_score_scale,
    "mask_none": _compare_masks,
    "mask_shifted": _compare_masks,
    "rope_layout": _say("interleaved", "halves"),
    "rope_theta": _compare_setting("rope_theta"),
    "rope_half": _say("bfloat16"),
    "position_offset": _name_positions,
    "softmax_half": _say(r"\bfloat16"),
    "softmax_axis": _compare_knob("softmax_axis"),
    "dropout": lambda fault: [Words(rf"p = {fault.layers[0].dropout:g}\b")],
    "residual_scale": _compare_factor("residual_scale"),
    "residual_order": _NOTHING,
    "gelu_erf": _compare_activations,
    "gelu_for_silu": _compare_activations,
    "relu": _compare_activations,
    "half_layer": _say(r"\bfloat16"),
    "bias_missing": _name(r"\b{n}\..*bias"),
    "bias_missing_mlp": _name(r"\b{n}\..*bias"),
    "bias_twice": _name(r"twice.*\b{n}\..*bias"),
    "head_bias_missing": _name("bias"),
    "weight_scaled": _compare_weight_factor("layers.{n}.mlp.up.weight"),
    "weight_scaled_v": _compare_weight_factor("layers.{n}.attention.v.weight"),
    "latent_scaled": _compare_weight_factor("layers.{n}.attention.kv_b.weight"),
    "conv_scaled": _compare_weight_factor("stages.{n}.conv2.weight"),
    "weight_transposed": _name("transposed"),
    "conv_transposed": _name("kernel flipped"),
    "qk_swapped": _name(r"{n}\.attention\.q\.weight", r"{n}\.attention\.k\.weight"),
    "gate_up_swapped": _name("gate", "up"),
    "tied_head": _name("embed"),
    "heads_permuted": _name_row_blocks("layers.{n}.attention.q.weight"),
    "rows_per_rank": _name_row_blocks("layers.{n}.attention.q.weight"),
    "rope_rows": _name_row_blocks("layers.{n}.attention.k.weight"),
    "embedding_row": _name_changed_rows("embedding.weight"),
    "embedding_shift": lambda _: [Shift(1)],
    "weight_rounded": _say("bfloat16"),
    "expert_order": _name(r"experts\.0\b.* experts\.1\b|experts\.0\b.*experts\.1\b"),
    "router_normalisation": _say("not normalized", "are normalized"),
    "router_sigmoid": _say("sigmoid", "softmax"),
    "capacity": lambda fault: [Words(rf"first {fault.layers[0].capacity} of")],
    "expert_missing": _NOTHING,
    "loss_all": _count_tokens,
    "mask_fewer": _count_tokens,
    "loss_sum": lambda fault: [Anywhere(f"{fault.clean.batch()[2].sum():.0f} tokens")],
    "loss_scale": lambda fault: [Ratio(fault.faulty.loss_scale / fault.clean.loss_scale)],
    "loss_twice": _say("log 2"),
    "label_shift": lambda fault: [Shift(fault.clean.label_shift - fault.faulty.label_shift)],
    "label_shift_two": lambda fault: [Shift(fault.clean.label_shift - fault.faulty.label_shift)],
    "batch_order": _name_order,
    "stop_gate": _NOTHING,
    "stop_attention": _NOTHING,
    "stop_keys": _NOTHING,
    "stop_router": _NOTHING,
    "gradient_double": _compare_factor("gradient_scale"),
    "gradient_halved": _compare_factor("gradient_scale"),
    "norm_gradient": lambda fault: [Ratio(fault.layers[0].norm_gradient)],
    "adam_eps": _compare_optimizer("eps"),
    "bias_correction": _say("without bias correction", "with bias correction"),
    "decay_all": lambda fault: [Values(fault.faulty.optimizer.weight_decay, 0.0)],
    "decay_none": _compare_optimizer("weight_decay"),
    "learning_rate": lambda fault: [
        Ratio(fault.faulty.optimizer.learning_rate / fault.clean.optimizer.learning_rate)
    ],
    "clip_norm": lambda fault: [Ratio(1 / fault.faulty.optimizer.norm_factor)],
    # The other factors are quotients with the gradient norm, which no knob gives.
    "clip_none": _name("times"),
    "clip_after": _name("times"),
    "double_before_clip": _compare_optimizer_factor("gradient_factor"),
    "rate_matrices": _compare_optimizer_factor("group_rate"),
    "rate_vectors": _compare_optimizer_factor("group_rate"),
    "decay_matrices": _compare_optimizer_factor("group_decay"),
    "beta_matrices": _compare_group_beta,
    "beta_vectors": _compare_group_beta,
    "clip_matrices": _name("times"),
    "clip_vectors": _name("times"),
    "norm_momentum": lambda fault: [
        Values(fault.layers[0].norm_momentum, fault.layers[1].norm_momentum)
    ],
}


def judge_sentence(text: str, case: Case) -> str:
    """Return what is wrong with the sentence of a right cause, '' if nothing is."""
    sentence = parse_sentence(text)
    faulty_side = TARGET if case.side == "mindspore" else REFERENCE
    return "; ".join(_find_errors(sentence, case, faulty_side))


def _find_errors(sentence: Sentence, case: Case, faulty_side: str) -> Iterator[str]:
    for claim in _list_claims(case):
        error = claim.find_error(sentence, faulty_side)
        if error:
            yield error


def _list_claims(case: Case) -> Sequence[Claim]:
    if case.model in families.NAMES:
        fault = families.get_fault(case.model, case.fault)
        clean_model = families.build(case.model)
        return fault.claims(fault.apply(clean_model), clean_model)
    clean = build_clean(case.model)
    return CLAIMS[case.fault](Fault(clean, build(case.model, case.fault), clean.size.layers // 2))
