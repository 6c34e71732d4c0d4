#include "memory/stream_operations.h"

#include "driver/callbacks.h"
#include "log/events.h"

namespace tileprof {

namespace {

#define TILEPROF_IDS(name) SANITIZER_CBID_DRIVER_API_##name, SANITIZER_CBID_DRIVER_API_##name##_ptsz
const std::vector<Sanitizer_CallbackId> kWaits32 = {TILEPROF_IDS(cuStreamWaitValue32),
                                                    TILEPROF_IDS(cuStreamWaitValue32_v2)};
const std::vector<Sanitizer_CallbackId> kWaits64 = {TILEPROF_IDS(cuStreamWaitValue64),
                                                    TILEPROF_IDS(cuStreamWaitValue64_v2)};
const std::vector<Sanitizer_CallbackId> kWrites32 = {TILEPROF_IDS(cuStreamWriteValue32),
                                                     TILEPROF_IDS(cuStreamWriteValue32_v2)};
const std::vector<Sanitizer_CallbackId> kWrites64 = {TILEPROF_IDS(cuStreamWriteValue64),
                                                     TILEPROF_IDS(cuStreamWriteValue64_v2)};
const std::vector<Sanitizer_CallbackId> kBatches = {TILEPROF_IDS(cuStreamBatchMemOp),
                                                    TILEPROF_IDS(cuStreamBatchMemOp_v2)};
#undef TILEPROF_IDS

// Arguments of these functions, in their order, as callbacks get them.
struct OneValue {
    CUstream stream;
    CUdeviceptr address;
};
struct Batch {
    CUstream stream;
    unsigned int count;
    const CUstreamBatchMemOpParams* operations;
};

void write_event(Sanitizer_StreamHandle stream, CUdeviceptr address, int bytes, bool writes) {
    events::value(address, bytes, writes, stream);
}

void write_event(Sanitizer_StreamHandle stream, const CUstreamBatchMemOpParams& operation) {
    switch (operation.operation) {
        case CU_STREAM_MEM_OP_WAIT_VALUE_32:
            return write_event(stream, operation.waitValue.address, 4, false);
        case CU_STREAM_MEM_OP_WAIT_VALUE_64:
            return write_event(stream, operation.waitValue.address, 8, false);
        case CU_STREAM_MEM_OP_WRITE_VALUE_32:
            return write_event(stream, operation.writeValue.address, 4, true);
        case CU_STREAM_MEM_OP_WRITE_VALUE_64:
            return write_event(stream, operation.writeValue.address, 8, true);
        case CU_STREAM_MEM_OP_BARRIER:
        case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
            return;
        default:
            events::opaque(kBatchMemOpNode, -1, text_of(stream));
    }
}

}  // namespace

bool has_happened(const Sanitizer_CallbackData& data) {
    const auto* result = static_cast<const CUresult*>(data.functionReturnValue);
    return data.callbackSite == SANITIZER_API_EXIT && (result == nullptr || *result == CUDA_SUCCESS);
}

bool is_capturing(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return api.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

const std::vector<Sanitizer_CallbackId>& memory_operations() {
    static const auto* all = [] {
        auto* out = new std::vector<Sanitizer_CallbackId>;
        for (const auto* ids : {&kWaits32, &kWaits64, &kWrites32, &kWrites64, &kBatches})
            out->insert(out->end(), ids->begin(), ids->end());
        return out;
    }();
    return *all;
}

void memory_operation(uint32_t cbid, const Sanitizer_CallbackData& data) {
    const auto* one = static_cast<const OneValue*>(data.functionParams);  // all begin with their stream
    if (!has_happened(data) || is_capturing(one->stream)) return;
    Sanitizer_StreamHandle stream = nullptr;
    check(api.sanitizerGetStreamHandle(data.context, one->stream, &stream), "the stream of a memory operation");
    if (is_one_of(cbid, kBatches)) {
        const auto* batch = static_cast<const Batch*>(data.functionParams);
        for (unsigned i = 0; i < batch->count; ++i) write_event(stream, batch->operations[i]);
        return;
    }
    bool writes = is_one_of(cbid, kWrites32) || is_one_of(cbid, kWrites64);
    write_event(stream, one->address, is_one_of(cbid, kWaits64) || is_one_of(cbid, kWrites64) ? 8 : 4, writes);
}

}  // namespace tileprof
