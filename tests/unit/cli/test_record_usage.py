"""The command line: verbs, options, exit codes and messages about bad usage."""

import sys
from argparse import ArgumentParser
from pathlib import Path

import pytest

from tileprof.cli import entry
from tileprof.cli.entry import main
from tileprof.cli.verb import Verb
from tileprof.errors import UserError
from tileprof.record import Options
from tileprof.record.command import other_interpreter, parse


def test_help_names_every_verb_and_survives_a_broken_one(capsys, monkeypatch):
    monkeypatch.setattr(entry, "VERBS", (*entry.VERBS, "nonesuch"))
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:1] == ["record"] for line in lines)
    assert "not available" in next(line for line in lines if "nonesuch" in line)


def test_no_verb_at_all_is_bad_usage(capsys):
    assert main([]) == 2
    assert "record" in capsys.readouterr().out


def test_an_unknown_verb_gets_a_close_match(capsys):
    assert main(["recrod", "x.py"]) == 2
    assert "did you mean `tileprof record`?" in capsys.readouterr().err


def test_a_bug_of_ours_shows_its_traceback_and_exits_with_70(capsys, monkeypatch):
    monkeypatch.setattr(entry, "load_verb", lambda _: Verb("report", "", lambda _: None, lambda _: 1 // 0))
    assert main(["report"]) == 70
    output = capsys.readouterr().err
    assert "ZeroDivisionError" in output
    assert "bug in tileprof" in output


def test_options_of_the_program_are_the_programs(monkeypatch):
    from tileprof.cli.verbs.record import VERB

    parser = ArgumentParser(allow_abbrev=False)
    VERB.prepare(parser)
    for line in (["--fake", "--", "infer.py", "--fake", "-o", "--"], ["--fake", "infer.py", "--fake", "-o", "--"]):
        options = parser.parse_args(line)
        assert options.fake
        assert options.output is None
        assert options.program[-4:] == ["infer.py", "--fake", "-o", "--"]


def test_options_survive_the_way_to_another_interpreter():
    from tileprof.cli.verbs.record import VERB

    parser = ArgumentParser(allow_abbrev=False)
    VERB.prepare(parser)
    options = Options(
        ("x",), Path("a b"), force=True, device="L4", fake=True, skip=3, count=4, module="-x", initialisation=True
    )
    values = vars(parser.parse_args([*options.arguments(), "--", "x"]))
    for name in ("output", "force", "device", "fake", "skip", "count", "module", "initialisation"):
        assert values[name] == getattr(options, name)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ([], "no program to record"),
        (["python"], "names no program"),
        (["absent.py"], "no such program: absent.py"),
        (["python", "absent.py"], "no such program: absent.py"),
        (["no-such-command"], "neither a file here nor a command"),
        (["ls"], "is not a Python program"),
        (["python", "-i", "x.py"], "waits for a user"),
        (["python", "-Z", "x.py"], "unknown interpreter option -Z"),
        (["python", "-m"], "needs a value"),
        (["/no/such/python", "here.py"], "no such interpreter: /no/such/python"),
        (["--device", "H2000", "here.py"], "H200"),
        (["--module", "(", "here.py"], "not a regular expression"),
        (["--count", "0", "here.py"], "from 1"),
        (["--skip", "-1", "here.py"], "from 0"),
        (["-o", "kept.tileprof", "here.py"], "will not overwrite kept.tileprof without --force"),
        (["-o", "other.tileprof", "--force", "here.py"], "it is not a trace"),
        (["-o", "/", "here.py"], "/ cannot name a trace"),
        (["-o", ".", "here.py"], ". cannot name a trace"),
        (["-o", "..", "here.py"], ".. cannot name a trace"),
        (["-o", "", "here.py"], "cannot name a trace"),
        (
            ["-o", "-", "here.py"],
            "- (stdin or stdout) cannot carry a trace, which is a folder: give a name such as run.tileprof",
        ),
        (["-o", "x" * 250, "here.py"], "is 259 bytes long"),
        (["-o", "x" * 300 + "/y", "here.py"], "File name too long"),
        (["-o", "kept", "here.py"], "will not overwrite kept.tileprof without --force"),
    ],
)
def test_bad_usage_is_one_sentence_and_exit_code_2(words, answer, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("here.py").write_text("raise SystemError('ran')")
    for name, manifest in (("kept", '{"format": "tileprof trace"}'), ("other", "{}")):
        Path(name + ".tileprof").mkdir()
        Path(name + ".tileprof", "manifest.json").write_text(manifest)
    assert main(["record", *words]) == 2
    output = capsys.readouterr().err
    assert answer in output
    assert "Traceback" not in output
    assert sorted(p.name for p in tmp_path.iterdir()) == ["here.py", "kept.tileprof", "other.tileprof"]


@pytest.mark.parametrize("name", ["", "-", "/", "x" * 240, "x" * 300, "x" * 300 + "/y"])
def test_what_cannot_be_a_traces_name_is_one_sentence(name, capsys):
    assert main(["report", name]) == 2
    output = capsys.readouterr().err
    assert output.startswith("tileprof: ")
    assert output.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "stem"),
    [
        (("python", "runs/infer.py", "x"), "infer"),
        (("python3.11", "-u", "-X", "dev", "-m", "package.module"), "module"),
        (("python", "-um", "package"), "package"),
        ((sys.executable, "-c", "print()"), "python-c"),
        (("infer.py",), "infer"),
    ],
)
def test_the_trace_is_named_after_the_program(words, stem):
    from tileprof.record import default_output

    assert default_output(words) == Path(stem + ".tileprof")


