"""What a step results in: where all of it agrees, nothing inside the step was wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..model.arrays import Floats
from ..model.dtypes import is_discrete
from ..model.trace import BACKWARD, FORWARD
from ..model.verdict import AGREEING, INTRODUCED, RECONVERGED
from .forward_walk import DIVERGED
from .joint_graph import JointGraph

#: How much larger than what a result may differ by an error must be to count as one that would
#: show there: what hides it is a sum in which its share is below 3 %.
_VISIBLE_FACTOR = 30.0
#: Relative L2 error of numbers that were rounded to float16: the deviation of a number that is
#: evenly spread over one unit in the last place, 2^-10 / sqrt(12), for numbers between 1 and 2.
_FLOAT16_ROUNDING = 2.0**-10 / math.sqrt(12) / 1.5


def excuse_by_results(
    graph: JointGraph,
    state: list[str],
    is_final: Sequence[bool],
    errors: Floats,
    allowed_errors: list[float],
) -> None:
    """Excuse differences that the results of the step show to be none, and change their states.

    Results are the losses, the gradients of parameters, what nothing reads, new weights and the
    states of optimizers. A wrong value changes some of those that are computed from it; one of the
    forward pass changes the gradients, too. So where all of them agree that were compared, and at
    least one was, a large difference is none of a quantity that both sides have: each decomposes
    the computation in its own way, and the two values are paired because nothing else is left. It
    reconverges if its error is so large that a gradient which agrees would show it, and if that
    holds for all that differs after it. A loss shows too little of an error for this, and new
    weights of that of an update. Where the runs were given different things, beyond doubt
    (``is_final``), or other whole numbers, such as samples in another order, nothing is excused.

    A gradient that differs by less than its rounding to float16 would change it, and after which
    no result differs, agrees: it is the noise of a sum that cancels. A wrong formula or a coarse
    dtype makes a larger difference, or one that the results show.
    """
    introduced = [node for node, name in enumerate(state) if name == INTRODUCED]
    forward = [node for node in introduced if graph.phase[node] == FORWARD]
    if not introduced or any(_is_given(graph, node, is_final) for node in forward):
        return
    gradients = _find_gradients(graph)
    if introduced == forward and any(state[gradient] in DIVERGED for gradient in gradients):
        return
    results = gradients | _find_ends(graph)
    differing_results = {result for result in results if state[result] in DIVERGED}
    # of each node: the smallest error, measured or allowed, of a gradient after it that agrees
    limits = [math.inf] * graph.n_nodes
    leads_to_difference = [False] * graph.n_nodes
    for node in reversed(graph.order.tolist()):
        children = graph.children[node]
        limit = min((limits[child] for child in children), default=math.inf)
        has_difference = any(leads_to_difference[child] for child in children)
        if state[node] in DIVERGED and not has_difference:
            is_gradient = graph.phase[node] == BACKWARD
            if is_gradient and errors[node] < _FLOAT16_ROUNDING:
                state[node], allowed_errors[node] = AGREEING, float(errors[node])
                differing_results.discard(node)
            elif (
                node not in results
                and math.inf > errors[node] > _VISIBLE_FACTOR * limit
                and (is_gradient or not differing_results)
            ):
                state[node] = RECONVERGED
        if node in gradients and state[node] == AGREEING:
            limit = min(limit, max(float(errors[node]), allowed_errors[node]))
        limits[node] = limit
        is_visible = node in results or limit < math.inf
        leads_to_difference[node] = has_difference or (state[node] in DIVERGED and is_visible)


def _is_given(graph: JointGraph, node: int, is_final: Sequence[bool]) -> bool:
    """Return whether a pair is of what the runs were given, not of what an op left out computed.

    Rows of floating numbers may have been chosen in another order, as boxes by a matching.
    """
    side = graph.sides[0]
    dtype = str(side.flow.list_column("dtype")[int(side.classes[node])])
    return not graph.parents[node] and (is_final[node] or is_discrete(dtype))


def _find_gradients(graph: JointGraph) -> set[int]:
    """Return the pairs of gradients of parameters."""
    nodes: set[int] = set()
    all_gradients = graph.comparison.alignment.gradients or ()
    for side, gradients in zip(graph.sides, all_gradients, strict=False):
        parameters = side.flow.list_column("parameter")
        nodes.update(
            int(side.nodes[gradient])
            for value, gradient in gradients.by_value.items()
            if parameters[value] and gradient != value
        )
    n_pairs = len(graph.comparison.pairs)
    return {node for node in nodes if node < n_pairs}


def _find_ends(graph: JointGraph) -> set[int]:
    """Return the pairs of losses, of what nothing reads, and of what outlives the step."""
    ends = set(np.flatnonzero(graph.is_kept).tolist())
    for node in range(len(graph.comparison.pairs)):
        readers = graph.children[node]
        if graph.phase[node] == FORWARD and graph.parents[node]:
            readers = tuple(reader for reader in readers if graph.phase[reader] == FORWARD)
        if not readers:
            ends.add(node)
    return ends
