"""The words of a script's commands are those that bash passes to them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dumpdiff.model.errors import DumpError
from dumpdiff.run_settings.shell import read_script

SAMPLES = Path(__file__).parents[2] / "samples"


def read_words(script: str) -> list[str]:
    """The words of the last 'train'; what the script does not say is in angle brackets."""
    call = [call for call in read_script(script).calls if call.words[0].text == "train"][-1]
    return [word.text if word.is_known else f"<{word.text}>" for word in call.words]


def run_bash(script: str, tmp_path: Path) -> list[str]:
    """What bash itself hands to 'train'."""
    stub, output = tmp_path / "train", tmp_path / "words"
    stub.write_text(f'#!/bin/bash\nprintf "%s\\0" train "$@" > {output}\n')
    stub.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "LC_ALL": "C"}
    subprocess.run(
        ["bash", "-c", script], check=True, env=environment, cwd=tmp_path, capture_output=True
    )
    return output.read_text().split("\0")[:-1]


@pytest.mark.parametrize(
    "script",
    [
        "train --lr 1e-5 --bf16",
        'A=1; B="two words"; train $A $B "$B" \'$B\' ${A}x \\$A',
        'N=${N:-8}; M=${M:-"2"}; train $N $M $(( N * M - 1 )) $((N/3))',
        "A=(--x 1 # the first\n  --y 'a b' \\\n  --z\n)\nA+=(--w)\ntrain \"${A[@]}\" ${A[@]}",
        'A="--x 1 \\\n --y 2 \\\n --z"\ntrain $A',
        'A="--x 1"\nA="$A --y 2"\nA+=" --z"\ntrain $A',
        "train --a \\\n  --b 1 \\\n  # --c 2\n",
        "if [ 1 = 2 ]; then X=a; elif [ 1 = 1 ]; then X=b; else X=c; fi; train $X",
        "N=3\nif [ $N -gt 2 ] ; then\n  A+=(--deep)\nelse\n  A+=(--flat)\nfi\ntrain ${A[@]}",
        'X=1; [ "$X" = 1 ] && Y=one; [ "$X" = 2 ] || Z=other; train $Y $Z',
        "cat <<EOF\ntrain no command\nEOF\ntrain yes > log.txt 2>&1",
        "A=x; train --a \"$A\"$A'$A' --b=$A 2>&1 | cat",
        "true && train ok &> log.txt &\nwait",
        "C=3; A=1 B=2 train $C done",
        'cmd="train --x 1"; eval $cmd',
        'X=; train a $X b "$X" ${X:-empty} ${X-unset} ${Y+no} ${Y:-}',
        "f() {\n  train inside\n}\nf",
        'train "a\\"b" "$((1+2))" "tab\\tkept" a\\ b',
        'A=(a b c); train ${A[1]} "${A[*]}" $A',
        "for X in a b c; do L+=(--$X); done; train ${L[@]}",
        "M=7B; case $M in 0.5B) H=896;; 7B|8B) H=3584 ;; *) H=0;; esac; train $H",
        'case "x y" in "x "*) A=1;; esac; case z in [a-c]) B=2;; ?) B=3;; esac; train $A $B',
        "A=2; train $(( A > 1 ? 10 : 20 )) $(( (A + 1) ** 2 % 5 )) $(( -7 / 2 )) $((A==2 && 0))",
        "A=1; B=2; if [ $A = 1 ] && [ $B -gt 2 ]; then X=both; else X=no; fi; train $X",
        "if [[ a == a* && ( 1 == 2 || b != c ) ]]; then X=y; fi; train $X",
        'X=y; if ! [ -z "" ]; then X=n; fi; train $X',
        'f() { local A=$1; shift; train $A "$@" $#; }; f 1 "2 3" 4',
        "L=; set -- a b c; shift; while [ $# -gt 0 ]; do L=$L,$1; shift; done; train $L",
        "for i in 1 2 3 4; do if [ $i = 2 ]; then continue; fi; if [ $i -eq 4 ]; then break; fi;"
        ' L+=" $i"; done; train $L',
        'CMD="train --a \'b c\'"; eval "train --x 1 $((2*3))"',
        "A=5; (( A > 3 )) && B=big || B=small; train $B",
        "function g {\n  train $1\n}\ng ok\nexit 0\ntrain never",
        "A=; if [ -z $A ]; then A=default; fi; [ $A ] && train $A || true",
        'A=(--x 1 --y); cmd="train ${A[@]} --z"; echo $cmd; eval $cmd 2>&1 | cat; exit 0',
    ],
)
def test_words_are_those_of_bash(script: str, tmp_path: Path) -> None:
    assert read_words(script) == run_bash(script, tmp_path)


def test_what_only_the_shell_knows_is_marked() -> None:
    assert read_words('train $1 "$(pwd)/x" `date` $HOME ${X%.sh} $@') == [
        "train", "<$1>", "<$(pwd)/x>", "<`date`>", "<$HOME>", "<${X%.sh}>", "<$@>",
    ]  # fmt: skip


def test_a_branch_that_may_run_leaves_its_words_unknown() -> None:
    script = (
        'A=(--lr 1)\nif [ "$FP8" = 1 ]; then\n  A+=(--fp8 hybrid)\n  LR=2\nfi\ntrain ${A[@]} $LR'
    )
    assert read_words(script) == ["train", "--lr", "1", "<--fp8>", "<hybrid>", "<2>"]


def test_a_command_in_a_branch_that_may_run_is_uncertain_and_one_that_cannot_is_left_out() -> None:
    script = 'if [ -z "$X" ]; then train a; fi\nif [ 1 = 2 ]; then train b; fi\ntrain c'
    assert [(call.words[-1].text, call.certain) for call in read_script(script).calls] == [
        ("a", False),
        ("c", True),
    ]


def test_words_know_the_line_where_they_are_written() -> None:
    script = 'LR=1\nA=(\n  --x 1\n  --lr $LR\n)\nB="--y 2 \\\n  --z 3"\ntrain ${A[@]} $B'
    lines = [(word.text, word.line) for word in read_script(script).calls[-1].words]
    assert lines == [
        ("train", 8),
        ("--x", 3),
        ("1", 3),
        ("--lr", 4),
        ("1", 1),
        ("--y", 6),
        ("2", 6),
        ("--z", 7),
        ("3", 7),
    ]


def test_the_environment_of_a_command_is_what_is_exported_and_what_stands_before_it() -> None:
    (call,) = read_script("export A=1 B=x\nC=no\nD=4 \\\nE=5 train").calls
    assert {name: word.text for name, word in call.environment.items()} == {
        "A": "1",
        "B": "x",
        "D": "4",
        "E": "5",
    }


def test_files_that_a_script_reads_are_named() -> None:
    assert [word.text for word in read_script("source env.sh\n. ./more.sh\ntrain").sourced] == [
        "env.sh",
        "./more.sh",
    ]


@pytest.mark.parametrize(
    "script", ['"', "'", "${", "$((", "$(", "A=(", "`", "if", "fi", "((", "<<E", "\\", "a>", "$"]
)
def test_a_broken_script_is_no_crash(script: str) -> None:
    assert read_script(script + "\n").sourced == ()


def test_a_script_that_grows_without_end_is_refused() -> None:
    doubling = "a=xxxxxxxxxx\n" + "a=$a$a\n" * 60 + "train $a"
    with pytest.raises(DumpError, match="expected a launch script"):
        read_script(doubling)


@pytest.mark.parametrize("script", ["${a:-" * 5000, "train ${a:-" * 5000, "if " * 5000])
def test_expansions_within_expansions_without_end_are_refused(script: str) -> None:
    with pytest.raises(DumpError, match="expected a launch script"):
        read_script(script)


@pytest.mark.parametrize("script", ["$((" + "(" * 5000, "(" * 5000, "A=(" * 3000])
def test_brackets_without_end_start_no_training(script: str) -> None:
    assert all(call.words[0].text != "train" for call in read_script(script).calls)


def test_a_script_longer_than_any_is_refused() -> None:
    with pytest.raises(DumpError, match="expected a launch script"):
        read_script("#" * (2 << 20))


def test_arguments_of_the_script_are_supplied() -> None:
    script = """
