"""From states to findings: the places where the runs part, said so that a person can act on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from ..dtypes import UNIT_ROUNDOFF, unit_roundoff
from ..graph import Flow
from ..result import Finding, Kind
from ..trace import PHASES
from .joined import Joined
from .states import INTRODUCED, States

_FIRST: Mapping[str, int] = {"input": 0, "parameter": 1}  #: explain everything after them; the rest by place
_REGION = 24  #: ops of a region that are named


def findings(graph: Joined, states: States, scopes_t: list[str], scopes_r: list[str]) -> tuple[Finding, ...]:
    """Every introduced divergence, ranked: inputs, parameters, then ops by phase and dataflow order."""
    maker = _Maker(graph, states, scopes_t, scopes_r)
    places = {node: place for place, node in enumerate(graph.order)}
    nodes = [node for node in graph.order if states.state[node] == INTRODUCED]
    drafts = [(maker.kind(node), node) for node in nodes]
    phases = {phase: number for number, phase in enumerate(PHASES)}
    drafts.sort(key=lambda d: (_FIRST.get(d[0], 2), phases[maker.phase(d[1])], places[d[1]]))
    return tuple(maker.finding(rank, kind, node) for rank, (kind, node) in enumerate(drafts, 1))


class _Maker:
    """What all findings of one comparison are made from."""

    def __init__(self, graph: Joined, states: States, scopes_t: list[str], scopes_r: list[str]) -> None:
        self.graph, self.states = graph, states
        self.pairs = graph.comparison.pairs
        self.alignment = graph.comparison.alignment
        self.sides = (
            (self.alignment.target, graph.class_t, self.alignment.kinds_t, scopes_t),
            (self.alignment.reference, graph.class_r, self.alignment.kinds_r, scopes_r),
        )
        self.op_scalars = graph.comparison.scalars

    def phase(self, node: int) -> str:
        return str(self.graph.phase[node])

    def kind(self, node: int) -> Kind:
        """What sort of divergence it is; see result.Kind."""
        makers = [self._maker(side, node) for side in (0, 1)]
        if self.pairs["nonfinite_mismatch"].iat[node] > 0:
            return "nonfinite"
        if max(makers) < 0:
            return "parameter" if self._is_parameter(node) else "input"
        if self._dtype_policy(node):
            return "dtype"
        if not self.states.above[node].between:
            return "introduced"
        return "missing" if self._missing(node) else "region"

    def _maker(self, side: int, node: int) -> int:
        flow, class_of = self.sides[side][:2]
        return int(flow.classes["producer"].iat[int(class_of[node])])

    def _is_parameter(self, node: int) -> bool:
        """It has a parameter's name on a side, or floats that are never the first input of what reads them."""
        for flow, class_of, _, _ in self.sides:
            if flow.classes["parameter"].iat[int(class_of[node])]:
                return True
        reference, value = self.alignment.reference, int(self.graph.class_r[node])
        if not str(reference.classes["dtype"].iat[value]).startswith(("float", "bfloat")):
            return False
        rows = np.flatnonzero(reference.tensor_class == value)
        slots = set(reference.tensors["slot"].to_numpy()[rows].tolist())
        return "input.0" not in slots

    def _dtype_policy(self, node: int) -> bool:
        """One side computed in a coarser type on the way here, and the error is what that type's rounding makes."""
        units = []
        for side in (0, 1):
            flow, class_of = self.sides[side][:2]
            on_the_way = [n for n in (node, *self.states.above[node].between) if class_of[n] >= 0]
            dtypes = [str(flow.classes["dtype"].iat[int(class_of[n])]) for n in on_the_way]
            units.append(max((unit_roundoff(d) for d in dtypes if d in UNIT_ROUNDOFF), default=0.0))
        coarse = max(units)
        return min(units) < coarse and float(self.pairs["error"].iat[node]) <= 8 * coarse

    def _missing(self, node: int) -> Counter[str]:
        """Operator kinds that the reference has in the region and the target lacks, if the target has no others."""
        ours, theirs = (Counter(self._kinds(side, node)) for side in (0, 1))
        return theirs - ours if not ours - theirs else Counter()

    def _kinds(self, side: int, node: int) -> list[str]:
        flow, _, kinds, _ = self.sides[side]
        return [kinds[op] for op in self._ops(side, node) if not flow.is_layout[op]]

    def _ops(self, side: int, node: int) -> list[int]:
        """The ops of one side from the last agreement to the node, in order."""
        flow, class_of = self.sides[side][:2]
        nodes = (*self.states.above[node].between, node)
        made = {int(flow.classes["producer"].iat[int(class_of[n])]) for n in nodes if class_of[n] >= 0} - {-1}
        if not made:  # nobody made it: those that read it first
            made = set(flow.readers[int(class_of[node])][:1])
        return sorted(made)

    def finding(self, rank: int, kind: Kind, node: int) -> Finding:
        """The finding of one node."""
        row = self.pairs.iloc[node]
        ops_t, ops_r = self._ops(0, node), self._ops(1, node)
        names_t, names_r = (self._names(side, ops) for side, ops in ((0, ops_t), (1, ops_r)))
        scope = self._scope(node, ops_t, ops_r)
        metrics = {
            name: float(row[name])
            for name in ("error", "relative_l2", "cosine", "max_absolute", "max_relative", "beyond", "rounded_error")
            if np.isfinite(row[name])
        }
        if np.isfinite(self.states.above[node].worst_agreeing):
            metrics["input_error"] = float(self.states.above[node].worst_agreeing)
        metrics |= self._statistics(node)
        slots = ((self._slot(0, node, ops_t), self._slot(1, node, ops_r)),)
        return Finding(
            rank=rank,
            kind=kind,
            phase=self.phase(node),
            scope=scope,
            title=self._title(kind, node, scope, ops_t, ops_r),
            target_ops=names_t,
            reference_ops=names_r,
            slots=slots,
            metrics=metrics,
            tolerance=float(row["tolerance"]),
            confidence=self._confidence(node),
            evidence=self._evidence(kind, node, ops_t, ops_r),
            source=self._source(ops_t, ops_r),
        )

    def _names(self, side: int, ops: list[int]) -> tuple[str, ...]:
        names = self.sides[side][0].trace.ops["name"].to_numpy()
        return tuple(str(names[op]) for op in ops[-_REGION:])

    def _scope(self, node: int, ops_t: list[int], ops_r: list[int]) -> str:
        for side in (0, 1):
            flow, class_of = self.sides[side][:2]
            name = str(flow.classes["parameter"].iat[int(class_of[node])])
            if name:
                break
        for side, ops in ((1, ops_r), (0, ops_t)):
            scopes = self.sides[side][3]
            if ops and scopes[ops[-1]]:
                return scopes[ops[-1]]
        return name.rpartition(".")[0]

    def _slot(self, side: int, node: int, ops: list[int]) -> str:
        flow, class_of = self.sides[side][:2]
        for op in reversed(ops):
            for row in flow.tensors_of(op).tolist():
                if flow.tensor_class[row] == class_of[node]:
                    return str(flow.tensors["slot"].iat[row])
        return ""

    def _statistics(self, node: int) -> dict[str, float]:
        """Norms of both sides: a ratio of norms says more than a cosine."""
        norms = [
            float(self.sides[side][0].classes["norm"].iat[int(self.sides[side][1][node])]) for side in (0, 1)
        ]
        return {"norm_ratio": norms[0] / norms[1]} if norms[1] and np.isfinite(norms).all() else {}

    def _confidence(self, node: int) -> float:
        """Confidence of the pair, times that of the pairs that agree above it (their mean)."""
        own = float(self.pairs["confidence"].iat[node])
        above = [float(self.pairs["confidence"].iat[n]) for n in self.states.above[node].ancestors]
        return round(own * (float(np.mean(above)) if above else 0.9), 3)

    def _title(self, kind: Kind, node: int, scope: str, ops_t: list[int], ops_r: list[int]) -> str:
        flow_t, _, kinds_t, _ = self.sides[0]
        names = [self._parameter(side, node) for side in (0, 1)]
        last_t = self._names(0, ops_t[-1:])[0] if ops_t else "nothing"
        last_r = self._names(1, ops_r[-1:])[0] if ops_r else "nothing"
        row = self.pairs.iloc[node]
        measure = {"relative_l2": "relative L2", "statistics": "statistics differ by", "mismatches": "share of elements"}
        amount = f"{measure.get(str(row['metric']), 'error')} {row['error']:.2g}"
        if kind == "parameter":
            name = names[0] or names[1] or "a parameter"
            return f"parameter {name} differs, read by {last_t} vs {last_r}: {amount}"
        if kind == "input":
            return f"an input of {last_t} vs {last_r} differs: {amount}"
        what = kinds_t[ops_t[-1]] if ops_t else "?"
        where = f"{scope}, {what}" if scope else what
        given = self.states.above[node].worst_agreeing
        agree = f", inputs agree to {given:.1g}" if np.isfinite(given) else ""
        place = f"{where} ({last_t}) vs {last_r}"
        if kind == "missing":
            return f"{place}: {amount}{agree}; the reference also has {', '.join(self._missing(node))}"
        if kind == "nonfinite":
            return f"{place}: {int(row['nonfinite_mismatch'])} elements are NaN, Inf or masked on one side only{agree}"
        return f"{place}: {amount}{agree}"

    def _parameter(self, side: int, node: int) -> str:
        flow, class_of = self.sides[side][:2]
        return str(flow.classes["parameter"].iat[int(class_of[node])])

    def _evidence(self, kind: Kind, node: int, ops_t: list[int], ops_r: list[int]) -> tuple[str, ...]:
        row = self.pairs.iloc[node]
        said = [f"paired by {row['evidence']}"]
        if row["layout"] not in ("same", "reshape"):
            said.append(f"layout {row['layout']}")
        above = self.states.above[node].ancestors
        if above:
            said.append(f"{len(above)} values it was computed from agree, at worst to {self.states.above[node].worst_agreeing:.2g}")
        between = self.states.above[node].between
        if between:
            alone_t = sum(self.graph.class_t[n] >= 0 for n in between)
            said.append(f"between them {alone_t} values of the target and {len(between) - alone_t} of the reference alone")
        for _, scalar in self.op_scalars.iterrows():
            if int(scalar["target_op"]) in ops_t and int(scalar["reference_op"]) in ops_r:
                said.append(f"scalar argument {scalar['target']:.6g} against {scalar['reference']:.6g}")
        ratio = self._statistics(node).get("norm_ratio")
        if ratio is not None and kind in ("parameter", "introduced") and abs(ratio - 1) > 1e-4:
            said.append(f"norm is {ratio:.6g} times the reference's")
        if kind == "missing":
            said.append(f"only the reference has {', '.join(self._missing(node))}")
        return tuple(said)

    def _source(self, ops_t: list[int], ops_r: list[int]) -> dict[str, str]:
        found = {}
        for role, side, ops in (("target", 0, ops_t), ("reference", 1, ops_r)):
            flow: Flow = self.sides[side][0]
            lines = [str(flow.trace.ops["source"].iat[op]) for op in reversed(ops)]
            if line := next((line for line in lines if line), ""):
                found[role] = line
        return found
