#include "launches/launches.h"

#include <stdio.h>

#include <algorithm>

#include "log/events.h"
#include "log/log.h"
#include "memory/write_check.h"

namespace tileprof {

thread_local OpenLaunch open_launch;
thread_local bool in_launching_call = false;

namespace {

thread_local LaunchingCall launching_call;

// The number of launches per kernel and grid that are replayed outside of recorded regions, so that others can use
// the result. The limit matters if a parameter differs in each launch (a seed), which makes each of them a new case.
constexpr uint32_t kMostLessons = 64;

}  // namespace

bool Launches::wants(const Kernel& kernel) {
    if (!options_.capturing || !kernel.wanted) return false;
    uint64_t n = matching_++;
    return n >= options_.skip && n - options_.skip < options_.count;
}

bool Launches::stores_through_maps(const OpenLaunch& launch) const {
    const KernelCode& code = launch.kernel->code;
    return (code.tensor_store || code.tensor_reduce) && options_.replay && options_.pass == Pass::kAccesses &&
           !launch.kernel->spins;
}

// Products of different depth may have the same kernel, grid and result: each is a separate case.
bool Launches::teaches(const OpenLaunch& launch) {
    if (!launching_call.is_plain()) return false;
    return !was_replayed(launch, launching_call.parameters(launch.function)) &&
           ++lessons_[launch.geometry] <= kMostLessons;
}

// Once such a kernel spins, it must not be necessary to allocate anything.
void Launches::prepare_all() {
    prepared_ = true;
    for (CUcontext context : modules_.patched_contexts()) arenas_.of(context)->prepare();
}

void Launches::begin(const Sanitizer_LaunchData& data, GraphLaunch* graph) {
    Arena* arena = arenas_.of(data.context);
    if (replaying != nullptr) {
        check(api.sanitizerSetLaunchCallbackData(data.hLaunch, data.function, data.hStream, replaying), "a replay");
        return;
    }
    const Kernel& kernel = modules_.kernel(data.module, data.functionName);
    if (kernel.aside && !prepared_) prepare_all();
    arena->prepare();
    uint64_t ordinal = launches_++;
    last_ = &kernel;
    OpenLaunch open;
    open.kernel = &kernel;
    open.function = data.function;
    open.arena = arena;
    open.stream = data.stream;
    open.handle = data.hStream;
    uint32_t cluster[3] = {data.clusterDim_x, data.clusterDim_y, data.clusterDim_z};
    for (uint32_t& c : cluster) c = std::max(c, 1u);
    open.clusters = (data.gridDim_x / cluster[0]) * (data.gridDim_y / cluster[1]) * (data.gridDim_z / cluster[2]);
    open.blocks = static_cast<uint64_t>(data.gridDim_x) * data.gridDim_y * data.gridDim_z;
    open.geometry = kernel.id;
    for (uint64_t d : {data.gridDim_x, data.gridDim_y, data.gridDim_z, data.blockDim_x, data.blockDim_y, cluster[0]})
        open.geometry = (open.geometry ^ d) * 0x100000001b3ull;
    open.recorded = options_.pass != Pass::kFloor && wants(kernel);
    open.aside = kernel.aside && open.recorded;
    bool left = modules_.is_left(data.module);
    if (left) modules_.ran_unpatched(data.module, data.hStream);
    bool patched = kernel.patched && !left;
    Geometry geometry = {{data.gridDim_x, data.gridDim_y, data.gridDim_z},
                         {data.blockDim_x, data.blockDim_y, data.blockDim_z},
                         {cluster[0], cluster[1], cluster[2]}};
    bool proven = left && graph == nullptr && unpatched_.proven(kernel, geometry);
    bool tells = !left || proven;  // otherwise nothing would be recorded
    open.learned =
        !open.recorded && tells && !kernel.aside && graph == nullptr && stores_through_maps(open) && teaches(open);
    open.computed = proven && (open.recorded || open.learned);
    uint32_t generation = 0;
    Header* header = header_of(&open, patched, data, graph, &generation);
    if (patched)
        check(api.sanitizerSetLaunchCallbackData(data.hLaunch, data.function, data.hStream, header),
              "a launch's callback data");
    if (open.recorded || open.learned || options_.pass == Pass::kFloor) {
        events::LaunchFields fields;
        fields.launch = open.launch;
        fields.kernel = &kernel;
        fields.data = &data;
        fields.cluster = cluster;
        fields.context = arenas_.number_of(data.context);
        fields.graph = graph == nullptr ? -1 : graph->number;
        fields.generation = generation;
        fields.ordinal = ordinal;
        fields.aside = open.aside;
        fields.counted = patched;
        if (open.computed) fields.parameters = unpatched_.keep(kernel);
        fields.unpatched = modules_.refused_patches(data.module);
        (open.learned ? events::learn : events::launch)(fields);
    }
    open_launch = open;
}

// The header under which the launch's patches record. `open` gets its number, and `generation` its index among a
// graph's kernels.
Header* Launches::header_of(OpenLaunch* open, bool patched, const Sanitizer_LaunchData& data, GraphLaunch* graph,
                            uint32_t* generation) {
    const Kernel& kernel = *open->kernel;
    Header* header = open->arena->off();
    if (graph != nullptr && patched && options_.capturing && options_.pass != Pass::kFloor) {
        // This is also done for a node that is not recorded, because it counts in the indices of the others.
        GraphLaunch::Shared& shared = graph->nodes[data.context];
        if (shared.nodes == 0) shared.header = open->arena->next_in_graph(&shared.launch);
        if (shared.header != nullptr) header = shared.header;
        open->launch = shared.launch;
        *generation = shared.nodes++;
        shared.last = &kernel;
        if (!kernel.aside) graph->kernels.push_back(&kernel);
    } else if ((open->recorded && !open->aside) || open->learned) {
        // There are no headers while another thread copies records or repeats a launch: every block of this launch is
        // then missing.
        Header* own = gate.closed_by_another() ? nullptr : open->arena->next(&open->launch);
        if (own != nullptr) {
            header = own;
            if (kernel.code.launches != 0) open->arena->keep_exits(own, data.hStream);
            give_filters(*open, own, data.hStream);
        }
        open->arena->begun(&open_launch, open->launch);
    }
    return header;
}

// An access that no callback reports may have any address.
void Launches::give_filters(const OpenLaunch& open, Header* own, Sanitizer_StreamHandle stream) {
    if (options_.filters.hashes == 0 || !open.recorded) return;
    const KernelCode& code = open.kernel->code;
    bool unknown = !open.kernel->scanned || code.launches != 0 || code.surface;
    open.arena->give_filters(own, open.blocks, unknown || code.texture,
                             unknown || code.tensor_store || code.tensor_reduce, stream);
}

void Launches::end(const Sanitizer_LaunchData& data) {
    if (replaying != nullptr || open_launch.arena == nullptr || open_launch.aside) return;
    if (!open_launch.recorded && !open_launch.learned) return;
    open_launch.arena->returned(&open_launch);
    if (open_launch.computed) return;
    const Kernel& kernel = *open_launch.kernel;
    open_launch.place = open_launch.arena->launched(open_launch.geometry, data.hStream, kernel.name, kernel.spins);
    if (in_launching_call) return;
    wait();
    open_launch.arena->make_room();
}

void Launches::wait() {
    const OpenLaunch launch = open_launch;
    open_launch.place = Places::kNone;
    if (launch.arena == nullptr || launch.kernel == nullptr) return;
    if (!launch.arena->learn(launch.place, launch.geometry, launch.handle, launch.kernel->name))
        give_up(launch.launch, *launch.kernel);
}

// The kernel may spin until a later launch, another GPU, another process or the host releases it: continue, so that
// this can happen.
void Launches::give_up(uint32_t launch, const Kernel& kernel) {
    double seconds = static_cast<double>(options_.wait_ns) * 1e-9;
    events::spinning(launch, kernel.id, seconds);
    log_.flush();
    modules_.spins(kernel);
    fprintf(
        stderr,
        "tileprof: %s has not ended in %g s: it may wait for a later launch. Its launches are not waited for any more; "
        "--exclude '%s' leaves it out\n",
        short_name(kernel.name).c_str(), seconds, short_name(kernel.name).c_str());
}

void Launches::call_begins(uint32_t cbid, const Sanitizer_CallbackData& data) {
    LaunchingCall call{cbid, data.functionParams};
    unpatched_.before(call);
    gate.enter();
    open_launch = OpenLaunch{};
    in_launching_call = true;
    if (!call.is_plain()) return;
    launching_call = call;
    if (options_.verify) remember_memory();
}

void Launches::call_returned(uint32_t cbid, const Sanitizer_CallbackData& data) {
    const OpenLaunch launch = open_launch;
    LaunchingCall call{cbid, data.functionParams};
    report(launch, call);
    unpatched_.forget();
    if (launch.kernel != nullptr && !launch.aside) repeat(launch, call);
    in_launching_call = false;
    launching_call = {};
    // Do not wait behind a kernel that was set aside: it may wait for the next launch.
    bool appends = (open_launch.recorded && !open_launch.aside) || open_launch.learned;
    if (open_launch.arena != nullptr && appends) open_launch.arena->make_room();
    open_launch = OpenLaunch{};
}

void Launches::other_call_returned() {
    in_launching_call = false;
    if (!open_launch.aside)
        for (Arena* arena : arenas_.all()) arena->make_room();
    open_launch = OpenLaunch{};
}

// The launch has its records now.
void Launches::report(const OpenLaunch& launch, const LaunchingCall& call) {
    const void* handle = call.handle();
    if (launch.kernel != nullptr) {
        modules_.named(handle, *launch.kernel);
        if (!launch.kernel->aside) modules_.report_constants(*launch.kernel);
    } else if (launch.arena == nullptr && in_launching_call) {  // captured into a graph, not launched
        events::captured(modules_.id_of(handle));
    }
    if (launch.aside) return;
    if (options_.verify && launch.recorded && !launch.kernel->spins && launch.arena->rest(launch.handle))
        report_changes(launch.launch);
}

// If the launch stores through tensor maps, which no callback reports, it is repeated to find the writer of each
// byte.
void Launches::repeat(const OpenLaunch& launch, const LaunchingCall& call) {
    if ((!launch.recorded && !launch.learned) || launch.computed) return;
    if (!stores_through_maps(launch) || call.is_cooperative()) return;
    auto again = [](const void* same) { return static_cast<const LaunchingCall*>(same)->again(); };
    replay(launch, call.parameters(launch.function), again, &call);
}

}  // namespace tileprof
