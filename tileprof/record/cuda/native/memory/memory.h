// The program's device memory: allocations, mappings and shared memory, and the context that owns each.
#pragma once

#include <map>
#include <set>
#include <utility>

#include "records/arenas.h"
#include "driver/callbacks.h"

namespace tileprof {

class Memory {
  public:
    Memory(const Options& options, const Arenas& arenas) : options_(options), arenas_(arenas) {}

    void follow(Callbacks* callbacks);

    void changed(uint32_t cbid, const Sanitizer_ResourceMemoryData& data);
    void host_changed(bool made, const Sanitizer_ResourceMemoryData& data);
    // Handles a driver call that concerns memory; returns whether it is one.
    bool api_call(uint32_t cbid, const Sanitizer_CallbackData& data);
    void context_destroyed(CUcontext context);

    // Returns [base, base + bytes) of the live device allocation that contains an address; bytes is 0 if there is
    // none.
    std::pair<uint64_t, uint64_t> allocation(uint64_t address) const;
    // Returns whether all of a range is live: a tensor may lie in several adjacent mappings, as with expandable
    // segments.
    bool holds(uint64_t address, uint64_t bytes) const;
    const std::map<uint64_t, uint64_t>& allocations() const { return allocations_; }
    // Returns the context of an allocation by its base, or nullptr if none was reported.
    CUcontext owner(uint64_t base) const;

  private:
    struct Mapping {
        uint64_t bytes = 0, handle = 0, offset = 0;
    };

    void map_called(const Sanitizer_CallbackData& data);
    void unmap_called(const Sanitizer_CallbackData& data);
    void mapped(uint64_t address, const Mapping& mapping);
    void unmapped(uint64_t address, uint64_t bytes);
    void unmapping_ended(uint64_t address, uint64_t bytes, bool worked);
    void allocation_called(uint32_t cbid, const Sanitizer_CallbackData& data);
    void share_called(uint32_t cbid, const Sanitizer_CallbackData& data);

    const Options& options_;
    const Arenas& arenas_;
    std::map<uint64_t, uint64_t> allocations_;  // bytes, by address
    std::map<uint64_t, Mapping> mappings_;      // by address
    std::map<uint64_t, CUcontext> owners_;      // bases of allocations that are freed with a context
    std::set<int> exported_;                    // inode numbers of files
    bool reported_exhaustion_ = false;
};

}  // namespace tileprof
