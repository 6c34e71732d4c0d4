#include "memory/memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>

#include "log/events.h"
#include "log/log.h"
#include "memory/stream_operations.h"

namespace tileprof {

namespace {

constexpr std::array kAllocations = {
    SANITIZER_CBID_DRIVER_API_cuMemAlloc_v2,           SANITIZER_CBID_DRIVER_API_cuMemAllocPitch_v2,
    SANITIZER_CBID_DRIVER_API_cuMemAllocManaged,       SANITIZER_CBID_DRIVER_API_cuMemCreate,
    SANITIZER_CBID_DRIVER_API_cuMemAllocAsync,         SANITIZER_CBID_DRIVER_API_cuMemAllocAsync_ptsz,
    SANITIZER_CBID_DRIVER_API_cuMemAllocFromPoolAsync, SANITIZER_CBID_DRIVER_API_cuMemAllocFromPoolAsync_ptsz,
};

constexpr std::array kMaps = {SANITIZER_CBID_DRIVER_API_cuMemMap, SANITIZER_CBID_DRIVER_API_cuMemUnmap};

// Calls that convert memory handles into others, and back.
constexpr std::array kShares = {SANITIZER_CBID_DRIVER_API_cuMemExportToShareableHandle,
                                SANITIZER_CBID_DRIVER_API_cuMemImportFromShareableHandle};

// Arguments of these calls, in the order in which callbacks get them.
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
// The common beginning of the arguments of cuMemMap and cuMemUnmap.
struct MapCall {
    CUdeviceptr address;
    size_t bytes;
    size_t offset;  // from here on only in cuMemMap
    CUmemGenericAllocationHandle handle;
};

}  // namespace

void Memory::follow(Callbacks* callbacks) {
    callbacks->follow_calls(kMaps);
    callbacks->follow_calls(kAllocations);
    callbacks->follow_calls(kShares);
}

bool Memory::api_call(uint32_t cbid, const Sanitizer_CallbackData& data) {
    if (is_one_of(cbid, kAllocations)) {
        allocation_called(cbid, data);
    } else if (is_one_of(cbid, kShares)) {
        share_called(cbid, data);
    } else if (cbid == SANITIZER_CBID_DRIVER_API_cuMemMap) {
        map_called(data);
    } else if (cbid == SANITIZER_CBID_DRIVER_API_cuMemUnmap) {
        unmap_called(data);
    } else {
        return false;
    }
    return true;
}

void Memory::changed(uint32_t cbid, const Sanitizer_ResourceMemoryData& data) {
    // An allocation from a pool of the driver belongs to one tensor, not to a segment that a framework divides.
    bool pool = cbid == SANITIZER_CBID_RESOURCE_MEMORY_ALLOC_ASYNC;
    if (pool || cbid == SANITIZER_CBID_RESOURCE_DEVICE_MEMORY_ALLOC) {
        allocations_[data.address] = data.size;
        if (data.context != nullptr) owners_[data.address] = data.context;
        events::alloc(data, pool);
    } else {
        allocations_.erase(data.address);
        owners_.erase(data.address);
        events::free(data);
    }
}

// Pinned memory concerns only the reader: kernels access it, but it is not poisoned or compared.
void Memory::host_changed(bool made, const Sanitizer_ResourceMemoryData& data) {
    (made ? events::alloc_host : events::free_host)(data.address, data.size);
}

// An unmapped range is removed before others may map it; a mapped one is added when the call has succeeded.
void Memory::map_called(const Sanitizer_CallbackData& data) {
    const auto* call = static_cast<const MapCall*>(data.functionParams);
    if (has_happened(data)) mapped(call->address, {call->bytes, call->handle, call->offset});
}

void Memory::unmap_called(const Sanitizer_CallbackData& data) {
    const auto* call = static_cast<const MapCall*>(data.functionParams);
    if (data.callbackSite == SANITIZER_API_ENTER) unmapped(call->address, call->bytes);
    if (data.callbackSite == SANITIZER_API_EXIT) unmapping_ended(call->address, call->bytes, has_happened(data));
}

// Memory that the program maps itself (like expandable segments) is known from the calls, whether the library reports
// it or not. Equal handles mean that two addresses refer to the same memory.
void Memory::mapped(uint64_t address, const Mapping& mapping) {
    if (allocation(address).second == 0) {
        allocations_[address] = mapping.bytes;
        events::alloc_mapped(address, mapping.bytes);
    }
    mappings_[address] = mapping;
    events::map(address, mapping.bytes, mapping.handle, mapping.offset);
}

void Memory::unmapped(uint64_t address, uint64_t bytes) {
    for (auto at = mappings_.lower_bound(address); at != mappings_.end() && at->first < address + bytes; ++at)
        events::unmap(at->first);
    for (auto at = allocations_.lower_bound(address); at != allocations_.end() && at->first < address + bytes;) {
        events::free_address(at->first);
        at = allocations_.erase(at);
    }
}

// The call failed, so nothing has changed.
void Memory::unmapping_ended(uint64_t address, uint64_t bytes, bool worked) {
    auto first = mappings_.lower_bound(address), end = mappings_.lower_bound(address + bytes);
    std::map<uint64_t, Mapping> before(first, end);
    mappings_.erase(first, end);
    if (worked) return;
    for (const auto& [base, mapping] : before) mapped(base, mapping);
}

// A program that imports memory that it has exported itself has two handles of one memory. They are joined by the
// inode number of the file, if the file is of this process. Inode numbers are reused, also for files of other
// processes, and the driver's files can be distinguished only by the owner that a file may be given for signals,
// which are never sent.
void Memory::share_called(uint32_t cbid, const Sanitizer_CallbackData& data) {
    if (!has_happened(data)) return;
    if (cbid == kShares[0]) {
        const auto* call = static_cast<const Export*>(data.functionParams);
        if (call->type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return;
        int file = *static_cast<const int*>(call->shareable);
        fcntl(file, F_SETOWN, getpid());
        events::exported(call->handle, file);
        exported_.insert(file);
    } else {
        const auto* call = static_cast<const Import*>(data.functionParams);
        if (call->type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return;
        int file = static_cast<int>(reinterpret_cast<intptr_t>(call->shareable));
        if (fcntl(file, F_GETOWN) != getpid()) return;
        if (exported_.count(file) == 0)
            complain(
                "memory that the program exported was imported again through another number of its file: what is "
                "written at the addresses of one handle and read at those of the other is not known to be one memory");
        events::imported(*call->handle, file);
    }
}

// The GPU is out of memory. Frameworks that cache memory free it then and try again, and the program may continue. A
// handle from cuMemCreate refers to new memory, even if the handle belonged to other memory before.
void Memory::allocation_called(uint32_t cbid, const Sanitizer_CallbackData& data) {
    if (cbid == SANITIZER_CBID_DRIVER_API_cuMemCreate && has_happened(data)) {
        const auto* handle =
            *static_cast<const CUmemGenericAllocationHandle* const*>(data.functionParams);  // first argument
        events::physical(*handle);
    }
    if (reported_exhaustion_ || data.callbackSite != SANITIZER_API_EXIT || data.functionReturnValue == nullptr) return;
    if (*static_cast<const CUresult*>(data.functionReturnValue) != CUDA_ERROR_OUT_OF_MEMORY) return;
    reported_exhaustion_ = true;
    complain(
        "the GPU was out of memory when the program asked for some; of it, %llu MiB are the recorder's. If the program "
        "runs without a recorder, make that less with --arena",
        static_cast<unsigned long long>(arenas_.empty() ? 0 : options_.arena_bytes >> 20));
}

void Memory::context_destroyed(CUcontext context) {
    for (auto at = owners_.begin(); at != owners_.end();) {
        if (at->second == context) {
            events::free_address(at->first);
            allocations_.erase(at->first);
            at = owners_.erase(at);
        } else {
            ++at;
        }
    }
}

std::pair<uint64_t, uint64_t> Memory::allocation(uint64_t address) const {
    auto after = allocations_.upper_bound(address);
    if (after == allocations_.begin()) return {0, 0};
    --after;
    if (address - after->first >= after->second) return {0, 0};
    return *after;
}

bool Memory::holds(uint64_t address, uint64_t bytes) const {
    if (address + bytes < address) return false;
    for (uint64_t at = address; at < address + bytes;) {
        auto [base, size] = allocation(at);
        if (size == 0) return false;
        at = base + size;
    }
    return bytes > 0;
}

CUcontext Memory::owner(uint64_t base) const {
    auto entry = owners_.find(base);
    return entry == owners_.end() ? nullptr : entry->second;
}

}  // namespace tileprof
