"""Commands that prepare a run for dumping: env and snippet."""

from __future__ import annotations

from collections.abc import Sequence

from .inputs import PathLike


def env(
    config: PathLike | None = None,
    *,
    framework: str = "mindspore",
    also: Sequence[str] = (),
    seed: int = 0,
) -> dict[str, str]:
    """Return the environment variables of a deterministic run with dumping enabled.

    Parameters
    ----------
    config
        Dump configuration of MindSpore; default: only what makes the run deterministic.
    framework
        Framework of the run: ``mindspore`` or ``pytorch``.
    also
        Names of variables that are not set by default.
    seed
        Seed of Python's hashes.

    Raises
    ------
    DumpError
        If the configuration cannot be read, or a variable is not known.
    """
    from ..capture.environment import build_environment

    return build_environment(framework, config, tuple(also), seed)


def snippet(
    kind: str,
    *,
    framework: str,
    seed: int = 42,
    rank: int = 0,
    folder: str = "gradients",
    config: str | None = None,
) -> str:
    """Return code to paste into a training script.

    Parameters
    ----------
    kind
        ``seed``, ``local-norm``, ``save-grads``, ``load-grads`` or ``dump``.
    framework
        ``pytorch``, ``mindspore``, ``megatron`` or ``mindformers``.
    seed
        Random seed.
    rank
        Process that prints or saves.
    folder
        Folder of the saved gradients.
    config
        Dump configuration; default: msprobe's config.json, or dump.json.

    Raises
    ------
    KeyError
        For a kind or framework that does not exist.
    """
    from ..capture import snippets

    return snippets.build_snippet(
        kind, framework, seed=seed, rank=rank, folder=folder, config=config
    )
