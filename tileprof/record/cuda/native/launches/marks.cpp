#include "launches/marks.h"

#include <stdint.h>

#include <atomic>
#include <string>

#include "log/events.h"

namespace tileprof::marks {

namespace {

std::atomic<uint64_t> last_number{0}, written_number{0};

thread_local bool thread_ends = false;  // what the thread launches after this point has no name

struct Mark {
    uint64_t number = 0;  // 0 as long as the thread has none
    std::string op, module;
    ~Mark() { thread_ends = true; }
};
thread_local Mark mark;

}  // namespace

void set(const char* op, const char* module) {
    if (thread_ends) return;
    mark.number = ++last_number;
    mark.op = op;
    mark.module = module;
}

void write() {
    uint64_t number = thread_ends ? 0 : mark.number;
    if (written_number.exchange(number) == number) return;
    thread_ends ? events::mark("", "") : events::mark(mark.op.c_str(), mark.module.c_str());
}

bool is_written() { return !thread_ends && mark.number != 0 && written_number == mark.number; }

}  // namespace tileprof::marks
