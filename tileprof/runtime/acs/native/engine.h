// What happens at each call of the program's that the library takes over.
#pragma once

#include <stdio.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "group.h"
#include "issuer.h"
#include "launch.h"
#include "options.h"
#include "pace.h"
#include "segment.h"
#include "table.h"

namespace tileprof::acs {

// What a driver call means for the order of launches.
enum class Meaning { kHarmless, kOrdered, kCaptureBegins, kCaptureEnds, kUnloads };

Meaning meaning_of(const char* symbol);

class Engine {
  public:
    // Reads what TILEPROF_ACS names; "" or what is wrong. Without that variable the library passes everything through.
    std::string start();
    bool on() const { return on_; }

    CUresult launched(const Launch& launch);
    CUresult moved(const Move& move);
    // Before a call that may see, or be seen by, what was launched.
    void before(const char* symbol, Meaning meaning);
    void note_kernel(CUkernel kernel);
    void finish();

  private:
    Group* group_of(CUstream stream);
    CUresult entered(CUstream stream, Group** group, bool* capturing);
    CUresult barrier(Group* group, uint64_t id);
    CUresult paced(CUstream stream, bool* rests);
    CUresult flush();
    CUresult logged(const Launch& launch);
    void say_foreign();

    std::timed_mutex mutex_;
    bool on_ = false, finished_ = false, foreign_said_ = false;
    Options options_;
    Table table_;
    Counts counts_;
    Functions functions_;
    std::vector<std::unique_ptr<Group>> groups_;
    Group* active_ = nullptr;  // whose launches were the last
    bool dirty_ = false;       // something was placed since everything was ordered
    int capturing_ = 0;        // streams that capture graphs
    std::vector<Held> held_;
    Parameters parameters_;
    std::unique_ptr<Graphs> graphs_;
    std::unique_ptr<Issuer> issuer_;
    std::unique_ptr<Pace> pace_;  // of launches over streams that the program's own thread issues
    CUresult failure_ = kSuccess;  // of launches that were held back
    FILE* log_ = nullptr;
};

Engine& engine();  // never destroyed: threads may launch while the process ends

}  // namespace tileprof::acs
