#include "engine.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

namespace tileprof::acs {

thread_local bool inside = false;

namespace {

constexpr size_t kMostAccepted = 1 << 16;

// The driver blocks another thread's launch for this long only if nothing on the GPU ends any more.
CUresult stuck(const char* what) {
    fprintf(
        stderr,
        "tileprof: %s waited %lld s for a launch of another thread that the driver does not take; it goes on without\n",
        what, static_cast<long long>(std::chrono::seconds(kPatience).count()));
    return kLaunchTimeout;
}

// The locks of the engine that this thread holds while it forks.
thread_local bool forks_locked = false, forks_issuing = false;

// Takes the lock, unless another thread holds it for `kPatience`.
std::unique_lock<std::timed_mutex> patiently(std::timed_mutex& mutex) {
    std::unique_lock<std::timed_mutex> lock(mutex, std::try_to_lock);
#if defined(__SANITIZE_THREAD__)  // ThreadSanitizer does not see timed locks
    for (const auto begin = std::chrono::steady_clock::now();
         !lock.owns_lock() && std::chrono::steady_clock::now() - begin < kPatience; lock.try_lock())
        std::this_thread::yield();
#else
    if (!lock.owns_lock()) lock.try_lock_for(kPatience);
#endif
    return lock;
}

const char* symbol_of(const Mark& mark) { return mark.kind == Mark::kRecord ? "cuEventRecord" : "cuStreamWaitEvent"; }

struct Inside {
    Inside() { inside = true; }
    ~Inside() { inside = false; }
};

}  // namespace

Engine& engine() {
    static Engine* instance = new Engine;
    return *instance;
}

std::string Engine::start() {
    const char* path = getenv("TILEPROF_ACS");
    if (path == nullptr) return "";
    std::string problem = options_.read(path);
    if (!problem.empty()) return problem;
    if (options_.lanes < 1 || options_.lanes > kMostLanes || options_.window < 1 || options_.segment < 1)
        return "lanes, window or segment out of range";
    if (options_.mode == Mode::kLog) {
        problem = log_.open(options_.folder);
    } else {
        problem = table_.read(options_.table);
    }
    if (!problem.empty()) return problem;
    dispatcher_ = std::make_unique<Dispatcher>(options_, table_, &counts_);
    if (options_.threads != 0 && (options_.mode == Mode::kStreams || options_.mode == Mode::kGraph)) begin_queue();
    pthread_atfork([] { engine().before_fork(); }, [] { engine().after_fork(false); },
                   [] { engine().after_fork(true); });
    on_ = true;
    return "";
}

std::unique_lock<std::timed_mutex> Engine::hold() { return patiently(mutex_); }

// Starts a thread of the library if there is a CPU for it.
void Engine::begin_queue() {
    cpu_set_t cpus;
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) < 2) return;
    Queue::Makers makers;
    makers.launch = [this](const Launch& launch, const Function& function) {
        ++counts_.queued;
        note_failure(dispatcher_->launch(launch, function));
    };
    makers.move = [this](const Move& move) { note_failure(dispatcher_->move(move)); };
    makers.mark = [this](const Mark& mark) {
        note_failure(dispatcher_->order(symbol_of(mark), Meaning::kOrdered));
        note_failure(make(mark));
    };
    makers.pause = [this] {
        // `mutex_` is not taken: the program continues to queue launches while a segment begins.
        std::unique_lock<std::timed_mutex> lock(issuing_, std::try_to_lock);
        if (!lock.owns_lock()) return false;
        if (dispatcher_->has_segment()) note_failure(dispatcher_->flush());
        return true;
    };
    queue_ = std::make_unique<Queue>(std::move(makers));
}

void Engine::note_failure(CUresult result) {
    int none = kSuccess;
    if (result != kSuccess) failure_.compare_exchange_strong(none, result);
}

CUresult Engine::earlier_failure() { return failure_ == kSuccess ? kSuccess : failure_.exchange(kSuccess); }

// Returns whether work for a stream goes to the library's thread. The program's own thread makes what a graph
// captures, and what goes to its per-thread default stream.
bool Engine::queues(CUstream stream) const {
    return queue_ != nullptr && !dispatcher_->captures() && stream != per_thread_stream() && !queue_->broken();
}

// Waits until everything that was queued has been issued; the library's thread begins nothing while the lock is held.
// Returns no lock if that takes too long.
std::unique_lock<std::timed_mutex> Engine::take_over(const char* what) {
    std::unique_lock<std::timed_mutex> lock;
    const bool waits = queue_ != nullptr && !queue_->empty();
    const auto begin = std::chrono::steady_clock::now();
    if (queue_ == nullptr || queue_->drain()) lock = patiently(issuing_);
    if (waits) counts_.awaited_ns[what] += nanoseconds_since(begin);
    if (!lock.owns_lock()) stuck(what);
    return lock;
}

CUresult Engine::move(const Move& move) {
    const Work work = work_of(move);
    if (inside) return work.make(work.what, move.stream);
    Inside scope;
    std::unique_lock<std::timed_mutex> lock = hold();
    if (!lock.owns_lock()) return stuck("a copy or fill");
    if (log_.is_open() || finished_) return work.make(work.what, move.stream);
    if (CUresult failure = earlier_failure()) return failure;
    CUcontext context = nullptr;
    if (queues(move.stream) && Driver::get().cuCtxGetCurrent(&context) == kSuccess && queue_->push(move, context))
        return kSuccess;
    const std::unique_lock<std::timed_mutex> issuing = take_over("a copy or fill");
    return issuing.owns_lock() ? dispatcher_->move(move) : kLaunchTimeout;
}

