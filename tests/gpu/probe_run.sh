set -u
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site .whl/*.whl 2>&1 | tail -1
mkdir -p /tmp/repo/tileprof; for d in tileprof/*; do ln -sfn $PWD/$d /tmp/repo/tileprof/; done; ln -sfn $PWD/analysis /tmp/repo/tileprof/analysis; ln -sfn $PWD/viz /tmp/repo/tileprof/viz
export PYTHONPATH=/tmp/repo:/tmp/site TILEPROF_CACHE=/tmp/cache PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 NUMBA_CACHE_DIR=/tmp/numba PYTHONFAULTHANDLER=1
timeout -s KILL 60 python3 tests/golden/make.py /tmp/golden selftest gpt2_graph > $OUT/golden.log 2>&1; echo "golden rc=$?"; grep -v transformers $OUT/golden.log | cut -c1-200 | tail -30
tar czf $OUT/golden.tgz -C /tmp golden
timeout -s KILL 40 python3 -m pytest -q -p no:cacheprovider -c /dev/null --rootdir=. --import-mode=importlib tests/gpu/test_gpu_known_accesses.py::test_a_full_arena_is_said_and_stays_a_superset 2>&1 | tee $OUT/pytest.log | grep -E "^E|passed|failed" | cut -c1-250
REPEATS=1 timeout -s KILL 70 python3 - <<'P'
import sys, time
from pathlib import Path
from tileprof.record import Options
from tileprof.record.cuda import recording
from tileprof.record.cuda.settings import Settings
from tileprof.trace import load
t = time.time()
recording.record(Options(program=(sys.executable, "tests/gpu/measure_overhead.py", "--child", "gpt2_medium"), output=Path("/tmp/g.tileprof")), Settings(passes=("accesses",), raw=Path("/tmp/graw")))
s = time.time() - t
tr = load("/tmp/g.tileprof"); size = sum(f.stat().st_size for f in Path("/tmp/g.tileprof").rglob("*") if f.is_file())
print("gpt2 medium", round(s, 1), "s", round(size / 1e6, 2), "MB", len(tr.launches), "launches", tr.launches.footprint.nunique(), "footprints", len(tr.accesses), "boxes", tr.launches.coverage.value_counts().to_dict(), "raw MB", sum(f.stat().st_size for f in Path("/tmp/graw").rglob("*") if f.is_file()) // 10**6)
P
