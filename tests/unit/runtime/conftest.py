"""Settings of all tests of the runtime."""

import os
from collections.abc import Iterator
from unittest import mock

import pytest

from tileprof.runtime.acs import acs_build
from tileprof.runtime.copilot import copilot_build


@pytest.fixture(scope="module", autouse=True)
def quick_builds() -> Iterator[None]:
    """Compile co-pilots and the library of launches with few optimisations: tests run them for a moment, and a library
    takes up to 8 s with all of them. A search compiles them as for users.
    """
    if "TILEPROF_KERNEL_RUNS" in os.environ:
        yield
        return
    with (
        mock.patch.object(copilot_build, "FLAGS", _quick(copilot_build.FLAGS)),
        mock.patch.object(acs_build, "FLAGS", _quick(acs_build.FLAGS)),
    ):
        yield


def _quick(flags: tuple[str, ...]) -> tuple[str, ...]:
    assert {"-O2", "-O3"} & {*flags}
    return tuple("-Og" if flag in {"-O2", "-O3"} else flag for flag in flags)