def test_interpreter_options_are_separated_from_the_programs():
    command = parse(("python", "-OuW", "error", "-Xdev", "-m", "package", "-O"))
    assert (command.options, command.target, command.arguments) == (
        ("-Ou", "-W", "error", "-X", "dev"),
        "package",
        ("-O",),
    )


def _other_python(folder, *, works):
    """Write an executable named python that can, or cannot, import what recording needs."""
    python = folder / "python"
    python.write_text("#!/bin/sh\n" + ("exit 0\n" if works else "echo 'No module named x' >&2; exit 1\n"))
    python.chmod(0o755)
    return python


def test_a_bare_python_that_can_record_is_the_one_that_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    python = _other_python(tmp_path, works=True)
    assert other_interpreter(parse(("python", "x.py"))) == str(python)


def test_a_python_that_cannot_record_is_replaced_with_a_note(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    _other_python(tmp_path, works=False)
    assert other_interpreter(parse(("python", "x.py"))) is None
    assert other_interpreter(parse(("python", "-O", "x.py"))) == sys.executable
    assert f"running with {sys.executable}" in capsys.readouterr().err


def test_an_interpreter_named_by_its_path_is_never_replaced(tmp_path):
    python = _other_python(tmp_path, works=False)
    with pytest.raises(UserError, match="cannot record: No module named x"):
        other_interpreter(parse((str(python), "x.py")))


def test_the_running_interpreter_runs_what_names_it():
    assert other_interpreter(parse((sys.executable, "x.py"))) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--recorder", "cuda", "--fake"], "--fake is for --recorder model, and this is the cuda recorder"),
        (["--recorder", "cuda", "--tile", "gemm=128x128x32"], "--tile is for --recorder model"),
        (["--check-writes"], "--check-writes is for --recorder cuda, and this is the model recorder"),
        (["--recorder", "model", "--granule", "4"], "--granule is for --recorder cuda"),
    ],
)
def test_options_of_the_other_recorder_are_refused(tmp_path, capsys, words, message):
    (tmp_path / "p.py").write_text("raise SystemExit(3)")
    assert (
        main(["record", "-o", str(tmp_path / "t.tileprof"), *words, "--", sys.executable, str(tmp_path / "p.py")]) == 2
    )
    assert message in capsys.readouterr().err


def test_every_option_of_the_cuda_recorder_is_named():
    from tileprof.cli.arguments import cuda_options

    parser = ArgumentParser()
    cuda_options.add_options(parser)
    assert set(cuda_options.NAMES) == {action.dest for action in parser._actions} - {"help"}


@pytest.mark.parametrize("options", [("-S",), ("-SE",), ("-O", "-S")])
def test_options_that_hide_tileprof_from_the_interpreter_are_named(options):
    with pytest.raises(UserError, match="-S leaves out site-packages, where tileprof is installed"):
        other_interpreter(parse((sys.executable, *options, "x.py")))


def test_an_option_that_hides_nothing_that_is_needed_is_kept():
    assert other_interpreter(parse((sys.executable, "-s", "x.py"))) == sys.executable
