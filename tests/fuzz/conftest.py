"""The bases of all inputs, made once per process."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest

from tests.fuzz.inputs import make_bases


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bases")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        make_bases(folder)
    return folder
