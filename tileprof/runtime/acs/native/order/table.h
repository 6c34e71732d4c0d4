// The footprint table: what launches touch, relative to their pointer arguments, as a recording found it.
//
// A text file, one record per line:
//
//     tileprof-acs 1
//     program WORDS                         of the recording
//     kernel SYMBOL
//     entry GX GY GZ BX BY BZ SHARED BYTES  of the kernel above
//     bytes HEX MASK                        parameters; bits of the mask that are 0 are not compared
//     slot OFFSET                           a pointer argument in the parameters
//     loose I                               slot I may hold anything: what it points to counts, null or not
//     apart I J DIFFERENCE                  slots I and J lay in one buffer, DIFFERENCE bytes apart
//     null OFFSET 0|1                       a pointer that nothing was reached through, and whether it was null
//     read|write SLOT LOW HIGH              bytes touched, from the slot's address on
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "order/window.h"

namespace tileprof::acs {

struct Shape {
    unsigned grid[3], block[3], shared_bytes;
    bool operator==(const Shape& other) const;
};

struct Entry {
    uint64_t id = 0;  // from 1, equal in every run with this table
    Shape shape{};
    std::vector<uint64_t> bytes, mask;  // bytes of the parameters, padded with zeros to whole words
    std::vector<uint32_t> slots;
    std::vector<bool> loose;  // by slot
    struct Distance {
        uint32_t one, other;
        int64_t difference;
    };
    std::vector<Distance> distances;
    struct Null {
        uint32_t offset;
        bool null;
    };
    std::vector<Null> nulls;
    struct TouchedRange {
        uint32_t slot;
        int64_t low, high;
    };
    std::vector<TouchedRange> reads, writes;

    // Returns whether the entry matches a launch with these parameters, in whole words with zeros behind them.
    bool matches(const uint64_t* parameters, size_t words) const;
    void access(const uint64_t* parameters, Access* out) const;
};

struct KernelEntries {
    std::vector<Entry> entries;
    const Entry* find(const Shape& shape, const uint64_t* parameters, size_t words) const;
};

class Table {
  public:
    // Returns "" or the error in the file.
    std::string read(const std::string& path);
    const KernelEntries* of(const char* symbol) const;
    const std::string& program() const { return program_; }

  private:
    std::string program_;
    std::unordered_map<std::string, KernelEntries> kernels_;
};

}  // namespace tileprof::acs
