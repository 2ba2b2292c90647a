"""Gradients that were multiplied in place after the backward pass, where no record shows it.

Clipping by the norm multiplies all gradients by one number, the coefficient, which is recorded.
Data-parallel ranks divide the sum of their gradients by their number. The optimizer then reads
gradients that no recorded op wrote.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pandas as pd

from ..model.arrays import Flags, Floats, Ints
from ..model.dtypes import is_floating
from ..model.int_lists import IntLists
from ..model.trace import BACKWARD, COMMUNICATION, OPTIMIZER

#: Relative difference of norms of the same numbers, summed in another order: float32 statistics.
_SUMMATION_ERROR = 4e-6
#: Roundings of one product, of the coefficient and of the statistics, in units of float32.
_PRODUCT_ERROR = 4 * 2.0**-24
#: Of a group whose values are added up.
_MIN_RANKS = 2
#: Takes the place of a norm of 0 in a division.
_TINY = 1e-300


def find_scaled_gradients(
    classes: pd.DataFrame,
    consumers: IntLists,
    ops: pd.DataFrame,
    slots: Sequence[str],
) -> dict[int, tuple[int, ...]]:
    """Return multiple -> (gradient, coefficient), all by class.

    ``consumers`` are the ops that read a class, ``slots`` the slot of its first tensor. The
    coefficient is a number that the update computed and no recorded op reads. All statistics of the
    multiple are those of the gradient times the coefficient. What is read like the multiples, by an
    op of that kind in that slot, has the coefficient as its only source: the record lacks its
    gradient. A mean over ranks has what they added up as its only source.
    """
    leaves = _list_unwritten_gradients(classes, consumers, ops)
    coefficients = _list_coefficients(classes, consumers)
    statistics = classes[["max", "min", "mean", "norm"]].to_numpy(dtype=float)
    sizes = classes["size"].to_numpy()
    is_received = (classes["phase"] == COMMUNICATION).to_numpy() & (sizes > 1)
    means = _find_means(leaves, np.flatnonzero(is_received), statistics, sizes)
    leaves = [leaf for leaf in leaves if leaf not in means]
    if not leaves or not len(coefficients):
        return means
    is_gradient = (classes["phase"] == BACKWARD).to_numpy() & (sizes > 1)
    gradients_of_size = _group_by_size(np.flatnonzero(is_gradient), sizes)
    factors = statistics[coefficients, 0]
    midpoints = (factors[1:] + factors[:-1]) / 2
    kinds = ops["kind"].tolist()
    uses = {leaf: (kinds[consumers[leaf][0]], slots[leaf]) for leaf in leaves}
    sources = means
    coefficient_of_use: dict[tuple[str, str], int] = {}
    for leaf in leaves:
        gradients = gradients_of_size.get(int(sizes[leaf]))
        if gradients is None:
            continue
        ratios = statistics[leaf, 3] / np.maximum(statistics[gradients, 3], _TINY)
        nearest = coefficients[np.searchsorted(midpoints, ratios)]
        is_multiple = _flag_multiples(
            statistics[leaf], statistics[gradients], statistics[nearest, :1]
        )
        if is_multiple.any():
            last = np.flatnonzero(is_multiple)[-1]
            sources[leaf] = (int(gradients[last]), int(nearest[last]))
            coefficient_of_use.setdefault(uses[leaf], int(nearest[last]))
    for leaf in leaves:
        if leaf not in sources and uses[leaf] in coefficient_of_use:
            sources[leaf] = (coefficient_of_use[uses[leaf]],)
    return sources


def _find_means(
    leaves: Sequence[int], received: Ints, statistics: Floats, sizes: Ints
) -> dict[int, tuple[int, ...]]:
    """Return leaf -> (received value,) where the leaf is a whole fraction of it: a mean over ranks.

    ``statistics`` is (classes, 4) and ``sizes`` (classes,).
    """
    received_of_size = _group_by_size(received, sizes)
    means: dict[int, tuple[int, ...]] = {}
    for leaf in leaves:
        values = received_of_size.get(int(sizes[leaf]))
        if values is None:
            continue
        with np.errstate(all="ignore"):
            numbers_of_ranks = np.round(statistics[values, 3] / statistics[leaf, 3])
        is_fraction = np.isfinite(numbers_of_ranks) & (numbers_of_ranks >= _MIN_RANKS)
        factors = 1 / np.where(is_fraction, numbers_of_ranks, 1.0)[:, np.newaxis]
        is_mean = is_fraction & _flag_multiples(statistics[leaf], statistics[values], factors)
        if is_mean.any():
            means[leaf] = (int(values[np.flatnonzero(is_mean)[-1]]),)
    return means


def _list_unwritten_gradients(
    classes: pd.DataFrame, consumers: IntLists, ops: pd.DataFrame
) -> list[int]:
    """Return the floating values that only the update reads and nothing recorded wrote."""
    is_leaf = (classes["producer"] < 0) & (classes["parameter"] == "")
    is_leaf &= (classes["phase"] == OPTIMIZER) & (classes["size"] > 1)
    dtypes = classes["dtype"].tolist()
    return [
        value
        for value in np.flatnonzero(is_leaf.to_numpy()).tolist()
        if consumers[value] and is_floating(dtypes[value])
    ]


def _list_coefficients(classes: pd.DataFrame, consumers: IntLists) -> Ints:
    """Return the positive numbers that the update computed and no op reads, in order of size."""
    is_number = (classes["producer"] >= 0) & (classes["size"] == 1)
    is_number &= (classes["phase"] == OPTIMIZER) & (classes["max"] > 0)
    is_number &= np.isfinite(classes["max"])
    numbers = np.flatnonzero(is_number.to_numpy())
    is_unread = np.array([not consumers[number] for number in numbers.tolist()], dtype=bool)
    numbers = numbers[is_unread]
    coefficients: Ints = numbers[np.argsort(classes["max"].to_numpy()[numbers], kind="stable")]
    return coefficients


def _group_by_size(values: Ints, sizes: Ints) -> dict[int, Ints]:
    """Return number of elements -> the values that have it."""
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for value in values.tolist():
        groups[int(sizes[value])].append(value)
    return {size: np.array(members) for size, members in groups.items()}


def _flag_multiples(numbers: Floats, others: Floats, factors: Floats) -> Flags:
    """Return (values,) where max, min, mean and norm of ``others`` times factors are ``numbers``.

    ``others`` is (values, 4), ``factors`` (values, 1). A mean that was not recorded is not
    compared.
    """
    products = factors * others
    scales = np.abs(products[:, :2]).max(axis=1)
    limits = np.outer(scales, (_PRODUCT_ERROR, _PRODUCT_ERROR, _SUMMATION_ERROR, 0.0))
    limits[:, 3] = _SUMMATION_ERROR * np.abs(products[:, 3])
    differences = np.abs(numbers - products)
    is_equal = differences <= limits
    is_equal[:, 2] |= np.isnan(differences[:, 2])
    flags: Flags = is_equal.all(axis=1) & (scales > 0)
    return flags
