set -u
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site .whl/*.whl 2>&1 | tail -1
export PYTHONPATH=/tmp/site:$PWD TILEPROF_CACHE=/tmp/cache PYTHONUNBUFFERED=1
pip list 2>/dev/null | grep -iE "^(pyarrow|pandas|numba|numpy|torch|triton|cupti|cuda-bindings|nvidia-cuda-cupti|plotly|networkx|rich|transformers|nvidia-cuda-nvcc|pytest|hypothesis) "
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
time python3 - <<'P' || exit
from tileprof.record.cuda import build, gpu, locate
print(gpu.gpus(), locate.sanitizer())
b = build.build("sm_90")
open("/tmp/env","w").write(f"export TP_LIB={b.library} TILEPROF_PATCHES={b.patches} TILEPROF_SANITIZER={locate.sanitizer().library}\n")
P
. /tmp/env; export TILEPROF_PATCHES TILEPROF_SANITIZER
nvcc -std=c++17 -arch=sm_90 tests/gpu/known_accesses.cu -o /tmp/known || exit
rec() { local name=$1 pass=$2; shift 2; rm -rf /tmp/raw/$name; mkdir -p /tmp/raw/$name; local t0=$(date +%s.%N)
  CUDA_INJECTION64_PATH=$TP_LIB TILEPROF_RAW=/tmp/raw/$name TILEPROF_PASS=$pass timeout -s KILL ${LIMIT:-60} "$@" >/tmp/raw/$name.out 2>&1; local rc=$?
  echo "== $name $pass rc=$rc $(python3 -c "import time;print(round(time.time()-$t0,1))")s"; tail -${TAIL:-4} /tmp/raw/$name.out; du -sh /tmp/raw/$name/*/* 2>/dev/null | tr '\n' ' '; grep -h complaint /tmp/raw/$name/*/events.jsonl | sort | uniq -c | head -5; }
/tmp/known > /tmp/known.out; tail -1 /tmp/known.out
rec known-blocks blocks /tmp/known
TILEPROF_REPLAY=0 rec known-accesses accesses /tmp/known
rec known-replay accesses /tmp/known
cp /tmp/known.out /tmp/raw
python3 tests/gpu/probe_ops.py
rec ops-blocks blocks python3 tests/gpu/probe_ops.py
for op in bf16 fp32 norm softmax sdpa conv; do TILEPROF_REPLAY=0 rec op-$op accesses python3 tests/gpu/probe_ops.py $op; done
for op in bf16 sdpa conv; do rec replay-$op accesses python3 tests/gpu/probe_ops.py $op; done
tar czf $OUT/raw.tgz -C /tmp raw; ls -la $OUT
TAIL=1
python3 tests/gpu/probe_gpt2.py
for p in floor blocks accesses; do LIMIT=90 TILEPROF_REPLAY=0 rec gpt2-$p $p python3 tests/gpu/probe_gpt2.py; done
head -c 300000 /tmp/raw/gpt2-accesses/*/events.jsonl > $OUT/gpt2-events.jsonl
grep -c '"e":"launch"' /tmp/raw/gpt2-accesses/*/events.jsonl
