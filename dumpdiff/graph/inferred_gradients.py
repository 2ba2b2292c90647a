"""Gradients that the dataflow of the backward pass shows, where no record names them.

Reverse-mode differentiation mirrors the forward pass. What flows back through y = f(x, ...) is
computed from the gradient of y and from x and y alone, and has the size of x. Everything that flows
back to x from its consumers is added up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby

import numpy as np

from ..model.dtypes import is_floating
from ..model.trace import BACKWARD, FORWARD
from .dataflow import Flow
from .gradients import (
    MATRIX_PRODUCT_KINDS,
    NONLINEAR_KINDS,
    PRODUCT_KINDS,
    Gradients,
    flag_detours,
)

#: The gradient of the input is that of the output itself, where the sizes are equal.
_PASS_THROUGH = frozenset({"add", "sub", "reshape", "transpose", "cast", "identity", "contiguous"})
#: It makes a constant, and is recorded without what it reads.
_CONSTANT_KIND = "full"
#: A comparison of the inputs selects what flows back; where they are equal, it is halved before.
_SELECTIONS = frozenset({"maximum", "minimum"})
#: Of terms that are broadcast; terms of one size are not told apart.
_SUMS = frozenset({"add", "sub"})
#: What flows back is the gradient of the output, whatever is added up.
_REDUCTIONS = frozenset({"sum", "mean"})
#: Of several inputs, whose gradients are computed by like ops in any order.
_MANY_INPUTS = frozenset(
    {"where", "addcmul", "addcdiv", "lerp", "atan2", "hypot", "xlogy", "logaddexp", "maximum",
     "minimum", "fmod", "remainder"}
)  # fmt: skip
#: Backward ops that one of these takes at least where no single gradient operator does it: a mean
#: divides what it spreads; softmax is y (dy - sum(y dy)).
_MIN_STEPS = {"mean": 2, "softmax": 4}
#: Values that one tensor can be the gradient of: a chain of additions.
_MAX_LABELS = 16


def infer_gradients(
    flow: Flow, kinds: Sequence[str], known_gradients: Mapping[int, int]
) -> Gradients:
    """Return the gradients that the dataflow of the backward pass shows."""
    sweep = _Sweep(flow, kinds)
    for value, gradient in known_gradients.items():
        sweep.add_share(gradient, value)
    unchanged_sums = _list_unchanged_sums(flow, kinds)
    for op, phase in enumerate(flow.phases):
        is_known = bool(flow.reads[op]) or kinds[op] == _CONSTANT_KIND
        if phase == BACKWARD and is_known and flow.writes[op]:
            sweep.label_outputs(op)
        elif op in unchanged_sums:
            sweep.label_sum(flow.operands[op], unchanged_sums[op])
    edges = np.array(list(sweep.by_edge), dtype=np.int64).reshape(-1, 2)
    has_detour = flag_detours(flow, edges[:, 0], edges[:, 1]).tolist()
    by_edge = {
        (output, value, is_detour): gradient
        for ((output, value), gradient), is_detour in zip(
            sweep.by_edge.items(), has_detour, strict=True
        )
    }
    kept_parameters = _list_kept_parameters(flow)
    names = flow.list_column("parameter")
    by_value = {
        value: _follow_sums(flow, kinds, gradient) if names[value] else gradient
        for value, gradient in sweep.gradient_of.items()
        if value not in kept_parameters
    }
    return Gradients(by_value, by_edge)


@dataclass(frozen=True)
class _Path:
    """A value on the way back through the op that produced ``output``."""

    output: int
    n_steps: int  #: ops since the gradient of the output
    used_values: frozenset[int]  #: inputs and output of the op that it was computed from


@dataclass
class _Sweep:
    """One pass over the backward ops in order, which labels the values they write."""

    flow: Flow
    kinds: Sequence[str]
    gradient_of: dict[int, int] = field(default_factory=dict)
    by_edge: dict[tuple[int, int], int] = field(default_factory=dict)
    #: value -> what it is the gradient of
    labels: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    #: value -> the values it flows back to, alone or as a term of a sum
    shares: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    #: value -> the paths back that it is on
    paths: defaultdict[int, list[_Path]] = field(default_factory=lambda: defaultdict(list))
    #: value -> the one forward value that it is computed from
    forward_bases: dict[int, frozenset[int]] = field(default_factory=dict)
    #: values whose gradient is a recorded sum
    summed: set[int] = field(default_factory=set)
    #: value -> the same value with a bias added
    biased: dict[int, int] = field(default_factory=dict)

    def label_outputs(self, op: int) -> None:
        """Label what an op of the backward pass writes."""
        reads, writes = self.flow.operands[op], self.flow.writes[op]
        if not reads:  # a constant of some shape; anything may be computed with it
            self.forward_bases.update(dict.fromkeys(writes, frozenset()))
            return
        bases = [self._find_forward_bases(value) for value in reads]
        if len(bases) == 1 and bases[0] is not None:
            self.forward_bases.update(dict.fromkeys(writes, bases[0]))
            return
        if self.kinds[op] == "add" and self.label_sum(reads, writes[0]):
            return
        self._start_at_weight(op)
        paths = list(self._continue_paths(op))
        ends = list(self._find_path_ends(op, paths))
        for written, output, value in ends:
            if (output, value) in self.by_edge:
                self.shares[written].append(value)
            else:
                self._set_edge_gradient(output, value, written)
        if ends:
            return
        for path in paths[:_MAX_LABELS]:
            for written in writes:
                self.paths[written].append(path)

    def _find_forward_bases(self, value: int) -> frozenset[int] | None:
        """Return the forward values that a value is computed from; None if it carries gradients."""
        producer = int(self.flow.producers[value])
        if producer < 0 or self.flow.phases[producer] == FORWARD:
            return frozenset((value,))
        return self.forward_bases.get(value)

    def _continue_paths(self, op: int) -> Iterator[_Path]:
        """Yield the paths that this op may continue, one step longer.

        It may if all else that it reads belongs to the forward op that the path goes back through.
        """
        reads = self.flow.operands[op]
        for value in reads:
            starts = [_Path(output, 0, frozenset()) for output in self.labels[value]]
            for path in (starts + self.paths[value])[-_MAX_LABELS:]:
                used_values = self._find_used_values(path, value, reads)
                if used_values is not None:
                    yield _Path(path.output, path.n_steps + 1, used_values)

    def _find_used_values(
        self, path: _Path, value: int, reads: Sequence[int]
    ) -> frozenset[int] | None:
        """Return the forward values that a path has used after an op that reads ``reads``.

        None if the op cannot be on the path: it reads something foreign to the forward op.
        """
        producer = self._get_forward_producer(path.output)
        if producer < 0:
            return None
        own_values = {*self.flow.operands[producer], *self.flow.writes[producer]}
        used_values = set(path.used_values)
        for read in reads:
            bases = self._find_forward_bases(read)
            if bases is not None and bases <= own_values:
                used_values |= bases
            elif read != value and not self._is_on_path_from(read, path.output):
                return None
        return frozenset(used_values)

    def _is_on_path_from(self, value: int, output: int) -> bool:
        outputs = [path.output for path in self.paths[value]]
        return output in self.labels[value] or output in outputs

    def _get_forward_producer(self, value: int) -> int:
        """Return the forward op that produced a value, -1 if none did."""
        producer = int(self.flow.producers[value])
        return producer if producer >= 0 and self.flow.phases[producer] == FORWARD else -1

    def _find_path_ends(self, op: int, paths: Sequence[_Path]) -> Iterator[tuple[int, int, int]]:
        """Yield (written value, output, input) where a path back through a forward op ends here.

        Paths are tried in order: those that must compute something first, then those that used
        forward values, then the shorter ones. The first path with an end counts, if no other path
        like it ends at another input.
        """

        def rank_path(path: _Path) -> tuple[bool, bool, int]:
            kind = self.kinds[self._get_forward_producer(path.output)]
            return kind in _PASS_THROUGH, not path.used_values, path.n_steps

        for _, like_paths in groupby(sorted(paths, key=rank_path), rank_path):
            ends = [ends for path in like_paths for ends in self._list_ends(op, path)]
            if ends:
                if self._are_like_sums(ends):
                    yield from dict.fromkeys(chain.from_iterable(ends))
                elif len(set(ends)) == 1 or self._are_like_terms(ends):
                    yield from ends[0]
                return

    def _are_like_terms(self, ends: Sequence[tuple[tuple[int, int, int], ...]]) -> bool:
        """Return whether all ends are terms of one shape that are added: they have one gradient."""
        shapes = {self.flow.shapes[value] for end in ends for _, _, value in end}
        return self._list_end_kinds(ends) == {"add"} and len(shapes) == 1

    def _are_like_sums(self, ends: Sequence[tuple[tuple[int, int, int], ...]]) -> bool:
        """Return whether all ends are elements of sums that have one gradient, of like shapes.

        What flows back to them is spread once for all of them.
        """
        shapes = {(self.flow.shapes[x], self.flow.shapes[y]) for end in ends for _, y, x in end}
        kinds = self._list_end_kinds(ends)
        return len(kinds) == len(shapes) == 1 and kinds <= _REDUCTIONS

    def _list_end_kinds(self, ends: Sequence[tuple[tuple[int, int, int], ...]]) -> set[str]:
        """Return the kinds of the forward ops through which the ends lead."""
        outputs = {output for end in ends for _, output, _ in end}
        return {self.kinds[self._get_forward_producer(output)] for output in outputs}

    def _list_ends(self, op: int, path: _Path) -> list[tuple[tuple[int, int, int], ...]]:
        """Return the possible ends of a path here, each (written value, output, input) in order.

        Terms of a sum that have one size are not told apart.
        """
        used_inputs: set[int] = set()
        ends: list[tuple[int, int, int]] = []
        inputs = self._find_open_inputs(op, path)
        is_sum = self.kinds[self._get_forward_producer(path.output)] in _SUMS
        for written in self.flow.writes[op]:
            size = self.flow.sizes[written]
            fitting = [x for x in inputs if x not in used_inputs and self.flow.sizes[x] == size]
            if len(fitting) > 1 and is_sum:
                return [((written, path.output, value),) for value in fitting]
            if fitting:
                used_inputs.add(fitting[0])
                ends.append((written, path.output, fitting[0]))
        return [tuple(ends)] if ends else []

    def _find_open_inputs(self, op: int, path: _Path) -> list[int]:
        """Return the inputs of the forward op whose gradient this op may give, in order."""
        producer = self._get_forward_producer(path.output)
        kind = self.kinds[producer]
        is_product = kind in PRODUCT_KINDS and len(self.flow.operands[producer]) > 1
        depends_on_values = is_product or kind in NONLINEAR_KINDS or kind in _SELECTIONS
        if depends_on_values and not path.used_values:
            return []
        is_fused = "Grad" in self.flow.trace.ops["kind"].iat[op]
        if path.n_steps < _MIN_STEPS.get(kind, 1) and not is_fused:
            return []
        inputs = self._select_inputs(producer, path)
        if kind in _MANY_INPUTS and not is_fused:
            inputs = self._select_single_input(op, producer, inputs)
        return [value for value in inputs if self._is_open(op, path.output, value)]

    def _is_open(self, op: int, output: int, value: int) -> bool:
        """Return whether an op may give what flows back from an output to an input.

        One op gives it, or several like ones if the output is read several times, and the terms are
        added up only behind the op.
        """
        gradient = self.by_edge.get((output, value))
        if gradient is None:
            return True
        known_op = int(self.flow.producers[gradient])
        if self.kinds[known_op] != self.kinds[op] or known_op == op:
            return False
        known_reads, reads = set(self.flow.operands[known_op]), set(self.flow.operands[op])
        own_reads, other_reads = reads - known_reads, known_reads - reads
        if not len(own_reads) == len(other_reads) == 1:
            return False
        return all(output in self.labels[read] for read in own_reads | other_reads)

    def _select_single_input(self, op: int, producer: int, inputs: Sequence[int]) -> list[int]:
        """Return the one input that an op gives the gradient of, [] if several are possible.

        A selection selects the gradient of each value in the place of that value.
        """
        if self.kinds[op] == self.kinds[producer] == "where":
            reads, operands = self.flow.operands[op], self.flow.operands[producer]
            if len(reads) == len(operands):
                inputs = [
                    value
                    for read, value in zip(reads, operands, strict=True)
                    if self._find_forward_bases(read) is None
                ]
        dtypes = self.flow.list_column("dtype")
        floating_inputs = [value for value in inputs if is_floating(dtypes[value])]
        return floating_inputs if len(floating_inputs) == 1 else []

    def _select_inputs(self, producer: int, path: _Path) -> list[int]:
        """Return the inputs of the forward op to which a gradient computed on this path can belong.

        The gradient of one factor is computed from the other factors. The first input of a
        difference and a term as large as the sum have the gradient of the output itself, so they
        are excluded.
        """
        kind = self.kinds[producer]
        inputs = list(self.flow.operands[producer])
        if kind in PRODUCT_KINDS and len(inputs) > 1:
            return [value for value in inputs if value not in path.used_values]
        if kind in _SUMS:
            output_size = self.flow.sizes[path.output]
            first_exact = 1 if kind == "sub" else len(inputs)
            return [
                value
                for position, value in enumerate(inputs)
                if position >= first_exact or self.flow.sizes[value] != output_size
            ]
        return inputs

    def _set_edge_gradient(self, output: int, value: int, gradient: int) -> None:
        """Make it the gradient that flows back from an output to an input."""
        self.by_edge[output, value] = gradient
        self.by_edge.setdefault((self.biased.get(output, output), value), gradient)
        self.add_share(gradient, value)

    def add_share(self, gradient: int, value: int) -> None:
        """Let a gradient flow back to a value, and on to what the value was passed through from.

        It is the value's own gradient unless it is added up with others.
        """
        todo = [value]
        while todo:
            value = todo.pop()
            if value in self.shares[gradient] or len(self.shares[gradient]) >= _MAX_LABELS:
                continue
            self.shares[gradient].append(value)
            is_term = self._is_summed(gradient) or value in self.summed
            if is_term and self._count_uses(value) > 1:
                continue
            todo += self._set_gradient(gradient, value)

    def _set_gradient(self, gradient: int, value: int) -> list[int]:
        """Make it the gradient of a value; return the values that it flows back to unchanged."""
        self.gradient_of[value] = gradient
        self.labels[gradient].append(value)
        producer = self._get_forward_producer(value)
        if producer < 0 or self.kinds[producer] not in _PASS_THROUGH:
            return []
        reads = self.flow.operands[producer]
        if self.kinds[producer] == "sub":
            reads = reads[:1]
        size = self.flow.sizes[gradient]
        passed_values = [read for read in reads if self.flow.sizes[read] == size]
        if len(passed_values) == 1 and len(reads) == 2:
            self.biased[passed_values[0]] = value
        return passed_values

    def _count_uses(self, value: int) -> int:
        """Return how many forward ops compute something from a value."""
        consumers = [op for op in self.flow.users[value] if self.flow.writes[op]]
        return sum(self.flow.phases[op] == FORWARD for op in consumers)

    def _is_summed(self, gradient: int) -> bool:
        """Return whether a backward addition reads the gradient."""
        for op in self.flow.users[gradient]:
            is_addition = self.kinds[op] == "add" and bool(self.flow.writes[op])
            is_backward = self.flow.phases[op] == BACKWARD
            if is_addition and is_backward:
                return True
        return False

    def label_sum(self, reads: Sequence[int], written: int) -> bool:
        """Label a sum of gradients that flow back to one value; return whether it is one."""
        size = self.flow.sizes[written]
        counts: dict[int, int] = defaultdict(int)
        for read in reads:
            for value in self.shares[read]:
                counts[value] += self.flow.sizes[value] == size
        summed_value = max(counts, key=lambda value: (counts[value], -value), default=-1)
        if summed_value < 0:
            return False
        is_known = counts[summed_value] >= min(2, len(reads))
        if not is_known and not self._has_term_of_each_use(reads, counts, summed_value):
            return False
        self.summed.add(summed_value)
        self.shares[written].append(summed_value)
        for value in self._set_gradient(written, summed_value):
            self.add_share(written, value)
        return True

    def _has_term_of_each_use(
        self, reads: Sequence[int], counts: Mapping[int, int], value: int
    ) -> bool:
        """Return whether a sum has as many terms as ops use the only value that its terms flow to.

        Then the terms that nothing is known of are those of the other uses.
        """
        if not counts[value] or sum(map(bool, counts.values())) > 1:
            return False
        sizes = {self.flow.sizes[other] for other in (value, *reads)}
        return len(sizes) == 1 and len(set(reads)) == self._count_uses(value)

    def _start_at_weight(self, op: int) -> None:
        """Start a new path where the chain is broken.

        An op that reads a weight of one product only reads the gradient of that product with it. So
        does a product in the backward pass with any operand of one product only: then the gradient
        is known even if it is that of other values, too, as it is after a block whose own gradient
        is stopped.
        """
        reads = self.flow.operands[op]
        if len(reads) != 2:
            return
        is_labeled = any(self.labels[value] or self.paths[value] for value in reads)
        for factor, gradient in (reads, reads[::-1]):
            is_leaf = self.flow.producers[factor] < 0
            carries_gradient = self._find_forward_bases(gradient) is None
            if not carries_gradient or self._find_forward_bases(factor) != frozenset((factor,)):
                continue
            size = self.flow.sizes[gradient]
            products = self._find_products(factor)
            fitting_products = [value for value in products if self.flow.sizes[value] == size]
            if len(fitting_products) != 1:
                continue
            product = fitting_products[0]
            is_only_use = len(products) == 1 and self._is_matrix_product(op, product)
            if is_only_use or (is_leaf and not is_labeled):
                self._add_product_gradient(gradient, product)

    def _is_matrix_product(self, op: int, product: int) -> bool:
        """Return whether an op and the producer of a value multiply matrices, or convolve."""
        kinds = (self.kinds[op], self.kinds[int(self.flow.producers[product])])
        return all(kind in MATRIX_PRODUCT_KINDS for kind in kinds)

    def _add_product_gradient(self, gradient: int, product: int) -> None:
        """Make it the gradient of a product, if another path does not already say what is."""
        is_known = product in self.gradient_of or product in self.shares[gradient]
        if not is_known and not self._is_on_path_from(gradient, product):
            self.add_share(gradient, product)

    def _find_products(self, weight: int) -> list[int]:
        """Return what forward products compute from a weight."""
        products = []
        for op in self.flow.users[weight]:
            is_product = self.kinds[op] in PRODUCT_KINDS and self.flow.phases[op] == FORWARD
            if is_product and self.flow.writes[op]:
                products.append(self.flow.writes[op][0])
        return products


def _list_unchanged_sums(flow: Flow, kinds: Sequence[str]) -> dict[int, int]:
    """Return op -> its result, of the sums of gradients that have the numbers of one term.

    The other term is rounding, as what flows back through the maximum that a softmax subtracts.
    """
    is_sum = np.array([kind == "add" for kind in kinds], dtype=bool) & flow.flag_phase(BACKWARD)
    ops = flow.tensors["op"].to_numpy()
    rows = np.flatnonzero(flow.is_output & (flow.tensor_class >= 0) & is_sum[ops])
    return {
        op: value
        for op, value in zip(ops[rows].tolist(), flow.tensor_class[rows].tolist(), strict=True)
        if not flow.writes[op] and value in flow.operands[op]
    }


def _follow_sums(flow: Flow, kinds: Sequence[str], gradient: int) -> int:
    """Return the gradient of a parameter of which one may be a term.

    Nothing but an addition reads a term, and nothing in the backward pass reads the gradient. A sum
    may have the numbers of one of its terms, so only later additions are followed.
    """
    last_op = -1
    while True:
        readers = [op for op in flow.users[gradient] if flow.phases[op] == BACKWARD]
        writes = flow.writes[readers[0]] if len(readers) == 1 else ()
        if len(writes) != 1 or kinds[readers[0]] != "add" or readers[0] <= last_op:
            return gradient
        if flow.sizes[writes[0]] != flow.sizes[gradient]:
            return gradient
        gradient, last_op = writes[0], readers[0]


def _list_kept_parameters(flow: Flow) -> frozenset[int]:
    """Return the parameters that a forward op of several operands returns as they are.

    A triangular weight times the mask of its triangle is the same value, and has another gradient:
    which of the two is meant is not known.
    """
    is_parameter = (flow.classes["parameter"] != "").to_numpy()
    rows = np.flatnonzero(flow.is_output & (flow.tensor_class >= 0))
    ops, values = flow.tensors["op"].to_numpy()[rows], flow.tensor_class[rows]
    is_kept = flow.flag_phase(FORWARD)[ops] & ~flow.is_module[ops] & is_parameter[values]
    is_kept &= flow.reads.flag_members(ops, values) & (flow.reads.counts[ops] > 1)
    return frozenset(values[is_kept].tolist())
