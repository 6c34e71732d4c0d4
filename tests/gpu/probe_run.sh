set -u
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site .whl/*.whl 2>&1 | tail -1
mkdir -p /tmp/repo/tileprof; for d in tileprof/*; do ln -sfn $PWD/$d /tmp/repo/tileprof/; done; ln -sfn $PWD/analysis /tmp/repo/tileprof/analysis; ln -sfn $PWD/viz /tmp/repo/tileprof/viz
export PYTHONPATH=/tmp/repo:/tmp/site TILEPROF_CACHE=/tmp/cache PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 NUMBA_CACHE_DIR=/tmp/numba
python3 -m pip list 2>/dev/null | grep -iE "^(pyarrow|pandas|numba|numpy|torch|triton|cupti.*|cuda-bindings|cuda-pathfinder|nvidia-cuda-cupti|plotly|networkx|rich|pytest|hypothesis) " | tr '\n' ';'
python3 -c "import tileprof.trace, tileprof.devices" || exit
nvcc -std=c++17 -arch=sm_90 tests/gpu/known_accesses.cu -o /tmp/known || exit; python3 -c "from tileprof.record.cuda import gpu,tensormap; tensormap.calibrate(gpu.driver())" || exit
mkdir -p /tmp/o /tmp/raw; r() { local n=$1 s=$2; shift 2; timeout -s KILL ${LIMIT:-100} python3 tests/gpu/probe_record.py /tmp/raw/$n /tmp/o/$n.tileprof "$s" "$@" > /tmp/o/$n.log 2>&1; echo "== $n rc=$?"; tail -${TAIL:-7} /tmp/o/$n.log | cut -c1-300; grep -h complaint /tmp/raw/$n/accesses/*/events.jsonl | sort | uniq -c | head -4 | cut -c1-300; }
r known '{"passes":["accesses","blocks"],"verify":true}' /tmp/known
for n in gemm_pair gemm_fp32 layer_norm softmax attention convolution gpt2; do r $n '{"verify":true,"capture_only":true}' python3 tests/golden/programs.py $n; done
sleep 0; for n in gpt2_graph gpt2_compiled; do r $n '{"capture_only":true}' python3 tests/golden/programs.py $n; done
tar czf $OUT/traces.tgz -C /tmp o; for n in known attention gemm_pair gpt2_graph gpt2; do tar czf $OUT/raw-$n.tgz -C /tmp raw/$n; done; ls -la $OUT | awk '{print $5,$9}'
python3 - > /tmp/env <<'P'
from tileprof.record.cuda import build, locate
b = build.build("sm_90")
print(f"export TP_LIB={b.library} TILEPROF_PATCHES={b.patches} TILEPROF_SANITIZER={locate.sanitizer().library}")
P
. /tmp/env
rec() { local name=$1 pass=$2; shift 2; mkdir -p /tmp/raw/$name
  CUDA_INJECTION64_PATH=$TP_LIB TILEPROF_RAW=/tmp/raw/$name TILEPROF_PASS=$pass timeout -s KILL 90 "$@" >/tmp/raw/$name.out 2>&1; echo "== $name rc=$? $(tail -1 /tmp/raw/$name.out) $(du -sm /tmp/raw/$name | cut -f1)MB"; }


