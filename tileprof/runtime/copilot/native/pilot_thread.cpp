// The one thread of a process that steps all its co-pilots in turn: each checks whether anything has been completed,
// which takes some nanoseconds.
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace {

using Step = int (*)(void*);

constexpr auto AWAKE = std::chrono::milliseconds(20);  // without completions, before the thread sleeps between steps
constexpr auto NAP = std::chrono::microseconds(50);
constexpr unsigned LOOKS = 1024;  // steps without completions, before the thread reads the clock again

struct Entry {
    Step step;
    void* pilot;
};

struct PilotThread {
    std::mutex changing;  // changes of the entries, which happen while none steps
    std::condition_variable changed;
    std::vector<Entry> entries;
    bool leaving = false;
    std::thread thread;

    void run() {
        auto last = std::chrono::steady_clock::now();
        bool napping = false;
        for (unsigned idle = 0;;) {
            bool any = false;
            {
                std::unique_lock<std::mutex> held(changing);
                changed.wait(held, [this] { return leaving || !entries.empty(); });
                if (leaving) return;
                for (const Entry& entry : entries) any |= entry.step(entry.pilot) != 0;
            }
            if (any) {
                idle = 0, napping = false;
                continue;
            }
            if (napping) {
                std::this_thread::sleep_for(NAP);
                continue;
            }
            __builtin_ia32_pause();
            if (++idle % LOOKS != 0) continue;
            const auto now = std::chrono::steady_clock::now();
            if (idle == LOOKS) last = now;
            napping = now - last > AWAKE;
        }
    }
};

}  // namespace

extern "C" {

PilotThread* pilot_thread_new() {
    auto* own = new PilotThread();
    own->thread = std::thread([own] { own->run(); });
    return own;
}

void pilot_thread_add(PilotThread* own, Step step, void* pilot) {
    const std::lock_guard<std::mutex> held(own->changing);
    own->entries.push_back({step, pilot});
    own->changed.notify_one();
}

// Returns when the pilot does not step and never will.
void pilot_thread_remove(PilotThread* own, void* pilot) {
    const std::lock_guard<std::mutex> held(own->changing);
    for (auto entry = own->entries.begin(); entry != own->entries.end(); ++entry)
        if (entry->pilot == pilot) {
            own->entries.erase(entry);
            return;
        }
}

// Ends the thread. The object stays, because pilots may still be removed.
void pilot_thread_close(PilotThread* own) {
    {
        const std::lock_guard<std::mutex> held(own->changing);
        own->leaving = true;
    }
    own->changed.notify_one();
    own->thread.join();
}
}
