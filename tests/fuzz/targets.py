"""Every reader with a sound input, the file of it that is mutated, and the call that reads it."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import yaml

import dumpdiff
from dumpdiff import checkpoints, run_settings, weight_comparison
from dumpdiff.capture.environment import build_environment
from dumpdiff.diagnosis.case import load_case
from dumpdiff.gradient_norms import read_norms
from dumpdiff.graph import build_flow
from dumpdiff.model.saved_result import read_saved_result
from dumpdiff.model.trace import Trace
from dumpdiff.optimizers.script_settings import read_settings
from dumpdiff.readers.files import load_tensor
from dumpdiff.rulebook import load_rules
from dumpdiff.training_logs import compare, read_log
from dumpdiff.verification import verify_trace

from . import mutations
from .mutations import Mutation

FIXTURES = Path(__file__).parents[2] / "fixtures" / "data"
SAMPLES = Path(__file__).parents[1] / "samples"
RULES = Path(__file__).parents[2] / "rules"
CORPUS = Path(__file__).parents[1] / "corpus"
SEEDS = Path(__file__).with_name("seeds.tar.xz")

_CASE = """\
target: {settings: llama.yaml, version: "1.7"}
reference: {settings: llama_megatron.sh}
min_steps: 10
"""
_MAPPING = "Cell.network.0.forward.output.0: Module.network.0.forward.output.0\n"
_OPTIMIZER = "learning_rate: [1.0e-3, 2.0e-3]\nbetas: [0.9, 0.999]\neps: 1.0e-8\nstep: 1\n"
_DUMP_CONFIG = """\
{"common_dump_settings": {"op_debug_mode": 0, "dump_mode": 0, "path": "/data", "net_name": "n",
"iteration": "0|2-4", "saved_data": "tensor", "input_output": 0, "kernels": ["Default/Add-op0"],
"support_device": [0, 1]}, "e2e_dump_settings": {"enable": true, "trans_flag": true}}
"""


@dataclass(frozen=True)
class Target:
    """One reader."""

    name: str
    write_seed: Callable[[Path], object]  #: writes a sound input into a folder
    file: str  #: name or pattern of the file in it that is mutated
    mutate: Mutation
    read: Callable[[Path], object]  #: gets the folder

    def build(self, folder: Path) -> Path:
        """Write the sound input into a folder, and return the file that is mutated."""
        self.write_seed(folder)
        return min(folder.rglob(self.file))


def _unpack(name: str) -> Callable[[Path], None]:
    """Write a shipped fixture."""

    def unpack(folder: Path) -> None:
        with tarfile.open(FIXTURES / f"{name}.tar.xz") as archive:
            archive.extractall(folder, filter="data")

    return unpack


def _unpack_seeds(folder: Path) -> None:
    with tarfile.open(SEEDS) as archive:
        archive.extractall(folder, filter="data")


def _copy_log(name: str) -> Callable[[Path], object]:
    return lambda folder: shutil.copy(SAMPLES / name, folder / "a.log")


def _copy_samples(folder: Path) -> None:
    for sample in SAMPLES.iterdir():
        if sample.is_file():
            shutil.copy(sample, folder)
    (folder / "case.yaml").write_text(_CASE)


def _write(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def _read_excerpt(name: str) -> Callable[[Path], object]:
    return lambda folder: read_log(folder / name)


def _read_document(name: str) -> Callable[[Path], object]:
    """Read settings, a script as if it were started with arguments."""

    def read(folder: Path) -> None:
        file = str(folder / name)
        settings = run_settings.read_settings(
            f"bash {file} a 8B 1" if name.endswith(".sh") else file
        )
        run_settings.compare(settings, settings)

    return read


def _list_corpus_targets() -> Iterator[Target]:
    """Yield the first excerpt of a log of every format, and every document of settings."""
    formats = set()
    for excerpt in yaml.safe_load((CORPUS / "logs.yaml").read_text(encoding="utf-8")):
        name, file = excerpt.get("format"), excerpt["file"]
        if name is None or name in formats or "held_out" in excerpt:
            continue
        formats.add(name)
        write = _write(file, excerpt["text"])
        yield Target(f"excerpt_{name}", write, file, mutations.mutate_lines, _read_excerpt(file))
    documents = yaml.safe_load((CORPUS / "settings_pairs.yaml").read_text(encoding="utf-8"))
    for file, text in documents["documents"].items():
        name = f"settings_{file}"
        yield Target(name, _write(file, text), file, mutations.mutate_lines, _read_document(file))


def _copy_rules(name: str) -> Callable[[Path], object]:
    return lambda folder: shutil.copy(RULES / name, folder / "rules.yaml")


def _save_result(folder: Path) -> None:
    """Write a complete result whose dumps are not needed."""
    _unpack("pt_gpt2")(folder)
    _unpack("pt_gpt2_no_bias")(folder)
    dumpdiff.align(folder / "pt_gpt2", folder / "pt_gpt2_no_bias", output=folder / "result")


_load_shipped_rules = cache(load_rules)


def _read_dump(folder: Path) -> None:
    """Read a dump, derive its dataflow and check it, as every command on dumps does."""
    trace = dumpdiff.read(folder)
    build_flow(trace)
    verify_trace(trace, _load_shipped_rules())


def _read_dump_in(name: str) -> Callable[[Path], None]:
    return lambda folder: _read_dump(folder / name)


def _read_arrays(folder: Path) -> None:
    trace: Trace = dumpdiff.read(folder)
    for row in np.flatnonzero(trace.tensors["file"].to_numpy() != "")[:20].tolist():
        trace.array(row)


def _align(folder: Path) -> None:
    """Compare a mutated dump with the sound one, which is a copy next to it."""
    sound = folder.parent / "sound"
    if not sound.exists():
        shutil.copytree(folder, sound)
    dumpdiff.align(folder, sound).to_json()


def _read_checkpoint(name: str) -> Callable[[Path], object]:
    """Join the pieces of a checkpoint and compare it with itself."""

    def read(folder: Path) -> None:
        opened = checkpoints.open(folder / name)
        weight_comparison.compare(opened, opened, _load_shipped_rules())

    return read


def _compare_settings(name: str) -> Callable[[Path], object]:
    return lambda folder: dumpdiff.settings(folder / name, folder / "llama_megatron.sh")


def _compare_data(name: str) -> Callable[[Path], object]:
    return lambda folder: dumpdiff.data(
        folder / name, folder / name, seq_length=16, global_batch_size=2, samples=4
    )


def _load_rules(folder: Path) -> None:
    load_rules([folder / "rules.yaml"])


def _compare_logs(folder: Path) -> None:
    curves = read_log(folder / "a.log")
    compare(curves, curves)


def _load_result(folder: Path) -> None:
    dumpdiff.load(folder / "result").to_json()


TARGETS = (
    Target(
        "npy",
        _unpack_seeds,
        "weight.npy",
        mutations.mutate_npy,
        lambda f: load_tensor(f, "weight.npy"),
    ),
    Target(
        "pt",
        _unpack_seeds,
        "tensor.pt",
        mutations.mutate_zip,
        lambda f: load_tensor(f, "tensor.pt"),
    ),
    Target("statistic_csv", _unpack("ms_gpt2"), "statistic.csv", mutations.mutate_csv, _read_dump),
    Target(
        "statistic_csv_bytes",
        _unpack("ms_gpt2"),
        "statistic.csv",
        mutations.mutate_bytes,
        _read_dump,
    ),
    Target("pb", _unpack("ms_gpt2"), "*.pb", mutations.mutate_bytes, _read_dump),
    Target("ir", _unpack("ms_gpt2"), "*.ir", mutations.mutate_lines, _read_dump),
    Target("dump_json", _unpack("pt_gpt2"), "dump.json", mutations.mutate_json, _read_dump),
    Target("dump_json_bytes", _unpack("pt_gpt2"), "dump.json", mutations.mutate_bytes, _read_dump),
    Target("stack_json", _unpack("pt_gpt2"), "stack.json", mutations.mutate_json, _read_dump),
    Target(
        "construct_json", _unpack("pt_gpt2"), "construct.json", mutations.mutate_json, _read_dump
    ),
    Target(
        "debug_mode",
        _unpack("debug_mode"),
        "clean/debug_mode.txt",
        mutations.mutate_lines,
        _read_dump_in("debug_mode/clean"),
    ),
    Target(
        "torchtitan",
        _unpack("torchtitan"),
        "clean/*.log",
        mutations.mutate_lines,
        _read_dump_in("torchtitan/clean"),
    ),
    Target(
        "sglang",
        _unpack("sglang"),
        "values/step=0*dump_index=1_*.pt",
        mutations.mutate_zip,
        _read_dump_in("sglang/values"),
    ),
    Target(
        "polygraphy",
        _unpack("polygraphy"),
        "clean/outputs.json",
        mutations.mutate_json,
        _read_dump_in("polygraphy/clean"),
    ),
    Target(
        "norm_events",
        _unpack("norm_events"),
        "lightning/events*",
        mutations.mutate_bytes,
        lambda f: read_norms(f / "norm_events/lightning"),
    ),
    Target(
        "msprobe_monitor",
        _unpack("msprobe_monitor"),
        "clean/v2/rank_0/weight_grad_step0-0.csv",
        mutations.mutate_csv,
        lambda f: read_norms(f / "msprobe_monitor/clean/v2"),
    ),
    Target(
        "monitor",
        _unpack("msprobe_monitor"),
        "modules/v1/*/actv_0-0.csv",
        mutations.mutate_csv,
        _read_dump_in("msprobe_monitor/modules/v1"),
    ),
    Target("align", _unpack("pt_gpt2"), "dump.json", mutations.mutate_json, _align),
    Target("align_csv", _unpack("ms_gpt2"), "statistic.csv", mutations.mutate_csv, _align),
    Target(
        "pkl", _unpack("v6.0_api_stack_summary"), "*.pkl", mutations.mutate_json_lines, _read_dump
    ),
    Target(
        "pkl_md5", _unpack("v6.0_api_stack_md5"), "*.pkl", mutations.mutate_json_lines, _read_dump
    ),
    Target(
        "safetensors",
        _unpack_seeds,
        "model.safetensors",
        mutations.mutate_safetensors,
        _read_checkpoint("model.safetensors"),
    ),
    Target("npz", _unpack_seeds, "model.npz", mutations.mutate_zip, _read_checkpoint("model.npz")),
    Target("torch", _unpack_seeds, "model.pt", mutations.mutate_zip, _read_checkpoint("model.pt")),
    Target(
        "ckpt", _unpack_seeds, "model.ckpt", mutations.mutate_bytes, _read_checkpoint("model.ckpt")
    ),
    Target(
        "megatron",
        _unpack_seeds,
        "model_optim_rng.pt",
        mutations.mutate_zip,
        _read_checkpoint("megatron"),
    ),
    Target(
        "torch_dist",
        _unpack_seeds,
        ".metadata",
        mutations.mutate_bytes,
        _read_checkpoint("torch_dist"),
    ),
    Target(
        "distcp", _unpack_seeds, "*.distcp", mutations.mutate_bytes, _read_checkpoint("torch_dist")
    ),
    Target(
        "result_json",
        _save_result,
        "result.json",
        mutations.mutate_json,
        lambda f: read_saved_result(f / "result/result.json"),
    ),
    Target("result_npz", _save_result, "complete.npz", mutations.mutate_zip, _load_result),
    Target("idx", _unpack_seeds, "data.idx", mutations.mutate_bytes, _compare_data("data")),
    Target("bin", _unpack_seeds, "data.bin", mutations.mutate_bytes, _compare_data("data")),
    Target("batch", _unpack_seeds, "batch.npz", mutations.mutate_zip, _compare_data("batch.npz")),
    Target(
        "log_megatron",
        _copy_log("logs/megatron_0.17.log"),
        "a.log",
        mutations.mutate_lines,
        _compare_logs,
    ),
    Target(
        "log_mindformers",
        _copy_log("logs/mindformers_1.6.log"),
        "a.log",
        mutations.mutate_lines,
        _compare_logs,
    ),
    Target(
        "norms",
        _copy_log("norms/megatron_0.12_local_norm.log"),
        "a.log",
        mutations.mutate_lines,
        lambda f: read_norms(f / "a.log"),
    ),
    Target(
        "yaml", _copy_samples, "llama.yaml", mutations.mutate_yaml, _compare_settings("llama.yaml")
    ),
    Target(
        "script",
        _copy_samples,
        "qwen_swift.sh",
        mutations.mutate_lines,
        _compare_settings("qwen_swift.sh"),
    ),
    Target(
        "megatron_script",
        _copy_samples,
        "llama_megatron.sh",
        mutations.mutate_lines,
        _compare_settings("llama_megatron.sh"),
    ),
    Target(
        "model_config",
        _copy_samples,
        "config.json",
        mutations.mutate_json,
        lambda f: dumpdiff.settings(
            f / "qwen_swift.sh", f / "llama_megatron.sh", target_config=f / "config.json"
        ),
    ),
    Target(
        "case",
        _copy_samples,
        "case.yaml",
        mutations.mutate_yaml,
        lambda f: load_case(f / "case.yaml"),
    ),
    Target(
        "rules_scopes",
        _copy_rules("scopes/gpt2.yaml"),
        "rules.yaml",
        mutations.mutate_yaml,
        _load_rules,
    ),
    Target(
        "rules_operators",
        _copy_rules("operators.yaml"),
        "rules.yaml",
        mutations.mutate_yaml,
        _load_rules,
    ),
    Target(
        "rules_tolerances",
        _copy_rules("tolerances.yaml"),
        "rules.yaml",
        mutations.mutate_yaml,
        _load_rules,
    ),
    Target(
        "mapping",
        _write("mapping.yaml", _MAPPING),
        "mapping.yaml",
        mutations.mutate_yaml,
        lambda f: load_rules([f / "mapping.yaml"]),
    ),
    Target(
        "optimizer",
        _write("settings.yaml", _OPTIMIZER),
        "settings.yaml",
        mutations.mutate_yaml,
        lambda f: read_settings(f / "settings.yaml").to_known(2),
    ),
    Target(
        "dump_config",
        _write("dump.json", _DUMP_CONFIG),
        "dump.json",
        mutations.mutate_json,
        lambda f: dumpdiff.dump_config.check(f / "dump.json"),
    ),
    Target(
        "environment",
        _write("dump.json", _DUMP_CONFIG),
        "dump.json",
        mutations.mutate_json,
        lambda f: build_environment("mindspore", f / "dump.json"),
    ),
    *_list_corpus_targets(),
)
