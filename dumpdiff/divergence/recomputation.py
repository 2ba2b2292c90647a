"""An operator of the reference run again in float64: how much it enlarges errors, and how exact either side was.

Only asked where a value lies beyond its tolerance, so that a clean pair pays nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from ..comparison.layouts import find_common_layout
from ..comparison.whole_tensors import load_shaped_tensor
from ..graph import Flow
from ..model.arrays import AnyArray, Floats
from ..model.dtypes import is_floating, unit_roundoff
from ..model.errors import DumpError
from ..operators import KINDS, Execution, read_execution, compute_relative_distance, compute_interpretations
from .joint_graph import JointGraph

_LARGEST = 1 << 21  # elements that an op reads and writes: what is larger would take seconds
_DRAWS = 4  # random perturbations; their root mean square is what counts
_SEED = 20020801  # of the signs: one dump, one answer
#: The error of one number is within three standard deviations with probability 99.7 %: what random perturbations show
#: (one standard deviation, where the output is a single number) is allowed three times. JCGM 100:2008, table G.1.
_COVERAGE = 3.0
#: Elements below which PyTorch's own accuracy check gives a tensor the factor that it gives narrow types.
_FEW = 1000


@dataclass(frozen=True)
class Recomputation:
    """One op of the reference, in float64 from its own inputs."""

    amplification: float  #: relative error out over relative error in, with room: see measured(); NaN if unknown
    reference_error: float  #: of the reference's output against the exact one, relative L2
    target_error: float  #: the same of the target's output, of whose inputs nothing is assumed
    factor: float  #: how many times the reference's error the target's may be, see equally_right()

    @property
    def ratio(self) -> float:
        """How many times farther from the exact result the target is; NaN where the reference is exact."""
        return (
            self.target_error / self.reference_error if self.reference_error > 0 else float("nan")
        )

    def is_equally_accurate(self, tolerance: float, given: float) -> bool:
        """The target is as near to the exact result as the reference is, but for what its inputs are off by.

        The factor is that of PyTorch's check of compiled models (``torch._dynamo.utils.same``): 2, or 3 for float16
        and bfloat16 and for fewer than 1,000 elements. Beside it stands what inputs ``given`` a relative error make of
        it. The recomputation must explain the reference to within ``tolerance``; else it is not the op as it ran.
        """
        carried = (
            self.amplification * given if given > 0 and np.isfinite(self.amplification) else 0.0
        )
        return (
            self.reference_error <= tolerance
            and self.target_error <= self.factor * self.reference_error + carried
        )


def recompute_op(graph: JointGraph, node: int) -> Recomputation | None:
    """The maker of a pair's value on the reference's side, run again; None where whole tensors or the kind are missing.

    Amplification is measured by moving those inputs that differ between the sides by one unit in the last place of
    their dtype. All up, as a common factor does, or in random directions, whichever enlarges more: the condition
    number in the direction of the errors at hand (N. J. Higham, Accuracy and Stability of Numerical Algorithms,
    2nd ed., section 1.6), not its supremum.
    """
    alignment, pairs = graph.comparison.alignment, graph.comparison.pairs
    reference, value = alignment.reference, int(graph.reference_classes[node])
    op = int(reference.producers[value])
    if op < 0 or pairs["group"].iat[node] is not None or pairs["metric"].iat[node] != "relative_l2":
        return None
    kind, rows = alignment.reference_kinds[op], reference.get_tensor_ids(op).tolist()
    if kind not in KINDS:
        return None
    if reference.tensors["size"].to_numpy()[rows].clip(min=0).sum() > _LARGEST or not _is_first(
        reference, rows, value
    ):
        return None
    run = read_execution(reference.trace, rows)
    target = _target(graph, node, run) if run else None
    if run is None or target is None:
        return None
    choices = [made for _, made in compute_interpretations(kind, run.inputs, run.keywords, output_shape=run.output.shape)]
    if not choices:
        return None
    which = int(np.argmin([compute_relative_distance(made, run.output) for made in choices]))
    exact = choices[which]
    narrow = (
        max(unit_roundoff(str(flow.list_column("dtype")[v])) for flow, v in _sides(graph, node))
        > 2.0**-24
    )
    return Recomputation(
        _amplification(graph, kind, run, rows, which, exact),
        compute_relative_distance(run.output, exact),
        compute_relative_distance(target, exact),
        3.0 if narrow or exact.size < _FEW else 2.0,
    )


def _sides(graph: JointGraph, node: int) -> tuple[tuple[Flow, int], tuple[Flow, int]]:
    alignment = graph.comparison.alignment
    return (alignment.target, int(graph.target_classes[node])), (
        alignment.reference,
        int(graph.reference_classes[node]),
    )


def _is_first(flow: Flow, rows: Sequence[int], value: int) -> bool:
    """The value is the op's first output: the one that recomputing gives."""
    outputs = [row for row in rows if flow.tensors["role"].iat[row] == "output"]
    return bool(outputs) and flow.tensor_class[outputs[0]] == value


