"""The folder tree is the architecture: who may import whom, checked on the source itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest

PACKAGE = Path(__file__).parents[1] / "dumpdiff"

#: Lowest first. A module may import from its own layer and from those below it;
#: docs/architecture.md says why.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("model",),
    ("rulebook",),
    ("operators",),
    ("tensor_files",),
    ("checkpoints",),
    ("readers",),
    ("recorder",),
    ("communication",),
    ("optimizers",),
    ("graph",),
    ("sharding",),
    ("verification",),
    ("invariants", "golden_reference"),
    ("alignment",),
    ("comparison",),
    ("divergence",),
    ("causes",),
    ("run_divergence",),
    ("weight_comparison",),
    ("conversion",),
    ("run_settings", "training_logs", "batches", "gradient_norms"),
    ("diagnosis",),
    ("figures",),
    ("capture", "reports"),
    ("page_server",),
    ("api",),
    ("cli",),
    ("__main__",),
)
LEVEL = {name: level for level, layer in enumerate(LAYERS) for name in layer}

#: The package itself offers names of every layer, loaded on first use; it belongs to none.
FACADE = "dumpdiff"

#: Imported inside the one function that needs them, if at all: a comparison must run where no
#: framework is installed.
FRAMEWORKS = {"torch", "torch_npu", "mindspore", "mindspore_lite", "msprobe", "ptdbg_ascend"}


def get_module_name(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {get_module_name(file): file for file in sorted(PACKAGE.rglob("*.py"))}


def find_imports(name: str, nodes: Iterator[ast.AST]) -> Iterator[str]:
    """Yield the full names of the modules that ``nodes`` of module ``name`` import."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_base(name, node)
            for alias in node.names:
                submodule = f"{base}.{alias.name}"
                yield submodule if submodule in FILES else base


def resolve_base(name: str, node: ast.ImportFrom) -> str:
    """Return the full name of what comes after ``from`` in module ``name``."""
    if not node.level:
        return node.module or ""
    package = name.split(".")
    if FILES[name].name != "__init__.py":
        package = package[:-1]
    parents = package[: len(package) - node.level + 1]
    return ".".join([*parents, node.module] if node.module else parents)


def find_nodes_run_on_import(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the nodes that run on import: not in functions, not under TYPE_CHECKING."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from find_nodes_run_on_import(node.orelse)
            continue
        yield node
        for field in ("body", "orelse", "finalbody"):
            yield from find_nodes_run_on_import(getattr(node, field, []))
        for handler in getattr(node, "handlers", []):
            yield from find_nodes_run_on_import(handler.body)


def parse_module(name: str) -> ast.Module:
    return ast.parse(FILES[name].read_text(encoding="utf-8"))


def find_own_imports(name: str) -> set[str]:
    """Return the modules of this package that ``name`` imports, also lazily or for types only."""
    imports = set(find_imports(name, ast.walk(parse_module(name))))
    return {module for module in imports if module.split(".")[0] == FACADE and module != FACADE}


def get_layer(module: str) -> str:
    return module.split(".")[1]


MODULES = [name for name in FILES if name != FACADE]


@pytest.mark.parametrize("name", MODULES)
def test_every_module_has_a_layer(name: str) -> None:
    assert get_layer(name) in LEVEL


@pytest.mark.parametrize("name", MODULES)
def test_nothing_imports_upward(name: str) -> None:
    upward = [
        module
        for module in find_own_imports(name)
        if LEVEL[get_layer(module)] > LEVEL[get_layer(name)]
    ]
    assert not upward, f"{name} imports from a layer above its own"


def test_no_import_cycles() -> None:
    graph = nx.DiGraph((name, module) for name in MODULES for module in find_own_imports(name))
    assert sorted(nx.simple_cycles(graph)) == []


@pytest.mark.parametrize("name", FILES)
def test_no_framework_is_imported_with_the_module(name: str) -> None:
    roots = {
        module.split(".")[0]
        for module in find_imports(name, find_nodes_run_on_import(parse_module(name).body))
    }
    assert not roots & FRAMEWORKS


@pytest.mark.parametrize(
    ("source", "is_found"),
    [
        ("import torch", True),
        ("try:\n    import torch\nexcept ImportError:\n    pass", True),
        ("try:\n    pass\nexcept ImportError:\n    import torch", True),
        ("class A:\n    import torch", True),
        ("def f():\n    import torch", False),
        ("if TYPE_CHECKING:\n    import torch", False),
    ],
)
def test_the_check_itself_sees_what_runs_on_import(source: str, is_found: bool) -> None:
    imports = set(find_imports(FACADE, find_nodes_run_on_import(ast.parse(source).body)))
    assert ("torch" in imports) == is_found


#: What opens a file or searches folders. Files of the package itself are no inputs.
READING = re.compile(
    r"(?<![\w.])open\(|\.open\(\"r|\.read_text\(enc|\.read_bytes\(\)|os\.walk|\.rglob\("
)
READING_MODULES = {
    "dumpdiff.model.input_files",
    "dumpdiff.model.output_files",  # whether a file may be replaced
    "dumpdiff.api.demo",
    "dumpdiff.capture.snippets",
    "dumpdiff.reports.page.assets",
    "dumpdiff.reports.language",
}


@pytest.mark.parametrize("name", MODULES)
def test_inputs_are_opened_in_one_module(name: str) -> None:
    lines = FILES[name].read_text(encoding="utf-8").splitlines()
    reading_lines = [line for line in lines if READING.search(line)]
    assert not reading_lines or name in READING_MODULES


def test_digits_are_those_that_int_reads() -> None:
    """isdigit() is true of '²', which int() refuses; isdecimal() is not."""
    assert [name for name, file in FILES.items() if ".isdigit()" in file.read_text()] == []
