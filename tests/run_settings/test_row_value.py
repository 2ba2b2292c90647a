"""Settings are read from scripts, YAML, logs and saved arguments, each value with its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dumpdiff.model.errors import DumpError
from dumpdiff.run_settings import Settings, read_settings

SAMPLES = Path(__file__).parents[1] / "samples"


def read_text(tmp_path: Path, name: str, text: str) -> Settings:
    file = tmp_path / name
    file.write_text(text)
    return read_settings(file)


def test_a_megatron_script_gives_what_its_options_set() -> None:
    settings = read_settings(SAMPLES / "llama_megatron.sh")
    assert (settings.framework, settings.source) == ("megatron", "launch script")
    read_values = {
        name: settings.values[name].value
        for name in ("num_layers", "micro_batch_size", "bf16", "norm_epsilon")
    }
    assert read_values == {
        "num_layers": "2",
        "micro_batch_size": "1",
        "bf16": True,
        "norm_epsilon": "1e-5",
    }
    assert settings.values["add_bias_linear"].value is False
    assert settings.values["attention_backend"].value == "unfused"
    assert settings.values["num_layers"].place == "llama_megatron.sh:17"
    assert settings.values["world_size"].value == "8"
    assert settings.environment["HCCL_DETERMINISTIC"].value == "true"


def test_what_only_the_shell_knows_is_doubtful_not_guessed() -> None:
    setting = read_settings(SAMPLES / "llama_megatron.sh").values["load"]
    assert setting.doubt == "its value is $1, which only the shell knows"


def test_the_last_of_two_counts_and_an_equals_sign_is_read(tmp_path: Path) -> None:
    settings = read_text(
        tmp_path, "a.sh", "torchrun pretrain_gpt.py --lr 1 --lr=2e-4 --num-layers 2 --ckpt-step -1"
    )
    assert settings.values["lr"].value == "2e-4"
    assert settings.values["ckpt_step"].value == "-1"


@pytest.mark.parametrize("separator", [" ", "="])
def test_the_yaml_of_a_script_follows_a_space_or_an_equals_sign(
    tmp_path: Path, separator: str
) -> None:
    (tmp_path / "base.yaml").write_text("seed: 1\nuse_legacy: false\n")
    command = f"python run_mindformer.py --config{separator}base.yaml --seed{separator}$SEED"
    settings = read_text(tmp_path, "a.sh", command)
    assert settings.values["use_legacy"].value is False
    assert settings.values["seed"].doubt == "$SEED: only the shell knows it"


def test_a_switch_takes_no_value_so_what_follows_is_reported(tmp_path: Path) -> None:
    settings = read_text(
        tmp_path, "a.sh", "torchrun pretrain_gpt.py --num-layers 2 --bf16 $MORE_ARGS --lr 1"
    )
    assert settings.values["bf16"].value is True
    assert settings.notes == ("a.sh:1: '$MORE_ARGS' may hold options, which only the shell knows",)


def test_files_that_the_script_reads_are_noted(tmp_path: Path) -> None:
    settings = read_text(tmp_path, "a.sh", "source env.sh\ntorchrun pretrain_gpt.py --num-layers 2")
    assert settings.notes == ("a.sh:1: env.sh is read by the script, and was not read here",)


def test_a_command_in_quotes_is_read_too(tmp_path: Path) -> None:
    settings = read_text(
        tmp_path,
        "a.sh",
        'srun bash -c "torchrun --nproc_per_node 4 pretrain_gpt.py --num-layers 3 --lr 1"',
    )
    assert (settings.values["num_layers"].value, settings.values["world_size"].value) == ("3", "4")


@pytest.mark.parametrize(
    ("launcher", "world"),
    [
        ("torchrun --nproc_per_node 8 --nnodes=2", "16"),
        ("python -m torch.distributed.run --nproc-per-node=4", "4"),
        ("python", "1"),
        ("deepspeed --num_gpus 4", "4"),
        ("accelerate launch --num_processes=2", "2"),
        ("srun python", None),
        ("torchrun --standalone", None),
        ("torchrun --nproc_per_node $GPUS", None),
    ],
)
def test_the_launcher_says_how_many_processes_there_are(
    tmp_path: Path, launcher: str, world: str | None
) -> None:
    setting = read_text(tmp_path, "a.sh", f"{launcher} pretrain_gpt.py --num-layers 2").values.get(
        "world_size"
    )
    assert (None if setting is None else setting.value) == world


def test_a_training_under_an_open_condition_is_noted(tmp_path: Path) -> None:
    settings = read_text(
        tmp_path,
        "a.sh",
        'if [ -n "$1" ]; then\n  torchrun pretrain_gpt.py --num-layers 2\nfi',
    )
    assert settings.notes == (
        "a.sh:2: the training is started under a condition that the script does not decide",
        "a.sh: settings that follow from the arguments of the script ($1) are not known;"
        ' give it with them: "bash a.sh ..."',
    )


def test_a_script_may_be_given_with_its_arguments(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("torchrun pretrain_gpt.py --num-layers $1 --hidden-size $2 --bf16\n")
    settings = read_settings(f"bash {script} 4 64")
    assert (settings.values["num_layers"].value, settings.values["hidden_size"].value) == (
        "4",
        "64",
    )
    assert settings.notes == ()


def test_a_swift_script_gives_the_same_names() -> None:
    settings = read_settings(SAMPLES / "qwen_swift.sh")
    assert settings.framework == "swift"
    read_values = {
        name: settings.values[name].value
        for name in ("global_batch_size", "apply_rope_fusion", "add_bias_linear")
    }
    assert read_values == {
        "global_batch_size": "16",
        "apply_rope_fusion": False,
        "add_bias_linear": False,
    }
    assert settings.values["world_size"].value == "4"
    assert settings.environment["CUDA_VISIBLE_DEVICES"].value == "0,1,2,3"


def test_a_mindspore_transformers_yaml_gives_dotted_names_with_lines() -> None:
    settings = read_settings(SAMPLES / "llama.yaml")
    assert settings.framework == "mindformers"
    assert settings.values["optimizer.betas"].value == [0.9, 0.95]
    assert settings.values["model.model_config.rms_norm_eps"].place == "llama.yaml:55"
    assert settings.values["callbacks.MFLossMonitor.per_print_times"].value == 1


def test_a_launch_of_mindspore_transformers_sets_options_over_its_yaml() -> None:
    settings = read_settings(SAMPLES / "msrun.sh")
    assert settings.values["runner_config.epochs"].value == "3"
    assert settings.values["lr_schedule.learning_rate"].value == "2e-5"
    assert settings.values["model.model_config.num_hidden_layers"].value == "4"
    assert settings.values["model.model_config.hidden_size"].value == 4096


def test_a_true_in_options_is_false_and_said_so() -> None:
    settings = read_settings(SAMPLES / "msrun.sh")
    assert settings.values["runner_wrapper.use_clip_grad"].value is False
    assert "sets runner_wrapper.use_clip_grad to False" in settings.notes[0]


def test_later_keys_count_merges_are_followed_and_parents_read(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("seed: 1\nuse_legacy: False\n")
    text = "base_config: base.yaml\nseed: 2\na: &a {x: 1, y: 1}\nb:\n  <<: *a\n  y: 2\n"
    text += "runner_config: {epochs: 1}\nrunner_config: {epochs: 2}\n"
    values = read_text(tmp_path, "a.yaml", text).values
    read_values = {
        name: values[name].value
        for name in ("seed", "use_legacy", "b.x", "b.y", "runner_config.epochs")
    }
    assert read_values == {
        "seed": 2,
        "use_legacy": False,
        "b.x": 1,
        "b.y": 2,
        "runner_config.epochs": 2,
    }
    assert values["use_legacy"].place == "base.yaml:2"


def test_a_parent_outside_the_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("token: 1")
    (tmp_path / "in").mkdir()
    settings = read_text(tmp_path / "in", "a.yaml", "base_config: ../secret\nrun_mode: train\n")
    assert "token" not in settings.values
    assert "was not read" in settings.notes[0]


def test_a_number_that_yaml_takes_for_a_text_is_noted(tmp_path: Path) -> None:
    settings = read_text(
        tmp_path, "a.yaml", "run_mode: train\nuse_legacy: true\noptimizer:\n  a: 1\n  eps: 1e-8\n"
    )
    assert settings.notes == (
        "a.yaml:5: 1e-8 is a text in YAML 1.1, not a number; write it with a dot",
    )


ARGUMENTS = """noise
------------------------ arguments ------------------------
  add_bias_linear ................................. False
  barrier_with_L1_time ............................ True
  config_logger_dir ............................... 
  inference_dynamic_batching_buffer_guaranteed_fraction  0.2
  params_dtype .................................... torch.bfloat16
