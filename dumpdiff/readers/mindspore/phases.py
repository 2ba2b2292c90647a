"""The phase of each op of a compiled MindSpore graph, from its name and the ops around it."""

from __future__ import annotations

from collections import defaultdict

from ...model.trace import BACKWARD, FORWARD, OPTIMIZER
from . import op_types
from .graph import Dataflow, GraphOp

#: Not decided yet: an expanded op at the end of the backward pass, or inside the clipping of
#: gradients.
_UNDECIDED = "undecided"


def assign_phases(flow: Dataflow) -> list[str]:
    """Return the phase of every op.

    - An op that reads the output of a backward op belongs to the backward pass.
    - An expanded op (whose name does not tell its phase) whose consumers are all backward ops
      belongs to the backward pass. So does any op behind the first of them: a user's own backward
      function has the names of the forward pass, also where it does not read the gradient.
    - An op that assigns what follows from the backward pass to a parameter belongs to the
      optimizer.
    - An op that no gradient function calls and that feeds only the optimizer belongs to the
      optimizer, such as clipping and unscaling of gradients.
    """
    phases, is_backward_by_inputs = _assign_phases_by_inputs(flow)
    first_backward = phases.index(BACKWARD) if BACKWARD in phases else len(phases)
    consumer_phases: defaultdict[int, set[str]] = defaultdict(set)
    for number in reversed(range(len(phases))):
        op = flow.ops[number]
        feeds = consumer_phases[number]
        is_later = number > first_backward and not op_types.is_recomputed(op.name)
        has_free_phase = _is_expanded(op) or (phases[number] == FORWARD and is_later)
        if has_free_phase and feeds == {BACKWARD} and number not in flow.results:
            phases[number] = BACKWARD
        elif is_backward_by_inputs[number] and feeds and feeds <= {OPTIMIZER, _UNDECIDED}:
            phases[number] = _UNDECIDED if _is_expanded(op) else OPTIMIZER
        for slot in op.op_inputs:
            consumer_phases[slot.op].add(phases[number])
    _decide_undecided(flow, phases)
    return phases


def _decide_undecided(flow: Dataflow, phases: list[str]) -> None:
    """Assign undecided ops that read the output of an optimizer op to it, others to backward."""
    for number, op in enumerate(flow.ops):
        if phases[number] != _UNDECIDED:
            continue
        reads_optimizer = any(phases[slot.op] == OPTIMIZER for slot in op.op_inputs)
        phases[number] = OPTIMIZER if reads_optimizer else BACKWARD


def _is_expanded(op: GraphOp) -> bool:
    """Whether a compiler pass created the op.

    The name of such an op does not tell what it was expanded from.
    """
    return op.name.startswith("Expand/")


def _assign_phases_by_inputs(flow: Dataflow) -> tuple[list[str], list[bool]]:
    """Return the phase of every op by its name and inputs.

    The second list says which ops are in the backward pass only because of their inputs.
    """
    phases: list[str] = []
    is_backward_by_inputs: list[bool] = []
    feeds_backward: list[bool] = []  # whether consumers of the op belong to the backward pass
    for op in flow.ops:
        parameters = tuple(
            slot.parameter for slot in op.inputs if slot is not None and slot.parameter
        )
        in_optimizer = op_types.is_optimizer(op.kind, op_types.extract_scope(op.name), parameters)
        follows_backward = any(feeds_backward[slot.op] for slot in op.op_inputs)
        # an update that is written out, with no optimizer around it
        in_optimizer |= follows_backward and op_types.is_assignment(op.kind) and bool(parameters)
        phase = op_types.classify_phase(op.kind, op.name, in_optimizer, follows_backward)
        is_backward_by_name = op_types.is_backward(op.kind, op.name)
        is_backward = follows_backward or is_backward_by_name
        phases.append(phase)
        is_backward_by_inputs.append(phase == BACKWARD and not is_backward_by_name)
        feeds_backward.append(is_backward and not op_types.is_recomputed(op.name))
    return phases, is_backward_by_inputs
