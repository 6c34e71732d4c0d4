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

struct Flight {
    Step step;
    void* pilot;
};

struct Tower {
    std::mutex changing;  // changes of the flights, which happen while none steps
    std::condition_variable changed;
    std::vector<Flight> flights;
    bool leaving = false;
    std::thread thread;

    void fly() {
        auto last = std::chrono::steady_clock::now();
        bool napping = false;
        for (unsigned idle = 0;;) {
            bool any = false;
            {
                std::unique_lock<std::mutex> held(changing);
                changed.wait(held, [this] { return leaving || !flights.empty(); });
                if (leaving) return;
                for (const Flight& flight : flights) any |= flight.step(flight.pilot) != 0;
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

Tower* tower_new() {
    auto* tower = new Tower();
    tower->thread = std::thread([tower] { tower->fly(); });
    return tower;
}

void tower_add(Tower* tower, Step step, void* pilot) {
    const std::lock_guard<std::mutex> held(tower->changing);
    tower->flights.push_back({step, pilot});
    tower->changed.notify_one();
}

// Returns when the pilot does not step and never will.
void tower_remove(Tower* tower, void* pilot) {
    const std::lock_guard<std::mutex> held(tower->changing);
    for (auto flight = tower->flights.begin(); flight != tower->flights.end(); ++flight)
        if (flight->pilot == pilot) {
            tower->flights.erase(flight);
            return;
        }
}

// Ends the thread. The tower stays, because pilots may still be removed.
void tower_close(Tower* tower) {
    {
        const std::lock_guard<std::mutex> held(tower->changing);
        tower->leaving = true;
    }
    tower->changed.notify_one();
    tower->thread.join();
}
}
