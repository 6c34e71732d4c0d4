// The tool's side of NVTX 3. The headers of NVTX are compiled into every library that marks ranges (PyTorch, cuDNN,
// NCCL, the program). At its first call, each of these loads the library that NVTX_INJECTION64_PATH names and asks it
// for functions to call. The interface is that of nvtxTypes.h in the CUDA toolkit, as far as ranges need it.
//
// This may happen before CUDA starts: nothing here requires that the recorder has started, or starts it.
#include "launches/nvtx.h"

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <wchar.h>

#include <atomic>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <regex>
#include <set>
#include <unordered_map>
#include <vector>

#include "log/events.h"
#include "log/log.h"
#include "recorder.h"

namespace tileprof {

namespace {

// ---- the interface

using Function = void (*)();
using FunctionTable = Function**;  // by callback id, where NVTX keeps the pointer that it calls through
using GetExportTable = const void* (*)(uint32_t id);

struct ExportedCallbacks {
    size_t struct_size;
    int (*module_functions)(int module, FunctionTable* table, unsigned* size);
};

constexpr uint32_t kExportedCallbacks = 1;
enum Module : int { kCore = 1, kCore2 = 5 };
enum CoreId {
    kRangeStartEx = 4,
    kRangeStartA,
    kRangeStartW,
    kRangeEnd,
    kRangePushEx,
    kRangePushA,
    kRangePushW,
    kRangePop
};
enum Core2Id {
    kDomainRangeStartEx = 2,
    kDomainRangeEnd,
    kDomainRangePushEx,
    kDomainRangePop,
    kDomainRegisterStringA = 10,
    kDomainRegisterStringW,
    kDomainCreateA,
    kDomainCreateW,
};

enum MessageType : int32_t { kAscii = 1, kUnicode = 2, kRegistered = 3 };
struct Attributes {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    const void* message;  // char*, wchar_t*, or the handle of a registered string
};
static_assert(offsetof(Attributes, message_type) == 32 && offsetof(Attributes, message) == 40 &&
                  sizeof(Attributes) == 48,
              "nvtxEventAttributes_v2");

// The result of a push or a pop if no tool counts depths: what the program would see without the recorder.
constexpr int kNoDepth = -2;

// ---- names

constexpr size_t kMostNames = 4096;     // number of names whose result is kept; others are matched each time
constexpr size_t kMostListed = 40;      // number of names in the log
constexpr size_t kLongestListed = 120;  // length of a name in bytes

// Domains and registered strings: a handle is the address of the text, which is never freed.
using Texts = std::set<std::string>;

void append_utf8(std::string* out, uint32_t c) {
    if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) c = '?';
    if (c < 0x80) {
        *out += static_cast<char>(c);
        return;
    }
    int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    constexpr uint8_t kLead[] = {0, 0xc0, 0xe0, 0xf0};
    *out += static_cast<char>(kLead[more] | c >> 6 * more);
    while (more-- > 0) *out += static_cast<char>(0x80 | (c >> 6 * more & 0x3f));
}

std::string narrow(const wchar_t* text) {
    std::string out;
    for (; text != nullptr && *text != 0; ++text) append_utf8(&out, static_cast<uint32_t>(*text));
    return out;
}

// Bytes that are not UTF-8 would make the log unreadable.
std::string readable(const std::string& text) {
    std::string out;
    for (size_t at = 0; at < text.size() && out.size() < kLongestListed;) {
        auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : 0u; };
        unsigned lead = byte(at), more = lead < 0x80       ? 0
                                         : lead >> 5 == 6  ? 1
                                         : lead >> 4 == 14 ? 2
                                         : lead >> 3 == 30 ? 3
                                                           : 4;
        uint32_t c = more == 0 ? lead : lead & 0x3fu >> more;
        bool whole = more < 4;
        for (unsigned i = 1; i <= more && whole; ++i) {
            whole = byte(at + i) >> 6 == 2;
            c = c << 6 | (byte(at + i) & 0x3f);
        }
        append_utf8(&out, whole ? c : '?');
        at += whole ? more + 1 : 1;
    }
    return out;
}

// ---- which ranges are open

