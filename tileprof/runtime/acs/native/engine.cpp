#include "engine.h"

#include <stdlib.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/auxv.h>
#include <time.h>
#include <unistd.h>

namespace tileprof::acs {

thread_local bool inside = false;

namespace {

constexpr size_t kMostGroups = 8;  // streams of the program whose launches are spread
constexpr size_t kMostProven = 1 << 16;
constexpr uint64_t kForeign = 512;  // launches, none of which the table knows, after which it is another program's

// Beginnings of names of calls that change no order. What is in neither list is taken to: a new driver's calls, too.
constexpr const char* kHarmless[] = {
    "cuArray",
    "cuCoredump",
    "cuCtxGet",
    "cuCtxPush",
    "cuCtxPop",
    "cuCtxSetCurrent",
    "cuCtxCreate",
    "cuCtxAttach",
    "cuDeviceGet",
    "cuDeviceCan",
    "cuDeviceComputeCapability",
    "cuDevicePrimaryCtxGetState",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxSetFlags",
    "cuDeviceTotalMem",
    "cuDriverGet",
    "cuEventCreate",
    "cuFuncGet",
    "cuFuncIsLoaded",
    "cuFuncLoad",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGetExportTable",
    "cuGetProcAddress",
    "cuGraphAdd",
    "cuGraphClone",
    "cuGraphCreate",
    "cuGraphDebug",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphExecGet",
    "cuGraphExecKernel",
    "cuGraphExecUpdate",
    "cuGraphGet",
    "cuGraphInstantiate",
    "cuGraphKernelNode",
    "cuGraphNode",
    "cuGraphRetain",
    "cuGraphRelease",
    "cuInit",
    "cuIpcGet",
    "cuKernelGet",
    "cuLibraryGet",
    "cuLibraryLoad",
    "cuLibraryEnumerate",
    "cuLinkAdd",
    "cuLinkComplete",
    "cuLinkCreate",
    "cuLinkDestroy",
    "cuLogs",
    "cuMemAddressReserve",
    "cuMemAlloc_v2",
    "cuMemAlloc",
    "cuMemAllocHost",
    "cuMemAllocManaged",
    "cuMemAllocPitch",
    "cuMemCreate",
    "cuMemGetAccess",
    "cuMemGetAddressRange",
    "cuMemGetAllocation",
    "cuMemGetHandle",
    "cuMemGetInfo",
    "cuMemHostAlloc",
    "cuMemHostGet",
    "cuMemHostRegister",
    "cuMemPoolGet",
    "cuMemPoolCreate",
    "cuMemRetain",
    "cuModuleEnumerate",
    "cuModuleGet",
    "cuModuleLoad",
    "cuOccupancy",
    "cuPointerGet",
    "cuStreamBeginCaptureToGraphQuery",
    "cuStreamCreate",
    "cuStreamGet",
    "cuStreamIsCapturing",
    "cuTensorMap",
    "cuThreadExchange",
    "cuUserObject",
    "cuDeviceRegisterAsync",
    "cuMulticastGet",
};
// Those that change no order, but that a launch made earlier must not come after: what they set or tell would be
// another thing.
constexpr const char* kIssued[] = {
    "cuCtxDetach",
    "cuCtxEnable",
    "cuCtxRecord",
    "cuCtxResetPersistingL2Cache",
    "cuCtxSet",
    "cuEventDestroy",
    "cuEventElapsedTime",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuFlush",
    "cuFuncSet",
    "cuKernelSet",
    "cuMemMap",
    "cuMemPoolSet",
    "cuMemSetAccess",
    "cuProfiler",
    "cuStreamSetAttribute",
};
// Calls that say errors of earlier launches.
constexpr const char* kTelling[] = {"cuCtxSynchronize", "cuEventQuery",  "cuEventSynchronize",
                                    "cuMemcpy",         "cuStreamQuery", "cuStreamSynchronize"};
// Exceptions that do order: longer names that begin alike.
constexpr const char* kOrderedYet[] = {"cuMemAllocAsync", "cuMemAllocFromPool", "cuMemMapArrayAsync", "cuArrayDestroy",
                                       "cuGraphicsMap"};

// The driver holds another thread's launch up for so long only where nothing on the GPU ends any more.
CUresult stuck(const char* what) {
    fprintf(
        stderr,
        "tileprof: %s waited %lld s for a launch of another thread that the driver does not take; it goes on without\n",
        what, static_cast<long long>(std::chrono::seconds(kPatience).count()));
    return kLaunchTimeout;
}

thread_local bool forks_locked = false;  // this thread holds the engine while it forks

struct Inside {
    Inside() { inside = true; }
    ~Inside() { inside = false; }
};

bool begins(const char* name, const char* with) { return strncmp(name, with, strlen(with)) == 0; }

uint64_t hash_of(const char* text) {
    uint64_t hash = 0xcbf29ce484222325ull;
    for (; *text != 0; ++text) hash = (hash ^ static_cast<unsigned char>(*text)) * 0x100000001b3ull;
    return hash;
}

uint64_t now_ns() {
    timespec t{};
    clock_gettime(CLOCK_REALTIME, &t);
    return static_cast<uint64_t>(t.tv_sec) * 1000000000ull + static_cast<uint64_t>(t.tv_nsec);
}

void put_hex(std::string* out, const void* bytes, size_t count) {
    static const char digits[] = "0123456789abcdef";
    const auto* from = static_cast<const unsigned char*>(bytes);
    for (size_t i = 0; i < count; ++i) {
        *out += digits[from[i] >> 4];
        *out += digits[from[i] & 15];
    }
}

}  // namespace

Meaning meaning_of(const char* symbol) {
    if (begins(symbol, "cuStreamBeginCapture")) return Meaning::kCaptureBegins;
    if (begins(symbol, "cuStreamEndCapture")) return Meaning::kCaptureEnds;
    if (begins(symbol, "cuModuleUnload") || begins(symbol, "cuLibraryUnload")) return Meaning::kUnloads;
    // Another process, which may be told of an event as soon as its record has returned.
    if (begins(symbol, "cuIpcGetEventHandle")) return Meaning::kShared;
    for (const char* name : kOrderedYet)
        if (begins(symbol, name)) return Meaning::kOrdered;
    for (const char* name : kHarmless)
        if (begins(symbol, name)) return Meaning::kHarmless;
    for (const char* name : kIssued)
        if (begins(symbol, name)) return Meaning::kIssued;
    return Meaning::kOrdered;
}

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
        log_ = fopen((options_.folder + "/launches-" + std::to_string(getpid())).c_str(), "w");
        if (log_ == nullptr) return "cannot write to " + options_.folder;
        fprintf(log_, "stack %lu\n", getauxval(AT_RANDOM));  // an address at the bottom of the first thread's
    } else if (!(wrong = table_.read(options_.table)).empty()) {
        return wrong;
    }
    graphs_ = std::make_unique<Graphs>(&counts_);
    if (options_.mode == Mode::kStreams) pace_ = std::make_unique<Pace>(options_.rest);
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
        failed_later(launch_now(launch, function));
    };
    makers.move = [this](const Move& move) { failed_later(move_now(move)); };
    makers.mark = [this](const Mark& mark) {
        order(mark.kind == Mark::kRecord ? "cuEventRecord" : "cuStreamWaitEvent", Meaning::kOrdered);
        failed_later(make(mark));
    };
    makers.pause = [this] {
        // The program's thread may wait for this one while it holds the mutex: then it does what there is to do.
        std::unique_lock<std::timed_mutex> lock(mutex_, std::try_to_lock);
        if (!lock.owns_lock()) return false;
        if (!held_.empty()) failed_later(flush());
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
    return queue_ != nullptr && capturing_ == 0 && stream != per_thread_stream() && !queue_->broken();
}