-------------------- end of arguments ---------------------
  num_layers ...................................... 7
 [2026-11-21 01:51:13.123456] iteration        1/       6 | consumed samples:            4 |
"""


def test_the_arguments_of_a_log_are_effective_values(tmp_path: Path) -> None:
    settings = read_text(tmp_path, "run.log", ARGUMENTS)
    assert settings.effective
    assert {name: setting.value for name, setting in settings.values.items()} == {
        "add_bias_linear": "False",
        "barrier_with_L1_time": "True",
        "config_logger_dir": "",
        "inference_dynamic_batching_buffer_guaranteed_fraction": "0.2",
        "params_dtype": "torch.bfloat16",
    }
    assert settings.values["params_dtype"].place == "run.log:7"


def test_of_a_restarted_run_the_last_arguments_count(tmp_path: Path) -> None:
    settings = read_text(tmp_path, "run.log", ARGUMENTS + ARGUMENTS.replace("False", "True"))
    assert settings.values["add_bias_linear"].value == "True"


def test_the_arguments_that_swift_prints_and_saves_are_read(tmp_path: Path) -> None:
    printed = (
        "[INFO:swift] args: MegatronTrainArguments(\n"
        "lr=1e-05,\nno_rope_fusion=True,\nmodel_type='qwen2',\n)\n"
    )
    arguments = {"lr": 1e-5, "no_rope_fusion": True, "model_type": "qwen2", "train_iters": 8}
    saved = json.dumps(arguments)
    for settings in (
        read_text(tmp_path, "run.log", printed),
        read_text(tmp_path, "args.json", saved),
    ):
        assert settings.framework == "swift"
        assert settings.values["apply_rope_fusion"].value is False
        assert float(settings.values["lr"].value) == 1e-5


def test_options_of_swift_may_stand_in_a_yaml(tmp_path: Path) -> None:
    settings = read_text(tmp_path, "sft.yaml", "global_batch_size: 16\nno_rope_fusion: true\n")
    assert settings.framework == "swift"
    assert settings.values["apply_rope_fusion"].value is False


def test_a_script_that_takes_the_structure_from_a_checkpoint_is_noted(tmp_path: Path) -> None:
    settings = read_text(
        tmp_path, "a.sh", "torchrun pretrain_gpt.py --num-layers 2 --use-checkpoint-args"
    )
    assert "the checkpoint's arguments override those of the script" in settings.notes[0]


def test_arguments_saved_with_a_checkpoint_are_megatron_ones(tmp_path: Path) -> None:
    arguments = {"num_layers": 2, "add_bias_linear": False, "seq_length": 8}
    saved = {**arguments, "train_iters": 4, "ffn_hidden_size": 8}
    settings = read_text(tmp_path, "args.json", json.dumps({"args": saved}))
    assert (settings.framework, settings.values["num_layers"].value) == ("megatron", 2)


#: Eight lists, each of eight times the one before: eight to the ninth values.
ALIASES = "a0: &a0 [x]\n" + "".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 8)}]\n" for i in range(1, 10)
)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.sh", "echo hello", "no training is started"),
        ("a.sh", "python convert.py --input x", "no training is started"),
        (
            "a.sh",
            'bash msrun_launcher.sh "run_mindformer.py --config gone.yaml" 8',
            "there is no gone.yaml",
        ),
        ("a.sh", "python run_mindformer.py --config $1", "has no --config"),
        ("a.sh", "python run_mindformer.py --config=$1", "has no --config"),
        ("a.yaml", "- 1\n- 2\n", "expected a YAML mapping"),
        ("a.yaml", "a: [1\nb: 2\n", "a.yaml:2: no valid YAML"),
        ("a.yaml", "a: " + "[" * 5000, "a.yaml"),
        ("a.json", "{", "no valid JSON"),
        ("a.log", "\0\0", "is binary"),
        ("a.yaml", ALIASES, "more than 20000"),
    ],
)
def test_what_holds_no_settings_is_refused_in_one_line(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    with pytest.raises(DumpError, match=message) as refused:
        read_text(tmp_path, name, text)
    assert "\n" not in str(refused.value)


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="is a folder"):
        read_settings(tmp_path)
    with pytest.raises(DumpError, match="no such file"):
        read_settings(tmp_path / "gone")