struct Ranges {
    std::mutex mutex;  // protects everything below; no other lock is taken and nothing is called under it
    std::optional<std::regex> pattern;
    std::string pattern_text;
    std::unordered_map<std::string, bool> answers;  // names that were matched before
    std::map<std::string, uint64_t> listed_names;
    uint64_t matched = 0, unlisted = 0;
    Texts domains, strings;
    std::set<uint64_t> started_ids;  // matching ranges that another thread may end
    std::atomic<uint64_t> last_id{0};
    std::atomic<RangeListener> listener{nullptr};
};
Ranges& ranges = *new Ranges;

bool matches(const void* domain, const std::string& message) {
    std::lock_guard<std::mutex> lock(ranges.mutex);
    const std::string name = domain == nullptr ? message : message + "@" + *static_cast<const std::string*>(domain);
    auto answer = ranges.answers.find(name);
    bool yes =
        answer != ranges.answers.end() ? answer->second : ranges.pattern && std::regex_search(name, *ranges.pattern);
    if (answer == ranges.answers.end() && ranges.answers.size() < kMostNames) ranges.answers.emplace(name, yes);
    auto name_count = ranges.listed_names.find(name);
    if (name_count != ranges.listed_names.end()) {
        ++name_count->second;
    } else if (ranges.listed_names.size() < kMostListed) {
        ranges.listed_names.emplace(name, 1);
    } else {
        ++ranges.unlisted;
    }
    ranges.matched += yes;
    return yes;
}

void announce_opening() {
    recorder.range(1);
    if (RangeListener listener = ranges.listener) listener(1);
}

void announce_closing() {
    if (RangeListener listener = ranges.listener) listener(-1);
    recorder.range(-1);
}

// The stacks of one thread by domain: whether each open range matches.
using Stacks = std::map<const void*, std::vector<bool>>;
thread_local Stacks* stacks = nullptr;
thread_local bool thread_ends = false;  // ranges that are marked after this point come too late

// No other thread can close the ranges that a thread leaves open.
struct ThreadEnd {
    ~ThreadEnd() {
        thread_ends = true;
        for (const auto& [domain, stack] : *stacks)
            for (bool match : stack)
                if (match) announce_closing();
        delete stacks;
    }
};

std::vector<bool>* stack_of_thread(const void* domain) {
    if (thread_ends) return nullptr;
    if (stacks == nullptr) {
        stacks = new Stacks;
        thread_local ThreadEnd at_end;
    }
    return &(*stacks)[domain];
}

int push(const void* domain, const std::string& message) {
    bool match = matches(domain, message);
    std::vector<bool>* stack = stack_of_thread(domain);
    if (stack == nullptr) return kNoDepth;
    stack->push_back(match);
    if (match) announce_opening();
    return kNoDepth;
}

int pop(const void* domain) {
    std::vector<bool>* stack = stack_of_thread(domain);
    if (stack == nullptr || stack->empty()) return kNoDepth;
    if (stack->back()) announce_closing();
    stack->pop_back();
    return kNoDepth;
}

uint64_t start(const void* domain, const std::string& message) {
    uint64_t id = ++ranges.last_id;
    if (!matches(domain, message)) return id;
    {
        std::lock_guard<std::mutex> lock(ranges.mutex);
        ranges.started_ids.insert(id);
    }
    announce_opening();
    return id;
}

void end(uint64_t id) {
    {
        std::lock_guard<std::mutex> lock(ranges.mutex);
        if (ranges.started_ids.erase(id) == 0) return;
    }
    announce_closing();
}

const void* handle(Texts* texts, const std::string& text) {
    std::lock_guard<std::mutex> lock(ranges.mutex);
    return &*texts->insert(text).first;
}

std::string plain(const char* text) { return text == nullptr ? "" : text; }

std::string message_of(const Attributes* a) {
    if (a == nullptr || a->size < sizeof(Attributes) || a->message == nullptr) return "";
    switch (a->message_type) {
        case kAscii:
            return plain(static_cast<const char*>(a->message));
        case kUnicode:
            return narrow(static_cast<const wchar_t*>(a->message));
        case kRegistered:
            return *static_cast<const std::string*>(a->message);
        default:
            return "";
    }
}

// ---- what NVTX calls