// Everything that was queued is with the driver.
CUresult Engine::drained(const char* what) { return queue_ == nullptr || queue_->drain() ? kSuccess : stuck(what); }

uint64_t Engine::configuration_of(const Launch& launch) {
    const Shape& s = launch.shape;
    uint64_t hash = mixed(reinterpret_cast<uint64_t>(launch.function), uint64_t{launch.parameters == nullptr});
    hash = mixed(hash, static_cast<uint64_t>(s.grid[0]) << 32 | s.grid[1]);
    hash = mixed(hash, static_cast<uint64_t>(s.grid[2]) << 32 | s.shared_bytes);
    hash = mixed(hash, static_cast<uint64_t>(s.block[0]) << 40 | static_cast<uint64_t>(s.block[1]) << 20 | s.block[2]);
    hash = mixed(hash, uint64_t{launch.attribute_count});
    for (unsigned i = 0; i < launch.attribute_count; ++i) hash = mixed(hash, launch.attributes[i]);
    return hash;
}

// The group of a stream, which is the active one from now on; nullptr where its launches stay as they are.
Group* Engine::group_of(CUstream stream) {
    if (stream == per_thread_stream()) return nullptr;
    CUcontext context = nullptr;
    if (Driver::get().cuCtxGetCurrent(&context) != kSuccess) return nullptr;
    if (active_ != nullptr && active_->stream() == stream && active_->context() == context) return active_;
    Group* found = nullptr;
    for (const auto& group : groups_)
        if (group->stream() == stream && group->context() == context) found = group.get();
    if (found == nullptr && groups_.size() < kMostGroups) {
        groups_.push_back(std::make_unique<Group>(context, stream, options_, &counts_));
        found = groups_.back().get();
    }
    return found != nullptr && found->usable() ? found : nullptr;
}

