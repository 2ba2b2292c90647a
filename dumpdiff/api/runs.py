"""Commands on two training runs without dumps.

They are settings, checklist, data, logs, norms and optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ..rulebook import load_rules
from .inputs import PathLike
from .progress import Progress, report_progress

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from ..batches import Batch, DataComparison
    from ..gradient_norms import NormComparison
    from ..optimizers.comparison import UpdateComparison
    from ..optimizers.update_analysis import UpdateAnalysis
    from ..run_settings import SettingsComparison
    from ..run_settings.checklist import Checklist
    from ..training_logs import LogComparison

_Value = TypeVar("_Value")

#: One value for both runs, or one for the target and one for the reference.
OneOrBoth: TypeAlias = _Value | tuple[_Value, _Value]


def settings(
    target: PathLike,
    reference: PathLike,
    *,
    target_version: str = "",
    reference_version: str = "",
    target_config: PathLike | None = None,
    reference_config: PathLike | None = None,
) -> SettingsComparison:
    """Compare the settings of two runs.

    Parameters
    ----------
    target, reference
        YAML, JSON or TOML of a training, launch script (read, never run; ``"bash run.sh dsw 8B"``
        with its arguments), log with the arguments that a framework printed, or saved arguments.
    target_version, reference_version
        Version of the framework, where defaults changed.
    target_config, reference_config
        ``config.json`` of the model, if its structure is taken from there.

    Raises
    ------
    DumpError
        If a file cannot be read as settings.
    """
    from ..run_settings import compare, read_settings

    target_settings = read_settings(target, target_version, target_config)
    reference_settings = read_settings(reference, reference_version, reference_config)
    return compare(target_settings, reference_settings)


def checklist(
    target: PathLike | None = None,
    reference: PathLike | None = None,
    *,
    logs: tuple[PathLike, PathLike] | None = None,
    target_version: str = "",
    reference_version: str = "",
    target_config: PathLike | None = None,
    reference_config: PathLike | None = None,
) -> Checklist:
    """Answer the guides' checklists as far as settings and logs allow.

    Parameters
    ----------
    target, reference
        Settings of both runs, as for :func:`settings`; without them every item is open.
    logs
        Training logs of both runs.
    target_version, reference_version, target_config, reference_config
        As for :func:`settings`.

    Raises
    ------
    DumpError
        If a file cannot be read.
    """
    from ..run_settings.checklist import check

    settings_comparison = None
    if target is not None and reference is not None:
        settings_comparison = settings(
            target,
            reference,
            target_version=target_version,
            reference_version=reference_version,
            target_config=target_config,
            reference_config=reference_config,
        )
    log_comparison = None
    if logs is not None:
        from ..training_logs import compare, read_log

        log_comparison = compare(read_log(logs[0]), read_log(logs[1]))
    return check(settings_comparison, log_comparison)


def data(
    target: PathLike,
    reference: PathLike,
    *,
    seq_length: OneOrBoth[int] | None = None,
    global_batch_size: OneOrBoth[int] | None = None,
    micro_batch_size: OneOrBoth[int] | None = None,
    data_parallel: OneOrBoth[int] | None = None,
    samples: OneOrBoth[int] | None = None,
    seed: OneOrBoth[int] | None = None,
    split: OneOrBoth[str] | None = None,
    loader: OneOrBoth[str] | None = None,
    vocab_size: int | None = None,
    bos_id: int | None = None,
    eos_id: int | None = None,
    pad_id: int | None = None,
    tokenizer: PathLike | None = None,
    sample: int | None = None,
    step: int | None = None,
    rank: int | None = None,
    progress: Progress | None = None,
) -> DataComparison:
    """Compare the first batches of two runs.

    Parameters
    ----------
    target, reference
        A dump, a dataset of Megatron (prefix of .bin and .idx, or a blend), or a saved batch.
    seq_length, global_batch_size, micro_batch_size, data_parallel, samples, seed, split, loader
        How a dataset is packed: one value for both runs, or a pair (target's, reference's).
    vocab_size
        Token ids must be below it; default: rows of the embedding.
    bos_id, eos_id, pad_id
        Special token ids: counted; padding must not enter the loss.
    tokenizer
        A ``tokenizer.json``, to show a sample as text.
    sample
        Number of the sample to show; default: the first that differs.
    step, rank
        Part of a dump or dataset; default: the first step, all ranks.

    Raises
    ------
    DumpError
        If nothing can be read.
    """
    from ..batches import Packing, Vocabulary, compare, read_batches
    from ..batches.tokenizer import list_special_ids, open_tokenizer

    packing_options: dict[str, Any] = {
        "sequence_length": seq_length,
        "global_batch": global_batch_size,
        "micro_batch": micro_batch_size,
        "data_parallel": data_parallel,
        "samples": samples,
        "seed": seed,
        "split": split,
        "loader": loader,
    }
    opened_tokenizer = None if tokenizer is None else open_tokenizer(tokenizer)
    batches = []
    for i, path in enumerate((target, reference)):
        report_progress(progress, f"reading {path}", i / 2)
        side_options: dict[str, Any] = {}
        for name, value in packing_options.items():
            if value is not None:
                side_options[name] = value[i] if isinstance(value, tuple) else value
        packing = Packing(**side_options, eod=eos_id, pad=pad_id)
        batches.append(read_batches(path, packing, step=step, rank=rank))
    knows_vocabulary = any(batch.vocabulary is not None for batch in batches)
    if opened_tokenizer is not None and vocab_size is None and not knows_vocabulary:
        vocab_size = opened_tokenizer.get_vocab_size(with_added_tokens=True)
    names = {} if opened_tokenizer is None else list_special_ids(opened_tokenizer)
    vocabulary = Vocabulary(vocab_size, bos_id, eos_id, pad_id, names)
    comparison = compare(batches[0], batches[1], vocabulary)
    if opened_tokenizer is None:
        return comparison
    return replace(comparison, texts=_decode_sample(opened_tokenizer, comparison, batches, sample))


def _decode_sample(
    tokenizer: Tokenizer, comparison: DataComparison, batches: Sequence[Batch], sample: int | None
) -> Mapping[str, str]:
    """Return one sample of both sides as text.

    It is the given one, else the first that differs, else the first.
    """
    from ..batches.tokenizer import decode_tokens

    number = sample
    if number is None:
        number = 0
        relation = comparison.relation
        if relation is not None and relation.first_difference is not None:
            number = relation.first_difference[0]
    texts = {}
    for side, batch in zip(("target", "reference"), batches, strict=True):
        if batch.tokens is not None and number < batch.n_samples:
            texts[f"{side}, sample {number}"] = decode_tokens(tokenizer, batch.tokens[number])
    return texts


def logs(
    target: PathLike,
    reference: PathLike,
    *,
    baseline: Sequence[PathLike] = (),
    min_steps: int = 1000,
    progress: Progress | None = None,
) -> LogComparison:
    """Compare the training logs of two runs.

    Parameters
    ----------
    target, reference
        Log of Megatron-LM, MindSpore Transformers, ms-swift or the Hugging Face Trainer, or a
        folder with the logs of all ranks.
    baseline
        Logs of further runs of the reference: what they differ by is allowed to the target.
    min_steps
        Number of common steps that agreement needs.

    Raises
    ------
    DumpError
        If a log cannot be read.
    """
    from ..training_logs import compare, read_log

    paths = (target, reference, *baseline)
    curves = []
    for i, path in enumerate(paths):
        report_progress(progress, f"reading {path}", i / len(paths))
        curves.append(read_log(path))
    return compare(curves[0], curves[1], curves[2:], min_steps)


def norms(
    target: PathLike,
    reference: PathLike,
    *,
    step: int | None = None,
    precision: str | None = None,
    rules: Sequence[PathLike] = (),
    progress: Progress | None = None,
) -> NormComparison:
    """Compare the gradient norm of every parameter.

    Parameters
    ----------
    target, reference
        Log with local norms, MindSpore's ``local_norm__*.npy``, dump, saved gradients, or a list
        of numbers.
    step
        Step of the training, from 1; default: the first that each side has.
    precision
        ``float32``, ``bfloat16`` or ``float16``: what the models are computed in, where dumps and
        logs do not say.
    rules
        Rule files in addition to the shipped rules.

    Raises
    ------
    DumpError
        If no norms can be read.
    RuleError
        If a rule file is wrong.
    """
    from ..gradient_norms import compare, read_norms

    book = load_rules([Path(file) for file in rules])
    sides = []
    for i, path in enumerate((target, reference)):
        report_progress(progress, f"reading {path}", i / 3)
        sides.append(read_norms(path, step, book))
    report_progress(progress, "comparing", 2 / 3)
    return compare(sides[0], sides[1], book, precision or "")


def optimizer(
    target: PathLike,
    reference: PathLike | None = None,
    *,
    settings: PathLike | None = None,
    progress: Progress | None = None,
) -> UpdateAnalysis | UpdateComparison:
    """Return which rule updated the weights of a run.

    With ``reference``, return the rules of both runs, and what differs.

    Parameters
    ----------
    target, reference
        Folder with ``weights_0``, ``gradients_1``, ``weights_1``, ...; such paths separated by
        commas; or a dump of several steps.
    settings
        YAML or JSON file of what is known of the optimizer.

    Raises
    ------
    DumpError
        If no updates can be read or followed.
    """
    from ..optimizers.comparison import compare_updates
    from ..optimizers.inputs import read_run

    paths = [target] if reference is None else [target, reference]
    analyses = []
    for i, path in enumerate(paths):
        report_progress(progress, f"recomputing {path}", i / len(paths))
        analyses.append(read_run(str(path), settings))
    return analyses[0] if reference is None else compare_updates(*analyses)