int push_ex(const Attributes* a) { return push(nullptr, message_of(a)); }
int push_a(const char* text) { return push(nullptr, plain(text)); }
int push_w(const wchar_t* text) { return push(nullptr, narrow(text)); }
int pop_default() { return pop(nullptr); }
uint64_t start_ex(const Attributes* a) { return start(nullptr, message_of(a)); }
uint64_t start_a(const char* text) { return start(nullptr, plain(text)); }
uint64_t start_w(const wchar_t* text) { return start(nullptr, narrow(text)); }
int domain_push(const void* domain, const Attributes* a) { return push(domain, message_of(a)); }
uint64_t domain_start(const void* domain, const Attributes* a) { return start(domain, message_of(a)); }
void domain_end(const void*, uint64_t id) { end(id); }
const void* domain_a(const char* name) { return handle(&ranges.domains, plain(name)); }
const void* domain_w(const wchar_t* name) { return handle(&ranges.domains, narrow(name)); }
const void* string_a(const void*, const char* text) { return handle(&ranges.strings, plain(text)); }
const void* string_w(const void*, const wchar_t* text) { return handle(&ranges.strings, narrow(text)); }

struct Entry {
    unsigned id;
    Function function;
};

bool attach(const ExportedCallbacks* exported, Module module, const std::vector<Entry>& entries) {
    FunctionTable table = nullptr;
    unsigned size = 0;
    if (exported->module_functions(module, &table, &size) == 0 || table == nullptr) return false;
    for (const Entry& e : entries)
        if (e.id < size && table[e.id] != nullptr) *table[e.id] = e.function;
    return true;
}

#define F(name) reinterpret_cast<Function>(name)

bool attach_all(const ExportedCallbacks* exported) {
    bool core = attach(exported, kCore,
                       {{kRangeStartEx, F(start_ex)},
                        {kRangeStartA, F(start_a)},
                        {kRangeStartW, F(start_w)},
                        {kRangeEnd, F(end)},
                        {kRangePushEx, F(push_ex)},
                        {kRangePushA, F(push_a)},
                        {kRangePushW, F(push_w)},
                        {kRangePop, F(pop_default)}});
    bool domains = attach(exported, kCore2,
                          {{kDomainRangeStartEx, F(domain_start)},
                           {kDomainRangeEnd, F(domain_end)},
                           {kDomainRangePushEx, F(domain_push)},
                           {kDomainRangePop, F(pop)},
                           {kDomainRegisterStringA, F(string_a)},
                           {kDomainRegisterStringW, F(string_w)},
                           {kDomainCreateA, F(domain_a)},
                           {kDomainCreateW, F(domain_w)}});
    return core || domains;
}

#undef F

// Once per process. The recorder reports an invalid pattern when it starts.
void read_pattern() {
    std::lock_guard<std::mutex> lock(ranges.mutex);
    const char* text = getenv("TILEPROF_NVTX");
    if (ranges.pattern || text == nullptr) return;
    ranges.pattern_text = text;
    try {
        ranges.pattern.emplace(text);
    } catch (const std::regex_error&) {
        return;
    }
    pthread_atfork([] { ranges.mutex.lock(); }, [] { ranges.mutex.unlock(); }, [] { new (&ranges.mutex) std::mutex; });
}

}  // namespace

void report_ranges() {
    std::lock_guard<std::mutex> lock(ranges.mutex);
    std::vector<std::pair<std::string, uint64_t>> names;
    for (const auto& [name, times] : ranges.listed_names) names.emplace_back(readable(name), times);
    events::ranges(readable(ranges.pattern_text), ranges.matched, names, ranges.unlisted);
}

}  // namespace tileprof

// NVTX looks for this name in the library that NVTX_INJECTION64_PATH names. 1 means that these functions are to be
// called.
extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(tileprof::GetExportTable tables) {
    using namespace tileprof;
    read_pattern();
    const auto* callbacks = static_cast<const ExportedCallbacks*>(tables(kExportedCallbacks));
    if (callbacks == nullptr || callbacks->struct_size < sizeof(ExportedCallbacks)) return 0;
    return attach_all(callbacks) ? 1 : 0;
}

// Sets the function that is told of every matching range: 1 when it has been opened, -1 when it is about to be
// closed. Null removes it.
extern "C" __attribute__((visibility("default"))) void tileprof_listen(tileprof::RangeListener listener) {
    tileprof::ranges.listener = listener;
}
