"""The packing of token files, derived from settings."""

from __future__ import annotations

from pathlib import Path

from dumpdiff.api.triage import triage
from dumpdiff.batches import Packing, derive_packings
from dumpdiff.diagnosis.case import Case, Run
from dumpdiff.run_settings import compare, read_settings

from .input_files import write_token_files

YAML = """
seed: 0
trainer: {type: CausalLanguageModelingTrainer}
runner_config: {epochs: 3, batch_size: 2, sink_mode: True}
parallel_config: {data_parallel: 4, model_parallel: 1, pipeline_stage: 1}
use_parallel: True
train_dataset:
  data_loader:
    type: BlendedMegatronDatasetDataLoader
    datasets_type: GPTDataset
    sizes: [800, 0, 0]
    config: {seed: 77, seq_length: 64, split: "1, 0, 0", data_path: [1, corpus]}
model:
  model_config: {type: LlamaConfig, seq_length: 64, num_layers: 2}
"""
SCRIPT = """#!/bin/bash
torchrun --nproc_per_node 4 pretrain_gpt.py --num-layers 2 --seq-length 64 --micro-batch-size 2 \\
    --global-batch-size 8 --train-iters 100 --seed 77 --split 1,0,0 --data-path corpus
"""


def write_settings(tmp_path: Path, script: str = SCRIPT) -> tuple[str, str]:
    (tmp_path / "pretrain.yaml").write_text(YAML)
    (tmp_path / "train.sh").write_text(script)
    return str(tmp_path / "pretrain.yaml"), str(tmp_path / "train.sh")


def test_the_packing_is_derived_from_the_settings_of_both_frameworks(tmp_path: Path) -> None:
    target, reference = derive_packings(compare(*map(read_settings, write_settings(tmp_path))))
    split = "1.0,0.0,0.0"
    assert target == Packing(64, 8, 2, 4, 77, split, 800, "mindformers")
    assert reference == Packing(64, 8, 2, 4, 77, split, 800, "megatron")


def test_missing_settings_are_megatrons_defaults(tmp_path: Path) -> None:
    _, script = write_settings(
        tmp_path, "torchrun pretrain_gpt.py --num-layers 2 --seq-length 32\n"
    )
    packing = derive_packings(compare(read_settings(script), read_settings(script)))[0]
    assert (packing.sequence_length, packing.micro_batch, packing.samples) == (32, 1, None)


def test_a_triage_packs_the_datasets_of_a_case_by_its_settings(tmp_path: Path) -> None:
    corpus = str(write_token_files(tmp_path / "corpus", documents=200))
    stages = []
    for script in (SCRIPT, SCRIPT.replace("--seed 77", "--seed 78")):
        yaml, launch = write_settings(tmp_path, script)
        case = Case(Run(settings=yaml, data=corpus), Run(settings=launch, data=corpus))
        stages += [stage for stage in triage(case).evidence.stages if stage.name == "data"]
    assert [stage.verdict for stage in stages] == ["agree", "differ"]
    assert (
        "8 samples go to a different rank" in stages[0].headline
    )  # the same samples, distributed differently
    assert "another batch" in stages[1].headline
