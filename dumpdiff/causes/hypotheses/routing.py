"""Routers of experts: both sides' weights and choice follow from the same scores by a recipe.

The recipes of both sides are searched independently. Where they differ in one point, that is the
cause. Recipes: https://arxiv.org/abs/2401.06066 (softmax, k largest), https://arxiv.org/abs/2412.19437
(sigmoid, bias of the choice, groups, scaling factor).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import product

import numpy as np

from ...model.arrays import AnyArray, Flags, Floats
from ...operators.activations import sigmoid, softplus
from ...operators.softmax import softmax
from ..fault_case import FaultCase, compute_residual
from ..hypothesis import Candidate, Hypothesis
from ..parameter_fit import fit_factor
from ..routing import Routing

#: Tokens from which recipes are searched; all tokens confirm a recipe.
_MAX_TOKENS = 128
#: Groups of experts at most, and how the score of a group follows from those of its experts.
_MAX_GROUPS = 16
#: A factor that is this near to 1 is none: float32 rounds 6e-8.
_FACTOR_DISTANCE = 1e-5

_SCORES: Mapping[str, Callable[[Floats], Floats]] = {
    "sigmoid": sigmoid,
    "softmax": lambda x: softmax(x, -1),
    "square root of softplus": lambda x: np.sqrt(softplus(x)),
    "plain": lambda x: x,
}
_GROUP_SCORES: Mapping[str, Callable[[Floats], Floats]] = {
    "the two largest scores": lambda x: np.sort(x, axis=-1)[..., -2:].sum(axis=-1),
    "the largest score": lambda x: x.max(axis=-1),
}


@dataclass(frozen=True)
class _Recipe:
    """How the weights of the chosen experts follow from the logits."""

    score: str
    n_chosen: int
    is_bias_in_choice: bool = False
    #: (groups, chosen groups, score of a group); () if all experts compete
    groups: tuple[int, int, str] | tuple[()] = ()
    is_bias_in_weights: bool = False
    is_normalized: bool = False
    factor: float = 1.0

    def choose(self, routing: Routing) -> Flags:
        """Return which experts each token uses."""
        choice = _SCORES[self.score](routing.logits)
        if self.is_bias_in_choice:
            choice = choice + routing.biases[0]
        if self.groups:
            choice = np.where(_choose_groups(choice, *self.groups), choice, -np.inf)
        return _select_largest(choice, self.n_chosen)

    def weigh(self, routing: Routing, is_chosen: Flags) -> Floats:
        """Return the table of weights of chosen experts."""
        scores = _SCORES[self.score](routing.logits)
        if self.is_bias_in_weights:
            scores = scores + routing.biases[0]
        weights: Floats = np.where(is_chosen, scores, 0.0)
        if self.is_normalized:
            weights = weights / weights.sum(axis=-1, keepdims=True)
        return self.factor * weights


def _choose_groups(choice: Floats, n_groups: int, n_chosen: int, group_score: str) -> Flags:
    """Return which experts belong to the best groups."""
    grouped = choice.reshape(len(choice), n_groups, -1)
    is_chosen = _select_largest(_GROUP_SCORES[group_score](grouped), n_chosen)
    return np.repeat(is_chosen, grouped.shape[-1], axis=-1)


def _select_largest(values: Floats, n_selected: int) -> Flags:
    """Return true for the largest values of each row."""
    limits = np.sort(values, axis=-1)[:, -n_selected]
    is_selected: Flags = values >= limits[:, None]
    return is_selected


def suggest_other_recipe(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that the faulty side's router differs in one point of its recipe."""
    if case.routing is None or case.faulty_routing is None:
        return
    own_recipes = _find_recipes(case.routing, case.limit)
    faulty_recipes = _find_recipes(case.faulty_routing, case.limit)
    changes: dict[str, tuple[_Recipe, _Recipe]] = {}
    for own, other in product(own_recipes, faulty_recipes):
        different_fields = _list_differences(own, other)
        if len(different_fields) == 1:
            changes.setdefault(different_fields[0], (own, other))
    if len(changes) != 1:
        return  # none, or several that explain the weights equally well
    ((field_name, (own, other)),) = changes.items()
    routing = case.routing
    cause, description, contrast = _DESCRIPTIONS[field_name](own, other, case.faithful_side)
    yield Candidate(
        other.weigh(routing, other.choose(routing)),
        description,
        contrast,
        parameters={"factor": other.factor / own.factor} if field_name == "factor" else {},
        unchanged=own.weigh(routing, own.choose(routing)),
        cause=cause,
    )


