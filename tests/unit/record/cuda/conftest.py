"""Makes the builders of this folder importable by its tests, and decodes what they build."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cuda_records import H200, process

from tileprof.record.cuda.decode import Decoder
from tileprof.trace import TraceWriter, load, validate


@pytest.fixture
def decoded(tmp_path):
    """Builds a trace of events and entries: the trace, which is valid, and its decoder."""

    def make(events, entries, **options):
        name = tmp_path / "t.tileprof"
        timed = options.pop("timed", {})
        with TraceWriter(name, recorder="cuda", command=["x"], device=H200, granule=32, force=True) as writer:
            decoder = Decoder(process(tmp_path, events, entries, **options), writer, H200, timed)
            decoder.run()
        trace = load(name)
        assert validate(trace) == []
        return trace, decoder

    return make
