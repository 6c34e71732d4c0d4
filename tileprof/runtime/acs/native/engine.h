// The engine: what happens at each call of the program that the library intercepts.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "driver/calls.h"
#include "order/dispatcher.h"
#include "driver/launch.h"
#include "launch_log.h"
#include "options.h"
#include "queue.h"
#include "order/table.h"

namespace tileprof::acs {

class Engine {
  public:
    // Reads the file that TILEPROF_ACS names; returns "" or an error. Without that variable the library passes
    // everything through.
    std::string start();
    bool on() const { return on_; }

    CUresult launch(const Launch& launch);
    CUresult move(const Move& move);
    // A record on an event or a wait for one; `real` makes the call.
    CUresult mark(const Mark& mark, CUresult (*real)(const Mark&));
    // Called before a call that may observe, or be observed by, earlier launches. Returns an error that the call has
    // to return instead: that of a launch which another thread made for the program.
    CUresult before(const char* symbol, Meaning meaning);
    // Sets an attribute of a function, with the driver's arguments. An unchanged value has no effect on waiting
    // launches.
    CUresult set_attribute(const void* function, int attribute, int value, CUresult (*set)(const void*, int, int));
    void note_kernel(CUkernel kernel);
    void finish();
    // Called around a fork: nothing is in progress in the parent. The child, which has no thread of the library and
    // cannot use the parent's driver objects, passes everything through.
    void before_fork();
    void after_fork(bool child);

  private:
    void note_failure(CUresult result);

    // Takes `mutex_`, unless another thread holds it for `kPatience`.
    std::unique_lock<std::timed_mutex> hold();
    // Called in the program's thread, with `mutex_` held:
    bool queues(CUstream stream) const;
    std::unique_lock<std::timed_mutex> take_over(const char* what);
    CUresult earlier_failure();
    void begin_queue();
    void forget_module();

    std::timed_mutex mutex_;    // of the program's threads
    std::timed_mutex issuing_;  // taken second: for the thread that issues, if the queue does not say which one that is
    bool on_ = false, finished_ = false, at_exit_ = false, shared_ = false;
    Options options_;
    Table table_;
    Counts counts_;
    Functions functions_;
    std::unique_ptr<Dispatcher> dispatcher_;
    std::unique_ptr<Queue> queue_;
    // errors of launches that were held back or queued, not yet returned to the program
    std::atomic<int> failure_{kSuccess};
    // Hashes of function, shape and attributes that the driver has accepted once. Only such launches are queued: a
    // launch that cannot be made fails in the program's own call.
    std::unordered_map<uint64_t, const Function*> accepted_;
    std::map<std::pair<const void*, int>, int> attributes_;
    LaunchLog log_;
};

Engine& engine();  // never destroyed, because threads may launch while the process ends

}  // namespace tileprof::acs