def _list_differences(own: _Recipe, other: _Recipe) -> list[str]:
    """Return the fields in which two recipes differ."""
    names = []
    for field in fields(own):
        value, other_value = getattr(own, field.name), getattr(other, field.name)
        if field.name == "factor":
            if abs(other_value / value - 1) > _FACTOR_DISTANCE:
                names.append(field.name)
        elif value != other_value:
            names.append(field.name)
    return names


def _find_recipes(routing: Routing, limit: float) -> list[_Recipe]:
    """Return the recipes that give the choice and the weights of a router."""
    rows = slice(0, _MAX_TOKENS)
    sample = replace(
        routing,
        logits=routing.logits[rows],
        weights=routing.weights[rows],
        is_chosen=routing.is_chosen[rows],
    )
    n_chosen = int(sample.is_chosen[0].sum())
    if (sample.is_chosen.sum(axis=1) != n_chosen).any():
        return []
    recipes = []
    for score in _SCORES:
        weight_recipes = list(_find_weight_recipes(sample, _Recipe(score, n_chosen), limit))
        if not weight_recipes:
            continue
        choices = list(_find_choices(sample, _Recipe(score, n_chosen)))
        for weights, choice in product(weight_recipes, choices):
            recipe = replace(
                weights, is_bias_in_choice=choice.is_bias_in_choice, groups=choice.groups
            )
            recipes.append(recipe)
    return recipes


def _find_weight_recipes(routing: Routing, start: _Recipe, limit: float) -> Iterator[_Recipe]:
    """Yield the recipes that give the weights of the chosen experts."""
    bias_choices = (False, True) if routing.biases else (False,)
    for is_bias_in_weights, is_normalized in product(bias_choices, (False, True)):
        recipe = replace(start, is_bias_in_weights=is_bias_in_weights, is_normalized=is_normalized)
        table = recipe.weigh(routing, routing.is_chosen)
        if not np.isfinite(table).all():
            continue
        factor = fit_factor(table, routing.weights)
        if not factor > 0 or compute_residual(factor * table, routing.weights) > limit:
            continue
        is_one = abs(factor - 1) < _FACTOR_DISTANCE
        yield replace(recipe, factor=1.0 if is_one else factor)


