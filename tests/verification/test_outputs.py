"""A recorded output is held against what its operator computes from its recorded inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import dumpdiff
from dumpdiff.model.arrays import AnyArray
from dumpdiff.model.trace import Source, Trace, build_op_table, build_tensor_table
from dumpdiff.rulebook import load_rules
from dumpdiff.verification import Check, verify_trace

from .damage import change_npy, find_row, link_dump

RANDOM = np.random.default_rng(3)
A = RANDOM.standard_normal((24, 48)).astype(np.float32)
B = RANDOM.standard_normal((48, 16)).astype(np.float32)
X = RANDOM.standard_normal((4, 6, 32)).astype(np.float32)

#: kind, inputs, outputs of an op; an input and an output of equal name are one file
Op = tuple[str, list[AnyArray], list[AnyArray]]


def check_ops(*ops: Op, dtype: str = "float32", constant: int = -1) -> Check:
    """Return the check of the outputs of ops without edges; ``constant`` is an immediate input."""
    arrays: dict[str, AnyArray] = {}
    columns: dict[str, list[object]] = {name: [] for name in (
        "op", "slot", "slot_kind", "dtype", "shape", "size", "file", "constant"
    )}  # fmt: skip
    for number, (_, inputs, outputs) in enumerate(ops):
        slots = [("input", *item) for item in enumerate(inputs)]
        slots += [("output", *item) for item in enumerate(outputs)]
        for slot_kind, position, array in slots:
            file = f"{number}.{slot_kind}.{position}.npy"
            arrays[file] = array
            columns["op"].append(number)
            columns["slot"].append(f"{slot_kind}.{position}")
            columns["slot_kind"].append(slot_kind)
            columns["dtype"].append(dtype if array.dtype == np.float32 else str(array.dtype))
            columns["shape"].append(array.shape)
            columns["size"].append(array.size)
            columns["file"].append(file)
            columns["constant"].append(slot_kind == "input" and position == constant)
    kinds = [kind for kind, _, _ in ops]
    names = [f"{kind}-op{number}" for number, kind in enumerate(kinds)]
    op_table = build_op_table({"name": names, "kind": kinds})
    source = Source("/dump", "mindspore", "", "mindspore")
    trace = Trace(source, op_table, build_tensor_table(columns), (), arrays.__getitem__)
    return verify_trace(trace, load_rules()).checks[-1]


def round_bits(array: AnyArray, n_bits: int) -> AnyArray:
    """Round float32 values to so many significant bits."""
    mantissas, exponents = np.frexp(array.astype(np.float64))
    return np.ldexp(np.rint(np.ldexp(mantissas, n_bits)), exponents - n_bits).astype(np.float32)


class TestRounding:
    """What a device may round is no contradiction; a percent of it is."""

    @pytest.mark.parametrize("n_bits", [24, 12, 11])
    def test_products_of_rounded_factors(self, n_bits: int) -> None:
        """TF32 keeps 11 significant bits, HF32 of Ascend 12."""
        product = round_bits(A, n_bits) @ round_bits(B, n_bits)
        check = check_ops(("MatMul", [A, B], [product]))
        assert (check.checked, check.contradictions) == (1, ())

    def test_a_bfloat16_product_is_rounded_to_eight_bits(self) -> None:
        a, b = round_bits(A, 8), round_bits(B, 8)
        check = check_ops(("MatMul", [a, b], [round_bits(a @ b, 8)]), dtype="bfloat16")
        assert (check.checked, check.contradictions) == (1, ())

    def test_a_sum_in_float32_that_cancels(self) -> None:
        x = np.concatenate([X, -X], axis=-1)
        total = np.zeros((4, 6), dtype=np.float32)
        for position in RANDOM.permutation(64):
            total += x[..., position]
        check = check_ops(("ReduceSum", [x], [total]))
        assert (check.checked, check.contradictions) == (1, ())

    def test_scores_with_mask_fill(self) -> None:
        scores = X.copy()
        scores[..., 20:] = -1e9
        exponentials = np.exp(scores - scores.max(-1, keepdims=True))
        probabilities = exponentials / exponentials.sum(-1, keepdims=True)
        check = check_ops(("Softmax", [scores], [probabilities]))
        assert (check.checked, check.contradictions) == (1, ())

    def test_values_beyond_the_range_of_float16_are_not_judged(self) -> None:
        x = np.array([300.0, 2.0, 3.0], dtype=np.float16)
        for largest in (np.inf, 65504.0):
            square = np.array([largest, 4.0, 9.0], dtype=np.float16)
            assert check_ops(("Square", [x], [square])).contradictions == ()


class TestDamage:
    """A damaged output, and a damaged input, say what was recorded and what follows."""

    @pytest.mark.parametrize(
        "damage",
        [
            pytest.param(lambda y: 1.3 * y, id="factor"),
            pytest.param(np.negative, id="sign"),
            pytest.param(np.zeros_like, id="zeros"),
            pytest.param(lambda y: np.where(y == y.max(), np.nan, y), id="nan"),
            pytest.param(lambda y: np.where(y == y.max(), 1.3 * y, y), id="one element"),
        ],
    )
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_a_product(self, damage: Callable[[AnyArray], AnyArray], dtype: str) -> None:
        product = damage(A @ B).astype(np.float32)
        (item,) = check_ops(("MatMul", [A, B], [product]), dtype=dtype).contradictions
        assert (item.kind, item.op, item.slot) == ("output", "MatMul-op0", "output.0")

    def test_the_message_names_both_numbers(self) -> None:
        x = np.array([1.0, 2.0, 4.0], dtype=np.float32)
        (item,) = check_ops(("Square", [x], [np.float32([1, 4, 20])])).contradictions
        assert item.message == (
            "Square-op0 output.0: the output is not what the operator computes from its recorded "
            "inputs, but 1 of 3 elements differ, such as 20 where it computes 16: a damaged "
            "record, or a wrong kernel"
        )

    def test_a_selection_has_no_values_that_were_not_read(self) -> None:
        parts = np.split(X, 2, axis=-1)
        assert check_ops(("Split", [X], [parts[0], parts[1]])).checked == 2
        (item,) = check_ops(("Split", [X], [parts[0], 1.3 * parts[1]])).contradictions
        assert item.slot == "output.1"
        assert "were not read" in item.computed

    def test_the_mean_of_a_layer_norm(self) -> None:
        mean = X.mean(-1, keepdims=True)
        variance = X.var(-1, keepdims=True)
        weight, bias = np.ones(32, dtype=np.float32), np.zeros(32, dtype=np.float32)
        output = (X - mean) / np.sqrt(variance + np.float32(1e-5))
        inputs = [X, weight, bias, np.array(-1), np.array(-1), np.array(1e-5)]
        sound: Op = ("LayerNorm", inputs, [output, mean, variance])
        assert check_ops(sound, sound).checked == 6
        damaged: Op = ("LayerNorm", inputs, [output, 1.3 * mean, variance])
        (item,) = check_ops(sound, damaged).contradictions
        assert (item.op, item.slot) == ("LayerNorm-op1", "output.1")


class TestWhatIsNotReported:
    """An op that cannot be computed counts as not checkable, never as sound."""

    def test_an_operator_without_arithmetic(self) -> None:
        check = check_ops(("FFT", [A], [A]))
        assert (check.checked, check.not_checkable) == (0, 1)

    def test_a_formula_that_no_op_of_the_kind_follows_is_not_that_of_the_kind(self) -> None:
        """The epsilon of this norm is 0.5; records of fused norms often have none."""
        weight = np.ones(32, dtype=np.float32)
        output = (X / np.sqrt(np.mean(X * X, -1, keepdims=True) + 0.5)).astype(np.float32)
        check = check_ops(("RmsNorm", [X, weight], [output]))
        assert (check.checked, check.not_checkable, check.contradictions) == (0, 1, ())

    def test_float16_files_with_half_of_the_float32_memory(self) -> None:
        """Seen on CPU: MatMul computes in float32, and the file is written as float16."""
        memory = (A @ B).reshape(-1).view(np.float16)
        check = check_ops(("MatMul", [A, B], [memory[: 24 * 16].reshape(24, 16)]))
        assert check.contradictions == ()


class TestRealDump:
    """A product of a MindSpore dump, damaged in every record of it."""

    def test_a_value_that_is_wrong_in_every_record_is_found(
        self, dump: Callable[[str], Path], tmp_path: Path
    ) -> None:
        damaged = link_dump(dump("ms_graph"), tmp_path)
        trace = dumpdiff.read(damaged)
        producer = find_row(trace, "0-Block/input_norm-RMSNorm/Mul-op0", "output.0")
        is_copy = (trace.tensors["content"] == trace.tensors["content"].iat[producer]).to_numpy()
        rows = np.flatnonzero(is_copy)
        assert len(rows) == 3  # written once, read twice
        for row in rows.tolist():
            change_npy(Path(trace.source.path) / trace.tensors["file"].iat[row], lambda x: 1.3 * x)
        items = dumpdiff.verify(damaged).contradictions
        assert {item.kind for item in items} == {"output"}
        assert any(item.op.endswith("input_norm-RMSNorm/Mul-op0") for item in items)
