"""A recorded program behaves as under plain ``python``: output, errors, exit codes, signals, ``__main__``."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

IN_PROCESS = """
import sys
from tileprof.record import command, program
sys.exit(program.run(command.parse(tuple(sys.argv[1:])), lambda code, error: None))
"""

SCRIPTS = {
    "globals": "print(sorted(globals())); print(__name__, __file__, __package__, __spec__, type(__loader__), "
    "__builtins__)",
    "argv": "import sys; print(sys.argv, sys.path[0], sys.modules['__main__'].__dict__ is globals())",
    "sibling": "import helper; print(helper.value)",
    "ends": "print('fine')",
    "exit_3": "import sys; sys.exit(3)",
    "exit_300": "import sys; sys.exit(300)",
    "exit_negative": "import sys; sys.exit(-1)",
    "exit_text": "import sys; sys.exit('no such weights')",
    "exit_none": "raise SystemExit",
    "exit_object": "raise SystemExit([1, 2])",
    "raises": "def f(x):\n    return g(x)\ndef g(x):\n    return 1 / x\nprint('before')\nf(0)",
    "chained": "def f():\n    raise KeyError('a')\ntry:\n    f()\nexcept KeyError as e:\n    raise RuntimeError('b') "
    "from e",
    "group": "def f():\n    raise ValueError(1)\ntry:\n    f()\nexcept ValueError as e:\n    raise "
    "ExceptionGroup('many', [e, OSError(2)])",
    "syntax": "print('a'\nx = = 2",
    "bytes": "# -*- coding: latin-1 -*-\nprint('\xe9')",
    "os_exit": "import os, sys; print('x', flush=True); os._exit(7)",
    "interrupted": "import atexit, os, signal, time\natexit.register(print, 'late')\nos.kill(os.getpid(), "
    "signal.SIGINT)\ntime.sleep(9)",
    "terminated": "import os, signal, time\nprint('x', flush=True)\nos.kill(os.getpid(), "
    "signal.SIGTERM)\ntime.sleep(9)",
    "hook": "import sys\nsys.excepthook = lambda t, v, b: print('hook', t, v, b.tb_lineno, b.tb_next)\n1 / 0",
    "broken_hook": "import sys\ndef hook(*a):\n    raise OSError('in hook')\nsys.excepthook = hook\nraise "
    "ValueError('first')",
    "ordered_end": (
        "import atexit, threading, time\natexit.register(print, 'exit handler')\nbegun = threading.Event()\n"
        "def work():\n    begun.wait()\n    time.sleep(0.2)\n    print('thread')\n"
        "threading.Thread(target=work).start()\nprint('main')\nbegun.set()"
    ),
    "thread_raises": "import threading\ndef work():\n    raise ValueError('t')\nt = threading.Thread(target=work, "
    "name='w')\nt.start()\nt.join()\nprint('on')",
    "pickle": "import pickle\nclass A:\n    pass\nprint(pickle.loads(pickle.dumps(A())).__class__ is A, A.__module__)",
    "source": "import inspect\ndef f():\n    return 1\nprint(inspect.getsource(f))",
    "warns": "import warnings\nwarnings.warn('careful')",
    "reads": "print(input())",
    "forks": (
        "import os\npid = os.fork()\nif pid == 0:\n    print('child', flush=True)\n    raise SystemExit(4)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    ),
    "spawns": (
        "import multiprocessing\ndef double(x):\n    return 2 * x\n"
        "if __name__ == '__main__':\n    with multiprocessing.get_context('spawn').Pool(1) as pool:\n        "
        "print(pool.map(double, [1, 2]))"
    ),
    "annotated": "x: int = 1\nprint(__annotations__)",
    "future": "def f(x: undefined): pass",
}
"""``future`` fails unless the compiler flags of the recorder's files stay out of the program's compilation."""


def _both(
    folder: Path, program: list[str]
) -> tuple[subprocess.CompletedProcess[bytes], subprocess.CompletedProcess[bytes]]:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}

    def run(words: list[str]) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            words, cwd=folder, capture_output=True, input=b"typed\n", env=environment, timeout=250, check=False
        )

    return run([sys.executable, *program]), run([sys.executable, "-c", IN_PROCESS, sys.executable, *program])


def _assert_same(plain, under_record):
    assert (under_record.returncode, under_record.stdout) == (plain.returncode, plain.stdout)
    assert under_record.stderr.decode() == plain.stderr.decode()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_behaves_the_same(name, tmp_path):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "helper.py").write_text("value = 7")
    (tmp_path / "scripts" / "infer.py").write_text(SCRIPTS[name], encoding="latin-1")
    _assert_same(*_both(tmp_path, ["scripts/infer.py", "a", "-o", "--", "b c"]))


@pytest.mark.parametrize(
    "program",
    [
        ["-m", "package.module", "x"],
        ["-m", "package", "--force"],
        ["-m", "single"],
        ["-m", "absent"],
        ["-m", "package.raises"],
        ["folder", "x"],
        ["archive.zip", "x"],
        ["-c", "import sys; print(sys.argv, sys.path[0], __name__)", "x"],
        ["-c", "1/0"],
        ["link.py"],
        ["-m", "package.interrupted"],
    ],
    ids=" ".join,
)
def test_modules_folders_archives_code_and_links_behave_the_same(program, tmp_path):
    message = "import sys\nprint(__name__, __package__, __spec__ and __spec__.name, sys.argv, sys.path[0])"
    for name in ("package", "folder", "elsewhere"):
        (tmp_path / name).mkdir()
    for name in ("package/__main__.py", "package/module.py", "folder/__main__.py", "single.py", "elsewhere/real.py"):
        (tmp_path / name).write_text(message)
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "raises.py").write_text("def f():\n    raise KeyError(1)\nf()")
    (tmp_path / "package" / "interrupted.py").write_text("raise KeyboardInterrupt")
    (tmp_path / "link.py").symlink_to(tmp_path / "elsewhere" / "real.py")
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", message)
    _assert_same(*_both(tmp_path, program))
