"""8-bit weights with scales, as DeepSeek-V3 is published, agree if only their rounding differs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dumpdiff.checkpoints.elements import decode
from dumpdiff.weight_comparison import casts
from dumpdiff.weight_comparison.computed_matrix import (
    add_matrices,
    apply_block_scales,
    extract_scales,
)
from dumpdiff.weight_comparison.matrix import Matrix, concatenate_rows

from .conftest import compare_files, run_script

torch = pytest.importorskip("torch")

State = dict[str, "torch.Tensor"]


@pytest.fixture(scope="module")
def float8(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Path:
    """The tiny DeepSeek-V3 in 8 bits, see float8_files.py."""
    folder = tmp_path_factory.mktemp("float8")
    run_script("float8_files.py", models / "deepseek", folder, 8)
    return folder


@pytest.mark.parametrize("turned", [False, True], ids=["target", "reference"])
@pytest.mark.parametrize(
    ("other", "rounding"),
    [
        ("bfloat16", "rounded to float8_e4m3fn, nearest"),
        ("decoded", "rounded to bfloat16, nearest"),
    ],
)
def test_every_element_is_explained_by_one_rounding(
    float8: Path, other: str, rounding: str, turned: bool
) -> None:
    pair = float8 / "float8", float8 / other
    result = compare_files(*(reversed(pair) if turned else pair))

    assert (result.verdict, result.relation, result.mistakes) == ("agree", "rounded", ())
    assert result.missing == result.unknown == ()
    assert result.coverage == 1
    eight = [pair for pair in result.pairs if "float8_e4m3fn" in pair.dtypes]
    assert len(eight) == 28
    side = "reference" if (other == "bfloat16") == turned else "target"
    assert {pair.rounding for pair in eight} == {f"{side} {rounding}"}
    assert any(
        "28 parameters are float8_e4m3fn with a scale for each 8 x 8 elements" in note
        for note in result.notes
    )


def test_weights_rounded_twice_are_within_noise(float8: Path, models: Path) -> None:
    """float32 to bfloat16 to 8 bits."""
    result = compare_files(float8 / "float8", models / "deepseek")
    assert (result.verdict, result.relation, result.mistakes) == ("agree", "noise", ())


def write_changed_weights(float8: Path, file: Path, change: Callable[[State], None]) -> Path:
    from safetensors.torch import load_file, save_file

    weights = load_file(float8 / "float8" / "model.safetensors")
    change(weights)
    save_file(weights, file)
    return file


_GATE, _UP = (f"model.layers.0.mlp.{part}_proj.weight" for part in ("gate", "up"))


def test_one_wrong_scale_is_found(tmp_path: Path, float8: Path) -> None:
    def double_scale(weights: State) -> None:
        weights[f"{_GATE}_scale_inv"][3, 2] *= 2

    result = compare_files(
        write_changed_weights(float8, tmp_path / "t.safetensors", double_scale), float8 / "bfloat16"
    )
    assert [pair.path for pair in result.mistakes] == ["layers.0.mlp.gate_proj.weight"]
    assert "8 of 176 rows (24 to 31)" in result.mistakes[0].mistake.summary


def test_gate_and_up_that_are_exchanged_with_their_scales_are_found(
    tmp_path: Path, float8: Path
) -> None:
    def exchange(weights: State) -> None:
        for end in ("", "_scale_inv"):
            weights[_GATE + end], weights[_UP + end] = weights[_UP + end], weights[_GATE + end]

    result = compare_files(
        write_changed_weights(float8, tmp_path / "t.safetensors", exchange), float8 / "bfloat16"
    )
    assert {
        pair.path: (pair.mistake.kind, pair.mistake.actual_parameter) for pair in result.mistakes
    } == {
        "layers.0.mlp.gate_proj.weight": ("swapped", "layers.0.mlp.up_proj.weight"),
        "layers.0.mlp.up_proj.weight": ("swapped", "layers.0.mlp.gate_proj.weight"),
    }


@pytest.mark.parametrize("shape", [(), (1,), (176,), (176, 1), (2, 1)])
def test_scales_may_be_per_weight_per_row_or_per_128_rows(
    tmp_path: Path, float8: Path, shape: tuple[int, ...]
) -> None:
    """Also where 128 does not divide: 176 rows are two blocks, 64 columns one."""
    scales = torch.rand(shape, generator=torch.Generator().manual_seed(1)) + 0.5
    codes = torch.randn(176, 64, generator=torch.Generator().manual_seed(2)).to(torch.float8_e4m3fn)
    of_row = scales.repeat_interleave(128, 0)[:176] if shape == (2, 1) else scales.reshape(-1, 1)
    torch.save({_GATE: codes, f"{_GATE}_scale": scales}, tmp_path / "t.pt")
    torch.save({_GATE: codes.float() * of_row}, tmp_path / "r.pt")
    result = compare_files(tmp_path / "t.pt", tmp_path / "r.pt")
    assert (result.verdict, result.relation, result.unknown) == ("agree", "identical", ())


def test_scales_that_do_not_fit_are_a_problem(tmp_path: Path, float8: Path) -> None:
    def cut(weights: State) -> None:
        weights[f"{_GATE}_scale_inv"] = weights[f"{_GATE}_scale_inv"][:3].clone()

    result = compare_files(
        write_changed_weights(float8, tmp_path / "t.safetensors", cut), float8 / "bfloat16"
    )
    assert any("(3, 8) scales do not fit" in str(problem) for problem in result.problems)
    assert result.verdict == "differ"


@given(
    arrays(np.float32, 64, elements=st.floats(-460, 460, width=32)),
    st.sampled_from([2.0**-12, 1.0, 8.0]),
)
def test_rounding_to_8_bits_equals_torch(values: np.ndarray, step: float) -> None:
    scales = np.full_like(values, step)
    values = values * np.float32(step)
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        quotient = torch.from_numpy(values / scales).clamp(-448, 448)
        codes = quotient.to(getattr(torch, dtype)).view(torch.uint8).numpy()
        assert casts.is_float8_rounding(
            np.clip(values, -448 * step, 448 * step), scales, decode(codes, dtype) * scales, dtype
        )
        other = decode(codes ^ 1, dtype) * scales
        errors = (quotient.to(getattr(torch, dtype)).float() - quotient).abs().numpy() * step
        nearer = np.abs(other - values) < errors
        assert not nearer.any()


@st.composite
def draw_computed_matrices(draw: st.DrawFn) -> tuple[Matrix, np.ndarray]:
    """Draw stacked 8-bit weights with scales, or a sum, with the equal array."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    width = draw(st.integers(1, 9))
    block = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    matrices, arrays_ = [], []
    for _ in range(draw(st.integers(1, 3))):
        height = draw(st.integers(1, 9))
        codes = random.integers(0, 127, (height, width)).astype(np.uint8)
        grid = random.random((-(-height // block[0]), -(-width // block[1]))).astype(np.float32)
        matrices.append(
            apply_block_scales(
                Matrix.from_array(codes, "float8_e4m3fn"), Matrix.from_array(grid, "float32"), block
            )
        )
        wide = np.repeat(np.repeat(grid, block[0], 0), block[1], 1)[:height, :width]
        arrays_.append(decode(codes, "float8_e4m3fn") * wide)
    matrix, array = concatenate_rows(matrices), np.concatenate(arrays_)
    if draw(st.booleans()):
        array = 2 * array.astype(np.float64) - array + 3
        matrix = add_matrices((2.0, matrix), (-1.0, matrix), constant=3.0)
    return (matrix.T, array.T) if draw(st.booleans()) else (matrix, array)


@given(draw_computed_matrices(), st.data())
def test_computed_matrices_equal_their_arrays(
    matrix_and_array: tuple[Matrix, np.ndarray], data: st.DataObject
) -> None:
    matrix, array = matrix_and_array
    assert matrix.shape == array.shape
    assert matrix.precision == "float8_e4m3fn"
    rows = np.array(data.draw(st.lists(st.integers(0, len(array) - 1), max_size=6)), dtype=np.int64)
    np.testing.assert_array_equal(matrix.read_raw(rows), array[rows])
    start, stop = sorted(
        data.draw(st.tuples(st.integers(0, len(array)), st.integers(0, len(array))))
    )
    np.testing.assert_array_equal(matrix.read_raw(slice(start, stop)), array[start:stop])
    if start < stop:
        np.testing.assert_array_equal(
            matrix.slice_rows(start, stop).read_raw(slice(0, stop - start)), array[start:stop]
        )
    assert (extract_scales(matrix) is None) == (matrix.dtype == "float64")
