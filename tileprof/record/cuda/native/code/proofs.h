// Asks the process that started the recording whether all accesses of a launch follow from its kernel's machine code
// and its parameters. Such launches need no patches: record/cuda/code/ computes what they touch afterwards.
#pragma once

#include <stdint.h>

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "code/cubin.h"
#include "driver/clock.h"
#include "launches/launching_call.h"

namespace tileprof {

class Proofs {
  public:
    // `socket`: path of the server's Unix socket, which has `patience_ns` for each answer.
    explicit Proofs(const std::string& socket, uint64_t patience_ns = 30'000 * kMs)
        : socket_(socket), patience_ns_(patience_ns) {}

    // Returns whether the accesses of a launch are proven to follow. `pointers` has a bit for each 8-byte word of the
    // parameters that is an address in device memory, which may be another address with the same lowest bits in another
    // launch. False if the server does not answer in time.
    bool proven(uint32_t kernel, const KernelCode& code, const Geometry& geometry, const std::vector<char>& parameters,
                const std::vector<bool>& pointers);

  private:
    enum Answer : char { kNo = 0, kYes = 1 };

    // Launches that are proven with one another: the words of the parameters that the proof depends on, and which of
    // these are pointers.
    struct Such {
        std::string used, words, tags;
    };

    char ask(const std::string& request, std::string* used);
    void hang_up();

    const std::string& socket_;
    const uint64_t patience_ns_;
    int connection_ = -1;
    bool asking_ = false;                   // another thread uses the connection
    bool silent_ = false;                   // the server did not answer once
    std::unordered_map<std::string, std::vector<Such>> such_;  // by kernel and geometry
};

}  // namespace tileprof
