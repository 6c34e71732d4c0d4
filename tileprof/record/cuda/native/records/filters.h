// The memory of the Bloom filters into which the blocks of launches insert, per context.
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

    // Returns false if the GPU has no room for them.
    bool allocate(CUcontext context);
    // Called before a launch, in its stream: clears filters for its blocks, in a header that will be copied to the
    // device. If its reads or writes are not reported, these filters have all bits set. Returns false if there is no
    // room: then any block may touch anything.
    bool give(Header* header, uint64_t blocks, bool reads_anything, bool writes_anything,
              Sanitizer_StreamHandle stream);
    // Whether a launch may find no room.
    bool half_full() const { return used_words_ > capacity_words_ / 2; }
    // Copies the assigned filters to a file and frees them; all launches have ended.
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
