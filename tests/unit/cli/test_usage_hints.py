"""Hints of the command line: misspelt options, options of the program, folders of traces, help, completion."""

import subprocess
import sys
from importlib import import_module

import pytest

from tileprof.cli.arguments.trace_argument import load_trace
from tileprof.cli.entry import VERBS, main, parser_of
from tileprof.cli.text.console import plain_streams
from tileprof.cli.verbs.record import _hint_at_own_options
from tileprof.errors import UserError


def test_a_misspelt_option_is_answered_with_the_one_that_may_be_meant(capsys):
    with pytest.raises(SystemExit) as exit_info:
        main(["report", "--devise", "H100", "x.tileprof"])
    assert exit_info.value.code == 2
    assert "did you mean --device?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("program", "option"),
    [
        (["python", "x.py", "--fake"], "--fake"),
        (["python", "x.py", "--device=H100"], "--device=H100"),
        (["python", "x.py", "--epochs", "3"], None),
        (["python", "x.py", "--help"], None),
    ],
)
def test_an_option_of_ours_behind_the_program_is_pointed_out(program, option, capsys):
    _hint_at_own_options(program)
    output = capsys.readouterr().err
    assert output == "" if option is None else f"{option} goes to the program" in output


def test_a_folder_of_traces_is_answered_with_their_names(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.tileprof").mkdir()
        (tmp_path / f"{name}.tileprof" / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match=r"is not a trace, but holds a.tileprof, b.tileprof: name one"):
        load_trace(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scheduler", "foo", "policy.json"], "no scheduler 'foo'; known: auto, stream, graph, pdl"),
        (["--scheduler", "acs", "policy.json"], "tileprof run --scheduler acs -- python infer.py"),
        (["--scheduler", "foo", "--", "x.py"], "no scheduler 'foo' for a program; known: acs and acs-graph"),
        (["--scheduler", "pdl", "--", "x.py"], "tileprof run --scheduler pdl POLICY"),
    ],
)
def test_a_scheduler_is_checked_before_a_gpu_is_missed(arguments, message, capsys):
    assert main(["run", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("verb", VERBS)
def test_help_explains_every_verb(verb, capsys):
    with pytest.raises(SystemExit) as exit_info:
        main(["help", verb])
    assert exit_info.value.code == 0
    assert f"usage: tileprof {verb}" in capsys.readouterr().out


def test_help_lists_devices_and_schedulers(capsys):
    with pytest.raises(SystemExit):
        main(["simulate", "--help"])
    message = " ".join(capsys.readouterr().out.split())
    assert "Devices: V100," in message
    assert "Schedulers: stream, graph, pdl" in message


def test_completion_is_a_script_that_the_shell_takes(capsys):
    pytest.importorskip("shtab")
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert "--fail-if" in script
    syntax_check = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert (syntax_check.returncode, syntax_check.stderr) == (0, "")


def test_completion_of_an_unknown_shell_says_which_are_known(capsys):
    assert main(["completion", "fish"]) == 2
    assert "bash|zsh|tcsh" in capsys.readouterr().err


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_answers_programs_and_plain_terminals(name):
    options = parser_of(import_module(f"tileprof.cli.verbs.{name}").VERB).format_help()
    assert "--json" in options
    assert "--plain" in options


def test_plain_streams_are_ascii_and_end_with_their_block(capsys):
    with plain_streams():
        sys.stdout.write("a → b … \N{MULTIPLICATION SIGN}2\n")
        sys.stderr.write("▇é\n")
    sys.stdout.write("→\n")
    output = capsys.readouterr()
    assert output.out == "a > b ~ x2\n→\n"
    assert output.err == "#\\xe9\n"
