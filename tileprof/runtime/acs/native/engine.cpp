#include "engine.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

namespace tileprof::acs {

thread_local bool inside = false;

namespace {

constexpr size_t kMostProven = 1 << 16;

// The driver holds another thread's launch up for so long only where nothing on the GPU ends any more.
CUresult stuck(const char* what) {
    fprintf(
        stderr,
        "tileprof: %s waited %lld s for a launch of another thread that the driver does not take; it goes on without\n",
        what, static_cast<long long>(std::chrono::seconds(kPatience).count()));
    return kLaunchTimeout;
}

thread_local bool forks_locked = false;  // this thread holds the engine while it forks

const char* symbol_of(const Mark& mark) { return mark.kind == Mark::kRecord ? "cuEventRecord" : "cuStreamWaitEvent"; }

struct Inside {
    Inside() { inside = true; }
    ~Inside() { inside = false; }
};

}  // namespace

Engine& engine() {
    static Engine* made = new Engine;
    return *made;
}

std::string Engine::start() {
    const char* path = getenv("TILEPROF_ACS");
    if (path == nullptr) return "";
    std::string wrong = options_.read(path);
    if (!wrong.empty()) return wrong;
    if (options_.lanes < 1 || options_.lanes > kMostLanes || options_.window < 1 || options_.segment < 1)
        return "lanes, window or segment out of range";
    if (options_.mode == Mode::kLog) {
        wrong = log_.open(options_.folder);
    } else {
        wrong = table_.read(options_.table);
    }
    if (!wrong.empty()) return wrong;
    dispatcher_ = std::make_unique<Dispatcher>(options_, table_, &counts_);
    if (options_.threads != 0 && (options_.mode == Mode::kStreams || options_.mode == Mode::kGraph)) begin_queue();
    pthread_atfork([] { engine().before_fork(); }, [] { engine().after_fork(false); },
                   [] { engine().after_fork(true); });
    on_ = true;
    return "";
}

std::unique_lock<std::timed_mutex> Engine::hold() {
    std::unique_lock<std::timed_mutex> lock(mutex_, std::try_to_lock);
#if defined(__SANITIZE_THREAD__)  // which does not see timed locks
    for (const auto begin = std::chrono::steady_clock::now();
         !lock.owns_lock() && std::chrono::steady_clock::now() - begin < kPatience; lock.try_lock())
        std::this_thread::yield();
#else
    if (!lock.owns_lock()) lock.try_lock_for(kPatience);
#endif
    return lock;
}

// A thread of the library's, where there is a CPU for it.
void Engine::begin_queue() {
    cpu_set_t cpus;
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) < 2) return;
    Queue::Makers makers;
    makers.launch = [this](const Launch& launch, const Function& function) {
        ++counts_.queued;
        failed_later(dispatcher_->launch(launch, function));
    };
    makers.move = [this](const Move& move) { failed_later(dispatcher_->move(move)); };
    makers.mark = [this](const Mark& mark) {
        failed_later(dispatcher_->order(symbol_of(mark), Meaning::kOrdered));
        failed_later(make(mark));
    };
    makers.pause = [this] {
        // The program's thread may wait for this one while it holds the mutex: then it does what there is to do.
        std::unique_lock<std::timed_mutex> lock(mutex_, std::try_to_lock);
        if (!lock.owns_lock()) return false;
        if (dispatcher_->holds_back()) failed_later(dispatcher_->flush());
        return true;
    };
    queue_ = std::make_unique<Queue>(std::move(makers));
}

void Engine::failed_later(CUresult result) {
    int none = kSuccess;
    if (result != kSuccess) failure_.compare_exchange_strong(none, result);
}

CUresult Engine::earlier_failure() { return failure_ == kSuccess ? kSuccess : failure_.exchange(kSuccess); }

// Whether work for a stream goes to the library's thread. What a graph captures is the program's own to make, as is
// what goes to its thread's own default stream.
bool Engine::queueing(CUstream stream) const {
    return queue_ != nullptr && !dispatcher_->captures() && stream != per_thread_stream() && !queue_->broken();
}

// Everything that was queued is with the driver.
CUresult Engine::drained(const char* what) { return queue_ == nullptr || queue_->drain() ? kSuccess : stuck(what); }

CUresult Engine::moved(const Move& move) {
    const Work work = work_of(move);
    if (inside) return work.make(work.what, move.stream);
    Inside now;
    std::unique_lock<std::timed_mutex> lock = hold();
    if (!lock.owns_lock()) return stuck("a copy or fill");
    if (log_.is_open() || finished_) return work.make(work.what, move.stream);
    if (CUresult failed = earlier_failure()) return failed;
    CUcontext context = nullptr;
    if (queueing(move.stream) && Driver::get().cuCtxGetCurrent(&context) == kSuccess && queue_->push(move, context))
        return kSuccess;
    if (CUresult failed = drained("a copy or fill")) return failed;
    return dispatcher_->move(move);
}

