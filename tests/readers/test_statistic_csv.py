"""statistic.csv of every generation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dumpdiff import readers
from dumpdiff.model.errors import DumpError
from dumpdiff.readers import mindspore
from dumpdiff.readers.mindspore.statistic_csv import (
    Statistics,
    is_statistic_csv,
    read_statistic_csv,
)

BASE = "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape"
ASCEND = f"""{BASE},Max Value,Min Value,L2Norm Value
Sub,Default_Sub-op0,0,0,1733905446819790,input,0,4,float32,"()",3,3,3,
Cast,Default_Cast-op0,0,0,1733905446824053,input,1,8,int64,"()",30,30,30,
Cast,Default_Cast-op0,0,0,1733905446824184,output,0,1,bool,"()",1,1,1,
Div,Default_Div-op0,0,0,1733905446828341,output,0,4,float32,"()",0.5,0.5,0.5,
"""
ROW = "MatMul,Default_MatMul-op0,0,0,1733905446819790,input,0,2048,float32,"


def read_text(tmp_path: Path, text: str) -> Statistics:
    """Return the statistics of a file with this text, which has no problems."""
    path = tmp_path / "statistic.csv"
    path.write_text(text)
    assert is_statistic_csv(path)
    statistics, problems = read_statistic_csv(path)
    assert problems == []
    return statistics


def test_the_trailing_comma_of_rows_shifts_nothing(tmp_path: Path):
    statistics = read_text(tmp_path, ASCEND)
    assert statistics.kind.tolist() == ["Sub", "Cast", "Cast", "Div"]
    assert statistics.io.tolist() == ["input", "input", "output", "output"]
    assert statistics.slot.tolist() == [0, 1, 0, 0]
    assert statistics.dtype.tolist() == ["float32", "int64", "bool", "float32"]
    assert statistics.shape.tolist() == [()] * 4
    assert (
        statistics.max.tolist()
        == statistics.min.tolist()
        == statistics.norm.tolist()
        == [3, 30, 1, 0.5]
    )
    assert np.isnan(statistics.mean).all()
    assert statistics.nonfinite.tolist() == [0] * 4
    assert statistics.recorded == {"max", "min", "norm"}


def test_up_to_2_2_the_columns_were_fixed_and_rows_had_no_comma(tmp_path: Path):
    counts = (
        "Count,Negative Zero Count,Positive Zero Count,NaN Count,Negative Inf Count,"
        "Positive Inf Count,Zero Count"
    )
    statistics = read_text(
        tmp_path,
        f"{BASE},Max Value,Min Value,Avg Value,{counts}\n"
        f'{ROW}"(2, 256)",1.5,-2,0.25,512,200,300,0,0,0,12\n'
        f'{ROW}"(2, 256)",1.5,-2,0.25,512,200,300,1,0,0,11\n'
        f'{ROW}"(2, 256)",null,null,null,512,0,0,512,0,0,0\n',
    )
    assert statistics.shape.tolist() == [(2, 256)] * 3
    np.testing.assert_array_equal(statistics.mean, [0.25, 0.25, np.nan])
    assert np.isnan(statistics.norm).all()
    assert statistics.nonfinite.tolist() == [
        0,
        1,
        1,
    ]  # NaN was left out of max and min: only the counts tell
    assert statistics.format_variant == "statistic.csv up to 2.3.0-rc2 (fixed columns)"


def test_columns_are_found_by_name_in_any_order(tmp_path: Path):
    statistics = read_text(
        tmp_path,
        f'{BASE},MD5,L2Norm Value,Nan Count,Min Value,Max Value\n{ROW}"(2,256)",d41d8c,7,3,-1,4,\n',
    )
    assert (statistics.max[0], statistics.min[0], statistics.norm[0]) == (4, -1, 7)
    assert statistics.hash.tolist() == ["d41d8c"]
    assert statistics.nonfinite.tolist() == [1]


def test_sha1_is_a_hash_too(tmp_path: Path):
    assert read_text(tmp_path, f'{BASE},SHA1\n{ROW}"(2,256)",da39a3,\n').hash == ["da39a3"]


def test_the_ge_dumper_calls_io_and_md5_differently(tmp_path: Path):
    statistics = read_text(
        tmp_path,
        "Op Type,Op Name,Task ID,Stream ID,Timestamp,Input/Output,Slot,Data Size,Data "
        "Type,Format,Shape,Max Value,"
        "Min Value,Avg Value,L2Norm Value,NaN Count,Negative Inf Count,Positive Inf Count,MD5 "
        "Value\n"
        'Add,Default_Add-op0,4,7,1733905446819790,output,0,8,bfloat16,ND,"(2,2)",1,-1,0,2,0,0,0,abc\n',
    )
    columns = (statistics.io, statistics.shape, statistics.hash)
    assert [column.tolist() for column in columns] == [["output"], [(2, 2)], ["abc"]]
    assert statistics.mean[0] == 0
    assert "GE" in statistics.format_variant


@pytest.mark.parametrize(
    ("printed", "value", "nonfinite"),
    [
        ("1.23457e+08", 1.23457e8, 0),
        ("-nan", np.nan, 1),
        ("nan", np.nan, 1),
        ("inf", np.inf, 1),
        ("-inf", -np.inf, 1),
        ("null", np.nan, -1),
        ("True", 1, 0),
        ("False", 0, 0),
        ("-0", 0, 0),
        ("", np.nan, -1),
        ("1e-05", 1e-5, 0),
    ],
)
def test_every_spelling_of_a_number(tmp_path: Path, printed: str, value: float, nonfinite: int):
    statistics = read_text(
        tmp_path, f'{BASE},Max Value,Min Value,L2Norm Value\n{ROW}"(2,256)",{printed},{printed},,\n'
    )
    np.testing.assert_array_equal(statistics.max, [value])
    np.testing.assert_array_equal(statistics.min, [value])
    assert statistics.nonfinite.tolist() == [nonfinite]


def test_a_file_without_statistics_still_lists_the_tensors(tmp_path: Path):
    statistics = read_text(tmp_path, f'{BASE}\n{ROW}"(2,256)"\n')
    assert statistics.bytes.tolist() == [2048]
    assert np.isnan(statistics.max).all()


def test_a_second_run_appended_with_its_header(tmp_path: Path):
    statistics = read_text(tmp_path, ASCEND + ASCEND)
    assert len(statistics.kind) == 8


def test_rows_that_do_not_fit_are_counted_and_the_rest_is_used(tmp_path: Path):
    path = tmp_path / "statistic.csv"
    path.write_text(
        ASCEND + "Div,Default_Div-op0,0,0,17339\nDiv,Default_Div-op0,0,0,x,output,0,4,f,,1,1,1\n"
    )
    statistics, problems = read_statistic_csv(path)
    assert len(statistics.kind) == 4
    assert [str(problem) for problem in problems] == [
        "statistic.csv:6: row does not fit the header (2 times)"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Op Type,Op Name\nAdd,Default_Add-op0\n",
        "Op Type,Op Name,Count,Total Time\nAdd,Default_Add-op0,3,4.5\n",  # a profiler's
        f"{BASE},Max Value\nthis,is,not,a,row\n",
        "\x00\x01\x02",
    ],
)
def test_a_file_that_only_begins_like_one_is_not_taken(tmp_path: Path, text: str):
    (tmp_path / "statistic.csv").write_text(text)
    assert not is_statistic_csv(tmp_path / "statistic.csv")


def test_a_header_alone_is_an_error_in_one_line(tmp_path: Path):
    (tmp_path / "statistic.csv").write_text(f"{BASE},Max Value\n")
    with pytest.raises(DumpError, match="has a header but no row"):
        read_statistic_csv(tmp_path / "statistic.csv")


def test_absurd_numbers_are_unknown_not_fatal(tmp_path: Path):
    statistics = read_text(
        tmp_path,
        f"{BASE},Max Value\n"
        f'Add,A,0,0,1733905446819790,input,0,{"9" * 30},float32,"(99999999999,99999999)",1,\n',
    )
    assert statistics.shape.tolist() == [None]
    assert statistics.bytes.tolist() == [-1]


DAMAGED_ROW = 'Sub,Default_Sub-op0,0,0,yesterday,input,0,4,float32,"()",3,3,3,\n'


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("Default_Cast-op0", "Default_\0Cast-op0"),
        lambda text: text.replace("\nCast", "\n\nCast"),
        lambda text: text + text.partition("\n")[0] + "\n",
        lambda text: text + DAMAGED_ROW,
    ],
    ids=["line ends", "NUL characters", "empty line", "repeated header", "damaged row"],
)
def test_an_unusual_file_gives_what_the_usual_one_gives(
    tmp_path: Path, change: Callable[[str], str]
):
    path = tmp_path / "statistic.csv"
    path.write_text(ASCEND)
    usual, _ = read_statistic_csv(path)
    path.write_bytes(change(ASCEND).encode())
    unusual, _ = read_statistic_csv(path)
    assert unusual.format_variant == usual.format_variant
    for column in ("kind", "name", "io", "slot", "time", "bytes", "dtype", "shape", "hash"):
        assert getattr(unusual, column).tolist() == getattr(usual, column).tolist()
    for column in ("max", "min", "mean", "norm", "nonfinite"):
        np.testing.assert_array_equal(getattr(unusual, column), getattr(usual, column))


def test_what_an_optimizer_overwrote_is_not_trusted_without_a_graph(tmp_path: Path):
    folder = tmp_path / "rank_0" / "net" / "0" / "0"
    folder.mkdir(parents=True)
    row = '0,0,{time},{io},{slot},4,float32,"()",3,3,3,\n'
    rows = [
        "MatMul,Default_MatMul-op0," + row.format(time=3, io="output", slot=0),
        "Parameter,fc_weight," + row.format(time=9, io="output", slot=0),
        "Momentum,Default_Momentum-op1," + row.format(time=5, io="output", slot=0),
        "Momentum,Default_Momentum-op1," + row.format(time=4, io="input", slot=3),
        "Momentum,Default_Momentum-op1," + row.format(time=4, io="input", slot=0),
        "MatMul,Default_MatMul-op0," + row.format(time=2, io="input", slot=0),
    ]
    text = ASCEND.partition("\n")[0] + "\n" + "".join(rows)
    (folder / "statistic.csv").write_text(text)
    (part,) = readers.list_parts(tmp_path)
    trace = mindspore.read_part(part)
    assert trace.ops["name"].tolist() == [
        "fc_weight", "Default_MatMul-op0", "Default_Momentum-op1"
    ]  # fmt: skip
    assert trace.ops["phase"].tolist() == ["forward", "forward", "optimizer"]
    columns = (trace.tensors[name] for name in ("op", "slot", "parameter", "trusted"))
    assert list(zip(*columns, strict=True)) == [
        (0, "output.0", "fc_weight", False),
        (1, "input.0", "", True),
        (1, "output.0", "", True),
        (2, "input.0", "", False),
        (2, "input.3", "", True),
        (2, "output.0", "", False),
    ]
