// The tensor map of Hopper: 64 of its 128 bytes contain everything. The layout is that of tensormap.py, which
// compares it with cuTensorMapEncodeTiled before a recording.
#pragma once

#include <stdint.h>
#include <string.h>

namespace tileprof {

constexpr uint64_t kAddresses = 1ull << 48;  // the first invalid value

struct TensorMap {
    uint64_t base = 0;
    uint64_t bytes = 0;  // from base to the end of the last element

    // Returns false if these 64 bytes cannot be a tensor map. `surely`: a kernel loaded through it, so that it is a
    // map even if its tensor is narrow or repeats (a stride of 0) within a matrix; cuBLAS's results repeat outside.
    bool decode(const void* from, bool surely = false) {
        uint32_t w[16];
        memcpy(w, from, sizeof w);
        memcpy(&base, from, sizeof base);
        uint32_t dims = (w[2] >> 4 & 7) + 1, format = w[2] >> 7 & 15;
        constexpr uint8_t kElementBytes[16] = {1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2, 4, 4, 0, 0, 0};
        if (base == 0 || base % 16 != 0 || base >= kAddresses || dims > 5 || kElementBytes[format] == 0) return false;
        bytes = (static_cast<uint64_t>(w[8]) + 1) * kElementBytes[format];
        const bool narrow = bytes < 16;
        bool repeats = false, matrix = false, strange = false;
        for (uint32_t d = 1; d < dims; ++d) {
            uint64_t stride = (static_cast<uint64_t>(w[7] >> 4 * (d - 1) & 15) << 32 | w[2 + d]) << 4;
            if (w[8 + d] == 0) continue;
            strange |= stride != 0 && (repeats || stride < bytes);
            (stride == 0 ? repeats : matrix) = true;
            if (stride > kAddresses / w[8 + d]) return false;
            bytes += stride * w[8 + d];
        }
        if (bytes > kAddresses - base) return false;
        return surely || (!narrow && (!repeats || (matrix && !strange)));
    }
};

}  // namespace tileprof
