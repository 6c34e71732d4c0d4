#include "memory/array_copies.h"

#include <algorithm>

#include "driver/callbacks.h"
#include "log/events.h"
#include "memory/stream_operations.h"

namespace tileprof {

namespace {

using u64 = unsigned long long;
using Ids = std::vector<Sanitizer_CallbackId>;

#define TILEPROF_ID(name) SANITIZER_CBID_DRIVER_API_##name
const Ids kFlat = {TILEPROF_ID(cuMemcpy2D_v2), TILEPROF_ID(cuMemcpy2D_v2_ptds), TILEPROF_ID(cuMemcpy2DUnaligned_v2),
                   TILEPROF_ID(cuMemcpy2DUnaligned_v2_ptds)};
const Ids kFlatAsync = {TILEPROF_ID(cuMemcpy2DAsync_v2), TILEPROF_ID(cuMemcpy2DAsync_v2_ptsz)};
const Ids kDeep = {TILEPROF_ID(cuMemcpy3D_v2), TILEPROF_ID(cuMemcpy3D_v2_ptds)};
const Ids kDeepAsync = {TILEPROF_ID(cuMemcpy3DAsync_v2), TILEPROF_ID(cuMemcpy3DAsync_v2_ptsz)};
const Ids kPeer = {TILEPROF_ID(cuMemcpy3DPeer), TILEPROF_ID(cuMemcpy3DPeer_ptds)};
const Ids kPeerAsync = {TILEPROF_ID(cuMemcpy3DPeerAsync), TILEPROF_ID(cuMemcpy3DPeerAsync_ptsz)};
// Copies between arrays and linear memory, or in batches, which few programs use. They are not decoded.
const Ids kRows = {TILEPROF_ID(cuMemcpyAtoH_v2),         TILEPROF_ID(cuMemcpyAtoH_v2_ptds),
                   TILEPROF_ID(cuMemcpyAtoHAsync_v2),    TILEPROF_ID(cuMemcpyAtoHAsync_v2_ptsz),
                   TILEPROF_ID(cuMemcpyAtoD_v2),         TILEPROF_ID(cuMemcpyAtoD_v2_ptds),
                   TILEPROF_ID(cuMemcpyDtoA_v2),         TILEPROF_ID(cuMemcpyDtoA_v2_ptds),
                   TILEPROF_ID(cuMemcpyAtoA_v2),         TILEPROF_ID(cuMemcpyAtoA_v2_ptds),
                   TILEPROF_ID(cuMemcpyHtoA_v2),         TILEPROF_ID(cuMemcpyHtoA_v2_ptds),
                   TILEPROF_ID(cuMemcpyHtoAAsync_v2),    TILEPROF_ID(cuMemcpyHtoAAsync_v2_ptsz),
                   TILEPROF_ID(cuMemcpy3DBatchAsync),    TILEPROF_ID(cuMemcpy3DBatchAsync_ptsz),
                   TILEPROF_ID(cuMemcpy3DBatchAsync_v2), TILEPROF_ID(cuMemcpy3DBatchAsync_v2_ptsz)};
#undef TILEPROF_ID

// Arguments of these functions, in the order in which callbacks get them; asynchronous functions have a stream.
template <typename Copy>
struct Arguments {
    const Copy* copy;
    CUstream stream;
};

using Side = events::CopySide;

Side side(CUmemorytype type, CUarray array, CUdeviceptr device, const void* host, u64 into, u64 pitch, u64 rows,
          u64 width, u64 height, u64 depth) {
    Side out;
    out.array = type == CU_MEMORYTYPE_ARRAY;
    out.on_device = type != CU_MEMORYTYPE_HOST;
    out.pitch = pitch;
    if (out.array) {
        out.address = reinterpret_cast<u64>(array);
    } else {
        out.address = (type == CU_MEMORYTYPE_HOST ? reinterpret_cast<u64>(host) : static_cast<u64>(device)) + into;
        out.bytes = pitch * (std::max(rows, height) * (depth - 1) + height - 1) + width;
    }
    return out;
}

void write_event(const Side& from, const Side& to, u64 width, u64 height, u64 depth, CUcontext context,
                 CUstream stream) {
    Sanitizer_StreamHandle handle = nullptr;
    check(api.sanitizerGetStreamHandle(context, stream, &handle), "the stream of a copy");
    events::array_copy(from, to, width, height, depth, handle);
}

void write_event(const CUDA_MEMCPY2D& c, CUcontext context, CUstream stream) {
    if (c.WidthInBytes == 0 || c.Height == 0) return;
    u64 w = c.WidthInBytes, h = c.Height;
    write_event(side(c.srcMemoryType, c.srcArray, c.srcDevice, c.srcHost, c.srcY * c.srcPitch + c.srcXInBytes,
                     c.srcPitch, h, w, h, 1),
                side(c.dstMemoryType, c.dstArray, c.dstDevice, c.dstHost, c.dstY * c.dstPitch + c.dstXInBytes,
                     c.dstPitch, h, w, h, 1),
                w, h, 1, context, stream);
}

// CUDA_MEMCPY3D and CUDA_MEMCPY3D_PEER have the same names for the fields that they share.
template <typename Deep>
void write_event(const Deep& c, CUcontext context, CUstream stream) {
    if (c.WidthInBytes == 0 || c.Height == 0 || c.Depth == 0) return;
    u64 w = c.WidthInBytes, h = c.Height, d = c.Depth;
    u64 from = (c.srcZ * c.srcHeight + c.srcY) * c.srcPitch + c.srcXInBytes,
        to = (c.dstZ * c.dstHeight + c.dstY) * c.dstPitch + c.dstXInBytes;
    write_event(side(c.srcMemoryType, c.srcArray, c.srcDevice, c.srcHost, from, c.srcPitch, c.srcHeight, w, h, d),
                side(c.dstMemoryType, c.dstArray, c.dstDevice, c.dstHost, to, c.dstPitch, c.dstHeight, w, h, d), w, h,
                d, context, stream);
}

template <typename Copy>
void report_copy(const Sanitizer_CallbackData& data, bool waits) {
    const auto* a = static_cast<const Arguments<Copy>*>(data.functionParams);
    bool array = a->copy->srcMemoryType == CU_MEMORYTYPE_ARRAY || a->copy->dstMemoryType == CU_MEMORYTYPE_ARRAY;
    if (array && (waits || !is_capturing(a->stream))) write_event(*a->copy, data.context, waits ? nullptr : a->stream);
}

}  // namespace

const std::vector<Sanitizer_CallbackId>& array_copies() {
    static const auto* all = [] {
        auto* out = new Ids;
        for (const Ids* ids : {&kFlat, &kFlatAsync, &kDeep, &kDeepAsync, &kPeer, &kPeerAsync, &kRows})
            out->insert(out->end(), ids->begin(), ids->end());
        return out;
    }();
    return *all;
}

void array_copy(uint32_t cbid, const Sanitizer_CallbackData& data) {
    if (!has_happened(data)) return;
    if (is_one_of(cbid, kFlat) || is_one_of(cbid, kFlatAsync))
        return report_copy<CUDA_MEMCPY2D>(data, is_one_of(cbid, kFlat));
    if (is_one_of(cbid, kDeep) || is_one_of(cbid, kDeepAsync))
        return report_copy<CUDA_MEMCPY3D>(data, is_one_of(cbid, kDeep));
    if (is_one_of(cbid, kPeer) || is_one_of(cbid, kPeerAsync))
        return report_copy<CUDA_MEMCPY3D_PEER>(data, is_one_of(cbid, kPeer));
    events::opaque(-1, -1, "0");
}

}  // namespace tileprof
