#!/bin/sh
# Builds the experiments with a late block into FOLDER, for sm_90: no GPU needed here, and nothing but the binaries where they run.
#   tests/gpu/cusync/build_halo.sh build/halo          then, on the GPU:  for p in build/halo/*/alone build/halo/race; do $p; done
# With CUSYNC_PATH also the one against cuSync itself.
set -eu
folder=${1:?name a folder}
here=$(dirname "$0")
include=$(${PYTHON:-python3} -m tileprof.runtime.include_path)
compile="nvcc -std=c++17 -arch=${ARCH:-sm_90}"
for what in with:race without:omitted; do
  out=$folder/${what%%:*}
  mkdir -p "$out"
  tileprof export "$here/halo_${what##*:}.dep" --format cusync --several-waits --force -o "$out"
  $compile -I "$out" -I "$include" "$here/halo_alone.cu" -o "$out/alone"
  $compile -I "$out" -I "$include" "$out/example.cu" -o "$out/example"
done
if [ -n "${CUSYNC_PATH:-}" ]; then
  $compile -I "$folder/with" -I "$CUSYNC_PATH/src/include" "$here/halo_race.cu" "$CUSYNC_PATH/src/cusync.cu" -o "$folder/race"
fi
