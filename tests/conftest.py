"""What holds for the whole suite: Triton interprets, and the examples of a property test are the same in each run."""

import os
import re
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

# Triton decides at import whether kernels are interpreted, and whichever test imports torch first may import it.
os.environ["TRITON_INTERPRET"] = "1"

# On a slow machine lines that tell where a command is would stand among what tests compare.
os.environ["TILEPROF_PROGRESS_S"] = "0"

# The gate must not fail by chance: it draws from a fixed seed. `make search` draws at random, and on slow machines.
settings.register_profile("gate", derandomize=True, deadline=None)
settings.register_profile(
    "search", derandomize=False, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("gate")

_FALSIFYING = re.compile(r"(?:Falsifying example|Failing test case): \w+\(\n(.*?)^\)$", re.DOTALL | re.MULTILINE)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the failing example of a property test in the form in which it is pinned."""
    report = yield
    notes = "\n".join(getattr(call.excinfo.value, "__notes__", [])) if call.excinfo else ""
    for arguments in _FALSIFYING.findall(notes):
        report.sections.append((f"paste above {item.name}", f"@example(\n{arguments})"))
    return report
