#include "records/filters.h"

#include <string>

#include "log/events.h"
#include "log/log.h"

namespace tileprof {

namespace {

// One per process: contexts drain one after another.
uint32_t files = 0;

}  // namespace

bool Filters::allocate(CUcontext context) {
    if (options_.hashes == 0) return true;
    void* memory = nullptr;
    if (!check(api.sanitizerAlloc(context, &memory, options_.bytes), "memory for filters (TILEPROF_FILTER_BYTES)") ||
        !check(api.sanitizerMemset(memory, 0, options_.bytes, nullptr), "clearing filters"))
        return false;
    words_ = static_cast<uint32_t*>(memory);
    capacity_words_ = options_.bytes / sizeof(uint32_t);
    return true;
}

bool Filters::give(Header* header, uint64_t blocks, bool reads_anything, bool writes_anything,
                   Sanitizer_StreamHandle stream) {
    if (words_ == nullptr || blocks > UINT32_MAX) return false;
    uint64_t side = blocks << options_.bits_shift >> 5;  // words of the filters of reads of all blocks
    if (used_words_ + 2 * side > capacity_words_) return false;
    uint32_t* filters = words_ + used_words_;
    auto fill = [&](uint32_t* words) {
        return check(api.sanitizerMemset(words, 0xff, side * sizeof(uint32_t), stream), "filling filters");
    };
    if ((reads_anything && !fill(filters)) || (writes_anything && !fill(filters + side))) return false;
    header->filters = filters;
    header->filter_blocks = static_cast<uint32_t>(blocks);
    header->filter_bits_shift = options_.bits_shift;
    header->filter_granule_shift = options_.granule_shift;
    header->filter_hashes = options_.hashes;
    header->filters_only = options_.alone;
    given_.push_back({header->launch, blocks, used_words_});
    used_words_ += 2 * side;
    return true;
}

void Filters::drain() {
    if (used_words_ == 0) return;
    std::vector<uint32_t> words(used_words_);
    size_t bytes = used_words_ * sizeof(uint32_t);
    if (!check(api.sanitizerMemcpyDeviceToHost(words.data(), words_, bytes, nullptr), "copying filters")) return;
    std::string name = "filters-" + std::to_string(files++) + ".bin";
    log_.file(name, words.data(), bytes);
    for (const Given& launch : given_) events::filters(launch.launch, name, launch.first_word, launch.blocks);
    check(api.sanitizerMemset(words_, 0, bytes, nullptr), "clearing filters");
    given_.clear();
    used_words_ = 0;
}

}  // namespace tileprof
