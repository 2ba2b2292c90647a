"""Small results made by hand, with everything that is difficult for a report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from dumpdiff.model.finding import Finding
from dumpdiff.model.result import (
    PAIR_COLUMNS,
    UNCOMPARED_COLUMNS,
    UNMATCHED_COLUMNS,
    Baseline,
    Equivalence,
    Result,
    Side,
)
from dumpdiff.model.trace import Problem, Source

NUMERIC = {
    "target",
    "reference",
    "error",
    "tolerance",
    "relative_l2",
    "cosine",
    "max_absolute",
    "max_relative",
    "beyond",
    "nonfinite_mismatch",
    "rounded_error",
    "confidence",
    *(
        f"{side}_{name}"
        for side in ("target", "reference")
        for name in ("max", "min", "mean", "norm")
    ),
}

RSQRT = "Default/network-WithLoss/layers-CellList/1-Layer/post_norm-RMSNorm/Rsqrt-op3"

FINDING = Finding(
    rank=1,
    kind="introduced",
    phase="forward",
    scope="layers.1.post_norm",
    title=(
        "layers.1.post_norm, rsqrt (Default/.../Rsqrt-op3) vs Torch.rsqrt.3.forward: "
        "relative L2 3.1e-2, inputs agree to 2e-7"
    ),
    target_ops=(RSQRT,),
    reference_ops=("Torch.rsqrt.3.forward",),
    slots=(("output.0", "output.0"),),
    metrics={
        "error": 3.1e-2,
        "relative_l2": 3.1e-2,
        "cosine": float("nan"),
        "max_relative": float("inf"),
    },
    tolerance=1e-5,
    confidence=0.97,
    evidence=("input values agree", "role learned from layers.0"),
    source={"target": "model.py:46"},
)

BACKWARD = replace(
    FINDING,
    rank=2,
    phase="backward",
    scope="layers.0.attention.wq",
    title="layers.0.attention.wq: gradient diverges",
    target_ops=("g1", "g2", "g3", "g4", "g5"),
    source={},
)

BASELINE = Baseline(
    Source("/data/again", "ptdbg", "6.0, api_stack", "pytorch", step=0),
    values=310,
    estimated=4,
    median=1.2e-7,
    largest=4e-6,
    largest_op="Functional.linear.3.forward",
)

#: State and reason of values that were not compared.
RECONVERGED = ("reconverged", "an equivalent decomposition")
UNPAIRED = ("unpaired", "dead end")

COVERAGE = {
    "target": {
        "forward": {
            "ops": 241,
            "compared": 200,
            "reconverged": 7,
            "share": 200 / 241,
            "values": 180,
            "compared_values": 150,
            "reconverged_values": 12,
            "value_share": 150 / 180,
        }
    },
    "reference": {
        "forward": {
            "ops": 165,
            "compared": 162,
            "reconverged": 0,
            "share": 162 / 165,
            "values": 151,
            "compared_values": 150,
            "reconverged_values": 0,
            "value_share": 150 / 151,
        },
        "backward": {
            "ops": 132,
            "compared": 124,
            "reconverged": 0,
            "share": 124 / 132,
            "values": 128,
            "compared_values": 120,
            "reconverged_values": 0,
            "value_share": 0.9375,
        },
        "optimizer": {
            "ops": 0,
            "compared": 0,
            "reconverged": 0,
            "share": float("nan"),
            "values": 0,
            "compared_values": 0,
            "reconverged_values": 0,
            "value_share": float("nan"),
        },
    },
}

STATES = {
    "target": {
        "forward": {
            "values": {
                "introduced": 1,
                "propagated": 9,
                "agreeing": 140,
                "reconverged": 12,
                "unpaired": 18,
            },
            "ops": {
                "introduced": 1,
                "propagated": 19,
                "agreeing": 180,
                "reconverged": 7,
                "unpaired": 34,
            },
        }
    },
    "reference": {
        "forward": {
            "values": {"introduced": 1, "propagated": 9, "agreeing": 140, "unpaired": 1},
            "ops": {"introduced": 1, "propagated": 11, "agreeing": 150, "unpaired": 3},
        },
        "backward": {
            "values": {"agreeing": 120, "incomparable": 2, "unpaired": 6},
            "ops": {"agreeing": 124, "incomparable": 2, "unpaired": 6},
        },
    },
}
#: The states of a result without a divergence: forward alone, one side without a decomposition.
ALIGNED_STATES = {
    "target": {
        "forward": {
            "values": {"agreeing": 150, "reconverged": 12, "unpaired": 18},
            "ops": {"agreeing": 200, "reconverged": 7, "unpaired": 34},
        }
    },
    "reference": {
        "forward": {
            "values": {"agreeing": 150, "unpaired": 1},
            "ops": {"agreeing": 162, "unpaired": 3},
        }
    },
}


def make_pairs(*rows: dict[str, Any]) -> pd.DataFrame:
    data = {}
    for column in PAIR_COLUMNS:
        missing = np.nan if column in NUMERIC else ""
        data[column] = [row.get(column, missing) for row in rows]
    return pd.DataFrame(data, columns=list(PAIR_COLUMNS))


def make_unmatched(*rows: tuple[str, ...]) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=list(UNMATCHED_COLUMNS), dtype=object)


def make_uncompared(*rows: tuple[str, ...]) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=list(UNCOMPARED_COLUMNS), dtype=object)


def make_result(**changes: Any) -> Result:
    """Return a diverged result with two findings, with some fields replaced."""
    target = Side(
        Source(
            "/data/ms_dump",
            "mindspore",
            "npy and graph",
            "mindspore",
            step=0,
            rank=0,
            graph=0,
            details={"n": 1},
        ),
        ops=477,
        tensors=2430,
        problems=tuple(
            Problem("statistic.csv", f"cell {n} is no number", line=n) for n in range(5)
        ),
    )
    reference = Side(
        Source("/data/pt_dump", "ptdbg", "6.0, api_stack", "pytorch", step=0),
        ops=297,
        tensors=1004,
        problems=(),
    )
    result = Result(
        target=target,
        reference=reference,
        verdict="diverged",
        findings=(FINDING, BACKWARD),
        coverage=COVERAGE,
        pairs=make_pairs(
            {"target": 0, "reference": 1, "state": "agreeing"},
            {"target": 2, "reference": 3, "state": "introduced"},
        ),
        unmatched=make_unmatched(
            ("target", "Default/Cast-op1", "Cast", "forward", "layers.0", "reconverged"),
            ("target", "Default/Cast-op2", "Cast", "forward", "layers.1", "reconverged"),
            ("reference", "Tensor.to.0.forward", "Tensor.to", "forward", "layers.1", "dead end"),
        ),
        uncompared=make_uncompared(
            *(
                ("target", f"Default/Cast-op{n}", "output.0", "forward", "layers.0", *RECONVERGED)
                for n in range(12)
            ),
            *(
                ("target", f"Default/Pad-op{n}", "output.0", "forward", "layers.1", *UNPAIRED)
                for n in range(18)
            ),
            ("reference", "Tensor.to.0.forward", "output.0", "forward", "layers.1", *UNPAIRED),
        ),
        states=STATES,
        learned=(Equivalence(("Sigmoid", "Mul"), ("Functional.silu",), 4),),
        noise_floor=2.1e-7,
        notes=("step 0 is the first that both have",),
        details={
            "min_coverage": 0.5,
            "bridges": {"split": np.int64(3)},
            "verified_edges": np.float64(0.998),
        },
    )
    return replace(result, **changes)


def extend_result(result: Result, rows: int) -> Result:
    """Return the result of a longer run: ``rows`` pairs, its own repeated as further layers.

    Op names and scopes are new in each repetition and the numbers vary, so that the tables compress
    as little as those of a real run.
    """
    random = np.random.default_rng(7)
    repetitions = range(-(-rows // len(result.pairs)))
    pairs = [_vary_table(result.pairs, i, random) for i in repetitions]
    unmatched = [_vary_table(result.unmatched, i, random) for i in repetitions]
    uncompared = [_vary_table(result.uncompared, i, random) for i in repetitions]
    return replace(
        result,
        pairs=pd.concat(pairs, ignore_index=True).head(rows),
        unmatched=pd.concat(unmatched, ignore_index=True),
        uncompared=pd.concat(uncompared, ignore_index=True),
    )


def _vary_table(table: pd.DataFrame, repetition: int, random: np.random.Generator) -> pd.DataFrame:
    columns: dict[str, Any] = {}
    for name in table.columns:
        if table[name].dtype.kind == "f":
            columns[name] = table[name] * random.uniform(0.5, 1.5, len(table))
        elif repetition and (name == "op" or name.endswith("_op")):
            columns[name] = [f"{op}.{repetition}" for op in table[name]]
    if repetition:
        layers = f"layers.{repetition}"
        columns["scope"] = table["scope"].str.replace("layers.", layers, regex=False)
    return table.assign(**columns)
