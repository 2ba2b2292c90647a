"""Dumps to ask for on CPU, and what they hold then."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from dumpdiff.capture.mindspore import Options, Target, build_configuration, format_configuration
from dumpdiff.capture.mindspore.kernels import extract_regex

#: All operators of the net of fixtures/try_mindspore_configs.py, by type; parameters are a type
#: of their own.
ALL = frozenset({"MatMul", "BiasAdd", "ReLU", "Add", "Parameter"})
MATMUL, RELU = "Default/fc-Dense/MatMul-op0", "Default/relu-ReLU/ReLU-op0"


@dataclass(frozen=True)
class Asked:
    """Options, and what of the net's two steps a dump made with them holds."""

    name: str
    options: Options
    types: frozenset[str] = ALL
    steps: tuple[str, ...] = ("0",)
    ways: frozenset[str] = frozenset({"input", "output"})
    net: str = "Net"

    def write(self, folder: Path) -> Path:
        """The configuration, in a folder of its own, which the dump goes into too."""
        folder = folder / self.name
        folder.mkdir()
        options = replace(self.options, path=str(folder / "out"))
        file = folder / "dump.json"
        file.write_text(
            format_configuration(build_configuration(options, Target("cpu"))), encoding="utf-8"
        )
        return file

    def holds(self, files: Iterable[Path]) -> Asked:
        """The same dump as it is found in its files,
        rank_0/NET/GRAPH/STEP/TYPE.NAME.….input.0.….npy.
        """
        parts = [(file.parts, file.name.split(".")) for file in files]
        return replace(
            self,
            types=frozenset(words[0] for _, words in parts),
            steps=tuple(sorted({folders[3] for folders, _ in parts})),
            ways=frozenset(
                way for _, words in parts for way in words if way in ("input", "output")
            ),
            net="|".join({folders[1] for folders, _ in parts}),
        )


HERE = Options(path="")
ASKED = (
    Asked("asked-first", HERE),
    Asked("asked-second", replace(HERE, iteration="1"), steps=("1",)),
    Asked("asked-steps", replace(HERE, iteration="0-1|7"), steps=("0", "1")),
    Asked("asked-all", replace(HERE, iteration="all"), steps=("0", "1")),
    Asked("asked-shifted", replace(HERE, iteration="10", initial_iteration=10), steps=("10",)),
    Asked(
        "asked-inputs",
        replace(HERE, input_output=1),
        types=ALL - {"Parameter"},
        ways=frozenset({"input"}),
    ),
    Asked("asked-outputs", replace(HERE, input_output=2), ways=frozenset({"output"})),
    Asked("asked-net", replace(HERE, net_name="My-Net_2"), net="My-Net_2"),
    Asked("asked-name", replace(HERE, kernels=(MATMUL,)), types=frozenset({"MatMul"})),
    Asked("asked-type", replace(HERE, kernels=("add",)), types=frozenset({"BiasAdd", "Add"})),
    Asked(
        "asked-regex",
        replace(HERE, kernels=("name-regex(.*/MatMul-op[0-9]+)",)),
        types=frozenset({"MatMul"}),
    ),
    Asked(
        "asked-class",
        replace(HERE, kernels=("name-regex(.*/MatMul-op[[:digit:]])",)),
        types=frozenset({"MatMul"}),
    ),
    Asked(
        "asked-names",
        replace(HERE, kernels=(extract_regex([MATMUL, RELU]),)),
        types=frozenset({"MatMul", "ReLU"}),
    ),
    Asked(
        "asked-parameter",
        replace(HERE, kernels=(extract_regex(["fc.weight"]),)),
        types=frozenset({"Parameter"}),
        ways=frozenset({"output"}),
    ),
)
