// Lets a header that `tileprof export --format cusync` wrote run on tileprof's own runtime: put
// tileprof/runtime/include on the include path instead of a checkout of cuSync. The interface has cuSync's names
// (github.com/parasailteam/cusync); the code is independent of it.
#pragma once

#include <tileprof/sync.cuh>

#define CUSYNC_HOST __host__
#define CUSYNC_DEVICE __host__ __device__ inline
#define CUSYNC_DEVICE_HOST __host__ __device__ inline

namespace cusync = tileprof::sync;