CUresult Engine::marked(const Mark& mark, CUresult (*real)(const Mark&)) {
    if (inside) return real(mark);
    {
        Inside now;
        std::unique_lock<std::timed_mutex> lock = hold();
        if (!lock.owns_lock()) return stuck("a record on an event");
        if (log_.is_open() || finished_) return real(mark);
        CUcontext context = nullptr;
        if (queueing(mark.stream) && !shared_ && real == make && Driver::get().cuCtxGetCurrent(&context) == kSuccess &&
            queue_->push(mark, context))
            return kSuccess;
    }
    before(symbol_of(mark), Meaning::kOrdered);
    return real(mark);
}

CUresult Engine::launched(const Launch& launch) {
    if (inside) return issue(launch, launch.stream, launch.parameters, launch.extra);
    Inside now;
    std::unique_lock<std::timed_mutex> lock = hold();
    if (!lock.owns_lock()) return stuck("a launch");
    if (log_.is_open()) return log_.launch(launch, functions_.of(launch.function, table_));
    if (finished_) return issue(launch, launch.stream, launch.parameters, launch.extra);
    if (CUresult failed = earlier_failure()) return failed;
    if (!queueing(launch.stream)) {
        if (CUresult failed = drained("a launch")) return failed;
        return dispatcher_->launch(launch, functions_.of(launch.function, table_));
    }
    const uint64_t configuration = configuration_of(launch);
    auto proven = proven_.find(configuration);
    if (proven != proven_.end()) {
        CUcontext context = nullptr;
        if (Driver::get().cuCtxGetCurrent(&context) == kSuccess && queue_->push(launch, *proven->second, context))
            return kSuccess;
    }
    if (CUresult failed = drained("a launch")) return failed;
    if (!at_exit_) {
        at_exit_ = true;
        atexit([] { engine().finish(); });  // again: before the driver ends, which began later than this library
    }
    const Function& function = functions_.of(launch.function, table_);
    CUresult result = dispatcher_->launch(launch, function);
    if (result == kSuccess)
        result = dispatcher_->flush();  // where it is held back: the driver is to say now whether it takes it
    if (result == kSuccess && function.known) {
        if (proven_.size() >= kMostProven) proven_.clear();
        proven_[configuration] = &function;
    }
    return result;
}

CUresult Engine::before(const char* symbol, Meaning meaning) {
    if (!on_ || inside) return kSuccess;
    Inside now;
    std::unique_lock<std::timed_mutex> lock = hold();
    if (!lock.owns_lock()) return stuck(symbol), kSuccess;
    if (log_.is_open() || finished_) return kSuccess;
    drained(symbol);
    shared_ = shared_ || meaning == Meaning::kShared;
    if (meaning == Meaning::kIssued || meaning == Meaning::kShared)
        failed_later(dispatcher_->flush());
    else
        failed_later(dispatcher_->order(symbol, meaning));
    if (meaning == Meaning::kUnloads) forget_module();
    return reports_errors(symbol) ? earlier_failure() : kSuccess;
}

// A module goes: the driver gives handles out again.
void Engine::forget_module() {
    proven_.clear();
    attributes_.clear();
    functions_.forget();
    dispatcher_->forget_graphs();
}

CUresult Engine::set_attribute(const void* function, int attribute, int value, CUresult (*set)(const void*, int, int)) {
    if (inside || !on_) return set(function, attribute, value);
    Inside now;
    std::unique_lock<std::timed_mutex> lock = hold();
    if (!lock.owns_lock()) return stuck("an attribute of a function");
    if (log_.is_open() || finished_) return set(function, attribute, value);
    auto [known, added] = attributes_.try_emplace({function, attribute}, value);
    if (added || known->second != value) {
        drained("an attribute of a function");
        failed_later(dispatcher_->flush());
        known->second = value;
    }
    const CUresult result = set(function, attribute, value);
    if (result != kSuccess) attributes_.erase(known);
    return result;
}

void Engine::before_fork() {
    if (inside) return;
    std::unique_lock<std::timed_mutex> lock = hold();
    if (!lock.owns_lock()) return;
    forks_locked = true;
    lock.release();
    if (!finished_) drained("a fork");
    if (log_.is_open()) log_.flush();
}

void Engine::after_fork(bool child) {
    if (child) {
        if (queue_ != nullptr && queue_->started()) finished_ = true;
        counts_ = Counts{};
    }
    if (forks_locked) mutex_.unlock();
    forks_locked = false;
}

void Engine::note_kernel(CUkernel kernel) {
    std::unique_lock<std::timed_mutex> lock = hold();
    functions_.note_kernel(kernel);
}

void Engine::finish() {
    std::unique_lock<std::timed_mutex> lock = hold();
    if (!on_ || finished_) return;
    drained("the end of the program");
    if (options_.mode == Mode::kGraph) failed_later(dispatcher_->flush());
    finished_ = true;
    if (log_.is_open())
        log_.flush();
    else if (counts_.launches != 0)
        counts_.write(options_.folder + "/acs-" + std::to_string(getpid()) + ".json");
}

}  // namespace tileprof::acs
