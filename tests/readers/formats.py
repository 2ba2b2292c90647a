"""Formats with recorded dumps: what the tests of each check, and the table of docs/formats.md."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FormatCase:
    """The dumps of one format. Paths begin with the name of a shipped archive."""

    format: str
    dump: str  #: a correct run
    twin: str  #: another correct run of the model, recorded or computed in another way
    twin_note: str  #: in what it differs
    fault: str  #: a run with one fault
    fault_note: str
    place: str  #: an op of the target that the first finding names
    damaged_file: str  #: pattern of a file below ``dump`` that is cut off in the middle
    step: int | None = None  #: that is compared, of a dump with several


CASES = (
    FormatCase(
        "mindspore",
        "ms_graph",
        "v6.0_api_stack",
        "PyTorch, ptdbg",
        "ms_graph_bug_w1",
        "a weight",
        "MatMul",
        "MatMul*.npy",
    ),
    FormatCase(
        "msprobe",
        "pt_none",
        "ms_mf_none",
        "MindSpore PyNative",
        "ms_mf_attn_scale",
        "scale of the scores",
        "layers.1",
        "dump.json",
    ),
    FormatCase(
        "ptdbg",
        "v6.0_api_stack",
        "v4.0.T2_api_stack",
        "another version",
        "ms_graph_bug_w1",
        "a weight",
        "MatMul",
        "*.pkl",
    ),
    FormatCase(
        "huggingface",
        "huggingface/files",
        "huggingface/printed",
        "printed values",
        "huggingface/fault",
        "epsilon of a norm",
        "layers.1.input_layernorm",
        "*_FULL_TENSORS.json",
    ),
    FormatCase(
        "debug_mode",
        "debug_mode/clean",
        "debug_mode/checksums",
        "checksums and Python functions",
        "debug_mode/fault",
        "scale of the scores",
        "Aten.mul",
        "debug_mode.txt",
    ),
    FormatCase(
        "torchtitan",
        "torchtitan/clean",
        "torchtitan/rewritten",
        "attention in another form",
        "torchtitan/fault",
        "scale of the scores",
        "layers.1.self_attn",
        "*.log",
    ),
    FormatCase(
        "sglang",
        "sglang/clean",
        "sglang/rewritten",
        "attention in another form",
        "sglang/fault",
        "scale of the scores",
        "layers.1.self_attn",
        "*dump_index=9_*.pt",
    ),
    FormatCase(
        "polygraphy",
        "polygraphy/clean",
        "polygraphy/optimized",
        "optimized by onnxruntime",
        "polygraphy/fault",
        "scale of the scores",
        "layers.1/attention",
        "outputs.json",
        step=0,
    ),
    FormatCase(
        "monitor",
        "msprobe_monitor/modules/v1",
        "msprobe_monitor/modules_rewritten/v1",
        "attention in another form",
        "msprobe_monitor/modules_fault/v1",
        "epsilon of a norm",
        "layers.1.post_attention_layernorm",
        "actv_0-0.csv",
        step=0,
    ),
)

HEAD = ("format", "clean twin, aligned", "fault, located", "file that is cut off")
#: The table of docs/formats.md is between these lines.
BEGIN, END = "<!-- tested: begin -->\n", "<!-- tested: end -->\n"


def build_table() -> str:
    """Return the table of docs/formats.md."""
    rows = [
        (
            f"`{case.format}`",
            case.twin_note,
            f"{case.fault_note} (`{case.place}`)",
            f"`{case.damaged_file}`",
        )
        for case in CASES
    ]
    lines = [HEAD, ("---",) * len(HEAD), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
