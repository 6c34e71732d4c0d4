"""Provides a builder that runs a function under a session and returns the trace."""

import pytest
import torch

import tileprof
from tileprof import devices
from tileprof.record import Options
from tileprof.record.model.session import Session
from tileprof.record.model.tiles import load_all


@pytest.fixture
def trace_of(tmp_path):
    """Provide ``trace_of(function, **options)``, which returns the trace of one call of ``function``."""
    load_all()
    numbers = iter(range(1000))

    def record(function, *, pass_session=False, **options):
        torch.manual_seed(0)
        output = tmp_path / f"{next(numbers)}.tileprof"
        session = Session(Options(program=("test",), output=output, **options), devices.get("H200"), ["test"])
        session.start()
        try:
            function(session) if pass_session else function()
        finally:
            session.stop()
        assert session.failure is None, session.failure
        session.writer.close()
        trace = tileprof.load(output)
        assert tileprof.trace.validate(trace) == []
        return trace

    return record
