// What happens at each call of the program's that the library takes over.
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
    // Reads what TILEPROF_ACS names; "" or what is wrong. Without that variable the library passes everything through.
    std::string start();
    bool on() const { return on_; }

    CUresult launch(const Launch& launch);
    CUresult move(const Move& move);
    // A record on an event or a wait for one; `real` makes it.
    CUresult mark(const Mark& mark, CUresult (*real)(const Mark&));
    // Before a call that may see, or be seen by, what was launched. An error that the call is to return in place of
    // being made: of a launch that another thread made for the program.
    CUresult before(const char* symbol, Meaning meaning);
    // Sets an attribute of a function, by the words that the driver takes; a value that it has already changes nothing
    // for launches that wait.
    CUresult set_attribute(const void* function, int attribute, int value, CUresult (*set)(const void*, int, int));
    void note_kernel(CUkernel kernel);
    void finish();
    // Around a fork: nothing is under way in the parent; the child, which has no thread of the library's and cannot use
    // what the parent had of the driver, passes everything through.
    void before_fork();
    void after_fork(bool child);

  private:
    void note_failure(CUresult result);

    // `mutex_`, unless another thread holds it for `kPatience`.
    std::unique_lock<std::timed_mutex> hold();
    // In the program's thread, `mutex_` held:
    bool queues(CUstream stream) const;
    std::unique_lock<std::timed_mutex> take_over(const char* what);
    CUresult earlier_failure();
    void begin_queue();
    void forget_module();

    std::timed_mutex mutex_;    // of the program's threads
    std::timed_mutex issuing_;  // taken second: of the one that issues, where the queue does not say which
    bool on_ = false, finished_ = false, at_exit_ = false, shared_ = false;
    Options options_;
    Table table_;
    Counts counts_;
    Functions functions_;
    std::unique_ptr<Dispatcher> dispatcher_;
    std::unique_ptr<Queue> queue_;
    std::atomic<int> failure_{kSuccess};  // of launches that were held back or queued, not yet returned to the program
    // By function, shape and attributes: what the driver has taken once, and takes again. Only such launches are
    // queued: one that cannot be made fails in the program's own call.
    std::unordered_map<uint64_t, const Function*> accepted_;
    std::map<std::pair<const void*, int>, int> attributes_;
    LaunchLog log_;
};

Engine& engine();  // never destroyed: threads may launch while the process ends

}  // namespace tileprof::acs