// Everything that was placed is ordered before what its streams get next; `group`: that this may be ordered after it.
CUresult Engine::barrier(Group* group, uint64_t id) {
    CUresult failed = flush();
    for (const auto& other : groups_)
        if (dirty_ || other.get() == group)
            if (CUresult result = other->join(id)) failed = result;
    dirty_ = false;
    return failed;
}

CUresult Engine::flush() {
    if (held_.empty()) return kSuccess;
    std::vector<Held> segment = std::move(held_);
    held_.clear();
    CUresult result = kSuccess;
    if (options_.mode == Mode::kCheck) {
        if ((result = active_->join(1))) return result;
        // What other streams copy into the same allocations must have ended: the check puts whole allocations back.
        if (capturing_ == 0 && (result = Driver::get().cuCtxSynchronize())) return result;
        return check(segment, active_->stream(), options_, &counts_);
    }
    ++counts_.segments;
    if ((result = active_->join(1))) return result;
    if (graphs_->launch(segment, active_->stream(), &result)) {
        CUresult joined = active_->join(2);
        return result != kSuccess ? result : joined;
    }
    for (Held& held : segment) {
        held.launch.parameters = held.pointers.data();
        held.launch.extra = nullptr;
        if ((result = active_->place(work_of(held.launch), std::move(held.access), held.id, false))) return result;
    }
    dirty_ = true;
    return kSuccess;
}

// What comes before all work for a stream: its group, nullptr where it stays as it is, and whether the stream captures.
CUresult Engine::entered(CUstream stream, Group** group, bool* capturing) {
    if (active_ != nullptr && stream != active_->stream())
        if (CUresult failed = barrier(nullptr, 3)) return failed;
    *group = group_of(stream);
    if (capturing_ > 0) {
        int status = kCaptureNone;
        *capturing = Driver::get().cuStreamIsCapturing(stream, &status) == kSuccess && status != kCaptureNone;
    }
    if (*group != active_ && *group != nullptr) {
        // It may wait for what other streams were given, as the default stream does: its lanes do so by waiting for it.
        if (CUresult failed = barrier(*group, 4)) return failed;
        active_ = *group;
    }
    return kSuccess;
}

// Whether work for a stream stays there as it is, since the host bounds the program. A rest begins and ends with an
// order of everything before everything after: what rests is in no window. While a graph is captured nothing rests, and
// no stream is asked, which would end the capture; its beginning and end are orders of everything, too.
CUresult Engine::paced(CUstream stream, bool* rests) {
    *rests = false;
    if (pace_ == nullptr || capturing_ > 0) return kSuccess;
    const bool rested = pace_->resting();
    if (pace_->due()) {
        const bool spread = active_ != nullptr && stream == active_->stream();
        pace_->sampled(rested ? Driver::get().cuStreamQuery(stream) == kSuccess : spread && active_->idle());
    }
    *rests = pace_->resting();
    if (*rests == rested) return kSuccess;
    dirty_ = true;  // so that all groups join
    return barrier(nullptr, 5);
}

CUresult Engine::moved(const Move& move) {
    const Work work = work_of(move);
    if (inside) return work.make(work.what, move.stream);
    Inside now;
    std::unique_lock<std::timed_mutex> lock = hold();
    if (!lock.owns_lock()) return stuck("a copy or fill");
    if (log_ != nullptr || finished_) return work.make(work.what, move.stream);
    if (CUresult failed = earlier_failure()) return failed;
    CUcontext context = nullptr;
    if (queueing(move.stream) && Driver::get().cuCtxGetCurrent(&context) == kSuccess && queue_->push(move, context))
        return kSuccess;
    if (CUresult failed = drained("a copy or fill")) return failed;
    return move_now(move);
}

