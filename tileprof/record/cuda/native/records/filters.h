// The memory of Bloom filters that the blocks of launches insert into, of one context.
#pragma once

#include <cuda.h>

#include <vector>

#include "driver/api.h"
#include "options.h"
#include "records/records.h"

namespace tileprof {

class Filters {
  public:
    explicit Filters(const FilterOptions& options) : options_(options) {}

    // False when the GPU has no room for them.
    bool allocate(CUcontext context);
    // Before a launch, in its stream: clear filters for its blocks, in a header that is to be copied to the device.
    // Where what it reads or writes is not reported, these filters have all bits. False where there is no room: then
    // any block may touch anything.
    bool give(Header* header, uint64_t blocks, bool reads_anything, bool writes_anything,
              Sanitizer_StreamHandle stream);
    // A launch may find no room.
    bool half_full() const { return used_words_ > capacity_words_ / 2; }
    // Copy those that were given to a file and begin afresh; everything has ended.
    void drain();

  private:
    struct Given {
        uint32_t launch;
        uint64_t blocks, first_word;
    };

    const FilterOptions& options_;
    uint32_t* words_ = nullptr;  // device
    uint64_t capacity_words_ = 0, used_words_ = 0;
    std::vector<Given> given_;
};

}  // namespace tileprof
