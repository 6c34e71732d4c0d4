"""A pytest plugin: ``@pytest.mark.tileprof(max_gap=0.3, no_conservative=True)`` records a test and checks its trace.

Arguments of the marker: ``device``, ``fake``, ``module`` as of ``tileprof record``; ``max_gap`` and ``max_idle``
(shares, 0 to 1), ``max_launches``, ``max_time_ns``, ``no_conservative``, and ``fail_if``, a condition of ``tileprof
report --fail-if`` or several.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_LIMITS = {"max_gap": "gap", "max_idle": "idle", "max_launches": "launches", "max_time_ns": "time"}
_RECORDING = {"device", "fake", "module", "tile"}


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers",
        "tileprof(device, fake, module, max_gap, max_idle, max_launches, max_time_ns, no_conservative, fail_if): "
        "record the test's GPU work and check the trace",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Run a marked test under the model recorder, then fail it where its trace breaks a limit."""
    marker = item.get_closest_marker("tileprof")
    if marker is None:
        return (yield)
    limits = dict(marker.kwargs)
    unknown = set(limits) - {*_LIMITS, *_RECORDING, "no_conservative", "fail_if"}
    if marker.args or unknown:
        pytest.fail(f"tileprof marker: unknown arguments {sorted(unknown) or list(marker.args)}", pytrace=False)
    from tileprof.record.model.recording_context import recording  # noqa: PLC0415 - heavy, and only for marked tests

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "test.tileprof"
        with recording(path, **{name: limits[name] for name in _RECORDING & set(limits)}):
            result = yield
        broken = _broken_limits(path, limits)
    if broken:
        pytest.fail("tileprof: " + "; ".join(broken), pytrace=False)
    return result


def _broken_limits(path: Path, limits: dict[str, Any]) -> list[str]:
    """Return sentences about limits that the trace breaks."""
    from tileprof.analysis.reporting.comparison import facts  # noqa: PLC0415 - heavy, and only for marked tests
    from tileprof.analysis.reporting.report import build_report  # noqa: PLC0415 - as above
    from tileprof.api import load  # noqa: PLC0415 - as above
    from tileprof.cli.arguments.fail_if import condition, fact_text  # noqa: PLC0415 - as above

    values = facts(build_report(load(path).graph()))
    broken = []
    for argument, name in _LIMITS.items():
        value = values[name]
        if argument in limits and value is not None and value > limits[argument]:
            broken.append(f"{name} is {fact_text(name, value)}, more than {fact_text(name, limits[argument])}")
    if limits.get("no_conservative") and values["conservative"]:
        broken.append(f"{fact_text('conservative', values['conservative'])} of the launches are conservative")
    conditions = limits.get("fail_if", ())
    for text in [conditions] if isinstance(conditions, str) else conditions:
        limit = condition(text, changes=False)
        if limit.holds(values[limit.name]):
            broken.append(f"{text} holds: {limit.name} is {fact_text(limit.name, values[limit.name])}")
    return broken
