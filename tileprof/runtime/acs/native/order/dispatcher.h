// Chooses the stream of each launch, copy and fill, and what it is ordered after. One thread at a time calls this:
// the library's thread if there is one, and the program's thread while that thread is idle.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "driver/calls.h"
#include "order/group.h"
#include "driver/launch.h"
#include "options.h"
#include "order/spread_decision.h"
#include "order/segment.h"
#include "order/table.h"

namespace tileprof::acs {

class Dispatcher {
  public:
    Dispatcher(const Options& options, const Table& table, Counts* counts);

    CUresult launch(const Launch& launch, const Function& function);
    CUresult move(const Move& move);
    // Orders everything before a call that may observe it. Returns the first failure; the rest is ordered
    // nevertheless.
    CUresult order(const char* symbol, Meaning meaning);
    // Makes the launches that wait in the segment or for workers.
    CUresult flush();
    bool has_segment() const { return !segment_.empty(); }
    bool captures() const { return capturing_ > 0; }
    // A module is unloaded, and its functions with it.
    void forget_graphs() { graphs_.forget(); }

  private:
    Group* group_of(CUstream stream);
    CUresult enter(CUstream stream, Group** group, bool* capturing);
    CUresult barrier(Group* group, uint64_t id);
    CUresult decide_rest(CUstream stream, bool* rests);
    CUresult give(WorkerPool* pool, WorkerPool::Make make, Access&& access);
    bool is_slow();
    void report_foreign_table();

    const Options& options_;
    const Table& table_;
    Counts* counts_;
    std::vector<std::unique_ptr<Group>> groups_;
    Group* active_ = nullptr;  // the group of the last launches
    bool dirty_ = false;       // something was placed since everything was last ordered
    bool foreign_reported_ = false;
    int capturing_ = 0;  // streams that capture graphs
    std::vector<SegmentLaunch> segment_;
    Parameters parameters_;
    Graphs graphs_;
    std::unique_ptr<SpreadDecision> spread_decision_;
    std::chrono::steady_clock::time_point looked_at_;
};

}  // namespace tileprof::acs
