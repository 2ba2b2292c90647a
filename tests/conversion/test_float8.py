"""8-bit weights with scales become the numbers that they represent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from weight_comparison.conftest import run_script

from dumpdiff.conversion import TargetOptions
from dumpdiff.model.errors import DumpError

from .conftest import Convert, convert_folder

torch = pytest.importorskip("torch")

State = dict[str, "torch.Tensor"]
#: A weight of 64 x 32 elements, and its 8 x 4 scales.
WEIGHT = "model.layers.1.mlp.experts.0.down_proj.weight"
SCALES = f"{WEIGHT}_scale_inv"


@pytest.fixture(scope="module")
def float8(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Path:
    """The tiny DeepSeek-V3 in 8 bits, quantized and read back by transformers."""
    folder = tmp_path_factory.mktemp("float8")
    run_script("float8_files.py", models / "deepseek", folder, 8)
    return folder


def load_weights(folder: Path) -> State:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("framework", ["huggingface", "megatron", "mindspore"])
def test_the_numbers_are_those_that_transformers_reads(
    convert_to: Convert, float8: Path, framework: str
) -> None:
    folder = convert_to(framework, float8 / "float8", dtype="bfloat16")
    if framework != "huggingface":
        folder = convert_to("huggingface", folder)
    weights, expected = load_weights(folder), load_weights(float8 / "decoded")
    assert set(weights) == set(expected)
    assert all(torch.equal(weights[name], value) for name, value in expected.items())
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())


def test_in_float32_nothing_is_rounded(convert_to: Convert, float8: Path) -> None:
    codes, exact = (
        load_weights(float8 / "float8"),
        load_weights(convert_to("huggingface", float8 / "float8", dtype="float32")),
    )
    scales = codes[SCALES].double().repeat_interleave(8, 0).repeat_interleave(8, 1)
    product = codes[WEIGHT].double() * scales
    assert torch.equal(exact[WEIGHT], product.float())


@pytest.fixture
def write_changed(tmp_path: Path, float8: Path) -> Callable[[Callable[[State], None]], Path]:
    """Write the 8-bit model with a change, and return its folder."""
    from safetensors.torch import save_file

    def write(change: Callable[[State], None]) -> Path:
        weights = load_weights(float8 / "float8")
        change(weights)
        folder = tmp_path / "changed"
        folder.mkdir()
        save_file(weights, folder / "model.safetensors")
        settings = json.loads((float8 / "float8" / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(settings))
        return folder

    return write


def drop_scales(weights: State) -> None:
    del weights[SCALES]


def crop_scales(weights: State) -> None:
    weights[SCALES] = weights[SCALES][:7].contiguous()


def spoil_scales(weights: State) -> None:
    weights[SCALES][0, 0] = -1
    weights[SCALES][1, 0] = float("nan")


def drop_weight(weights: State) -> None:
    del weights[WEIGHT]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop_scales, f"{WEIGHT} is float8_e4m3fn without {WEIGHT}_scale_inv"),
        (crop_scales, r"scale_inv: \(7, 4\) scales do not fit"),
        (spoil_scales, f"{SCALES}: 2 of 32 scales are negative or not finite"),
        (drop_weight, f"{SCALES} scales a weight that is missing"),
    ],
)
def test_wrong_and_missing_scales_are_named(
    tmp_path: Path,
    write_changed: Callable[[Callable[[State], None]], Path],
    change: Callable[[State], None],
    message: str,
) -> None:
    options = TargetOptions("megatron", dtype="bfloat16")
    with pytest.raises(DumpError, match=message):
        convert_folder(write_changed(change), tmp_path / "out", options)
