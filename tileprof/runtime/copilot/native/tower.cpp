// The one thread of a process in which all its co-pilots fly, in turn: each looks whether anything has been completed,
// which takes some nanoseconds.
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

namespace {

using Step = int (*)(void*);

constexpr auto AWAKE = std::chrono::milliseconds(20);  // without completions, before the thread naps
constexpr auto NAP = std::chrono::microseconds(50);

struct Flight {
    Step step;
    void* pilot;
};

struct Tower {
    std::mutex changing;  // of the flights, while none steps
    std::vector<Flight> flights;
    std::atomic<bool> leaving{false};
    std::thread thread;

    void fly() {
        auto last = std::chrono::steady_clock::now();
        for (unsigned idle = 0; !leaving.load(std::memory_order_relaxed);) {
            bool any = false;
            {
                const std::lock_guard<std::mutex> held(changing);
                for (const Flight& flight : flights) any |= flight.step(flight.pilot) != 0;
            }
            if (any) {
                idle = 0;
                continue;
            }
            __builtin_ia32_pause();
            if (++idle % 1024 != 0) continue;
            const auto now = std::chrono::steady_clock::now();
            if (idle == 1024) last = now;
            if (now - last > AWAKE) std::this_thread::sleep_for(NAP);
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
}

// Returns once the pilot does not step and never will.
void tower_remove(Tower* tower, void* pilot) {
    const std::lock_guard<std::mutex> held(tower->changing);
    for (auto flight = tower->flights.begin(); flight != tower->flights.end(); ++flight)
        if (flight->pilot == pilot) {
            tower->flights.erase(flight);
            return;
        }
}

// Ends the thread. The tower stays: pilots may still be removed.
void tower_close(Tower* tower) {
    tower->leaving = true;
    tower->thread.join();
}
}
