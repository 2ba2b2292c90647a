"""Which value is the gradient of which: as API dumps record it, else read off the dataflow of the backward pass.

Reverse-mode differentiation mirrors the forward pass: what goes back through y = f(x, ...) is computed from the
gradient of y and from x and y alone, has the size of x, and all that goes back to x from its readers is summed up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..model.dtypes import is_floating
from ..model.trace import BACKWARD, FORWARD
from .dataflow import Flow

#: Products: what goes back to one factor is computed from the other.
_PRODUCTS = frozenset({"mul", "div", "matmul", "convolution", "addmm", "outer"})
#: What goes back is the gradient of the output itself, where the sizes are equal.
_CARRIES = frozenset({"add", "sub", "reshape", "transpose", "cast", "identity", "contiguous"})
#: Curved: what goes back depends on the input or the output.
_CURVED = frozenset(
    {"square", "pow", "sqrt", "rsqrt", "reciprocal", "exp", "log", "softmax", "log_softmax", "sigmoid", "silu", "gelu",
     "tanh", "relu", "abs", "sin", "cos", "erf", "layer_norm", "rms_norm", "batch_norm"}
)  # fmt: skip
#: Ops that it takes at least to go back through one where no single gradient operator does it: a mean divides what it
#: spreads; softmax is y (dy - sum(y dy)).
_STEPS = {"mean": 2, "softmax": 4}
_NEAREST = 12  # values above an output among which a second way from an input is looked for
_MOST_LABELS = 16  # values that one tensor can be the gradient of: a chain of additions


@dataclass(frozen=True)
class Gradients:
    """Of one side, all by value class."""

    by_value: dict[int, int]  #: value -> its gradient
    #: (output, input, whether the input reaches the output in another way too) of an op -> what goes back through it
    by_edge: dict[tuple[int, int, bool], int]


def find_gradients(flow: Flow, kinds: Sequence[str]) -> Gradients:
    """The gradients of one side; ``kinds`` are the canonical operator kinds of its ops."""
    recorded = any(call >= 0 for call in flow.trace.ops["forward"].tolist())
    return _recorded(flow) if recorded else _inferred(flow, kinds)


def _recorded(flow: Flow) -> Gradients:
    """Backward records name their call; they give the gradients of its arguments in order, but not of all."""
    of = dict(flow.recorded_gradients)
    through: dict[tuple[int, int], int] = {}
    readers: defaultdict[int, defaultdict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    given, made = _arguments(flow, ("input", "parameter")), _arguments(flow, ("output",))
    sizes = flow.sizes
    for op, call in enumerate(flow.trace.ops["forward"].tolist()):
        if call < 0 or not flow.writes[op] or not made[call]:
            continue
        inputs, backs = [v for v in given[call] if v >= 0], made[op]
        for place, back in enumerate(backs):
            if len(inputs) == len(backs):
                fitting = inputs[place : place + 1]
            else:
                fitting = [value for value in inputs if sizes[value] == sizes[back]]
            if len(fitting) == 1 and back in flow.writes[op] and sizes[fitting[0]] == sizes[back]:
                through.setdefault((made[call][0], fitting[0]), back)
                readers[fitting[0]][back].append(call)
    for value, ways in readers.items():
        if of.get(value) in ways and _is_share(flow, ways, of[value]):
            del of[value]
    named = {name: value for value, name in enumerate(flow.list_column("parameter")) if name}
    for gradient, name in enumerate(flow.list_column("gradient_of")):
        if name in named:
            of.setdefault(named[name], gradient)
    return _told_apart(flow, of, through)


def _is_share(flow: Flow, ways: Mapping[int, Sequence[int]], back: int) -> bool:
    """Whether what goes back through one of several readers is less than the sum over all of them.

    ``ways``: what goes back -> the calls it goes back through; through a module that holds all the others it is the sum
    """
    others = [call for other, calls in ways.items() if other != back for call in calls]
    return all(
        any(module not in (call, *flow.iterate_enclosing_calls(call)) for call in others)
        for module in ways[back]
    )


def _arguments(flow: Flow, roles: tuple[str, ...]) -> list[list[int]]:
    """Per op the classes of its floating tensors of these roles, in order; keywords and numbers do not count."""
    table: list[list[int]] = [[] for _ in range(len(flow.trace.ops))]
    columns = (flow.tensors[name].tolist() for name in ("op", "role", "slot", "dtype", "constant"))
    for value, op, role, slot, dtype, constant in zip(
        flow.tensor_class.tolist(), *columns, strict=True
    ):
        if (
            role in roles
            and not constant
            and slot.rpartition(".")[2].isdigit()
            and is_floating(dtype)
        ):
            table[op].append(value)
    return table


def _told_apart(flow: Flow, of: dict[int, int], through: dict[tuple[int, int], int]) -> Gradients:
    ways = {
        (output, given, _has_detour(flow, output, given)): back
        for (output, given), back in through.items()
    }
    return Gradients(of, ways)


def _has_detour(flow: Flow, output: int, given: int) -> bool:
    """The op that made the output reads something else that was computed from the input: x * sigmoid(x)."""
    above = [value for value in flow.reads[int(flow.producers[output])] if value != given]
    for value in above:
        maker = int(flow.producers[value])
        if maker >= 0 and given in flow.reads[maker]:
            return True
        if maker >= 0 and len(above) < _NEAREST:
            above += [read for read in flow.reads[maker] if read not in above]
    return False


@dataclass(frozen=True)
class _Step:
    """A value on the way back through the op that made ``output``."""

    output: int
    steps: int  #: ops since the gradient of the output
    read: frozenset[int]  #: inputs and output of the op that it was computed from


@dataclass
class _Sweep:
    """One pass over the backward ops in order; labels grow as it goes."""

    flow: Flow
    kinds: Sequence[str]
    of: dict[int, int] = field(default_factory=dict)
    through: dict[tuple[int, int], int] = field(default_factory=dict)
    outputs: defaultdict[int, list[int]] = field(
        default_factory=lambda: defaultdict(list)
    )  #: what it is a gradient of
    shares: defaultdict[int, list[int]] = field(
        default_factory=lambda: defaultdict(list)
    )  #: what it goes back to
    inside: defaultdict[int, list[_Step]] = field(default_factory=lambda: defaultdict(list))
    derived: dict[int, frozenset[int]] = field(
        default_factory=dict
    )  #: of one forward value alone, on the way
    summed: set[int] = field(
        default_factory=set
    )  #: values whose gradient is a sum that was recorded
    biased: dict[int, int] = field(default_factory=dict)  #: value -> what it is with a bias added

    def op(self, op: int) -> None:
        """Label what an op of the backward pass writes."""
        reads, writes = self.flow.reads[op], self.flow.writes[op]
        bases = [self._base(value) for value in reads]
        if len(bases) == 1 and bases[0] is not None:
            self.derived.update(dict.fromkeys(writes, bases[0]))
            return
        if self.kinds[op] == "add" and self._sum(reads, writes[0]):
            return
        self._seed(op)
        ways = list(self._ways(op))
        done = False
        for written, ends in self._ends(op, ways):
            done = True
            self._goes_back(*ends, written)
        if not done:
            for way in ways[:_MOST_LABELS]:
                for written in writes:
                    self.inside[written].append(way)

    def _base(self, value: int) -> frozenset[int] | None:
        """Forward values that a value is computed from; None for what carries gradients."""
        maker = int(self.flow.producers[value])
        if maker < 0 or self.flow.phases[maker] == FORWARD:
            return frozenset((value,))
        return self.derived.get(value)

    def _ways(self, op: int) -> Iterator[_Step]:
        """The forward ops that an op may be going back through: all else that it reads belongs to them."""
        reads = self.flow.reads[op]
        for value in reads:
            known = [_Step(output, 0, frozenset()) for output in self.outputs[value]] + self.inside[
                value
            ]
            for way in known[-_MOST_LABELS:]:
                maker = self._maker(way.output)
                if maker < 0:
                    continue
                own = {*self.flow.reads[maker], *self.flow.writes[maker]}
                read = set(way.read)
                for other in reads:
                    base = self._base(other)
                    if base is not None and base <= own:
                        read |= base
                    elif other != value and not self._belongs(other, way.output):
                        break
                else:
                    yield _Step(way.output, way.steps + 1, frozenset(read))

    def _belongs(self, value: int, output: int) -> bool:
        return output in self.outputs[value] or any(
            way.output == output for way in self.inside[value]
        )

    def _maker(self, value: int) -> int:
        maker = int(self.flow.producers[value])
        return maker if maker >= 0 and self.flow.phases[maker] == FORWARD else -1

    def _ends(self, op: int, ways: Sequence[_Step]) -> Iterator[tuple[int, tuple[int, int]]]:
        """(written value, (output, input)): where the way back through a forward op ends with this op."""
        carries = {way: self.kinds[self._maker(way.output)] in _CARRIES for way in ways}
        for way in sorted(ways, key=lambda way: (carries[way], not way.read, way.steps)):
            taken: set[int] = set()
            found = []
            for written in self.flow.writes[op]:
                inputs = [x for x in self._inputs(op, way) if x not in taken]
                fitting = [x for x in inputs if self.flow.sizes[x] == self.flow.sizes[written]]
                if fitting:
                    taken.add(fitting[0])
                    found.append((written, (way.output, fitting[0])))
            if found:
                yield from found
                return

    def _inputs(self, op: int, way: _Step) -> list[int]:
        """Inputs of the forward op that this op may give the gradient of, those that have none yet, in order."""
        maker = self._maker(way.output)
        kind, inputs = self.kinds[maker], list(self.flow.reads[maker])
        fused = "Grad" in self.flow.trace.ops["kind"].iat[op]
        if (kind in _CURVED and not way.read) or (way.steps < _STEPS.get(kind, 1) and not fused):
            return []
        if kind in _PRODUCTS and len(inputs) > 1:
            inputs = [x for x in inputs if x not in way.read and way.read]
        if kind == "sub":
            inputs = inputs[1:]
        if kind == "add":  # what is as large as the sum has the sum's own gradient
            inputs = [x for x in inputs if self.flow.sizes[x] != self.flow.sizes[way.output]]
        return [x for x in inputs if (way.output, x) not in self.through]

    def _goes_back(self, output: int, given: int, gradient: int) -> None:
        self.through[output, given] = gradient
        self.through.setdefault((self.biased.get(output, output), given), gradient)
        self._share(gradient, given)

    def _share(self, gradient: int, value: int) -> None:
        """A gradient goes back to a value: it is the value's own unless it is summed up with others."""
        todo = [value]
        while todo:
            value = todo.pop()
            if value in self.shares[gradient] or len(self.shares[gradient]) >= _MOST_LABELS:
                continue
            self.shares[gradient].append(value)
            if self._uses(value) > 1 and (self._is_summed(gradient) or value in self.summed):
                continue
            todo += self._settle(gradient, value)

    def _settle(self, gradient: int, value: int) -> list[int]:
        """Make it the gradient of a value; returns the values that it goes back to unchanged."""
        self.of[value] = gradient
        self.outputs[gradient].append(value)
        maker = self._maker(value)
        if maker < 0 or self.kinds[maker] not in _CARRIES:
            return []
        reads = self.flow.reads[maker][:1] if self.kinds[maker] == "sub" else self.flow.reads[maker]
        same = [x for x in reads if self.flow.sizes[x] == self.flow.sizes[gradient]]
        if len(same) == 1 and len(reads) == 2:
            self.biased[same[0]] = value
        return same

    def _uses(self, value: int) -> int:
        return sum(
            1
            for op in self.flow.consumers[value]
            if self.flow.phases[op] == FORWARD and self.flow.writes[op]
        )

    def _is_summed(self, gradient: int) -> bool:
        return any(
            self.kinds[op] == "add" and self.flow.phases[op] == BACKWARD and self.flow.writes[op]
            for op in self.flow.consumers[gradient]
        )

    def _sum(self, reads: Sequence[int], written: int) -> bool:
        """A sum of what goes back to one value is its gradient; true if this is one."""
        counts: dict[int, int] = defaultdict(int)
        for value in reads:
            for given in self.shares[value]:
                counts[given] += self.flow.sizes[given] == self.flow.sizes[written]
        best = max(counts, key=lambda given: (counts[given], -given), default=-1)
        if best < 0 or counts[best] < min(2, len(reads)):
            return False
        self.summed.add(best)
        self.shares[written].append(best)
        for value in self._settle(written, best):
            self._share(written, value)
        return True

    def _seed(self, op: int) -> None:
        """Where the chain is broken: beside a weight of one product there stands the gradient of the product."""
        reads, sizes = self.flow.reads[op], self.flow.sizes
        if len(reads) != 2 or any(self.outputs[value] or self.inside[value] for value in reads):
            return
        for weight, gradient in (reads, reads[::-1]):
            if self.flow.producers[weight] >= 0 or self._base(gradient) is not None:
                continue
            products = [
                self.flow.writes[reader][0]
                for reader in self.flow.consumers[weight]
                if self.flow.phases[reader] == FORWARD
                and self.flow.writes[reader]
                and self.kinds[reader] in _PRODUCTS
            ]
            made = [product for product in products if sizes[product] == sizes[gradient]]
            if len(made) == 1 and made[0] not in self.of:
                self._share(gradient, made[0])


def _inferred(flow: Flow, kinds: Sequence[str]) -> Gradients:
    sweep = _Sweep(flow, kinds)
    for op, phase in enumerate(flow.phases):
        if phase == BACKWARD and flow.writes[op] and flow.reads[op]:
            sweep.op(op)
    return _told_apart(flow, sweep.of, sweep.through)