def _find_choices(routing: Routing, start: _Recipe) -> Iterator[_Recipe]:
    """Yield the recipes that choose the recorded experts; those without groups if one does."""
    n_experts = routing.logits.shape[1]
    group_choices: list[tuple[int, int, str]] = []
    for n_groups in range(2, min(_MAX_GROUPS, n_experts // 2) + 1):
        if n_experts % n_groups == 0:
            numbers = range(1, n_groups)
            group_choices += [
                (n_groups, number, name) for number, name in product(numbers, _GROUP_SCORES)
            ]
    bias_choices = (False, True) if routing.biases else (False,)
    all_recipes = [replace(start, is_bias_in_choice=has_bias) for has_bias in bias_choices]
    simple_recipes = [recipe for recipe in all_recipes if _explains_choice(recipe, routing)]
    if simple_recipes:
        yield from simple_recipes
        return
    for recipe, groups in product(all_recipes, group_choices):
        grouped_recipe = replace(recipe, groups=groups)
        if _explains_choice(grouped_recipe, routing):
            yield grouped_recipe


def _explains_choice(recipe: _Recipe, routing: Routing) -> bool:
    return np.array_equal(recipe.choose(routing), routing.is_chosen)


# ---- sentences


def _describe_score(own: _Recipe, other: _Recipe, _: str) -> tuple[str, str, str]:
    return "router-normalisation", f"{other.score} scores", f"has {own.score} scores"


def _describe_number(own: _Recipe, other: _Recipe, _: str) -> tuple[str, str, str]:
    description = f"{other.n_chosen} experts for each token (top-k)"
    return "router-top-k", description, f"chooses {own.n_chosen}"


def _describe_choice_bias(_own: _Recipe, other: _Recipe, _: str) -> tuple[str, str, str]:
    texts = ("experts chosen without the bias", "experts chosen with the bias")
    is_added = other.is_bias_in_choice
    return "router-bias", texts[is_added], f"has {texts[not is_added]}"


def _describe_groups(own: _Recipe, other: _Recipe, _: str) -> tuple[str, str, str]:
    return (
        "router-groups",
        f"experts chosen from {_format_groups(other)}",
        f"chooses from {_format_groups(own)}",
    )


def _format_groups(recipe: _Recipe) -> str:
    if not recipe.groups:
        return "all groups"
    n_groups, n_chosen, group_score = recipe.groups
    return f"{n_chosen} of {n_groups} groups, by {group_score} of a group"


def _describe_weight_bias(_own: _Recipe, other: _Recipe, _: str) -> tuple[str, str, str]:
    texts = (
        "the bias not in the weights of the experts",
        "the bias added to the weights of the experts",
    )
    is_added = other.is_bias_in_weights
    return "router-bias", texts[is_added], f"has {texts[not is_added]}"


def _describe_normalization(_own: _Recipe, other: _Recipe, _: str) -> tuple[str, str, str]:
    texts = ("router weights that are not normalized", "router weights that are normalized")
    is_normalized = other.is_normalized
    return "router-normalisation", texts[is_normalized], f"has {texts[not is_normalized]}"


def _describe_factor(own: _Recipe, other: _Recipe, side: str) -> tuple[str, str, str]:
    factor = other.factor / own.factor
    text = f"weights of the experts {factor:.6g} times the {side}'s"
    return "constant-factor", text, ""


_DESCRIPTIONS: Mapping[str, Callable[[_Recipe, _Recipe, str], tuple[str, str, str]]] = {
    "score": _describe_score,
    "n_chosen": _describe_number,
    "is_bias_in_choice": _describe_choice_bias,
    "groups": _describe_groups,
    "is_bias_in_weights": _describe_weight_bias,
    "is_normalized": _describe_normalization,
    "factor": _describe_factor,
}


def suggest_other_experts(case: FaultCase) -> Iterator[Candidate]:
    """Suggest the experts in another order, or that an expert is never used."""
    if case.routing is None or case.faulty_routing is None:
        return
    weights, faulty_weights = case.routing.weights, case.faulty_routing.weights
    order = _find_column_order(weights, faulty_weights)
    if order is not None:
        yield Candidate(
            weights[:, order],
            f"experts in the order {order.tolist()}",
            unchanged=weights,
            cause="experts-permuted",
        )
    is_used, is_used_by_faulty = weights.any(axis=0), faulty_weights.any(axis=0)
    lost_experts = np.flatnonzero(is_used & ~is_used_by_faulty)
    if 0 < len(lost_experts) < np.count_nonzero(is_used):
        predicted = weights.copy()
        predicted[:, lost_experts] = 0
        numbers = ", ".join(map(str, lost_experts.tolist()))
        yield Candidate(
            predicted,
            f"no weight for expert {numbers}",
            unchanged=weights,
            cause="expert-missing",
        )


def _find_column_order(weights: Floats, faulty_weights: Floats) -> AnyArray | None:
    """Return ``order`` with faulty = weights[:, order]; None if there is none but the identity."""
    direction = np.linspace(1.0, 2.0, len(weights))
    sums, faulty_sums = direction @ weights, direction @ faulty_weights
    order = np.empty(len(sums), dtype=np.int64)
    order[np.argsort(faulty_sums)] = np.argsort(sums)
    return None if np.array_equal(order, np.arange(len(order))) else order


HYPOTHESES = (
    Hypothesis("experts-permuted", suggest_other_experts),
    Hypothesis("router-normalisation", suggest_other_recipe),
)
