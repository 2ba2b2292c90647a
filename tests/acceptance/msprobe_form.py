"""A trace of a PyTorch run in the format of msprobe: the statistics of the same run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from dumpdiff.model.trace import Trace

HEADER = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None}


def write_trace(trace: Trace, folder: Path) -> None:
    """Write dump.json, and stack.json and construct.json without content, as step 0 of rank 0."""
    by_op = dict(tuple(trace.tensors.groupby("op")))
    data = {
        name: _record(by_op.get(op, trace.tensors.iloc[:0]), forward=phase == "forward")
        for op, (name, phase) in enumerate(zip(trace.ops["name"], trace.ops["phase"], strict=True))
    }
    rank = folder / "step0" / "proc0"
    rank.mkdir(parents=True)
    for file, content in (
        ("dump.json", {**HEADER, "data": data}),
        ("stack.json", {}),
        ("construct.json", {}),
    ):
        (rank / file).write_text(json.dumps(content))


def _record(tensors: pd.DataFrame, *, forward: bool) -> dict[str, Any]:
    read = [_convert_tensor(row) for _, row in tensors[tensors["slot_kind"] != "output"].iterrows()]
    written = [
        _convert_tensor(row) for _, row in tensors[tensors["slot_kind"] == "output"].iterrows()
    ]
    if forward:
        return {"input_args": read, "input_kwargs": {}, "output": written}
    return {"input": read, "output": written}


def _convert_tensor(row: pd.Series) -> dict[str, Any]:
    if row["constant"]:
        return {"type": row["dtype"], "value": row["max"]}
    statistics = {
        name.title(): _convert_number(row[name]) for name in ("max", "min", "mean", "norm")
    }
    return {
        "type": "torch.Tensor",
        "dtype": f"torch.{row['dtype']}",
        "shape": list(row["shape"]),
        **statistics,
    }


def _convert_number(value: float) -> float | None:
    return None if pd.isna(value) else float(value)
