// Launches that need no patches, because all that they touch follows from the kernel's machine code and parameters.
//
// The library patches whole modules. A module stays unpatched until a kernel without a proof is launched from it. It is
// patched when its launches have ended, and before a program makes its first graph all modules are: a graph holds the
// code of its kernels.
#pragma once

#include <stdint.h>

#include <set>
#include <vector>

#include "code/modules.h"
#include "code/proofs.h"
#include "driver/callbacks.h"
#include "launches/launching_call.h"
#include "log/events.h"
#include "memory/memory.h"
#include "records/arenas.h"

namespace tileprof {

class Unpatched {
  public:
    Unpatched(const Options& options, Arenas& arenas, const Memory& memory, Modules& modules)
        : options_(options), arenas_(arenas), memory_(memory), modules_(modules) {}

    void start(Callbacks* callbacks);
    // Handles a call that begins a graph; returns whether it is one.
    bool api_call(uint32_t cbid, const Sanitizer_CallbackData& data);
    // Called before a launching call waits at the gate: patches the kernel's module if that is necessary.
    void before(const LaunchingCall& call);
    // Whether this is the launch of this thread's call, and is proven.
    bool proven(const Kernel& kernel, const Geometry& geometry) const;
    // Called when the call has returned.
    void forget();
    // Keeps what the reader needs to compute what such a launch touches, and says where its parameters are.
    events::Parameters keep(const Kernel& kernel);
    // Called before a stream is destroyed.
    void end_stream(CUcontext context, Sanitizer_StreamHandle stream);

  private:
    bool follows(const LaunchingCall& call, const Kernel& kernel, CUfunction function);
    void patch(CUmodule module);
    void patch_all();
    bool rests(CUmodule module);

    const Options& options_;
    Arenas& arenas_;
    const Memory& memory_;
    Modules& modules_;
    Proofs proofs_{options_.proofs};
    std::set<uint32_t> kept_;  // kernels whose code is in the files
};

}  // namespace tileprof
