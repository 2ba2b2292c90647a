"""Install a wheel into an empty environment of each Python, and run what the README shows.

    python benchmarks/installation.py dist/dumpdiff-0.1.0-py3-none-any.whl 3.10 3.11 3.12

Prints a Markdown table: installed packages, their size, the seconds of the installation and of all
commands of the README in the order of the page. A Python that is not on PATH is left out and named.
Exit code 1 if a command fails: 2 is a wrong command, 70 a bug.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUCCESS = (0, 1, 3, *range(11, 20))  #: aligned, diverged, inconclusive, the place of a mismatch
_SHELL_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def list_commands() -> list[str]:
    """Return the lines of the README's shell blocks."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return "".join(_SHELL_BLOCK.findall(readme)).splitlines()


def try_wheel(wheel: Path, python: str, folder: Path) -> str:
    """Return a row of the table. Raises CalledProcessError if something fails."""
    environment = folder / "environment"
    start = time.perf_counter()
    subprocess.run([python, "-m", "venv", environment], check=True)
    pip = [environment / "bin" / "python", "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "-q", wheel], check=True, stderr=subprocess.DEVNULL)
    installed = time.perf_counter() - start
    listing = subprocess.run([*pip, "list", "--format=json"], check=True, capture_output=True)
    names = {package["name"] for package in json.loads(listing.stdout)} - {"pip", "setuptools"}
    size = sum(file.stat().st_size for file in (environment / "lib").rglob("*") if file.is_file())
    start = time.perf_counter()
    run_commands(environment / "bin" / "dumpdiff", folder)
    ran = time.perf_counter() - start
    version = subprocess.run([python, "--version"], check=True, capture_output=True, text=True)
    cells = (version.stdout.split()[1], str(len(names)), f"{size / 1e6:.0f} MB",
             f"{installed:.0f} s", f"{ran:.0f} s")  # fmt: skip
    return f"| {' | '.join(cells)} |"


def run_commands(program: Path, folder: Path) -> None:
    """Run the commands of the README in ``folder``."""
    for command in list_commands():
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


def list_rows(wheel: Path, versions: Sequence[str]) -> Iterator[str]:
    """Yield the table; a Python that is missing is a sentence on standard error."""
    yield "| Python | packages | size | installed in | all commands in |"
    yield "|---|--:|--:|--:|--:|"
    for version in versions:
        python = shutil.which(f"python{version}")
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