CUresult Engine::mark(const Mark& mark, CUresult (*real)(const Mark&)) {
    if (inside) return real(mark);
    {
        Inside scope;
        std::unique_lock<std::timed_mutex> lock = hold();
        if (!lock.owns_lock()) return stuck("a record on an event");
        if (log_.is_open() || finished_) return real(mark);
        CUcontext context = nullptr;
        if (queues(mark.stream) && !shared_ && real == make && Driver::get().cuCtxGetCurrent(&context) == kSuccess &&
            queue_->push(mark, context))
            return kSuccess;
    }
    before(symbol_of(mark), Meaning::kOrdered);
    return real(mark);
}

CUresult Engine::launch(const Launch& launch) {
    if (inside) return issue(launch, launch.stream, launch.parameters, launch.extra);
    Inside scope;
    std::unique_lock<std::timed_mutex> lock = hold();
    if (!lock.owns_lock()) return stuck("a launch");
    if (log_.is_open()) return log_.launch(launch, functions_.of(launch.function, table_));
    if (finished_) return issue(launch, launch.stream, launch.parameters, launch.extra);
    if (CUresult failure = earlier_failure()) return failure;
    if (!queues(launch.stream)) {
        const std::unique_lock<std::timed_mutex> issuing = take_over("a launch");
        return issuing.owns_lock() ? dispatcher_->launch(launch, functions_.of(launch.function, table_))
                                   : kLaunchTimeout;
    }
    const uint64_t configuration = configuration_of(launch);
    auto entry = accepted_.find(configuration);
    if (entry != accepted_.end()) {
        CUcontext context = nullptr;
        if (Driver::get().cuCtxGetCurrent(&context) == kSuccess && queue_->push(launch, *entry->second, context))
            return kSuccess;
    }
    const std::unique_lock<std::timed_mutex> issuing = take_over("a launch");
    if (!issuing.owns_lock()) return kLaunchTimeout;
    if (!at_exit_) {
        at_exit_ = true;
        // again: at process exit, before the driver's exit handler, which was registered after this library
        atexit([] { engine().finish(); });
    }
    const Function& function = functions_.of(launch.function, table_);
    CUresult result = dispatcher_->launch(launch, function);
    if (result == kSuccess) result = dispatcher_->flush();  // out of the segment: the driver must accept it now
    if (result == kSuccess && function.known) {
        if (accepted_.size() >= kMostAccepted) accepted_.clear();
        accepted_[configuration] = &function;
    }
    return result;
}

CUresult Engine::before(const char* symbol, Meaning meaning) {
    if (!on_ || inside) return kSuccess;
    Inside scope;
    std::unique_lock<std::timed_mutex> lock = hold();
    if (!lock.owns_lock()) return stuck(symbol), kSuccess;
    if (log_.is_open() || finished_) return kSuccess;
    const std::unique_lock<std::timed_mutex> issuing = take_over(symbol);
    shared_ = shared_ || meaning == Meaning::kShared;
    if (meaning == Meaning::kIssued || meaning == Meaning::kShared)
        note_failure(dispatcher_->flush());
    else
        note_failure(dispatcher_->order(symbol, meaning));
    if (meaning == Meaning::kUnloads) forget_module();
    return reports_errors(symbol) ? earlier_failure() : kSuccess;
}

// A module is unloaded: the driver reuses handles.
void Engine::forget_module() {
    accepted_.clear();
    attributes_.clear();
    functions_.forget();
    dispatcher_->forget_graphs();
}

CUresult Engine::set_attribute(const void* function, int attribute, int value, CUresult (*set)(const void*, int, int)) {
    if (inside || !on_) return set(function, attribute, value);
    Inside scope;
    std::unique_lock<std::timed_mutex> lock = hold();
    if (!lock.owns_lock()) return stuck("an attribute of a function");
    if (log_.is_open() || finished_) return set(function, attribute, value);
    auto [entry, added] = attributes_.try_emplace({function, attribute}, value);
    if (added || entry->second != value) {
        const std::unique_lock<std::timed_mutex> issuing = take_over("an attribute of a function");
        note_failure(dispatcher_->flush());
        entry->second = value;
    }
    const CUresult result = set(function, attribute, value);
    if (result != kSuccess) attributes_.erase(entry);
    return result;
}

void Engine::before_fork() {
    if (inside) return;
    std::unique_lock<std::timed_mutex> lock = hold();
    if (!lock.owns_lock()) return;
    forks_locked = true;
    lock.release();
    if (!finished_) {
        std::unique_lock<std::timed_mutex> issuing = take_over("a fork");
        forks_issuing = issuing.owns_lock();
        issuing.release();
    }
    if (log_.is_open()) log_.flush();
}

void Engine::after_fork(bool child) {
    if (child) {
        if ((queue_ != nullptr && queue_->started()) || options_.workers > 0) finished_ = true;
        counts_ = Counts{};
    }
    if (forks_issuing) issuing_.unlock();
    if (forks_locked) mutex_.unlock();
    forks_locked = forks_issuing = false;
}

void Engine::note_kernel(CUkernel kernel) {
    std::unique_lock<std::timed_mutex> lock = hold();
    functions_.note_kernel(kernel);
}

void Engine::finish() {
    std::unique_lock<std::timed_mutex> lock = hold();
    if (!on_ || finished_) return;
    const std::unique_lock<std::timed_mutex> issuing = take_over("the end of the program");
    if (options_.mode == Mode::kGraph || options_.workers > 0) note_failure(dispatcher_->flush());
    finished_ = true;
    if (queue_ != nullptr && queue_->full_ns() != 0) counts_.awaited_ns["room in the queue"] = queue_->full_ns();
    if (log_.is_open())
        log_.flush();
    else if (counts_.launches != 0)
        counts_.write(options_.folder + "/acs-" + std::to_string(getpid()) + ".json");
}

}  // namespace tileprof::acs
