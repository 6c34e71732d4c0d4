// The program's device memory: what is allocated, mapped and whose it is, and a program that runs out of it, of which
// the recorder itself holds some.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "log.h"
#include "recorder.h"
#include "streamops.h"

namespace tileprof {

namespace {

using u64 = unsigned long long;

constexpr std::array kAllocations = {
    SANITIZER_CBID_DRIVER_API_cuMemAlloc_v2,           SANITIZER_CBID_DRIVER_API_cuMemAllocPitch_v2,
    SANITIZER_CBID_DRIVER_API_cuMemAllocManaged,       SANITIZER_CBID_DRIVER_API_cuMemCreate,
    SANITIZER_CBID_DRIVER_API_cuMemAllocAsync,         SANITIZER_CBID_DRIVER_API_cuMemAllocAsync_ptsz,
    SANITIZER_CBID_DRIVER_API_cuMemAllocFromPoolAsync, SANITIZER_CBID_DRIVER_API_cuMemAllocFromPoolAsync_ptsz,
};

// cuMemExportToShareableHandle and cuMemImportFromShareableHandle.
constexpr std::array kShares = {SANITIZER_CBID_DRIVER_API_cuMemExportToShareableHandle,
                                SANITIZER_CBID_DRIVER_API_cuMemImportFromShareableHandle};
struct Export {
    const void* shareable;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationHandleType type;
};
struct Import {
    const CUmemGenericAllocationHandle* handle;
    const void* shareable;
    CUmemAllocationHandleType type;
};

}  // namespace

void Recorder::memory(uint32_t cbid, const Sanitizer_ResourceMemoryData& data) {
    bool made =
        cbid == SANITIZER_CBID_RESOURCE_DEVICE_MEMORY_ALLOC || cbid == SANITIZER_CBID_RESOURCE_MEMORY_ALLOC_ASYNC;
    if (made) {
        allocations_[data.address] = data.size;
        if (data.context != nullptr) owners_[data.address] = data.context;
    } else {
        allocations_.erase(data.address);
        owners_.erase(data.address);
    }
    // What comes from a pool of the driver is one tensor's, not a segment that a framework cuts up.
    bool pool = cbid == SANITIZER_CBID_RESOURCE_MEMORY_ALLOC_ASYNC;
    log_.event("\"e\":\"%s\",\"address\":%llu,\"bytes\":%llu,\"device\":%d,\"flags\":%u,\"pool\":%d",
               made ? "alloc" : "free", static_cast<u64>(data.address), static_cast<u64>(data.size),
               static_cast<int>(data.device), data.flags, pool);
}

// Pinned memory is the reader's business alone: kernels reach it, but it is not poisoned or compared.
void Recorder::host_memory(bool made, const Sanitizer_ResourceMemoryData& data) {
    log_.event("\"e\":\"%s\",\"address\":%llu,\"bytes\":%llu,\"host\":1", made ? "alloc" : "free",
               static_cast<u64>(data.address), static_cast<u64>(data.size));
}

// Memory that the program maps itself (expandable segments do): known from the calls, whether the library reports it or
// not. Of which handle tells when two addresses are one memory.
void Recorder::mapped(uint64_t address, uint64_t bytes, uint64_t handle, uint64_t offset) {
    if (allocation(address).second == 0) {
        allocations_[address] = bytes;
        log_.event("\"e\":\"alloc\",\"address\":%llu,\"bytes\":%llu,\"mapped\":1", static_cast<u64>(address),
                   static_cast<u64>(bytes));
    }
    mappings_[address] = {bytes, handle, offset};
    log_.event("\"e\":\"map\",\"address\":%llu,\"bytes\":%llu,\"handle\":%llu,\"offset\":%llu",
               static_cast<u64>(address), static_cast<u64>(bytes), static_cast<u64>(handle), static_cast<u64>(offset));
}

void Recorder::unmapped(uint64_t address, uint64_t bytes) {
    for (auto at = mappings_.lower_bound(address); at != mappings_.end() && at->first < address + bytes; ++at)
        log_.event("\"e\":\"unmap\",\"address\":%llu", static_cast<u64>(at->first));
    for (auto at = allocations_.lower_bound(address); at != allocations_.end() && at->first < address + bytes;) {
        log_.event("\"e\":\"free\",\"address\":%llu", static_cast<u64>(at->first));
        at = allocations_.erase(at);
    }
}

// Where it did not, all is as it was.
void Recorder::unmapping_ended(uint64_t address, uint64_t bytes, bool worked) {
    auto first = mappings_.lower_bound(address), end = mappings_.lower_bound(address + bytes);
    std::map<uint64_t, Mapping> there(first, end);
    mappings_.erase(first, end);
    if (worked) return;
    for (const auto& [base, mapping] : there) mapped(base, mapping.bytes, mapping.handle, mapping.offset);
}

bool is_share(uint32_t cbid) { return std::find(kShares.begin(), kShares.end(), cbid) != kShares.end(); }

// A program that imports what it has exported itself has two handles of one memory. They are joined by the file's
// number, if the file is of this process: numbers are given out again, to files of other processes, too, and the
// driver's files have nothing else to tell them by but the owner that a file may be given for signals, which nobody
// sends.
void Recorder::shared(uint32_t cbid, const Sanitizer_CallbackData& data) {
    if (!has_happened(data)) return;
    if (cbid == kShares[0]) {
        const auto* call = static_cast<const Export*>(data.functionParams);
        if (call->type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return;
        int file = *static_cast<const int*>(call->shareable);
        fcntl(file, F_SETOWN, getpid());
        log_.event("\"e\":\"exported\",\"handle\":%llu,\"file\":%d", static_cast<u64>(call->handle), file);
        exported_.insert(file);
    } else {
        const auto* call = static_cast<const Import*>(data.functionParams);
        if (call->type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return;
        int file = static_cast<int>(reinterpret_cast<intptr_t>(call->shareable));
        if (fcntl(file, F_GETOWN) != getpid()) return;
        if (exported_.count(file) == 0)
            complain(
                "memory that the program exported was imported again through another number of its file: what is "
                "written "
                "at the addresses of one handle and read at those of the other is not known to be one memory");
        log_.event("\"e\":\"imported\",\"handle\":%llu,\"file\":%d", static_cast<u64>(*call->handle), file);
    }
}

std::pair<uint64_t, uint64_t> Recorder::allocation(uint64_t address) const {
    auto after = allocations_.upper_bound(address);
    if (after == allocations_.begin()) return {0, 0};
    --after;
    if (address - after->first >= after->second) return {0, 0};
    return *after;
}

bool Recorder::holds(uint64_t address, uint64_t bytes) const {
    for (uint64_t at = address; at < address + bytes;) {
        auto [base, size] = allocation(at);
        if (size == 0) return false;
        at = base + size;
    }
    return bytes > 0;
}

CUcontext Recorder::owner(uint64_t base) const {
    auto found = owners_.find(base);
    return found == owners_.end() ? nullptr : found->second;
}

bool is_allocation(uint32_t cbid) {
    return std::find(kAllocations.begin(), kAllocations.end(), cbid) != kAllocations.end();
}

void Recorder::follow_allocations() {
    std::vector<Sanitizer_CallbackId> ids(kAllocations.begin(), kAllocations.end());
    ids.insert(ids.end(), kShares.begin(), kShares.end());
    for (Sanitizer_CallbackId id : ids)
        check(api.sanitizerEnableCallback(1, subscriber_, SANITIZER_CB_DOMAIN_DRIVER_API, id), "enabling callbacks");
}

// Out of memory: frameworks that cache memory give it back then and try again, and the program may go on well. A handle
// that cuMemCreate gives is of new memory, even where it has been another's.
void Recorder::allocated(uint32_t cbid, const Sanitizer_CallbackData& data) {
    if (cbid == SANITIZER_CBID_DRIVER_API_cuMemCreate && has_happened(data)) {
        const auto* handle =
            *static_cast<const CUmemGenericAllocationHandle* const*>(data.functionParams);  // its first argument
        log_.event("\"e\":\"physical\",\"handle\":%llu", static_cast<u64>(*handle));
    }
    if (told_of_memory_ || data.callbackSite != SANITIZER_API_EXIT || data.functionReturnValue == nullptr) return;
    if (*static_cast<const CUresult*>(data.functionReturnValue) != CUDA_ERROR_OUT_OF_MEMORY) return;
    told_of_memory_ = true;
    complain(
        "the GPU was out of memory when the program asked for some; of it, %llu MiB are the recorder's. If the program "
        "runs "
        "without a recorder, make that less with --arena",
        static_cast<u64>(arenas_.empty() ? 0 : options.arena_bytes >> 20));
}

}  // namespace tileprof
