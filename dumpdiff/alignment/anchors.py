"""Pairs that need no structure: by unique value, checksum, name, near value or scaled value."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from ..graph import Flow
from ..model.arrays import Flags, Ints
from ..model.dtypes import get_unit_roundoff
from ..model.recorded_shapes import drop_unit_axes, have_one_order, load_readable_tensor
from ..model.scaled_sums import compute_norm
from ..model.trace import OPTIMIZER
from ..rulebook import Rules
from . import confidence
from .losses import list_scalar_ends
from .matches import Matching
from .values import Candidates, compute_distances, find_candidates, find_second_smallest

#: Informative statistics that a class needs to be paired only by value (of 4).
_MIN_EVIDENCE = 2
#: Informative statistics that a class needs to be paired by a value that does not agree (of 4).
_MIN_EVIDENCE_BEYOND_NOISE = 3
#: Support that a candidate needs: at least one paired neighbor must speak for it.
_MIN_SUPPORT = 1
#: Weight of the producers' kinds and of each of their inputs in the support; outputs weigh 1.
_INPUT_WEIGHT = 2.0
#: Largest distance of a near value. Farther away, another tensor is as likely.
_NEAR_DISTANCE = 0.05
#: Relative L2 of the sorted elements of two tensors from which on they are not the same value: two
#: functions of one input, as relu and gelu, differ by less. Larger tensors are not read.
_SORTED_DISTANCE, _MAX_SORTED_ELEMENTS = 0.1, 1 << 22
#: How many times closer than any other candidate a near value must be.
_CLEAR_RATIO = 10
#: Roundoffs of the coarser dtype by which a cast changes statistics: elements by one, sums by less.
_CAST_ROUNDOFFS = 2
#: Tolerances beyond which a pair certainly differs: more than noise explains.
_DIVERGED_TOLERANCES = 16
#: Pairs that must have the same factor before it counts as a scale; fewer have it by chance.
_MIN_SHARED_FACTOR = 5
#: Difference of the logarithms of two factors that count as one.
_FACTOR_TOLERANCE = 1e-3
#: Values without a partner that are searched for parameters; more leave the module.
_MAX_SEARCHED_VALUES = 16


def pair_by_value(matching: Matching, candidates: Candidates | None = None) -> Candidates:
    """Pair classes that are each other's only candidate; return the candidates that can be paired.

    ``candidates`` has all within the tolerance, if they were searched for before. A class with
    fewer than two informative statistics is never paired only by value.
    """
    if candidates is None:
        candidates = find_candidates(matching.prints_t, matching.prints_r, matching.tolerance)
    candidates = candidates.take(matching.flag_pairable(candidates.target, candidates.reference))
    targets, references = candidates.target, candidates.reference
    choices_t = np.bincount(targets, minlength=len(matching.classes_t))
    choices_r = np.bincount(references, minlength=len(matching.classes_r))
    strengths = np.minimum(
        matching.prints_t.evidence[targets], matching.prints_r.evidence[references]
    )
    is_only = (choices_t[targets] == 1) & (choices_r[references] == 1)
    is_only &= strengths >= _MIN_EVIDENCE
    levels = confidence.UNIQUE_VALUE + confidence.PER_INFORMATIVE_NUMBER * strengths[is_only]
    matching.pair_all(targets[is_only], references[is_only], "value", levels)
    return candidates


def pair_by_checksum(matching: Matching) -> None:
    """Pair classes with a checksum that no other class of that size has, on either side.

    It was recorded, or it is that of whole numbers of which others have the same statistics.
    """
    for column, missing in (("hash", ""), ("content", -1)):
        unique_t = _find_unique_checksums(matching.target, column, missing)
        unique_r = _find_unique_checksums(matching.reference, column, missing)
        for key, t in unique_t.items():
            if key in unique_r:
                matching.pair(t, unique_r[key], "value", confidence.CHECKSUM)


def _find_unique_checksums(
    flow: Flow, column: str, missing: str | int
) -> dict[tuple[int, str | int], int]:
    """Return (size, checksum) -> the only class that has it; scalars are left out."""
    checksums = flow.tensors[column].to_numpy()
    values = flow.tensor_class
    rows = np.flatnonzero((checksums != missing) & (values >= 0))
    rows = rows[flow.sizes[values[rows]] > 1]
    owners: dict[tuple[int, str | int], set[int]] = defaultdict(set)
    for value, checksum in zip(values[rows].tolist(), checksums[rows].tolist(), strict=True):
        owners[int(flow.sizes[value]), checksum].add(value)
    return {key: values.pop() for key, values in owners.items() if len(values) == 1}


def pair_by_parameter_name(matching: Matching, rules: Rules) -> None:
    """Pair parameters, and gradients of parameters, of equal canonical name.

    Of several with one canonical name, such as the tables of an encoder and of a decoder, those
    whose modules have equal names.
    """
    for column in ("parameter", "gradient_of"):
        classes_t = _index_canonical_names(matching.target, column, rules)
        classes_r = _index_canonical_names(matching.reference, column, rules)
        for name, values_t in classes_t.items():
            values_r = classes_r.get(name, [])
            pairs = list(zip(values_t, values_r, strict=False))
            if max(len(values_t), len(values_r)) > 1:
                pairs = _match_modules(matching, column, values_t, values_r)
            for t, r in pairs:
                matching.pair(t, r, "parameter", confidence.PARAMETER_NAME)


def _index_canonical_names(flow: Flow, column: str, rules: Rules) -> dict[str, list[int]]:
    """Return canonical name -> the classes that have it. Unknown names are used as they are."""
    classes: dict[str, list[int]] = defaultdict(list)
    names = flow.classes[column].to_numpy()
    for value in np.flatnonzero(names != "").tolist():
        classes[rules.resolve_parameter(names[value]) or names[value]].append(value)
    return classes


def _match_modules(
    matching: Matching, column: str, values_t: list[int], values_r: list[int]
) -> list[tuple[int, int]]:
    """Return the pairs of parameters whose modules alone have one name."""
    modules: list[dict[str, list[int]]] = []
    for flow, values in ((matching.target, values_t), (matching.reference, values_r)):
        names = flow.list_column(column)
        values_of_modules: dict[str, list[int]] = defaultdict(list)
        for value in values:
            values_of_modules[names[value].rpartition(".")[0]].append(value)
        modules.append(values_of_modules)
    return [
        (own_values[0], modules[1][module][0])
        for module, own_values in modules[0].items()
        if len(own_values) == 1 and len(modules[1].get(module, [])) == 1
    ]


def pair_by_support(matching: Matching, candidates: Candidates) -> bool:
    """Choose between several candidates by their paired neighbors.

    Support counts what is already paired with each other around two classes: producers of equal
    kind, inputs of the producers, and outputs of the consumers. A candidate wins only if it has
    some support and no rival on either side has as much. Returns whether any pair was added.
    """
    is_open = matching.classes_t[candidates.target] < 0
    is_open &= matching.classes_r[candidates.reference] < 0
    scores: dict[tuple[int, int], float] = {}
    for row in np.flatnonzero(is_open).tolist():
        t, r = int(candidates.target[row]), int(candidates.reference[row])
        penalty = candidates.distance[row] / matching.tolerance
        scores[t, r] = _score_support(matching, t, r) - penalty
    rival_scores_t: dict[int, list[float]] = defaultdict(list)
    rival_scores_r: dict[int, list[float]] = defaultdict(list)
    for (t, r), score in scores.items():
        rival_scores_t[t].append(score)
        rival_scores_r[r].append(score)
    progress = False
    for (t, r), score in scores.items():
        if (
            score >= _MIN_SUPPORT
            and _is_single_maximum(score, rival_scores_t[t])
            and _is_single_maximum(score, rival_scores_r[r])
        ):
            progress |= matching.pair(t, r, "value", confidence.SUPPORTED_VALUE)
    return progress


def _is_single_maximum(score: float, rival_scores: list[float]) -> bool:
    return max(rival_scores) == score and rival_scores.count(score) == 1


def _score_support(matching: Matching, t: int, r: int) -> float:
    """Return how much the paired neighbors of two classes speak for pairing them."""
    target, reference = matching.target, matching.reference
    producer_t, producer_r = int(matching.producer_t[t]), int(matching.producer_r[r])
    score = 0.0
    if producer_t >= 0 and producer_r >= 0:
        is_same_kind = matching.kinds_t[producer_t] == matching.kinds_r[producer_r]
        score += _INPUT_WEIGHT * is_same_kind
        inputs_t, inputs_r = _find_paired_inputs(matching, t, r)
        n_common = len(inputs_t & inputs_r)
        n_contradictions = max(len(inputs_t), len(inputs_r)) - n_common
        score += _INPUT_WEIGHT * (n_common - n_contradictions)
    outputs_t = {
        int(matching.classes_t[value]) for op in target.consumers[t] for value in target.writes[op]
    }
    outputs_r = {value for op in reference.consumers[r] for value in reference.writes[op]}
    return score + len((outputs_t - {-1}) & outputs_r)


def pair_by_last_value(matching: Matching) -> None:
    """Pair scalars, such as losses, whose value several ops have: the last of each side first."""
    unpaired_t, unpaired_r = _find_unpaired_classes(matching)
    prints_t, prints_r = matching.prints_t.take(unpaired_t), matching.prints_r.take(unpaired_r)
    candidates = find_candidates(prints_t, prints_r, matching.tolerance)
    is_scalar = prints_t.size[candidates.target] == 1
    targets = unpaired_t[candidates.target[is_scalar]].tolist()
    references = unpaired_r[candidates.reference[is_scalar]].tolist()
    for t, r in reversed(matching.sort_pairs(zip(targets, references, strict=True))):
        is_computed = matching.producer_t[t] >= 0 and matching.producer_r[r] >= 0
        if is_computed and matching.prints_t.evidence[t] and matching.prints_r.evidence[r]:
            matching.pair(t, r, "value", confidence.LAST_VALUE)


def pair_twins(matching: Matching) -> None:
    """Pair a value that several unpaired values of the other side agree with: with the closest one.

    One side may have one value where the other computes it in several ways, such as the gradients
    of two biases of one sum. If several values of both sides agree with each other, none is paired.
    """
    unpaired_t, unpaired_r = _find_unpaired_classes(matching)
    prints_t, prints_r = matching.prints_t.take(unpaired_t), matching.prints_r.take(unpaired_r)
    candidates = find_candidates(prints_t, prints_r, matching.tolerance)
    is_informative = prints_t.evidence[candidates.target] >= _MIN_EVIDENCE_BEYOND_NOISE
    is_informative &= prints_r.evidence[candidates.reference] >= _MIN_EVIDENCE_BEYOND_NOISE
    targets = unpaired_t[candidates.target[is_informative]]
    references = unpaired_r[candidates.reference[is_informative]]
    is_allowed = np.array(
        [
            matching.can_pair(t, r) and matching.producer_t[t] >= 0 and matching.producer_r[r] >= 0
            for t, r in zip(targets.tolist(), references.tolist(), strict=True)
        ],
        dtype=bool,
    )
    targets, references = targets[is_allowed], references[is_allowed]
    if not len(targets):
        return
    choices_t, choices_r = np.bincount(targets)[targets], np.bincount(references)[references]
    most_choices_t = np.zeros(len(matching.classes_t), dtype=int)
    most_choices_r = np.zeros(len(matching.classes_r), dtype=int)
    np.maximum.at(most_choices_t, targets, choices_r)
    np.maximum.at(most_choices_r, references, choices_t)
    # each value of one side has this partner only
    is_twin = (most_choices_t[targets] == 1) | (most_choices_r[references] == 1)
    is_twin &= (choices_t > 1) | (choices_r > 1)
    twin_pairs = matching.sort_pairs(
        zip(targets[is_twin].tolist(), references[is_twin].tolist(), strict=True)
    )
    for t, r in sorted(twin_pairs, key=lambda pair: matching.compute_distance(*pair)):
        matching.pair(t, r, "value", confidence.LAST_VALUE)


def pair_losses(matching: Matching) -> None:
    """Pair the losses: the last scalar that the forward pass computes and does not read again."""
    losses = _find_losses(matching)
    if losses is not None:
        matching.pair(*losses, "last", confidence.LOSS)


def has_diverged(matching: Matching) -> bool:
    """Return whether some pair certainly differs: one not made by value, or the loss.

    A multiple of its partner is no sign, unless they are near: one side scales queries, the other
    one queries and keys.
    """
    threshold = _DIVERGED_TOLERANCES * matching.tolerance
    losses = _find_losses(matching)
    if losses is not None and matching.compute_distance(*losses) > threshold:
        return True
    targets = np.array([t for t, evidence in matching.evidence.items() if evidence != "value"], int)
    references = matching.classes_t[targets]
    distances = compute_distances(matching.prints_t, targets, matching.prints_r, references)
    targets, references = targets[distances > threshold], references[distances > threshold]
    return not flag_multiples(matching, targets, references).all()


def flag_multiples(matching: Matching, targets: Ints, references: Ints) -> Flags:
    """Return for pairs of classes whether one is a multiple of the other one, and not near it."""
    prints_t, prints_r = matching.prints_t.take(targets), matching.prints_r.take(references)
    rows = np.arange(len(targets))
    shapes = prints_t.normalize(), prints_r.normalize()
    threshold = _DIVERGED_TOLERANCES * matching.tolerance
    is_multiple = compute_distances(shapes[0], rows, shapes[1], rows) <= threshold
    with np.errstate(all="ignore"):
        is_near = np.abs(prints_t.norm / prints_r.norm - 1) < _NEAR_DISTANCE
    flags: Flags = is_multiple & ~is_near
    return flags


def _find_losses(matching: Matching) -> tuple[int, int] | None:
    """Return the loss of both sides, None if a side has none without a partner."""
    losses_t = _find_unpaired_losses(matching.target, matching.classes_t)
    losses_r = _find_unpaired_losses(matching.reference, matching.classes_r)
    if not losses_t or not losses_r:
        return None
    return losses_t[-1], losses_r[-1]


def _find_unpaired_losses(flow: Flow, partners: Ints) -> list[int]:
    """Return the unpaired scalars that may be a loss, in order."""
    return [value for value in list_scalar_ends(flow) if partners[value] < 0]


def pair_by_near_value(matching: Matching, runs_diverged: bool) -> bool:
    """Pair classes that are by far the closest, although farther apart than noise explains.

    Both must be within 5 % and ten times closer than any other candidate of either side. Many
    tensors of one size may be close by chance. So unless the runs are known to have diverged, the
    producers must have an input in common; in the optimizer it must be an input that both outputs
    are near to. Returns whether any pair was added.
    """
    unpaired_t, unpaired_r = _find_unpaired_classes(matching)
    prints_t, prints_r = matching.prints_t.take(unpaired_t), matching.prints_r.take(unpaired_r)
    candidates = find_candidates(prints_t, prints_r, _NEAR_DISTANCE)
    targets, references = unpaired_t[candidates.target], unpaired_r[candidates.reference]
    distances = candidates.distance
    second_t = find_second_smallest(targets, distances, len(matching.classes_t))
    second_r = find_second_smallest(references, distances, len(matching.classes_r))
    next_distances = np.minimum(second_t[targets], second_r[references])
    is_clear = (distances * _CLEAR_RATIO < next_distances) | np.isinf(next_distances)
    is_clear &= matching.prints_t.evidence[targets] >= _MIN_EVIDENCE_BEYOND_NOISE
    is_clear &= matching.prints_r.evidence[references] >= _MIN_EVIDENCE_BEYOND_NOISE
    progress = False
    clear_pairs = zip(targets[is_clear].tolist(), references[is_clear].tolist(), strict=True)
    for t, r in matching.sort_pairs(clear_pairs):
        if runs_diverged:
            is_plausible = not has_conflicting_inputs(matching, t, r)
        else:
            is_plausible = _has_common_input(matching, t, r)
        if not is_plausible or _are_near_by_chance(matching, t, r):
            continue
        if _is_other_turn(matching, t, r):
            continue
        if not _holds_other_numbers(matching, t, r):
            progress |= matching.pair(t, r, "near value", confidence.NEAR_VALUE)
    return progress


def _are_near_by_chance(matching: Matching, t: int, r: int) -> bool:
    """Return whether two classes are weights, or of shapes that do not reshape into each other.

    Weights of one size that were initialized alike have near statistics, whatever they are for.
    """
    target, reference = matching.target, matching.reference
    if target.list_column("parameter")[t] and reference.list_column("parameter")[r]:
        return True
    shape_t, shape_r = target.shapes[t], reference.shapes[r]
    if shape_t is None or shape_r is None:
        return False
    lengths_t, lengths_r = map(drop_unit_axes, (shape_t, shape_r))
    return not have_one_order(shape_t, shape_r) and sorted(lengths_t) != sorted(lengths_r)


def _holds_other_numbers(matching: Matching, t: int, r: int) -> bool:
    """Return whether the whole tensors of two classes show that only their statistics are near.

    Parts of two rotations may be as far apart as the two sides of one value. The sorted elements
    show it in any layout; there is nothing to see without files.
    """
    arrays = []
    for flow, value in ((matching.target, t), (matching.reference, r)):
        tensor = int(flow.list_column("tensor")[value])
        if not 0 < flow.sizes[value] <= _MAX_SORTED_ELEMENTS:
            return False
        if tensor < 0 or not flow.tensors["file"].iat[tensor]:
            return False
        array = load_readable_tensor(flow.trace, tensor)
        if array is None or array.dtype.kind != "f":
            return False
        arrays.append(np.sort(array.astype(np.float64), axis=None))
    if arrays[0].size != arrays[1].size or not all(np.isfinite(array).all() for array in arrays):
        return False
    distance = compute_norm(arrays[0] - arrays[1])
    return distance > _SORTED_DISTANCE * max(map(compute_norm, arrays))


def pair_by_scaled_value(matching: Matching) -> bool:
    """Pair classes that are equal up to a common factor; return whether any pair was added.

    Such factors are a loss scale, an average over ranks or a gradient that was counted twice. The
    shapes of the distributions (extremes and mean over norm) are compared. A factor counts if at
    least five pairs without another candidate have it to 1e-3. Not in the optimizer: one side may
    correct the bias of moments before a root, the other one behind it.
    """
    unpaired_t, unpaired_r = (
        unpaired[np.asarray(flow.list_column("phase"), dtype=object)[unpaired] != OPTIMIZER]
        for flow, unpaired in zip(
            (matching.target, matching.reference), _find_unpaired_classes(matching), strict=True
        )
    )
    prints_t, prints_r = matching.prints_t.take(unpaired_t), matching.prints_r.take(unpaired_r)
    candidates = find_candidates(prints_t.normalize(), prints_r.normalize(), matching.tolerance)
    if not len(candidates.target):
        return False
    is_only = np.bincount(candidates.target)[candidates.target] == 1
    is_only &= np.bincount(candidates.reference)[candidates.reference] == 1
    is_only &= prints_t.evidence[candidates.target] >= _MIN_EVIDENCE_BEYOND_NOISE
    is_only &= prints_r.evidence[candidates.reference] >= _MIN_EVIDENCE_BEYOND_NOISE
    targets, references = candidates.target[is_only], candidates.reference[is_only]
    log_factors = np.log(prints_t.norm[targets] / prints_r.norm[references])
    factor_pairs = list(
        zip(unpaired_t[targets].tolist(), unpaired_r[references].tolist(), strict=True)
    )
    is_shared = {}
    for pair, log_factor in zip(factor_pairs, log_factors.tolist(), strict=True):
        n_equal = np.count_nonzero(np.abs(log_factors - log_factor) < _FACTOR_TOLERANCE)
        is_shared[pair] = bool(n_equal >= _MIN_SHARED_FACTOR)
    progress = False
    for t, r in matching.sort_pairs(factor_pairs):
        if is_shared[t, r] and not has_conflicting_inputs(matching, t, r):
            progress |= matching.pair(t, r, "scaled value", confidence.SCALED_VALUE)
    return progress


def _find_unpaired_classes(matching: Matching) -> tuple[Ints, Ints]:
    return np.flatnonzero(matching.classes_t < 0), np.flatnonzero(matching.classes_r < 0)


def has_conflicting_inputs(matching: Matching, t: int, r: int) -> bool:
    """Return whether the producers read paired values but none in common, or other parameters.

    A number in common, such as a bias correction, is read by the ops of all layers: it counts only
    where one producer reads no paired tensor. It is also a conflict if only one of the two classes
    has a producer, or if none has and the values are farther apart than a cast from one dtype to
    the other explains.
    """
    has_producer_t = bool(matching.producer_t[t] >= 0)
    has_producer_r = bool(matching.producer_r[r] >= 0)
    if has_producer_t != has_producer_r:
        return True
    if not has_producer_t:
        return _differs_by_more_than_a_cast(matching, t, r)
    if _has_other_parameters(matching, t, r):
        return True
    inputs_t, inputs_r = _find_paired_inputs(matching, t, r)
    sizes = matching.reference.sizes
    tensors_t, tensors_r = ({v for v in values if sizes[v] > 1} for values in (inputs_t, inputs_r))
    if tensors_t and tensors_r:
        return tensors_t.isdisjoint(tensors_r)
    return bool(inputs_t and inputs_r and inputs_t.isdisjoint(inputs_r))


def _differs_by_more_than_a_cast(matching: Matching, t: int, r: int) -> bool:
    """Return whether two values have different dtypes, and not the same numbers rounded.

    Weights of one shape and one initialization have statistics that are near each other.
    """
    roundoff_t = get_unit_roundoff(matching.target.list_column("dtype")[t])
    roundoff_r = get_unit_roundoff(matching.reference.list_column("dtype")[r])
    limit = max(matching.tolerance, _CAST_ROUNDOFFS * max(roundoff_t, roundoff_r))
    return roundoff_t != roundoff_r and matching.compute_distance(t, r) > limit


def _has_common_input(matching: Matching, t: int, r: int) -> bool:
    """Return whether the producers read a paired value in common.

    In the optimizer the output must also be near that value, as a new weight is to the old one.
    """
    producer_t, producer_r = int(matching.producer_t[t]), int(matching.producer_r[r])
    if min(producer_t, producer_r) < 0 or _has_other_parameters(matching, t, r):
        return False
    inputs_t, inputs_r = _find_paired_inputs(matching, t, r)
    common_inputs = inputs_t & inputs_r
    if matching.target.phases[producer_t] == OPTIMIZER:
        return any(_is_near_both(matching, t, r, value) for value in common_inputs)
    return bool(common_inputs)


def _is_other_turn(matching: Matching, t: int, r: int) -> bool:
    """Return whether one weight is read as often by both sides, but not at the same turn.

    The results of the steps of an iteration are near each other. Where the two values are computed
    from a paired one as well, the sides may take their turns in another order.
    """
    ops = int(matching.producer_t[t]), int(matching.producer_r[r])
    if min(ops) < 0:
        return False
    inputs_t, inputs_r = _find_paired_inputs(matching, t, r)
    common_inputs = sorted(inputs_t & inputs_r)
    if any(matching.producer_r[value] >= 0 for value in common_inputs):
        return False
    for weight in common_inputs:
        turns = [
            [
                reader
                for reader in flow.consumers[value]
                if flow.phases[reader] == flow.phases[op] and flow.levels[reader] == flow.levels[op]
            ]
            for flow, value, op in zip(
                (matching.target, matching.reference),
                (int(matching.classes_r[weight]), weight),
                ops,
                strict=True,
            )
        ]
        is_read_by_both = all(op in readers for op, readers in zip(ops, turns, strict=True))
        if len(turns[0]) == len(turns[1]) and is_read_by_both:
            return turns[0].index(ops[0]) != turns[1].index(ops[1])
    return False


def _has_other_parameters(matching: Matching, t: int, r: int) -> bool:
    """Return whether two values come from parameters, some of them paired, but not each other's.

    One expert is not another one, however near their results are.
    """
    parameters_t, parameters_r = _find_own_parameters(matching, t, r)
    if not parameters_t or not parameters_r:
        return False
    partners_t, partners_r = _list_partners(matching, parameters_t, parameters_r)
    if partners_t.isdisjoint(partners_r):
        return bool(partners_t or partners_r)
    own = {int(matching.classes_r[value]) for value in partners_r - partners_t}
    others = partners_t - partners_r
    return _are_applied(matching.target, t, own) or _are_applied(matching.reference, r, others)


def find_paired_parameters(matching: Matching, t: int, r: int) -> tuple[set[int], set[int]]:
    """Return the paired parameters from which two values come, as classes of the reference."""
    return _list_partners(matching, *_find_own_parameters(matching, t, r))


def _find_own_parameters(matching: Matching, t: int, r: int) -> tuple[set[int], set[int]]:
    """Return the parameters from which the values of a pair come, of either side."""
    return (
        _find_parameters(matching.target, matching.classes_t, t),
        _find_parameters(matching.reference, matching.classes_r, r),
    )


def _list_partners(
    matching: Matching, parameters_t: set[int], parameters_r: set[int]
) -> tuple[set[int], set[int]]:
    """Return those parameters of both sides that are paired, as classes of the reference."""
    partners_t = {int(matching.classes_t[value]) for value in parameters_t} - {-1}
    return partners_t, {value for value in parameters_r if matching.classes_r[value] >= 0}


def _are_applied(flow: Flow, value: int, parameters: set[int]) -> bool:
    """Return whether an op that reads the value reads one of these parameters as well.

    Then the value is that before its weight or bias is applied.
    """
    return any(parameters.intersection(flow.reads[op]) for op in flow.users[value])


def _find_parameters(flow: Flow, partners: Ints, value: int) -> set[int]:
    """Return the named parameters that a value was computed from since the last paired values.

    The set is empty if that is too many values ago.
    """
    names = flow.list_column("parameter")
    parameters: set[int] = set()
    visited = {value}
    stack = [value]
    while stack:
        producer = int(flow.producers[stack.pop()])
        for source in flow.reads[producer]:
            if flow.producers[source] < 0:
                if names[source]:
                    parameters.add(source)
            elif partners[source] < 0 and source not in visited:
                visited.add(source)
                stack.append(source)
        if len(visited) > _MAX_SEARCHED_VALUES:
            return set()
    return parameters


def _is_near_both(matching: Matching, t: int, r: int, value: int) -> bool:
    """Return whether two classes are near the partners that a reference class is one of."""
    partner = int(matching.classes_r[value])
    distance = max(matching.compute_distance(t, value), matching.compute_distance(partner, r))
    return distance < _NEAR_DISTANCE


def _find_paired_inputs(matching: Matching, t: int, r: int) -> tuple[set[int], set[int]]:
    """Return the paired inputs of both producers, as reference classes."""
    reads_t = matching.target.reads[int(matching.producer_t[t])]
    reads_r = matching.reference.reads[int(matching.producer_r[r])]
    values_t = [_look_through_view(matching.target, matching.classes_t, value) for value in reads_t]
    values_r = [_look_through_view(matching.reference, matching.classes_r, v) for v in reads_r]
    inputs_t = {int(matching.classes_t[value]) for value in values_t} - {-1}
    inputs_r = {value for value in values_r if matching.classes_r[value] >= 0}
    return inputs_t, inputs_r


def _look_through_view(flow: Flow, partners: Ints, value: int) -> int:
    """Return what an unpaired value is a view of, else the value.

    A view is the result of an op with one input, of which it has all statistics.
    """
    producer = int(flow.producers[value])
    if partners[value] >= 0 or producer < 0 or len(flow.reads[producer]) != 1:
        return value
    source = flow.reads[producer][0]
    columns = (flow.list_column(name) for name in ("size", "max", "min"))
    has_statistics = all(column[source] == column[value] for column in columns)
    return source if has_statistics and flow.norms[source] == flow.norms[value] else value
