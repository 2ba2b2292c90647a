"""Mamba 2: the parts of its weights, on every split of Megatron-core, and back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dumpdiff import checkpoints
from dumpdiff.conversion import ParallelSizes, TargetOptions
from dumpdiff.model.errors import DumpError

from .conftest import Convert, convert_folder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

#: What Megatron's arguments say about the model below.
ARGUMENTS = {
    "hybrid_override_pattern": "MMM",
    "spec": ["megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec"],
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "mamba_num_groups": 2,
    "mamba_state_dim": 12,
    "position_embedding_type": "none",
    "normalization": "RMSNorm",
    "fp32_residual_connection": False,
    "untie_embeddings_and_output_weights": False,
}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tensor": 2},
        {"pipeline": 3},
        {"tensor": 2, "pipeline": 2, "stage_layers": (1, 2)},
        {"is_distributed": True},
    ],
    ids=str,
)
def test_every_split_and_back(convert_to: Convert, mamba: Path, options: dict[str, object]) -> None:
    megatron = convert_to("megatron", mamba, **options)
    back = convert_to("huggingface", megatron)
    weights, written = (load_file(folder / "model.safetensors") for folder in (mamba, back))
    assert weights.keys() == written.keys()
    for name, value in weights.items():
        assert np.array_equal(value, written[name]), name
    tokens = torch.arange(3, 27).reshape(2, 12)
    models = (
        transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for folder in (mamba, back)
    )
    with torch.no_grad():
        expected, logits = (model(tokens).logits for model in models)
    assert torch.equal(logits, expected)


def test_the_arguments_say_what_the_model_computes(convert_to: Convert, mamba: Path) -> None:
    megatron = convert_to("megatron", mamba)
    arguments = checkpoints.open(megatron).settings
    assert {name: arguments[name] for name in ARGUMENTS} == ARGUMENTS
    split_again = checkpoints.open(convert_to("megatron", megatron, tensor=2)).settings
    assert {name: split_again[name] for name in ARGUMENTS} == ARGUMENTS
    config = json.loads((convert_to("huggingface", megatron) / "config.json").read_text())
    expected = json.loads((mamba / "config.json").read_text())
    for name in ("num_heads", "head_dim", "n_groups", "state_size", "expand", "conv_kernel"):
        assert config[name] == expected[name], name
    assert config["residual_in_fp32"] is False


def test_numbers_that_megatron_core_has_as_constants_are_said(tmp_path: Path, mamba: Path) -> None:
    source = tmp_path / "source"
    change_config(mamba, source, layer_norm_epsilon=1e-6, time_step_limit=[0.0, 0.5])
    plan = convert_folder(source, tmp_path / "out", TargetOptions("megatron")).plan
    (note,) = plan.notes
    assert "no place for time_step_limit [0.0, 0.5], the epsilon 1e-06 of the norm in a mix" in note


def change_config(source: Path, folder: Path, **settings: object) -> None:
    folder.mkdir()
    config = json.loads((source / "config.json").read_text()) | settings
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (ParallelSizes(tensor=4), "--tp 4: 2 groups of the mixers do not divide by it"),
        (ParallelSizes(pipeline=3, virtual=1, expert=2), "the model has no experts"),
        (
            ParallelSizes(pipeline=2, virtual=2, stage_layers=(1, 1, 1, 0)),
            "--vpp: Megatron-core has no virtual stages of Mamba",
        ),
        (
            ParallelSizes(pipeline=4, stage_layers=(1, 0, 1, 1)),
            "--stage-layers: in Megatron-core only the first and the last stage",
        ),
    ],
)
def test_splits_that_megatron_core_cannot_have_are_refused(
    tmp_path: Path, mamba: Path, sizes: ParallelSizes, message: str
) -> None:
    with pytest.raises(DumpError, match=message):
        convert_folder(mamba, tmp_path / "out", TargetOptions("megatron", sizes=sizes))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda name, value: {name: value[..., :3]} if "conv1d.weight" in name else None,
            "mixers have 4 elements, and this one has 3",
        ),
        (
            lambda name, value: {} if "conv1d.bias" in name else None,
            "mixers have a bias of the convolution",
        ),
        (
            lambda name, value: (
                {name: value, name.replace("weight", "bias"): value[:, 0]}
                if "out_proj" in name
                else None
            ),
            "mixers have no biases of projections",
        ),
        (
            lambda name, value: (
                {name: value, "backbone.layers.3.self_attn.q_proj.weight": value}
                if "norm_f" in name
                else None
            ),
            "layers of Mamba and of attention",
        ),
        (
            lambda name, value: {} if "layers.1.mixer.A_log" in name else None,
            "sizes of its parts are unknown",
        ),
    ],
    ids=["kernel", "no bias", "bias", "hybrid", "incomplete"],
)
def test_mixers_that_megatron_core_does_not_have_are_refused(
    tmp_path: Path, mamba: Path, change: object, message: str
) -> None:
    source = tmp_path / "source"
    change_config(mamba, source)
    weights: dict[str, np.ndarray] = {}
    for name, value in load_file(source / "model.safetensors").items():
        replacement = change(name, value)
        weights |= {name: value} if replacement is None else replacement
    weights = {name: np.ascontiguousarray(value) for name, value in weights.items()}
    save_file(weights, source / "model.safetensors")
    with pytest.raises(DumpError, match=message):
        convert_folder(source, tmp_path / "out", TargetOptions("megatron"))


@pytest.mark.record
def test_megatron_core_loads_every_rank(convert_to: Convert, mamba: Path) -> None:
    """Real MambaModels of all ranks, one after the other: names, shapes and layers."""
    folders = [
        convert_to("megatron", mamba, tensor=2, pipeline=3),
        convert_to("megatron", mamba, pipeline=2, stage_layers=(2, 1)),
    ]
    script = Path(__file__).parent / "megatron_ranks.py"
    process = subprocess.run(
        [sys.executable, script, *folders], capture_output=True, text=True, check=False, timeout=600
    )
    assert process.returncode == 0, process.stderr[-2000:]
    even, uneven = (
        {place: rank["layers"] for place, rank in ranks.items()}
        for ranks in json.loads(process.stdout)
    )
    assert even == {
        f"mp_rank_{tensor:02d}_{stage:03d}": [[stage]] for tensor in (0, 1) for stage in range(3)
    }
    assert uneven == {"mp_rank_00_000": [[0, 1]], "mp_rank_00_001": [[2]]}
