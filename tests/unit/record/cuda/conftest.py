"""Decodes raw records that the builders of this folder write, and runs programs under the injection library."""

import pytest

from tests.unit.record.cuda.cuda_records import H200, process
from tests.unit.record.cuda.native.fake_libraries import cubin, launching_cubin, libraries, runner  # noqa: F401 - fixtures
from tileprof.record.cuda.decode import Decoder
from tileprof.trace import TraceWriter, load, validate


@pytest.fixture(scope="module", autouse=True)
def run_cache(shared_folder):
    """Keep what these tests build and disassemble in a folder of this run, not in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEPROF_CACHE", str(shared_folder / "cache"))
        yield


@pytest.fixture
def trace_of(tmp_path):
    """Build a trace of events and entries. Return the trace, which is valid, and its decoder."""

    def make(events, entries, **options):
        name = tmp_path / "t.tileprof"
        times, known = options.pop("timed", {}), {n: options.pop(n) for n in ("blocks", "proofs") if n in options}
        with TraceWriter(name, recorder="cuda", command=["x"], device=H200, granule=32, force=True) as writer:
            decoder = Decoder(process(tmp_path, events, entries, **options), writer, H200, times, **known)
            decoder.run()
        trace = load(name)
        assert validate(trace) == []
        return trace, decoder

    return make
