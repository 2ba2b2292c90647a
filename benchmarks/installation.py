"""Install a wheel into an empty environment of each Python, and try it as a new user does.

    python benchmarks/installation.py dist/dumpdiff-0.1.0-py3-none-any.whl 3.10 3.11 3.12

Prints a Markdown table: installed packages, their size, and the seconds of the installation, of
``dumpdiff demo``, of all other commands of the README in the order of the page, and of the
notebook of the documentation (what runs it is installed first, which counts, too). On a machine
with other load the processor time of all this together tells more. All of it runs in a temporary
folder; of the repository only the README and the notebook are read. A Python that is not on PATH
is left out and named. Exit code 1 if a command fails: 2 is a wrong command, 70 a bug.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUCCESS = (0, 1, 3, *range(11, 20))  #: aligned, diverged, inconclusive, the place of a mismatch
_SHELL_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


#: What runs a notebook without a browser; a user has Jupyter.
_NOTEBOOK_PACKAGES = ("nbclient", "ipykernel")


def list_commands() -> list[str]:
    """Return the lines of the README's shell blocks."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return "".join(_SHELL_BLOCK.findall(readme)).splitlines()


def try_wheel(wheel: Path, python: str, folder: Path) -> str:
    """Return a row of the table. Raises CalledProcessError if something fails."""
    environment = folder / "environment"
    program = environment / "bin" / "dumpdiff"
    pip = [environment / "bin" / "python", "-m", "pip", "--disable-pip-version-check"]
    times: list[float] = []
    used = read_processor_time()
    with measure_time(times):
        subprocess.run([python, "-m", "venv", environment], check=True)
        subprocess.run([*pip, "install", "-q", wheel], check=True, stderr=subprocess.DEVNULL)
    listing = subprocess.run([*pip, "list", "--format=json"], check=True, capture_output=True)
    names = {package["name"] for package in json.loads(listing.stdout)} - {"pip", "setuptools"}
    size = sum(file.stat().st_size for file in (environment / "lib").rglob("*") if file.is_file())
    demo, *commands = list_commands()
    with measure_time(times):
        run_commands([demo], program, folder)
    with measure_time(times):
        run_commands(commands, program, folder)
    with measure_time(times):
        subprocess.run([*pip, "install", "-q", *_NOTEBOOK_PACKAGES], check=True)
        run_notebook(environment, folder)
    version = subprocess.run([python, "--version"], check=True, capture_output=True, text=True)
    seconds = [f"{time:.0f} s" for time in (*times, sum(times), read_processor_time() - used)]
    cells = (version.stdout.split()[1], str(len(names)), f"{size / 1e6:.0f} MB", *seconds)
    return f"| {' | '.join(cells)} |"


@contextmanager
def measure_time(times: list[float]) -> Iterator[None]:
    """Append the seconds of the body."""
    start = time.perf_counter()
    yield
    times.append(time.perf_counter() - start)


def read_processor_time() -> float:
    """Return the seconds that the programs that were run took of a processor so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run_commands(commands: Sequence[str], program: Path, folder: Path) -> None:
    """Run commands of the README, beginning in ``folder``."""
    for command in commands:
        word, *arguments = shlex.split(command)
        if word == "cd":
            folder = folder / arguments[0]
            continue
        outcome = subprocess.run(
            [program, *arguments], cwd=folder, capture_output=True, text=True, check=False
        )
        if outcome.returncode not in SUCCESS:
            print(f"$ {command}\n{outcome.stdout}{outcome.stderr}", file=sys.stderr)
            raise subprocess.CalledProcessError(outcome.returncode, command)


def run_notebook(environment: Path, folder: Path) -> None:
    """Execute a copy of the notebook, with the kernel of the environment."""
    notebook = shutil.copy(ROOT / "docs" / "notebook.ipynb", folder)
    command = [environment / "bin" / "jupyter-execute", notebook]
    outcome = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if outcome.returncode:
        print(outcome.stderr, file=sys.stderr)
        raise subprocess.CalledProcessError(outcome.returncode, "notebook.ipynb")


def find_python(version: str) -> str | None:
    """Return the program of a Python; a shim whose Python is not installed is none."""
    python = shutil.which(f"python{version}")
    if python is None:
        return None
    outcome = subprocess.run([python, "--version"], capture_output=True, check=False)
    return python if outcome.returncode == 0 else None


def list_rows(wheel: Path, versions: Sequence[str]) -> Iterator[str]:
    """Yield the table; a Python that is missing is a sentence on standard error."""
    yield (
        "| Python | packages | size | installed | demo | other commands | notebook | together "
        "| of it processor |"
    )
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    for version in versions:
        python = find_python(version)
        if python is None:
            print(f"python{version}: not on PATH", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as folder:
            yield try_wheel(wheel, python, Path(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("versions", nargs="+")
    arguments = parser.parse_args()
    try:
        for row in list_rows(arguments.wheel.resolve(), arguments.versions):
            print(row, flush=True)
    except subprocess.CalledProcessError as error:
        sys.exit(f"failed with exit code {error.returncode}: {error.cmd}")


if __name__ == "__main__":
    main()
