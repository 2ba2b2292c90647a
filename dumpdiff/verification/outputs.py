"""Recorded outputs, held against what their operators compute from the recorded inputs."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..model.arrays import AnyArray, Flags, Floats
from ..model.dtypes import get_unit_roundoff, is_discrete, is_floating
from ..model.trace import FORWARD, OPTIMIZER, Trace
from ..operators import OUTPUT_KINDS, compute_outputs
from ..rulebook import Rules
from .contradictions import Check, Contradiction
from .descriptions import build_contradiction

#: Elements that an op reads and writes, and products that it adds up. A larger op would take
#: seconds, and hundreds of megabytes in float64.
_MAX_ELEMENTS = 1 << 23
_MAX_PRODUCTS = 1 << 31
#: Elements from which the typical magnitude of a large tensor is taken.
_MAX_SAMPLE = 1 << 15
#: Unit roundoff of float32, which sums are formed in at least.
_FLOAT32_UNIT = 2.0**-24
#: Matrix units may round the factors of float32 products to 11 significant bits (TF32 of NVIDIA;
#: float16 on Ascend 910; its HF32 has 12).
_COARSE_FACTOR_UNIT = 2.0**-11
#: Digits of an immediate number that only a graph or an index has: six, see ``tolerances``.
_PRINTED_UNIT = 5e-6
#: Standard deviations of the error that rounded factors cause; JCGM 100:2008, table G.1.
_COVERAGE_FACTOR = 3.0
#: Random perturbations; their largest effect counts.
_N_PERTURBATIONS = 3
_SEED = 20020801
#: Kinds that add up products; their factors may be rounded.
_PRODUCT_CLASSES = ("linear", "attention")
#: Kinds that need none of their inputs that are not what the op read: running statistics, and what
#: an assignment overwrites.
_PARTIAL_KINDS = frozenset({"batch_norm", "grad:batch_norm", "assign"})
#: Kinds whose record leaves out options (an epsilon, a scale, a mask, which form of gelu) that
#: change the output. Such an op only contradicts its inputs if most others of its kind do not.
_OPTION_KINDS = frozenset({
    "norm", "vectornorm", "var", "std", "clamp", "remainder", "fmod", "div", "pow", "normalize",
    "gelu", "fast_gelu", "leaky_relu", "elu", "softplus", "glu", "geglu", "swiglu", "rope",
    "attention", "rms_norm", "layer_norm", "batch_norm", "convolution", "conv2dbackpropfilter",
    "conv2dbackpropinput", "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "addmm", "addcmul",
    "addcdiv", "lerp", "cumsum", "cumprod", "softmax", "log_softmax", "topk", "grad:layer_norm",
    "grad:batch_norm", "grad:rms_norm", "grad:gelu", "grad:softmax", "grad:log_softmax",
    "gather_rows", "one_hot", "scatter", "segment_sum", "masked_fill",
})  # fmt: skip
#: Kinds whose layout is 'selecting' although they may write other values than those they read.
_FILLING_KINDS = frozenset({"pad", "moe_permute", "setitem"})


@dataclass
class _KindCount:
    """How the ops of one kind, as their framework spells it, agree with the arithmetic."""

    n_agreeing: int = 0
    deviations: list[tuple[str, int, str]] = field(default_factory=list)  #: kind, row, what differs


@dataclass(frozen=True)
class _OpRecord:
    """The tensors of one op, as far as its output follows from them."""

    kind: str
    inputs: list[AnyArray | float]
    input_units: list[float]  #: unit roundoff of each input, 0 if it is exact
    keywords: dict[str, AnyArray | float]
    outputs: dict[int, tuple[int, AnyArray]]  #: position -> row, array


class OutputChecks:
    """Runs every op of a trace again in float64, as soon as its tensors have been read."""

    def __init__(self, trace: Trace, rules: Rules) -> None:
        self._trace = trace
        self._rules = rules
        tensors = trace.tensors
        self._kinds = [rules.resolve_kind(kind) for kind in trace.ops["kind"].tolist()]
        self._slots = tensors["slot"].tolist()
        self._slot_kinds = tensors["slot_kind"].tolist()
        self._dtypes = tensors["dtype"].tolist()
        self._shapes = tensors["shape"].tolist()
        self._is_constant = tensors["constant"].tolist()
        self._is_trusted = tensors["trusted"].tolist()
        self._numbers = tensors["max"].tolist()
        self._counts: defaultdict[str, _KindCount] = defaultdict(_KindCount)
        self._is_eligible = self._flag_eligible_ops()
        self._n_checked: Counter[int] = Counter()  #: outputs checked, by op
        self._mistyped_rows: set[int] = set()  #: float16 files that hold half of float32 memory

    def check_op(self, op: int, arrays: Mapping[int, AnyArray | None]) -> None:
        """Check the outputs of an op. ``arrays`` has its rows; None for a tensor without numbers.

        What cannot be computed is left out, and counts as not checkable.
        """
        if not self._is_eligible[op]:
            return
        record = self._collect(op, arrays)
        if record is None:
            return
        verdicts = self._judge(record)
        if not verdicts:
            return
        self._n_checked[op] = len(verdicts)
        count = self._counts[self._trace.ops["kind"].iat[op]]
        deviations = [(row, text) for row, text in verdicts.items() if text]
        if deviations:
            count.deviations += [(record.kind, row, text) for row, text in deviations]
        else:
            count.n_agreeing += 1

    def build_check(self, other_checks: Iterable[Check], is_overwritten: Flags) -> Check:
        """Return what was checked, after all ops.

        An op is left out if another check has a contradiction about one of its tensors: that says
        more. ``is_overwritten`` is true for inputs that are not what their producer wrote, so that
        the op may have written them.
        """
        tensors = self._trace.tensors
        ops, sources = tensors["op"].to_numpy(), tensors["source_tensor"].to_numpy()
        excused_ops = set(ops[is_overwritten].tolist()) | self._find_mistyped_ops()
        for check in other_checks:
            for item in check.contradictions:
                excused_ops.add(int(ops[item.tensor]))
                if sources[item.tensor] >= 0:
                    excused_ops.add(int(ops[sources[item.tensor]]))
        contradictions: list[Contradiction] = []
        n_unknown = 0
        for count in self._counts.values():
            deviating_ops = {int(ops[row]) for _, row, _ in count.deviations} - excused_ops
            for kind, row, text in count.deviations:
                if int(ops[row]) in excused_ops:
                    n_unknown += 1
                    continue
                if kind in _OPTION_KINDS and count.n_agreeing < len(deviating_ops):
                    n_unknown += 1
                    continue
                recorded = "the output is not what the operator computes from its recorded inputs"
                computed = f"{text}: a damaged record, or a wrong kernel"
                contradictions.append(
                    build_contradiction(self._trace, "output", row, recorded, computed)
                )
        n_checked = sum(self._n_checked.values()) - n_unknown
        n_outputs = sum(
            slot_kind == "output" and self._is_eligible[op]
            for slot_kind, op in zip(self._slot_kinds, ops.tolist(), strict=True)
        )
        contradictions.sort(key=lambda item: item.tensor)
        name = "outputs and what their operators compute"
        return Check(name, n_checked, tuple(contradictions), n_outputs - n_checked)

    def _find_mistyped_ops(self) -> set[int]:
        """Return the ops that wrote or read float16 files which hold half of float32 memory.

        What such a file should hold is unknown, so its readers cannot be checked, and neither can
        what follows from them as float16.
        """
        ops = self._trace.tensors["op"].tolist()
        deviating_rows = {row for count in self._counts.values() for _, row, _ in count.deviations}
        readers: defaultdict[int, list[int]] = defaultdict(list)
        for row, source in enumerate(self._trace.tensors["source_tensor"].tolist()):
            readers[source].append(ops[row])
        outputs_of_op: defaultdict[int, list[int]] = defaultdict(list)
        for row in deviating_rows:
            outputs_of_op[ops[row]].append(row)
        mistyped_ops: set[int] = set()
        rows = list(self._mistyped_rows)
        while rows:
            row = rows.pop()
            for op in (ops[row], *readers[row]):
                if op in mistyped_ops:
                    continue
                mistyped_ops.add(op)
                rows += [
                    output for output in outputs_of_op[op] if self._dtypes[output] == "float16"
                ]
        return mistyped_ops

    def _flag_eligible_ops(self) -> list[bool]:
        """Return which ops are operators that read something.

        The backward records of an API dump hold gradients under the name of the forward call, and
        a module call repeats the ops inside it.
        """
        ops = self._trace.ops
        is_eligible = (ops["level"] == "op").to_numpy(copy=True)
        if self._trace.source.format != "mindspore":
            is_eligible &= ops["phase"].isin((FORWARD, OPTIMIZER)).to_numpy()
        has_input = np.zeros(len(ops), dtype=bool)
        tensors = self._trace.tensors
        has_input[tensors["op"].to_numpy()[tensors["slot_kind"].to_numpy() != "output"]] = True
        flags: list[bool] = (is_eligible & has_input).tolist()
        return flags

    def _collect(self, op: int, arrays: Mapping[int, AnyArray | None]) -> _OpRecord | None:
        """Return what the op read and wrote; None if that is not complete."""
        kind = self._kinds[op]
        record = _OpRecord(kind, [], [], {}, {})
        n_elements = 0
        position = 0
        for row, array in arrays.items():
            slot_name = self._slots[row].partition(".")[2]
            is_output = self._slot_kinds[row] == "output"
            if array is not None:
                n_elements += array.size
                if n_elements > _MAX_ELEMENTS or np.iscomplexobj(array):
                    return None
            if is_output:
                if array is not None and self._is_trusted[row] and array.size:
                    record.outputs[position] = row, _restore_shape(array, self._shapes[row])
                position += 1
                continue
            if array is None or not self._is_trusted[row]:
                if self._is_constant[row]:
                    self._add_number(record, row, slot_name)
                elif kind not in _PARTIAL_KINDS:
                    return None
                continue
            shaped = _restore_shape(array, self._shapes[row])
            if slot_name.replace(".", "").isdecimal() or self._slot_kinds[row] == "parameter":
                record.inputs.append(shaped)
                record.input_units.append(get_unit_roundoff(self._dtypes[row]))
            else:
                record.keywords[slot_name] = shaped
        return record if record.inputs and record.outputs else None

    def _add_number(self, record: _OpRecord, row: int, slot_name: str) -> None:
        """Add an immediate number; a list of numbers is left out, as its elements are unknown."""
        number = float(self._numbers[row])
        if math.isnan(number) or self._shapes[row] not in (None, (), (1,)):
            return
        if slot_name.replace(".", "").isdecimal():
            is_exact = is_discrete(self._dtypes[row]) or not math.isfinite(number)
            record.inputs.append(int(number) if is_discrete(self._dtypes[row]) else number)
            is_exact |= math.isfinite(number) and number == int(number)
            record.input_units.append(0.0 if is_exact else _PRINTED_UNIT)
        else:
            record.keywords[slot_name] = number

    def _judge(self, record: _OpRecord) -> dict[int, str]:
        """Return row -> '' or what is wrong, of the outputs that can be computed."""
        shape = self._get_output_shape(record)
        verdicts: dict[int, str] = {}
        worst_shares: dict[int, float] = {}
        if record.kind in OUTPUT_KINDS and not _is_expensive(record):
            arguments = record.kind, record.inputs, record.keywords, shape
            for number, (_, outputs) in enumerate(compute_outputs(*arguments)):
                for position, output in enumerate(outputs):
                    if position not in record.outputs or output is None:
                        continue
                    row, recorded = record.outputs[position]
                    if output.size != recorded.size or worst_shares.get(row) == 0.0:
                        continue
                    text, share = self._compare(record, number, position, output)
                    if share < worst_shares.get(row, math.inf):
                        worst_shares[row], verdicts[row] = share, text
                if worst_shares and not any(worst_shares.values()):
                    break
        if not verdicts:
            verdicts = self._judge_selection(record)
        return verdicts

    def _get_output_shape(self, record: _OpRecord) -> tuple[int, ...]:
        """Return the shape of the first output, or of the second if the first was not recorded."""
        row, array = record.outputs[min(record.outputs)]
        shape = self._shapes[row]
        return array.shape if shape is None else tuple(shape)

    def _judge_selection(self, record: _OpRecord) -> dict[int, str]:
        """Check that an op that only selects or moves values has no other values in its output."""
        if self._rules.get_layout(record.kind) == "" or record.kind in _FILLING_KINDS:
            return {}
        if record.kind == "cast":
            return {}
        has_indices = record.kind == "sort" or self._rules.get_kind_class(record.kind) == "index"
        verdicts = {}
        for position, (row, recorded) in record.outputs.items():
            if has_indices and position > 0:
                continue
            sources = [
                array.ravel()
                for array in record.inputs
                if isinstance(array, np.ndarray) and array.dtype == recorded.dtype
            ]
            if not sources:
                continue
            is_strange = ~np.isin(recorded, np.concatenate(sources))
            if recorded.dtype.kind == "f":
                is_strange &= ~np.isnan(recorded)
            text = ""
            if is_strange.any():
                number = recorded[is_strange].flat[0]
                n_strange = int(is_strange.sum())
                text = f"{n_strange:,} of its elements, such as {number:.6g}, were not read"
            verdicts[row] = text
        return verdicts

    def _compare(
        self, record: _OpRecord, number: int, position: int, output: Floats
    ) -> tuple[str, float]:
        """Return what differs, and the number of elements of an output that do; '' and 0 if none.

        An element may differ by the rounding of the operator, see :meth:`_bound_errors`. Elements
        that are not finite in the exact output are not judged.
        """
        row, recorded = record.outputs[position]
        dtype = self._dtypes[row]
        exact = output.reshape(np.atleast_1d(recorded).shape)
        values = np.atleast_1d(recorded).astype(np.float64)
        if is_discrete(str(recorded.dtype)):
            is_wrong = np.trunc(exact) != values
            return _describe(is_wrong, exact, values)
        is_judged = np.isfinite(exact)
        if recorded.dtype.kind == "f":
            is_judged &= np.abs(exact) < float(np.finfo(recorded.dtype).max)
        with np.errstate(invalid="ignore"):
            errors = np.where(is_judged, np.abs(values - exact), 0.0)
        unit = max(get_unit_roundoff(dtype), get_unit_roundoff(str(recorded.dtype)), _FLOAT32_UNIT)
        length = self._estimate_sum_length(record, exact.size)
        name = dtype if is_floating(dtype) and dtype != "float64" else "float32"
        tolerance = self._rules.compute_tolerance(name, name, record.kind, length)
        tolerance = max(tolerance, 2 * unit)
        magnitude = np.where(is_judged, np.abs(exact), 0.0)
        floor = 2.0**-24 if "float16" in (dtype, str(recorded.dtype)) else 2.0**-126
        bounds = tolerance * (magnitude + _compute_typical(magnitude)) + floor
        is_wrong = ~(errors <= bounds)
        if is_wrong.any() and _holds_float32_memory(recorded, exact, bounds):
            self._mistyped_rows.add(row)
            is_wrong = np.zeros_like(is_wrong)
        if is_wrong.any():
            factor = tolerance / unit
            sensitivity = self._measure_sensitivity(record, number, position, exact, factor)
            if sensitivity is not None:
                is_wrong = ~(errors <= bounds + np.where(is_judged, sensitivity, 0.0))
        return _describe(is_wrong, exact, values)

    def _estimate_sum_length(self, record: _OpRecord, size: int) -> int:
        """Return the number of terms in the sums of an op: K of (M, K) x (K, N)."""
        sizes = [array.size for array in record.inputs if isinstance(array, np.ndarray)]
        if not sizes or not size:
            return 1
        if len(sizes) > 1 and self._rules.get_kind_class(record.kind) in _PRODUCT_CLASSES:
            return max(1, round(math.sqrt(sizes[0] * sizes[1] / size)))
        return max(1, max(sizes) // size)

    def _measure_sensitivity(
        self, record: _OpRecord, number: int, position: int, exact: Floats, factor: float
    ) -> Floats | None:
        """Return by how much each element may change if the inputs change by their roundoff.

        The inputs move in random directions, by ``factor`` units of roundoff: the condition of
        every element, as in ``divergence.recomputation``. The factors of a product move by what
        matrix units round them to.
        """
        random = np.random.default_rng(_SEED)
        is_product = self._rules.get_kind_class(record.kind) in _PRODUCT_CLASSES
        largest = np.zeros(exact.shape)
        coarse = np.zeros(exact.shape)
        for _ in range(_N_PERTURBATIONS):
            inputs: list[AnyArray | float] = []
            for value, unit in zip(record.inputs, record.input_units, strict=True):
                array = np.asarray(value)
                if unit == 0.0 or array.dtype.kind in "iub":
                    inputs.append(value)
                    continue
                relative_unit = max(unit, _FLOAT32_UNIT)
                signs = random.choice([-relative_unit, relative_unit], array.shape)
                inputs.append(array.astype(np.float64) * (1 + signs))
            shape = self._get_output_shape(record)
            sets = compute_outputs(record.kind, inputs, record.keywords, shape)
            moved = _take_output(sets, number, position)
            if moved is None or moved.size != exact.size:
                return None
            with np.errstate(invalid="ignore"):
                change = np.nan_to_num(np.abs(moved.reshape(exact.shape) - exact), nan=0.0)
            largest = np.maximum(largest, change)
            units = [max(unit, _FLOAT32_UNIT) for unit in record.input_units if unit]
            if is_product and units:
                ratio = max(_COARSE_FACTOR_UNIT / min(units), 1.0)
                coarse = np.maximum(coarse, _COVERAGE_FACTOR * ratio * change)
        allowed = np.maximum(factor * largest, coarse)
        return allowed + _compute_typical(allowed)


def _take_output(
    sets: Iterable[tuple[str, Sequence[Floats | None]]], number: int, position: int
) -> Floats | None:
    """Return one output of one interpretation."""
    for index, (_, outputs) in enumerate(sets):
        if index == number:
            return outputs[position] if position < len(outputs) else None
    return None


def _compute_typical(magnitudes: Floats) -> float:
    """Return the median of the numbers that are not 0. Mask fill does not enlarge it.

    Of a large tensor, every k-th number counts.
    """
    stride = max(1, magnitudes.size // _MAX_SAMPLE) | 1  # odd: even ones fall into columns
    sample = magnitudes.reshape(-1)[::stride]
    numbers = sample[sample > 0]
    return float(np.median(numbers)) if numbers.size else 0.0


def _holds_float32_memory(recorded: AnyArray, exact: Floats, bounds: Floats) -> bool:
    """Return whether a float16 file holds the first half of the memory of a float32 result.

    MindSpore's CPU kernels compute some float16 results in float32, and the recorder does not know.
    """
    if recorded.dtype != np.float16 or recorded.size < 2:
        return False
    n_numbers = recorded.size // 2
    numbers = np.ascontiguousarray(recorded).reshape(-1)[: 2 * n_numbers].view(np.float32)
    with np.errstate(invalid="ignore"):
        errors = np.abs(numbers.astype(np.float64) - exact.reshape(-1)[:n_numbers])
    return bool(np.all(errors <= bounds.reshape(-1)[:n_numbers]))


def _describe(is_wrong: Flags, exact: Floats, values: Floats) -> tuple[str, float]:
    """Return what differs in words, and the number of elements that do."""
    n_wrong = int(np.count_nonzero(is_wrong))
    if n_wrong == 0:
        return "", 0.0
    with np.errstate(invalid="ignore"):
        errors = np.nan_to_num(np.abs(values - exact), nan=np.inf)
    errors[~is_wrong] = -1.0
    worst = int(np.argmax(errors))
    place = f"{n_wrong:,} of {is_wrong.size:,} elements differ"
    numbers = f"{values.flat[worst]:.6g} where it computes {exact.flat[worst]:.6g}"
    return f"{place}, such as {numbers}", float(n_wrong)


def _is_expensive(record: _OpRecord) -> bool:
    """Return whether the op adds up too many products."""
    if record.kind not in ("matmul", "addmm", "attention", "convolution"):
        return False
    sizes = sorted(array.size for array in record.inputs if isinstance(array, np.ndarray))[-2:]
    output = next(iter(record.outputs.values()))[1].size
    return math.sqrt(math.prod(sizes) * output) > _MAX_PRODUCTS


def _restore_shape(array: AnyArray, shape: tuple[int, ...] | None) -> AnyArray:
    """Return an array in its recorded shape, if that has as many elements."""
    if shape is None or array.shape == shape or array.size != math.prod(shape):
        return array
    return array.reshape(shape)
