"""`import tileprof` is cheap and needs neither torch nor a GPU."""

import subprocess
import sys
from pathlib import Path

import pytest

MOST_MODULES = 20
"""Cost of an import in lines and modules, because its time differs between machines."""

HEAVY = (
    "torch",
    "triton",
    "cupti",
    "transformers",
    "numpy",
    "pandas",
    "pyarrow",
    "networkx",
    "plotly",
    "numba",
    "rich",
)


def python(source, cwd):
    """Return the printed output of a new interpreter that runs ``source``."""
    result = subprocess.run([sys.executable, "-c", source], cwd=cwd, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_importing_tileprof_imports_no_heavy_library(tmp_path):
    module_names = python("import sys, tileprof; print(*sys.modules)", tmp_path).split()
    assert "tileprof" in module_names
    assert sorted(set(HEAVY) & set(module_names)) == []


def test_importing_tileprof_imports_few_modules(tmp_path):
    source = "import sys; before = len(sys.modules); import tileprof; print(len(sys.modules) - before)"
    assert int(python(source, tmp_path)) < MOST_MODULES


@pytest.mark.parametrize(
    "statement",
    [
        "from tileprof import load",
        "from tileprof import capture",
        "import tileprof.analysis",
        "import tileprof.viz",
        "import tileprof.devices",
        "import tileprof.cli.entry",
    ],
)
def test_everything_but_the_recorders_imports_without_torch(tmp_path, statement):
    preamble = "import sys; sys.modules.update(dict.fromkeys(['torch', 'triton', 'transformers', 'cupti']));"
    assert python(f"{preamble} {statement}; print('imported')", tmp_path) == "imported\n"


def test_writing_a_trace_imports_no_pandas(tmp_path):
    """Each recorded program would wait for it."""
    source = (
        "import sys; from tests.support.small_programs import recurrent; recurrent('t.tileprof')\n"
        "print(sorted({'pandas', 'pyarrow'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[3]
    assert python(f"import sys; sys.path.append({str(root)!r}); {source}", tmp_path) == "['pyarrow']\n"


def test_an_unknown_name_is_an_attribute_error(tmp_path):
    source = "import tileprof\ntry:\n    tileprof.nothing\nexcept AttributeError as e:\n    print(e)"
    assert "nothing" in python(source, tmp_path)
