"""Settings of all tests of the runtime."""

import os
from collections.abc import Iterator
from unittest import mock

import pytest

from tests.support.shared_libraries import less_optimised
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
        mock.patch.object(copilot_build, "FLAGS", less_optimised(copilot_build.FLAGS)),
        mock.patch.object(acs_build, "FLAGS", less_optimised(acs_build.FLAGS)),
    ):
        yield