ENV=$1; SIZE=$2; TP=${10}
if [ $ENV = dsw ]; then GPUS=8; elif [ $ENV = dlc ]; then GPUS=$WORLD_SIZE; fi
case $SIZE in
  7B) LAYERS=28 ;;
  8B) LAYERS=32 ;;
esac
if [ -z ${VP} ]; then options=""; else options="--vp $VP"; fi
train $GPUS $LAYERS $TP $options $11 $#
"""
    arguments = ["dsw", "8B", *"abcdefgh"]
    (call,) = read_script(script, arguments=arguments).calls
    words = [word.text for word in call.words]
    assert words == ["train", "8", "32", "h", "dsw1", "10"]
    assert all(word.is_known for word in call.words)
    assert read_script(script, arguments=arguments).parameters == ()
    assert read_script(script).parameters == ("#", "1", "10", "2")


def test_without_the_arguments_what_follows_from_them_is_unknown() -> None:
    script = 'case $1 in 7B) L=28;; *) L=32;; esac; if [ -z "$VP" ]; then V=1; fi; train $L $V'
    assert read_words(script) == ["train", "<32>", "<1>"]


def test_variables_before_the_command_are_set() -> None:
    (call,) = read_script("train ${VP:-1} $X", arguments=[], variables={"VP": "2", "X": "y"}).calls
    assert [word.text for word in call.words] == ["train", "2", "y"]
    assert call.environment["VP"].text == "2"


def test_a_sourced_file_near_the_script_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "common.sh").write_text("LAYERS=4\n\nHIDDEN=64\n")
    script = 'source "$(dirname "$0")/../common.sh"; . /etc/profile; train $LAYERS $HIDDEN'
    text = read_script(script, folder / "run.sh")
    words = text.calls[-1].words
    assert [word.text for word in words] == ["train", "4", "64"]
    assert words[2].format_place("run.sh") == "common.sh:3"
    assert [word.text for word in text.sourced] == ["/etc/profile"]


def test_a_loop_without_end_ends() -> None:
    assert read_words("X=1; while true; do X=2; done; train $X") == ["train", "2"]
    assert read_words("f() { f; }; f; train 1") == ["train", "1"]


def test_a_function_that_is_never_called_may_run() -> None:
    (call,) = read_script("f() { train $1; }").calls
    assert (call.certain, call.words[1].is_known) == (False, False)