CUresult Engine::move_now(const Move& move) {
    const Work work = work_of(move);
    bool rests = false;
    if (CUresult failed = paced(move.stream, &rests)) return failed;
    if (rests) return work.make(work.what, move.stream);
    Group* group = nullptr;
    bool capturing = false;
    if (CUresult failed = entered(move.stream, &group, &capturing)) return failed;
    const uint64_t id = ~static_cast<uint64_t>(move.kind);
    if (group == nullptr || (options_.mode != Mode::kStreams && !capturing)) {
        ++counts_.barriers;
        ++counts_.calls[move.kind == Move::kCopy ? "cuMemcpyDtoDAsync" : "cuMemsetAsync"];
        if (CUresult failed = barrier(group, id)) return failed;
        return work.make(work.what, move.stream);
    }
    ++counts_.moves;
    dirty_ = true;
    Access access;
    move.access(&access);
    return group->place(work, std::move(access), id, capturing);
}

CUresult Engine::marked(const Mark& mark, CUresult (*real)(const Mark&)) {
    if (inside) return real(mark);
    {
        Inside now;
        std::unique_lock<std::timed_mutex> lock = hold();
        if (!lock.owns_lock()) return stuck("a record on an event");
        if (log_ != nullptr || finished_) return real(mark);
        CUcontext context = nullptr;
        if (queueing(mark.stream) && !shared_ && real == make && Driver::get().cuCtxGetCurrent(&context) == kSuccess &&
            queue_->push(mark, context))
            return kSuccess;
    }
    before(mark.kind == Mark::kRecord ? "cuEventRecord" : "cuStreamWaitEvent", Meaning::kOrdered);
    return real(mark);
}