def _target(graph: JointGraph, node: int, run: Execution) -> AnyArray | None:
    """The target's output in the layout of the reference's."""
    pair = graph.comparison.pairs.iloc[node]
    try:
        array = load_shaped_tensor(graph.comparison.alignment.target, int(pair["target_tensor"]))
    except (DumpError, KeyError, OSError, ValueError):
        return None
    if array.size != run.output.size:
        return None
    if pair["layout"] not in ("same", "reshape"):
        return _in_order(array, run.output)
    return array


def _in_order(array: AnyArray, like: AnyArray) -> AnyArray | None:
    layout, target, reference = find_common_layout(array, like)
    return target if not layout.startswith("reference") and reference.shape == like.shape else None


def _amplification(
    graph: JointGraph, kind: str, run: Execution, rows: Sequence[int], which: int, exact: Floats
) -> float:
    """Relative error out over relative error in, of the inputs that differ; NaN if it cannot be told which do."""
    reference = graph.comparison.alignment.reference
    error = graph.comparison.pairs["error"].to_numpy()
    moved: list[tuple[int, float]] = []  # position among the inputs, unit roundoff
    position = 0
    for row in rows:
        if reference.tensors["role"].iat[row] == "output" or not _is_positional(reference, row):
            continue
        value, dtype = int(reference.tensor_class[row]), str(reference.tensors["dtype"].iat[row])
        if value >= 0 and is_floating(dtype):
            node = int(graph.reference_nodes[value])
            if node >= len(error) or not np.isfinite(error[node]):
                return float("nan")
            if error[node] > 0:
                moved.append((position, max(unit_roundoff(dtype), 2.0**-24)))
        position += 1
    if not moved or position != len(run.inputs):
        return float("nan")
    random = np.random.default_rng(_SEED)
    coherent = _enlarged(kind, run, moved, which, exact, None)
    scattered = [_enlarged(kind, run, moved, which, exact, random) for _ in range(_DRAWS)]
    return _COVERAGE * float(np.maximum(coherent, np.sqrt(np.mean(np.square(scattered)))))


def _is_positional(flow: Flow, row: int) -> bool:
    """It is among Execution.inputs, not among its keyword arguments."""
    slot = str(flow.tensors["slot"].iat[row]).partition(".")[2]
    return bool(flow.tensors["role"].iat[row] == "parameter") or slot.replace(".", "").isdigit()


def _enlarged(
    kind: str,
    run: Execution,
    moved: Sequence[tuple[int, float]],
    which: int,
    exact: Floats,
    random: np.random.Generator | None,
) -> float:
    inputs = list(run.inputs)
    given = 0.0
    for position, roundoff in moved:
        before = np.asarray(inputs[position], dtype=np.float64)
        signs = 1.0 if random is None else random.choice([-1.0, 1.0], before.shape)
        inputs[position] = after = before + signs * _last_place(before, roundoff)
        given = max(given, compute_relative_distance(after, before))
    choices = (made for _, made in compute_interpretations(kind, inputs, run.keywords, output_shape=run.output.shape))
    made = next(islice(choices, which, None), None)
    return compute_relative_distance(made, exact) / given if made is not None and given > 0 else float("nan")


def _last_place(array: AnyArray, roundoff: float) -> Floats:
    """One unit in the last place of every element, in the dtype of this unit roundoff; 0 for 0, NaN and Inf."""
    _, exponent = np.frexp(
        array
    )  # |x| lies in [2**(e-1), 2**e), where neighbours are 2 u 2**(e-1) apart
    places: Floats = np.where(np.isfinite(array) & (array != 0), np.ldexp(roundoff, exponent), 0.0)
    return np.copysign(places, array)
