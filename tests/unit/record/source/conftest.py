"""Settings of the tests of recordings of a program's source."""

from collections.abc import Iterator
from unittest import mock

import pytest

from tests.support.shared_libraries import less_optimised
from tileprof.record.source import host


@pytest.fixture(scope="module", autouse=True)
def quick_builds() -> Iterator[None]:
    """Compile kernels for the CPU, which run for a moment, without optimisation: two thirds of the time."""
    with mock.patch.object(host, "FLAGS", less_optimised(host.FLAGS, "-O0")):
        yield