CUresult Engine::launched(const Launch& launch) {
    if (inside) return issue(launch, launch.stream, launch.parameters, launch.extra);
    Inside now;
    std::unique_lock<std::timed_mutex> lock = hold();
    if (!lock.owns_lock()) return stuck("a launch");
    if (log_ != nullptr) return logged(launch);
    if (finished_) return issue(launch, launch.stream, launch.parameters, launch.extra);
    if (CUresult failed = earlier_failure()) return failed;
    if (!queueing(launch.stream)) {
        if (CUresult failed = drained("a launch")) return failed;
        return launch_now(launch, functions_.of(launch.function, table_));
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
    CUresult result = launch_now(launch, function);
    if (result == kSuccess) result = flush();  // where it is held back: the driver is to say now whether it takes it
    if (result == kSuccess && function.known) {
        if (proven_.size() >= kMostProven) proven_.clear();
        proven_[configuration] = &function;
    }
    return result;
}

CUresult Engine::launch_now(const Launch& launch, const Function& function) {
    ++counts_.launches;
    bool rests = false;
    if (CUresult failed = paced(launch.stream, &rests)) return failed;
    if (rests) {
        ++counts_.rested;
        return issue_as_it_is(launch);
    }
    Group* group = nullptr;
    bool capturing = false;
    if (CUresult failed = entered(launch.stream, &group, &capturing)) return failed;
    const Entry* entry = nullptr;
    const char* reason = group == nullptr  ? "its stream or context"
                         : !function.known ? "the driver does not name it"
                                           : immovable(launch);
    if (reason == nullptr && function.entries != nullptr && parameters_.read(function, launch.parameters, launch.extra))
        entry = function.entries->find(launch.shape, parameters_.words.data(), parameters_.words.size());
    if (reason == nullptr && entry == nullptr)
        reason =
            function.entries == nullptr ? "another kernel than any recorded" : "other parameters than any recorded";
    if (entry == nullptr) {
        ++counts_.unknown;
        if (counts_.unknown_at.size() < Counts::kMostListed) counts_.unknown_at.push_back(counts_.launches - 1);
        ++counts_.reasons[std::string(reason) + ": " + (function.known ? function.symbol : std::string("?"))];
        say_foreign();
        if (CUresult failed = barrier(group, hash_of(reason))) return failed;
        return issue(launch, launch.stream, launch.parameters, launch.extra);
    }
    counts_.captured += capturing;
    dirty_ = true;
    Access access;
    entry->access(parameters_.words.data(), &access);
    if (capturing || options_.mode == Mode::kStreams)
        return group->place(work_of(launch), std::move(access), entry->id, capturing);
    held_.emplace_back(launch, function, *entry, parameters_, std::move(access));
    const bool full = held_.size() >= static_cast<size_t>(options_.segment);
    return full || (options_.mode == Mode::kGraph && ends_segment(held_)) ? flush() : kSuccess;
}

CUresult Engine::before(const char* symbol, Meaning meaning) {
    if (!on_ || inside) return kSuccess;
    Inside now;
    std::unique_lock<std::timed_mutex> lock = hold();
    if (!lock.owns_lock()) return stuck(symbol), kSuccess;
    if (log_ != nullptr || finished_) return kSuccess;
    drained(symbol);
    shared_ = shared_ || meaning == Meaning::kShared;
    if (meaning == Meaning::kIssued || meaning == Meaning::kShared)
        failed_later(flush());
    else
        order(symbol, meaning);
    for (const char* name : kTelling)
        if (begins(symbol, name)) return earlier_failure();
    return kSuccess;
}

// Orders everything before a call that may see it.
void Engine::order(const char* symbol, Meaning meaning) {
    ++counts_.barriers;
    ++counts_.calls[symbol];
    failed_later(flush());
    for (const auto& group : groups_) failed_later(group->join(hash_of(symbol)));
    dirty_ = false;
    if (meaning == Meaning::kCaptureBegins) {
        ++capturing_;
        counts_.capture_at = counts_.launches;
    }
    if (meaning == Meaning::kCaptureEnds && capturing_ > 0) --capturing_;
    if (meaning == Meaning::kUnloads) {
        proven_.clear();
        attributes_.clear();
        functions_.forget();
        graphs_->forget();
    }
}

CUresult Engine::set_attribute(const void* function, int attribute, int value, CUresult (*set)(const void*, int, int)) {
    if (inside || !on_) return set(function, attribute, value);
    Inside now;
    std::unique_lock<std::timed_mutex> lock = hold();
    if (!lock.owns_lock()) return stuck("an attribute of a function");
    if (log_ != nullptr || finished_) return set(function, attribute, value);
    auto [known, added] = attributes_.try_emplace({function, attribute}, value);
    if (added || known->second != value) {
        drained("an attribute of a function");
        failed_later(flush());
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
    if (log_ != nullptr) fflush(log_);
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

void Engine::say_foreign() {
    if (foreign_said_ || counts_.launches < kForeign || counts_.unknown != counts_.launches) return;
    foreign_said_ = true;
    fprintf(stderr,
            "tileprof: none of the first %llu launches is in %s, which was recorded from: %s. "
            "The program runs in stream order\n",
            static_cast<unsigned long long>(counts_.launches), options_.table.c_str(), table_.program().c_str());
}

// begin end symbol grid block shared stream bytes parameters, one line per launch
CUresult Engine::logged(const Launch& launch) {
    const Function& function = functions_.of(launch.function, table_);
    std::string line = std::to_string(now_ns());
    const bool whole = function.known && parameters_.read(function, launch.parameters, launch.extra);
    CUresult result = issue(launch, launch.stream, launch.parameters, launch.extra);
    line += " " + std::to_string(now_ns()) + " " + (function.known ? function.symbol : "?");
    const Shape& s = launch.shape;
    for (unsigned value : {s.grid[0], s.grid[1], s.grid[2], s.block[0], s.block[1], s.block[2], s.shared_bytes})
        line += " " + std::to_string(value);
    const char* reason = immovable(launch);
    line +=
        std::string(" ") + (reason != nullptr || !whole ? "0" : "1") + " " + std::to_string(parameters_.bytes) + " ";
    if (whole) put_hex(&line, parameters_.words.data(), parameters_.words.size() * 8);
    line += ".\n";
    fputs(line.c_str(), log_);
    return result;
}

void Engine::finish() {
    std::unique_lock<std::timed_mutex> lock = hold();
    if (!on_ || finished_) return;
    drained("the end of the program");
    if (options_.mode == Mode::kGraph) failed_later(flush());
    finished_ = true;
    if (log_ != nullptr)
        fflush(log_);
    else if (counts_.launches != 0)
        counts_.write(options_.folder + "/acs-" + std::to_string(getpid()) + ".json");
}

}  // namespace tileprof::acs
