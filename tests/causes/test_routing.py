"""Routers of experts: the point in which the recipes of the two sides differ."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dumpdiff.causes.cause_search import search_causes
from dumpdiff.causes.hypotheses import HYPOTHESES, ROUTING_HYPOTHESES
from dumpdiff.causes.routing import Routing
from dumpdiff.operators.softmax import softmax

from .fault_cases import make_fault_case

N_TOKENS, N_EXPERTS, N_GROUPS = 24, 8, 4
RNG = np.random.default_rng(11)
LOGITS = RNG.standard_normal((N_TOKENS, N_EXPERTS))
BIAS = 0.3 * RNG.standard_normal(N_EXPERTS)


def route(
    *,
    score: str = "sigmoid",
    n_chosen: int = 3,
    n_chosen_groups: int = N_GROUPS,
    is_bias_in_choice: bool = True,
    is_bias_in_weights: bool = False,
    is_normalized: bool = True,
    factor: float = 2.5,
) -> Routing:
    """Return the routing of DeepSeek-V3's router, or of one with another setting."""
    scores = 1 / (1 + np.exp(-LOGITS)) if score == "sigmoid" else softmax(LOGITS, -1)
    choice = scores + BIAS if is_bias_in_choice else scores.copy()
    if n_chosen_groups < N_GROUPS:
        groups = choice.reshape(N_TOKENS, N_GROUPS, -1)
        best_groups = np.argsort(-groups.sum(axis=-1), axis=1)[:, :n_chosen_groups]
        is_best = np.zeros((N_TOKENS, N_GROUPS), dtype=bool)
        np.put_along_axis(is_best, best_groups, values=True, axis=1)
        choice[~np.repeat(is_best, N_EXPERTS // N_GROUPS, axis=1)] = -np.inf
    is_chosen = np.zeros_like(LOGITS, dtype=bool)
    np.put_along_axis(is_chosen, np.argsort(-choice, axis=1)[:, :n_chosen], values=True, axis=1)
    weights = np.where(is_chosen, scores + BIAS if is_bias_in_weights else scores, 0.0)
    if is_normalized:
        weights /= weights.sum(axis=1, keepdims=True)
    weights = np.float64(np.float32(factor * weights))
    return Routing(LOGITS, weights, is_chosen, (BIAS,))


def explain(faulty: Routing, faithful: Routing) -> tuple[str, str]:
    """Return (cause, sentence without place and residual)."""
    case = make_fault_case(faulty.weights, faithful.weights, {}, scope="mlp")
    case = replace(case, routing=faithful, faulty_routing=faulty)
    causes = search_causes([case], ROUTING_HYPOTHESES).causes
    if not causes:
        return "", ""
    return causes[0].name, causes[0].text.removeprefix("mlp behaves as ").partition("; resid")[0]


@pytest.mark.parametrize(
    ("setting", "cause", "sentence"),
    [
        (
            {"is_normalized": False},
            "router-normalisation",
            "router weights that are not normalized; the reference has router weights that are "
            "normalized",
        ),
        (
            {"score": "softmax"},
            "router-normalisation",
            "softmax scores; the reference has sigmoid scores",
        ),
        (
            {"is_bias_in_weights": True},
            "router-bias",
            "the bias added to the weights of the experts; the reference has the bias not in the "
            "weights of the experts",
        ),
        (
            {"is_bias_in_choice": False},
            "router-bias",
            "experts chosen without the bias; the reference has experts chosen with the bias",
        ),
        (
            {"n_chosen_groups": 2},
            "router-groups",
            "experts chosen from 2 of 4 groups, by the two largest scores of a group; the "
            "reference chooses from all groups",
        ),
        (
            {"n_chosen": 2},
            "router-top-k",
            "2 experts for each token (top-k); the reference chooses 3",
        ),
        ({"factor": 1.0}, "constant-factor", "weights of the experts 0.4 times the reference's"),
    ],
)
def test_one_setting_of_the_router_differs(setting, cause, sentence):
    assert explain(route(**setting), route()) == (cause, sentence)


def test_exchanged_sides_have_the_mirrored_cause():
    assert explain(route(), route(factor=1.0)) == (
        "constant-factor",
        "weights of the experts 2.5 times the reference's",
    )
    assert explain(route(), route(is_normalized=False))[1].startswith(
        "router weights that are normalized"
    )


def test_two_settings_differ():
    """No single point explains the weights, so nothing is said."""
    assert explain(route(n_chosen=2, is_normalized=False), route()) == ("", "")


def test_experts_in_another_order():
    order = np.array([0, 1, 2, 3, 5, 4, 6, 7])
    faithful = route(score="softmax")
    faulty = replace(
        faithful, weights=faithful.weights[:, order], is_chosen=faithful.is_chosen[:, order]
    )
    assert explain(faulty, faithful) == (
        "experts-permuted",
        "experts in the order [0, 1, 2, 3, 5, 4, 6, 7]",
    )


def test_a_case_without_routers_is_left_to_the_other_hypotheses():
    case = make_fault_case(LOGITS, 2 * LOGITS, {})
    assert not search_causes([case], ROUTING_HYPOTHESES).causes


def explain_sum(operands, faulty, faithful, *, is_used=()):
    case = make_fault_case(faulty, faithful, operands, scope="layers.1")
    own_operands = tuple(
        replace(operand, agrees=not operand.parameter or operand.parameter in is_used)
        for operand in case.operands
    )
    causes = search_causes([replace(case, operands=own_operands)], HYPOTHESES).causes
    return causes[0].name, causes[0].text.partition("behaves as ")[2].partition("; residual")[0]


def test_shared_expert_is_left_out():
    """x + (routed + shared) without the last: named by the parameters that are not used."""
    x, routed, shared = RNG.standard_normal((3, 6, 8))
    operands = {
        "skip": x,
        "experts": routed + shared,
        "routed": routed,
        "linear": shared,
        "mlp.shared_experts.up.weight": RNG.standard_normal((8, 8)),
        "mlp.shared_experts.down.weight": RNG.standard_normal((8, 8)),
    }
    assert explain_sum(operands, x + routed, x + routed + shared) == (
        "expert-missing",
        "without mlp.shared_experts in the sum",
    )


def test_addend_without_parameters_is_left_out():
    x, a, b = RNG.standard_normal((3, 6, 8))
    operands = {"skip": x, "sum": a + b, "first": a, "second": b}
    assert explain_sum(operands, x + a, x + a + b) == (
        "missing-term",
        "without second in the sum",
    )
