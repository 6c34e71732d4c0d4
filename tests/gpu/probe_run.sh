set -u
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site .whl/*.whl 2>&1 | tail -1
mkdir -p /tmp/repo/tileprof; for d in tileprof/*; do ln -sfn $PWD/$d /tmp/repo/tileprof/; done; ln -sfn $PWD/analysis /tmp/repo/tileprof/analysis; ln -sfn $PWD/viz /tmp/repo/tileprof/viz
export PYTHONPATH=/tmp/repo:/tmp/site TILEPROF_CACHE=/tmp/cache PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 NUMBA_CACHE_DIR=/tmp/numba
mkdir -p /tmp/o /tmp/raw
for u in 0 1 2; do TILEPROF_EXIT_UNIT=$u python3 - <<P
from tileprof.record.cuda import doctor
for c in doctor.checks(): print(c.ok, c.name, c.seen[:700])
P
done
nvcc -std=c++17 -arch=sm_90 tileprof/record/cuda/native/selftest.cu -o /tmp/known || exit
r() { local n=$1 s=$2; shift 2; rm -rf /tmp/raw/$n; timeout -s KILL ${LIMIT:-100} python3 tests/gpu/probe_record.py /tmp/raw/$n /tmp/o/$n.tileprof "$s" "$@" > /tmp/o/$n.log 2>&1; echo "== $n rc=$?"; tail -${TAIL:-6} /tmp/o/$n.log | cut -c1-250; grep -h complaint /tmp/raw/$n/accesses/*/events.jsonl | sort | uniq -c | head -4 | cut -c1-300;  grep -h '"refused"' /tmp/raw/$n/accesses/*/events.jsonl | sed 's/.*"regions"/regions/' | sort | uniq -c | cut -c1-200; }
U=0; for u in 0 1 2; do export TILEPROF_EXIT_UNIT=$u; r known '{"passes":["accesses","blocks"],"verify":true}' /tmp/known > /tmp/u.$u; N=$(grep -h '"e":"nodes"' /tmp/raw/known/accesses/*/events.jsonl); echo "unit $u $N"; case "$N" in *'"ended":2'*) U=$u;; esac; done
export TILEPROF_EXIT_UNIT=$U; cat /tmp/u.$U
for n in gemm_pair gemm_fp32 layer_norm softmax attention convolution gpt2; do python3 tests/golden/programs.py $n 2>/dev/null & r $n '{"verify":true,"capture_only":true}' python3 tests/golden/programs.py $n; wait; done
for n in gpt2_graph gpt2_compiled; do r $n '{"capture_only":true}' python3 tests/golden/programs.py $n; done
tar czf $OUT/traces.tgz -C /tmp o; for n in known gpt2_compiled attention gemm_pair gpt2_graph gpt2; do tar czf $OUT/raw-$n.tgz -C /tmp raw/$n; done; ls -la $OUT | awk '{print $5,$9}'
python3 - > /tmp/env <<'P'
from tileprof.record.cuda import build, locate
b = build.build("sm_90")
print(f"export TP_LIB={b.library} TILEPROF_PATCHES={b.patches} TILEPROF_SANITIZER={locate.sanitizer().library}")
P
. /tmp/env
rec() { local name=$1 pass=$2; shift 2; rm -rf /tmp/raw/$name; mkdir -p /tmp/raw/$name
  CUDA_INJECTION64_PATH=$TP_LIB TILEPROF_RAW=/tmp/raw/$name TILEPROF_PASS=$pass timeout -s KILL 90 "$@" >/tmp/raw/$name.out 2>&1; echo "== $name rc=$? $(tail -4 /tmp/raw/$name.out|tr '\n' ';') $(du -sm /tmp/raw/$name | cut -f1)MB"; }
python3 tests/gpu/probe_lstm.py
for p in floor blocks accesses; do rec mix-$p $p python3 tests/gpu/probe_lstm.py; done
rec gpt2m-accesses accesses python3 tests/gpu/probe_gpt2.py
