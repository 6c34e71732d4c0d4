// The functions of a co-pilot's library, over the `Pilot` that is defined before this is included.
#include <cstring>

extern "C" {

// `link`: memory as dealing.cuh describes it, all zeros. The first run's commands are written at once.
Pilot* pilot_new(u64* link) { return new Pilot(link); }

int pilot_step(Pilot* pilot) { return pilot->step(); }

// Ends kernels that wait for the co-pilot. No thread may step any more.
void pilot_delete(Pilot* pilot) {
    store(pilot->rings.link, 1);
    delete pilot;
}

// Counts: runs, commands, commands sent ahead, commands to the worker of their last input, batches of messages, the
// largest batch, commands that were overwritten, and those of them that their worker had already read. Call this while
// no kernel runs.
void pilot_counts(const Pilot* pilot, u64* eight) {
    const auto& rings = pilot->rings;
    const u64 counts[8] = {pilot->runs,   pilot->commands,     pilot->ahead,      pilot->own,
                           rings.batches, rings.most_in_batch, rings.overwritten, rings.too_late};
    std::memcpy(eight, counts, sizeof counts);
}

// Nanoseconds from a run's first completion to the last one of each program, summed over runs. Returns the number of
// programs and writes at most `room` values. Call this while no kernel runs.
int pilot_ends(const Pilot* pilot, u64* ended_ns, int room) {
    for (int i = 0; i < Pilot::programs && i < room; ++i) ended_ns[i] = pilot->ended_ns[i];
    return Pilot::programs;
}
}
