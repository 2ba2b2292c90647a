"""The table of settings is complete: it has every row and option of the migration guide."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from dumpdiff.run_settings.derivation import BOTH_SIDES, CONDITIONS, megatron, mindformers
from dumpdiff.run_settings.settings import FRAMEWORK_NAMES, Framework, Settings, SettingValue
from dumpdiff.run_settings.table import COMPLETE_FRAMEWORKS, Default, Row, load_table
from dumpdiff.run_settings.values import PARSERS

SAMPLES = Path(__file__).parents[1] / "samples"
TABLE = load_table()


def read_lines(name: str) -> list[str]:
    return [
        line
        for line in (SAMPLES / name).read_text().splitlines()
        if line and not line.startswith("#")
    ]


def normalize_names(names: str | tuple[str, ...]) -> set[str]:
    """Names without their place and with dashes; '-' is none."""
    listed_names = names.split() if isinstance(names, str) else names
    return {name.rpartition(".")[2].replace("_", "-") for name in listed_names} - {"-"}


def test_the_guide_names_169_rows_and_123_options_of_swift() -> None:
    assert (len(read_lines("guide_rows.txt")), len(read_lines("swift_options.txt"))) == (169, 123)


@pytest.mark.parametrize("row", read_lines("guide_rows.txt"))
def test_every_row_of_the_guide_is_in_the_table(row: str) -> None:
    megatron_names, mindformers_names = (normalize_names(side) for side in row.split("|"))
    matching_rows = [
        table_row
        for table_row in TABLE.rows
        if megatron_names <= normalize_names(table_row.megatron)
        and mindformers_names <= normalize_names(table_row.mindformers)
    ]
    assert matching_rows


@pytest.mark.parametrize("option", read_lines("swift_options.txt"))
def test_every_option_of_megatron_swift_is_in_the_table(option: str) -> None:
    assert normalize_names(option) <= {
        name for row in TABLE.rows for name in normalize_names(row.megatron)
    }


@pytest.mark.parametrize("row", TABLE.rows, ids=lambda row: row.name)
def test_rows_are_well_formed(row: Row) -> None:
    assert row.type in PARSERS
    assert row.effect in ("numbers", "precision", "rounding", "none")
    assert not row.needs or row.needs in CONDITIONS
    if row.derive:
        function = f"derive_{row.derive}"
        assert hasattr(megatron, function) or hasattr(mindformers, function)
    assert row.megatron or row.mindformers or row.further
    assert all(name.rpartition(".")[0] in TABLE.places for name in row.mindformers)
    assert set(row.fixed) <= {"megatron", "mindformers"}


def test_every_derivation_and_every_condition_is_used() -> None:
    derived = {f"derive_{row.derive}" for row in TABLE.rows}
    for module in (megatron, mindformers):
        public = [
            name
            for name, value in vars(module).items()
            if inspect.isfunction(value)
            and value.__module__ == module.__name__
            and not name.startswith("_")
        ]
        assert set(public) <= derived
    assert set(CONDITIONS) == {row.needs for row in TABLE.rows} - {""}
    assert set(CONDITIONS) >= BOTH_SIDES


def test_every_default_belongs_to_a_row() -> None:
    options = {
        key
        for row in TABLE.rows
        for name in row.megatron
        for key in TABLE.list_keys(name, "megatron")
    }
    keys = {name for row in TABLE.rows for name in row.mindformers}
    known_elsewhere = {"rampup_batch_size"}
    assert (
        set(TABLE.defaults["megatron"]) | set(TABLE.defaults["swift"]) <= options | known_elsewhere
    )
    assert set(TABLE.defaults["mindformers"]) | set(TABLE.defaults["legacy"]) <= keys


@pytest.mark.parametrize(
    ("version", "default"),
    [
        ("0.5", Default("local")),
        ("0.6", Default("transformer_engine")),
        ("0.17", Default("transformer_engine")),
        (
            "",
            Default(
                None,
                "the default changed (local from 0.4, transformer_engine from 0.6)"
                " and the version is not known",
            ),
        ),
    ],
)
def test_a_default_that_changed_is_that_of_the_version(version: str, default: Default) -> None:
    assert (
        TABLE.find_default("transformer-impl", Settings("", "megatron", "", {}, version=version))
        == default
    )


def test_swift_has_defaults_of_its_own_and_else_those_of_megatron() -> None:
    swift = Settings("", "swift", "", {})
    assert TABLE.find_default("adam-beta2", swift) == Default(0.95)
    assert TABLE.find_default("adam-beta1", swift) == Default(0.9)


def test_legacy_models_have_defaults_of_their_own() -> None:
    legacy, core = (
        Settings("", "mindformers", "", {"use_legacy": SettingValue(value, "")})
        for value in (True, False)
    )
    assert TABLE.find_default("model.compute_dtype", legacy) == Default("float16")
    assert TABLE.find_default("model.compute_dtype", core) == Default("bfloat16")


@pytest.mark.parametrize(
    ("model_type", "norm", "epsilon", "gated"),
    [("qwen3", "RMSNorm", 1e-6, True), ("glm4", "RMSNorm", 1.5625e-7, True)],
)
def test_a_core_model_has_the_defaults_of_its_configuration_class(
    model_type: str, norm: str, epsilon: float, gated: bool
) -> None:
    settings = make_core_model(model_type)
    assert TABLE.find_default("model.normalization", settings) == Default(norm)
    assert TABLE.find_default("model.rms_norm_eps", settings) == Default(epsilon)
    assert TABLE.find_default("model.gated_linear_unit", settings) == Default(gated)
    assert TABLE.find_default("model.add_bias_linear", settings) == Default(False)


def test_what_the_classes_differ_in_is_not_known_of_another_class() -> None:
    settings = make_core_model("some_new_model")
    assert TABLE.find_default("model.normalization", settings) is None
    assert TABLE.find_default("model.softmax_compute_type", settings) == Default("float32")


def make_core_model(model_type: str) -> Settings:
    values = {
        "use_legacy": SettingValue(False, ""),
        "model.model_config.model_type": SettingValue(model_type, ""),
    }
    return Settings("", "mindformers", "", values)


@pytest.mark.parametrize("framework", sorted(set(FRAMEWORK_NAMES) - set(COMPLETE_FRAMEWORKS)))
def test_a_default_of_a_further_framework_belongs_to_a_row(framework: Framework) -> None:
    keys = {name for row in TABLE.rows for name in row.get_names(framework)}
    assert set(TABLE.defaults[framework]) <= keys


@pytest.mark.parametrize(
    ("written", "option"),
    [
        ("micro-batch", "micro-batch-size"),
        ("lr", "lr"),
        ("num-l", "num-l"),
        ("no-such-option", "no-such-option"),
    ],
)
def test_an_option_may_be_cut_to_a_beginning_that_only_it_has(written: str, option: str) -> None:
    assert TABLE.resolve_option(written) == option


@pytest.mark.parametrize(
    ("framework", "key", "version", "value"),
    [
        ("msswift", "adam_beta2", "3.1.0", 0.999),
        ("msswift", "adam_beta2", "4.5.2", 0.95),
        ("msswift", "adam_beta2", "", None),
        ("llamafactory", "cutoff_len", "0.9.0", 1024),
        ("llamafactory", "cutoff_len", "0.9.5", 2048),
        ("llamafactory", "bf16", "0.9.5", None),
        ("deepspeed", "gradient_accumulation_steps", "", None),
    ],
)
def test_a_default_that_changed_or_follows_from_something_else_is_no_fact(
    framework: Framework, key: str, version: str, value: float | None
) -> None:
    default = TABLE.find_default(key, Settings("", framework, "", {}, version=version))
    assert default is not None
    assert default.value == value
    assert bool(default.changed) == (value is None)
