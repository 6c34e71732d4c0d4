// The experiment of halo_race.cu without cuSync: tileprof's runtime synchronises, and policy.h has the waits. Build it
// twice:
//
//   # with the halo, from the geometry; without it: the tile's own row of tiles only
//   tileprof export tests/gpu/cusync/halo_race.dep --format cusync --several-waits -o build/halo/with
//   tileprof export tests/gpu/cusync/halo_omitted.dep --format cusync -o build/halo/without
//   nvcc -std=c++17 -arch=sm_90 -I build/halo/with -I $(python -m tileprof.runtime.include_path) \
//     tests/gpu/cusync/halo_alone.cu -o build/halo/with/alone
//
// The second is what cuSync's Conv2DTileSync, RowSync and TileSync wait for
// (`tileprof/policy/synthesis/cusync_kinds.py`). Prints one line per delay: rounds, rounds with a wrong result, wrong
// pixels; exits with 1 if there was one.

#include "halo_race.cuh"

int main(int, char** arguments) {
    const Images images = made();
    int wrong = 0;
    for (long long late_ns : {0LL, 1000LL, 10000LL, 100000LL, 1000000LL})
        wrong += as_written(arguments[0], late_ns, images);
    return wrong == 0 ? 0 : 1;
}
