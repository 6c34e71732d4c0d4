#include "recorder.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "arrays.h"
#include "log.h"
#include "nvtx.h"
#include "streamops.h"
#include "verify.h"

namespace tileprof {

Recorder& recorder = *new Recorder;
thread_local OpenLaunch open_launch;
thread_local bool in_launching_call = false;

void dispatch(Sanitizer_CallbackDomain domain, Sanitizer_CallbackId id, const void* data);  // injector.cpp

namespace {

using u64 = unsigned long long;

// The arguments of two driver functions, in their order, as callbacks get them. The library's own header of these
// does not compile against an older cuda.h.
struct LaunchKernel {
    CUfunction function;
    unsigned int grid[3], block[3], shared_bytes;
    CUstream stream;
    void** parameters;
    void** extra;
};
struct LaunchKernelEx {
    const CUlaunchConfig* config;
    CUfunction function;
    void** parameters;
    void** extra;
};

// Of cuMemMap and cuMemUnmap, which begin alike.
struct MemoryMap {
    CUdeviceptr address;
    size_t bytes;
    size_t offset;  // from here on cuMemMap's alone
    CUmemGenericAllocationHandle handle;
};

// A thread's, leaked: threads end before the driver stops calling back.
GraphLaunch& graph_launch_of_thread() {
    thread_local GraphLaunch* present = new GraphLaunch;
    return *present;
}

// The launching call that this thread is in.
struct LaunchingCall {
    uint32_t cbid = 0;
    const void* arguments = nullptr;
};
thread_local LaunchingCall launching_call;

// Blocks of such a launch wait for each other: ending some of them would hang the others.
bool is_cooperative(const CUlaunchConfig& config) {
    for (unsigned i = 0; i < config.numAttrs; ++i)
        if (config.attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && config.attrs[i].value.cooperative != 0)
            return true;
    return false;
}

bool is_extended(uint32_t cbid) {
    return cbid == SANITIZER_CBID_DRIVER_API_cuLaunchKernelEx ||
           cbid == SANITIZER_CBID_DRIVER_API_cuLaunchKernelEx_ptsz;
}

// These launch, too, but are neither repeated nor captured one by one.
bool is_another_way(uint32_t cbid) {
    return cbid == SANITIZER_CBID_DRIVER_API_cuLaunchCooperativeKernel ||
           cbid == SANITIZER_CBID_DRIVER_API_cuLaunchCooperativeKernel_ptsz ||
           cbid == SANITIZER_CBID_DRIVER_API_cuGraphLaunch || cbid == SANITIZER_CBID_DRIVER_API_cuGraphLaunch_ptsz;
}

// What a launching call names its kernel by: a CUfunction, or a CUkernel in its place.
const void* handle_of(uint32_t cbid, const void* arguments) {
    return is_extended(cbid) ? static_cast<const void*>(static_cast<const LaunchKernelEx*>(arguments)->function)
                             : static_cast<const void*>(static_cast<const LaunchKernel*>(arguments)->function);
}

std::vector<char> parameters_of(const LaunchingCall& call, CUfunction function) {
    if (is_extended(call.cbid)) {
        const auto* a = static_cast<const LaunchKernelEx*>(call.arguments);
        return parameter_block(function, a->parameters, a->extra);
    }
    const auto* a = static_cast<const LaunchKernel*>(call.arguments);
    return parameter_block(function, a->parameters, a->extra);
}

// Launches outside of what is recorded that are replayed for others to learn from, of one kernel and grid. A parameter
// that is new each time (a seed) would make each of them a new one.
constexpr uint32_t kMostLessons = 64;

// CUgraphNodeType; older versions of cuda.h lack the names. They write memory, and nobody says where.
constexpr int kBatchMemOpNode = 12, kConditionalNode = 13;

constexpr char kFaulted[] =
    "the GPU did not answer when the program ended: one of its kernels faulted, or the driver stopped it. What ran "
    "before is "
    "recorded as far as it had been copied. Where that does not happen without tileprof, it is a fault of tileprof's; "
    "compute-sanitizer --tool memcheck names the kernel otherwise";

constexpr uint64_t kDrainEveryNs = 500000000;  // at synchronisations, so that a killed run leaves most records
constexpr uint64_t kDrainPatienceNs = 100000000;  // then: other streams may go on running
constexpr uint64_t kStandstill = 10;  // times the limit for one wait

}  // namespace

std::string Recorder::start() {
    Hold hold;  // NVTX ranges may open meanwhile
    std::string wrong = options.read_environment();
    if (!wrong.empty()) return wrong;
    if (!log_.open(options.raw_folder + "/process-" + std::to_string(getpid())))
        return "cannot write to " + options.raw_folder;
    if (!(wrong = api.load(options.sanitizer.c_str())).empty() || !(wrong = api.load_driver()).empty()) return wrong;
    FILE* file = fopen(options.patches.c_str(), "rb");
    if (file == nullptr) return "cannot read " + options.patches;
    char block[1 << 16];
    for (size_t n; (n = fread(block, 1, sizeof block, file)) > 0;) patches_.insert(patches_.end(), block, block + n);
    fclose(file);

    auto callback = [](void*, Sanitizer_CallbackDomain domain, Sanitizer_CallbackId id, const void* data) {
        dispatch(domain, id, data);
    };
    SanitizerResult result = api.sanitizerSubscribe(&subscriber_, callback, nullptr);
    if (result == SANITIZER_ERROR_MAX_LIMIT_REACHED)
        return "another Compute Sanitizer tool is attached to this program";
    if (!check(result, "subscribing to Compute Sanitizer"))
        return std::string("Compute Sanitizer refused (") + words_of(result) +
               "): the driver may be too old for it, or the GPU unsupported";
    check(api.sanitizerEnableDomain(1, subscriber_, SANITIZER_CB_DOMAIN_RESOURCE), "enabling callbacks");
    for (Sanitizer_CallbackId id : {SANITIZER_CBID_DRIVER_API_cuProfilerStart, SANITIZER_CBID_DRIVER_API_cuProfilerStop,
                                    SANITIZER_CBID_DRIVER_API_cuMemMap, SANITIZER_CBID_DRIVER_API_cuMemUnmap})
        check(api.sanitizerEnableCallback(1, subscriber_, SANITIZER_CB_DOMAIN_DRIVER_API, id), "enabling callbacks");
    start_regions();
    follow_allocations();
    if (seeing()) see_launches(true);
    watch(kStandstill * options.wait_ns);
    pthread_atfork(
        [] {
            recorder.mutex.lock();
            log_.flush();  // or the child would write it once more when it ends
        },
        [] { recorder.mutex.unlock(); }, [] { recorder.forked(); });
    const char* names[] = {"floor", "blocks", "accesses"};
    log_.event("\"e\":\"start\",\"version\":1,\"pid\":%d,\"pass\":\"%s\",\"granule\":%u,\"arena\":%llu,\"ranged\":%d",
               getpid(), names[static_cast<int>(options.pass)], 1u << options.granule_shift,
               static_cast<u64>(options.arena_bytes), options.patch_in_ranges);
    if (options.nvtx && options.capturing) log_.event("\"e\":\"capture\",\"on\":1");
    return "";
}

void Recorder::see_launches(bool on) {
    for (Sanitizer_CallbackDomain domain :
         {SANITIZER_CB_DOMAIN_LAUNCH, SANITIZER_CB_DOMAIN_MEMCPY, SANITIZER_CB_DOMAIN_MEMSET,
          SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CB_DOMAIN_SYNCHRONIZE})
        check(api.sanitizerEnableDomain(on, subscriber_, domain), "enabling callbacks");
    for (Sanitizer_CallbackId id :
         {SANITIZER_CBID_DRIVER_API_cuLaunchKernel, SANITIZER_CBID_DRIVER_API_cuLaunchKernel_ptsz,
          SANITIZER_CBID_DRIVER_API_cuLaunchKernelEx, SANITIZER_CBID_DRIVER_API_cuLaunchKernelEx_ptsz,
          SANITIZER_CBID_DRIVER_API_cuLaunchCooperativeKernel, SANITIZER_CBID_DRIVER_API_cuLaunchCooperativeKernel_ptsz,
          SANITIZER_CBID_DRIVER_API_cuGraphLaunch, SANITIZER_CBID_DRIVER_API_cuGraphLaunch_ptsz})
        check(api.sanitizerEnableCallback(on, subscriber_, SANITIZER_CB_DOMAIN_DRIVER_API, id), "enabling callbacks");
    for (const auto* ids : {&memory_operations(), &array_copies()})
        for (Sanitizer_CallbackId id : *ids)
            check(api.sanitizerEnableCallback(on, subscriber_, SANITIZER_CB_DOMAIN_DRIVER_API, id),
                  "enabling callbacks");
}

void Recorder::forked() {
    new (&mutex) std::recursive_mutex;  // a thread that the child does not have holds the old one
    finished = true;
    log_.forget();
}

void Recorder::drain() {
    Hold hold;
    if (finished) return;
    for (Arena* arena : arenas()) arena->drain();
    log_.flush();
}

void Recorder::finish() {
    Hold hold;
    if (finished) return;
    int gpus = 0;
    bool alive =
        api.cuDeviceGetCount(&gpus) == CUDA_SUCCESS;  // a driver that has shut down says so, here and nowhere else
    for (Arena* arena : arenas()) {
        if (alive) arena->drain();
        lost_ |= arena->pending();
    }
    finished = true;
    if (lost_ && alive) complain("%s", kFaulted);
    if (options.nvtx) log_.event("\"e\":\"ranges\",%s", ranges_seen().c_str());
    if (!lost_) log_.event("\"e\":\"end\",\"t\":%llu", static_cast<u64>(now_ns()));
    log_.close();
}

Arena* Recorder::arena(CUcontext context) {
    std::unique_ptr<Arena>& found = arenas_[context];
    if (!found) {
        found = std::make_unique<Arena>(context, options.granule_shift, options.arena_bytes, options.wait_ns);
        int id = static_cast<int>(context_ids_.size());
        context_ids_[context] = id;
    }
    return found.get();
}

// All in a context dies with it: what its kernels left must be copied now.
void Recorder::context_destroyed(CUcontext context) {
    auto arena = arenas_.find(context);
    if (arena != arenas_.end()) {
        arena->second->drain();
        lost_ |= arena->second->pending();
        arena->second->end();
        ended_arenas_.push_back(std::move(arena->second));
        arenas_.erase(context);
    }
    patched_contexts_.erase(context);
    std::vector<CUmodule> modules;
    for (const auto& [handle, module] : modules_)
        if (module.context == context) modules.push_back(handle);
    for (CUmodule handle : modules) {
        Sanitizer_ResourceModuleData data{};
        data.module = handle;
        module_unloaded(data);
    }
    for (auto at = owners_.begin(); at != owners_.end();) {
        if (at->second == context) {
            log_.event("\"e\":\"free\",\"address\":%llu", static_cast<u64>(at->first));
            allocations_.erase(at->first);
            at = owners_.erase(at);
        } else {
            ++at;
        }
    }
}

bool Recorder::wants(const Kernel& kernel) {
    if (!options.capturing || !kernel.wanted) return false;
    uint64_t n = matching_++;
    return n >= options.skip && n - options.skip < options.count;
}

// Products of different depth may have the same kernel, grid and result: each is a lesson of its own.
bool Recorder::teaches(const OpenLaunch& launch) {
    if (launching_call.arguments == nullptr) return false;
    return !was_replayed(launch, parameters_of(launching_call, launch.function)) &&
           ++lessons_[launch.geometry] <= kMostLessons;
}

void Recorder::prepare_all() {
    spinning_ = true;
    std::vector<CUcontext> contexts;  // others may add to the map meanwhile
    for (const auto& [context, patches] : patched_contexts_) contexts.push_back(context);
    for (CUcontext context : contexts) arena(context)->prepare();
}

void Recorder::launch_begin(const Sanitizer_LaunchData& data, int graph) {
    Arena* memory = arena(data.context);
    if (replaying != nullptr) {
        check(api.sanitizerSetLaunchCallbackData(data.hLaunch, data.function, data.hStream, replaying), "a replay");
        return;
    }
    const Kernel& k = kernel(data.module, data.functionName);
    if (k.aside && !spinning_) prepare_all();  // once it spins, nothing should have to be made
    memory->prepare();
    uint64_t ordinal = launches_++;
    last = &k;
    OpenLaunch open;
    open.kernel = &k;
    open.function = data.function;
    open.arena = memory;
    open.stream = data.stream;
    open.handle = data.hStream;
    uint32_t cluster[3] = {data.clusterDim_x, data.clusterDim_y, data.clusterDim_z};
    for (uint32_t& c : cluster) c = c == 0 ? 1 : c;
    open.clusters = (data.gridDim_x / cluster[0]) * (data.gridDim_y / cluster[1]) * (data.gridDim_z / cluster[2]);
    open.blocks = static_cast<uint64_t>(data.gridDim_x) * data.gridDim_y * data.gridDim_z;
    open.geometry = k.id;
    for (uint64_t d : {data.gridDim_x, data.gridDim_y, data.gridDim_z, data.blockDim_x, data.blockDim_y, cluster[0]})
        open.geometry = (open.geometry ^ d) * 0x100000001b3ull;
    open.recorded = options.pass != Pass::kFloor && wants(k);
    open.aside = k.aside && open.recorded;
    open.learned = !open.recorded && !k.aside && !k.spins && graph < 0 && options.replay &&
                   options.pass == Pass::kAccesses && (k.code.tensor_store || k.code.tensor_reduce) && teaches(open);
    Header* header = memory->off();
    uint32_t generation = 0;
    if (graph >= 0 && k.patched && options.capturing && options.pass != Pass::kFloor) {
        // Also where this node is not wanted: the places of the others are counted by it.
        GraphLaunch::Shared& shared = graph_launch_of_thread().nodes[data.context];
        if (shared.nodes == 0) shared.header = memory->next_in_graph(&shared.launch);
        if (shared.header != nullptr) header = shared.header;
        open.launch = shared.launch;
        generation = shared.nodes++;
        shared.last = &k;
        if (!k.aside) graph_launch_of_thread().kernels.push_back(&k);
    } else if ((open.recorded && !open.aside) || open.learned) {
        // While another thread copies records or repeats a launch there are none: then every block of it is missing.
        Header* own = gate.closed_by_another() ? nullptr : memory->next(&open.launch);
        if (own != nullptr) header = own;
        memory->begun(&open_launch, open.launch);
    }
    if (k.patched)
        check(api.sanitizerSetLaunchCallbackData(data.hLaunch, data.function, data.hStream, header),
              "a launch's callback data");
    if (open.recorded || open.learned || options.pass == Pass::kFloor)
        log_.event(
            "\"e\":\"%s\",\"launch\":%u,\"kernel\":%u,\"grid\":[%u,%u,%u],\"block\":[%u,%u,%u],\"cluster\":[%u,%u,%u],"
            "\"stream\":\"%p\",\"context\":%d,\"device\":%d,\"graph\":%d,\"generation\":%u,\"ordinal\":%llu,"
            "\"aside\":%d,"
            "\"counted\":%d,\"t\":%llu%s",
            open.learned ? "learn" : "launch", open.launch, k.id, data.gridDim_x, data.gridDim_y, data.gridDim_z,
            data.blockDim_x, data.blockDim_y, data.blockDim_z, cluster[0], cluster[1], cluster[2],
            static_cast<void*>(data.hStream), context_ids_[data.context], static_cast<int>(data.device), graph,
            generation, static_cast<u64>(ordinal), open.aside, k.patched, static_cast<u64>(now_ns()),
            unpatched(data.module).c_str());
    open_launch = open;
}

void Recorder::launch_end(const Sanitizer_LaunchData& data) {
    if (replaying != nullptr || open_launch.arena == nullptr || open_launch.aside) return;
    if (!open_launch.recorded && !open_launch.learned) return;
    open_launch.arena->returned(&open_launch);
    const Kernel& kernel = *open_launch.kernel;
    open_launch.place = open_launch.arena->launched(open_launch.geometry, data.hStream, kernel.name, kernel.spins);
    if (in_launching_call) return;
    wait_for_launch();
    open_launch.arena->make_room();
}

void Recorder::wait_for_launch() {
    const OpenLaunch launch = open_launch;
    open_launch.place = Places::kNone;
    if (launch.arena == nullptr || launch.kernel == nullptr) return;
    if (!launch.arena->learn(launch.place, launch.geometry, launch.handle, launch.kernel->name))
        give_up(launch.launch, *launch.kernel);
}

// It may spin until a later launch, another GPU, another process or the host lets it go: go on, so that this can
// happen.
void Recorder::give_up(uint32_t launch, const Kernel& kernel) {
    double seconds = static_cast<double>(options.wait_ns) * 1e-9;
    log_.event("\"e\":\"spinning\",\"launch\":%u,\"kernel\":%u,\"seconds\":%g", launch, kernel.id, seconds);
    log_.flush();
    all_kernels_[kernel.id].spins = true;
    fprintf(
        stderr,
        "tileprof: %s has not ended in %g s: it may wait for a later launch. Its launches are not waited for any more; "
        "--exclude '%s' leaves it out\n",
        short_name(kernel.name).c_str(), seconds, short_name(kernel.name).c_str());
}

void Recorder::copy(const Sanitizer_MemcpyData& d, int graph) {
    if (!options.capturing) return;
    log_.event(
        "\"e\":\"copy\",\"from\":%llu,\"to\":%llu,\"bytes\":%llu,\"width\":%llu,\"height\":%llu,\"depth\":%llu,"
        "\"from_pitch\":%llu,\"to_pitch\":%llu,\"direction\":%d,\"stream\":\"%p\",\"graph\":%d,\"t\":%llu",
        static_cast<u64>(d.srcAddress), static_cast<u64>(d.dstAddress), static_cast<u64>(d.size),
        static_cast<u64>(d.width), static_cast<u64>(d.height), static_cast<u64>(d.depth), static_cast<u64>(d.srcPitch),
        static_cast<u64>(d.dstPitch), static_cast<int>(d.direction), static_cast<void*>(d.hApiStream), graph,
        static_cast<u64>(now_ns()));
}

void Recorder::set(const Sanitizer_MemsetData& d, int graph) {
    if (!options.capturing) return;
    log_.event(
        "\"e\":\"set\",\"to\":%llu,\"width\":%llu,\"height\":%llu,\"to_pitch\":%llu,\"element\":%u,\"stream\":\"%p\","
        "\"graph\":%d,\"t\":%llu",
        static_cast<u64>(d.address), static_cast<u64>(d.width), static_cast<u64>(d.height), static_cast<u64>(d.pitch),
        d.elementSize, static_cast<void*>(d.hStream), graph, static_cast<u64>(now_ns()));
}

void Recorder::node(uint32_t cbid, const Sanitizer_GraphNodeLaunchData& data) {
    if (cbid != SANITIZER_CBID_GRAPHS_NODE_LAUNCH_BEGIN || data.isGraphUpload) return;
    int graph = graph_launch_of_thread().number;
    switch (static_cast<int>(data.nodeType)) {
        case CU_GRAPH_NODE_TYPE_KERNEL:
            launch_begin(data.launchData, graph);
            open_launch = OpenLaunch{};
            break;
        case CU_GRAPH_NODE_TYPE_MEMCPY:
            copy(data.memcpyData, graph);
            break;
        case CU_GRAPH_NODE_TYPE_MEMSET:
            set(data.memsetData, graph);
            break;
        case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
            memory(SANITIZER_CBID_RESOURCE_MEMORY_ALLOC_ASYNC, data.memAllocData);
            break;
        case CU_GRAPH_NODE_TYPE_MEM_FREE: {
            Sanitizer_ResourceMemoryData freed{};
            freed.address = data.memFreeAddress;
            memory(SANITIZER_CBID_RESOURCE_MEMORY_FREE_ASYNC, freed);
            break;
        }
        case CU_GRAPH_NODE_TYPE_GRAPH:  // never seen: the nodes inside are told of instead (13.4.92)
        case kBatchMemOpNode:
        case kConditionalNode:
            if (options.capturing)
                log_.event("\"e\":\"opaque\",\"node\":%d,\"graph\":%d,\"stream\":\"graph\"",
                           static_cast<int>(data.nodeType), graph);
            break;
        default:
            break;
    }
}

// A launch is waited for before its call returns. Its nodes run with callback data that belongs to their functions, and
// the next launch, of this graph or of the same functions, would set it while they wait.
void Recorder::graph_launch(uint32_t cbid, const Sanitizer_GraphLaunchData& data) {
    if (data.isGraphUpload) return;
    GraphLaunch& present = graph_launch_of_thread();
    if (cbid == SANITIZER_CBID_GRAPHS_LAUNCH_BEGIN) {
        present.number = ++graphs_;
        present.nodes.clear();
        present.kernels.clear();
        log_.event("\"e\":\"graph\",\"graph\":%d,\"exec\":\"%p\",\"stream\":\"%p\"", present.number,
                   static_cast<void*>(data.graphExec), static_cast<void*>(data.hStream));
    } else if (cbid == SANITIZER_CBID_GRAPHS_LAUNCH_END) {
        present.exec = data.graphExec;
        present.stream = data.hStream;
        if (!in_launching_call) wait_for_graph();
    }
}

void Recorder::wait_for_graph() {
    const GraphLaunch launch = graph_launch_of_thread();
    graph_launch_of_thread() = GraphLaunch{};
    if (launch.nodes.empty()) return;
    if (in_launching_call)
        for (const Kernel* kernel : launch.kernels) tell_constants(*kernel);
    Alone alone(options.wait_ns);  // the next launch waits
    for (const auto& [context, shared] : launch.nodes) {
        log_.event("\"e\":\"graph_end\",\"launch\":%u,\"nodes\":%u", shared.launch, shared.nodes);
        bool behind = arena(context)->held_up(), spins = spinning_graphs_.count(launch.exec) != 0;
        if (arena(context)->graph_launched(launch.stream, shared.last->name, spins)) continue;
        log_.event("\"e\":\"spinning\",\"launch\":%u,\"graph\":%d", shared.launch, launch.number);
        if (!behind && spinning_graphs_.insert(launch.exec).second)
            fprintf(stderr, "tileprof: a CUDA graph with %s has not ended in %g s; it is not waited for any more\n",
                    short_name(shared.last->name).c_str(), static_cast<double>(options.wait_ns) * 1e-9);
    }
}

void Recorder::stream(uint32_t cbid, const Sanitizer_ResourceStreamData& data) {
    auto found = arenas_.find(data.context);
    if (found == arenas_.end()) return;
    if (cbid == SANITIZER_CBID_RESOURCE_STREAM_DESTROY_STARTING) found->second->end_stream(data.hStream);
}

void Recorder::synchronized() {
    uint64_t now = now_ns();
    if (replaying != nullptr || in_launching_call || now - last_drain_ns_ < kDrainEveryNs) return;
    last_drain_ns_ = now;  // first: draining synchronises, which calls back
    for (Arena* arena : arenas()) arena->drain(kDrainPatienceNs);
    last_drain_ns_ = now_ns();
}

void Recorder::capture(bool on) {
    Hold hold;
    if (finished) return;
    region_ = on;
    options.nvtx ? follow() : record(on);
}

void Recorder::record(bool on) {
    if (options.patch_in_ranges && !graph_streams_.empty()) return;  // later, in stream_captured
    log_.event("\"e\":\"capture\",\"on\":%d", on);
    if (options.capturing == on) return;
    options.capturing = on;
    if (!options.patch_in_ranges) return;
    Alone alone(options.wait_ns);  // no launching call is cut in two, unless one does not end in time
    on = options.capturing;        // which others may have changed meanwhile
    Inside inside(modules_.empty() ? nullptr : modules_.begin()->second.context);  // the thread may have none
    rest();                        // nothing runs whose code changes
    if (on) see_launches(true);
    std::vector<CUmodule> handles;  // others may load and unload meanwhile
    for (const auto& [handle, module] : modules_) handles.push_back(handle);
    for (CUmodule handle : handles) {
        auto module = modules_.find(handle);
        if (module != modules_.end()) follow_regions(handle, &module->second);
    }
    if (!on) {
        drain();
        see_launches(false);
    }
}

void Recorder::api_call(uint32_t cbid, const Sanitizer_CallbackData& data) {
    if (cbid == SANITIZER_CBID_DRIVER_API_cuProfilerStart || cbid == SANITIZER_CBID_DRIVER_API_cuProfilerStop) {
        if (data.callbackSite == SANITIZER_API_EXIT) capture(cbid == SANITIZER_CBID_DRIVER_API_cuProfilerStart);
        return;
    }
    if (is_allocation(cbid)) return allocated(cbid, data);
    if (is_share(cbid)) return shared(cbid, data);
    if (is_capture_begin(cbid) || is_capture_end(cbid)) return stream_captured(cbid, data);
    if (cbid == SANITIZER_CBID_DRIVER_API_cuMemMap || cbid == SANITIZER_CBID_DRIVER_API_cuMemUnmap) {
        bool made = cbid == SANITIZER_CBID_DRIVER_API_cuMemMap;
        const auto* map = static_cast<const MemoryMap*>(data.functionParams);
        // What is unmapped is forgotten before others may map it; what is mapped is known when that has worked.
        if (made && has_happened(data)) mapped(map->address, map->bytes, map->handle, map->offset);
        if (!made && data.callbackSite == SANITIZER_API_ENTER) unmapped(map->address, map->bytes);
        if (!made && data.callbackSite == SANITIZER_API_EXIT)
            unmapping_ended(map->address, map->bytes, has_happened(data));
        return;
    }
    auto is_one_of = [&](const std::vector<Sanitizer_CallbackId>& ids) {
        return std::find(ids.begin(), ids.end(), cbid) != ids.end();
    };
    if (is_one_of(array_copies()) || is_one_of(memory_operations())) {
        if (options.capturing) (is_one_of(array_copies()) ? array_copy : memory_operation)(cbid, data);
        return;
    }
    if (replaying != nullptr) return;
    if (data.callbackSite == SANITIZER_API_ENTER) {
        gate.enter();
        open_launch = OpenLaunch{};
        in_launching_call = true;
        if (!is_another_way(cbid)) launching_call = {cbid, data.functionParams};
        if (options.verify && !is_another_way(cbid)) remember_memory();
        return;
    }
    gate.leave();
    wait_for_launch();
    if (is_another_way(cbid)) {
        wait_for_graph();
        in_launching_call = false;
        if (!open_launch.aside)
            for (Arena* arena : arenas()) arena->make_room();
        open_launch = OpenLaunch{};
        return;
    }
    launch_returned(cbid, data);
    in_launching_call = false;
    launching_call = {};
    // Not behind a kernel that was set aside: it may wait for the next launch.
    bool appends = (open_launch.recorded && !open_launch.aside) || open_launch.learned;
    if (open_launch.arena != nullptr && appends) open_launch.arena->make_room();
    open_launch = OpenLaunch{};
}

// Where the constant variables lie that a kernel may read: no callback reports that it does. Asked for when no call of
// the driver's is under way.
void Recorder::tell_constants(const Kernel& kernel) {
    auto module = modules_.find(kernel.module);
    if (kernel.code.constants.empty() || module == modules_.end() || !constants_told_.insert(kernel.id).second) return;
    Inside inside(module->second.context);
    std::string ranges;
    for (const std::string& name : kernel.code.constants) {
        CUdeviceptr address = 0;
        size_t bytes = 0;
        CUresult found = api.cuModuleGetGlobal(&address, &bytes, kernel.module, name.c_str());
        // What the driver does not find by its name, no program can write: a table of the compiler's.
        if (found == CUDA_ERROR_NOT_FOUND) continue;
        if (found != CUDA_SUCCESS) return;  // then it may read anything
        ranges += (ranges.empty() ? "[" : ",[") + std::to_string(static_cast<u64>(address)) + "," +
                  std::to_string(bytes) + "]";
    }
    log_.event("\"e\":\"constants\",\"kernel\":%u,\"ranges\":[%s]", kernel.id, ranges.c_str());
}

// Now: others may come while one is waited for.
std::vector<Arena*> Recorder::arenas() const {
    std::vector<Arena*> now;
    for (const auto& [context, arena] : arenas_) now.push_back(arena.get());
    return now;
}

// A launching call returns: by now the launch has its records.
void Recorder::launch_returned(uint32_t cbid, const Sanitizer_CallbackData& data) {
    const OpenLaunch launch = open_launch;
    const void* handle = handle_of(cbid, data.functionParams);
    if (launch.kernel != nullptr) {
        handles_[handle] = launch.kernel->id;
        if (!launch.kernel->aside) tell_constants(*launch.kernel);
    } else if (launch.arena == nullptr && in_launching_call) {  // captured into a graph, not launched
        auto known = handles_.find(handle);
        log_.event("\"e\":\"captured\",\"kernel\":%d,\"t\":%llu",
                   known == handles_.end() ? -1 : static_cast<int>(known->second), static_cast<u64>(now_ns()));
    }
    if (launch.aside) return;
    if (options.verify && launch.recorded && !launch.kernel->spins && launch.arena->rest(launch.handle))
        report_changes(launch.launch);
    bool stores =
        (launch.recorded || launch.learned) && (launch.kernel->code.tensor_store || launch.kernel->code.tensor_reduce);
    if (!stores || !options.replay || options.pass != Pass::kAccesses || launch.kernel->spins) return;
    if (is_extended(cbid) && is_cooperative(*static_cast<const LaunchKernelEx*>(data.functionParams)->config)) return;
    std::vector<char> parameters = parameters_of({cbid, data.functionParams}, launch.function);
    if (is_extended(cbid)) {
        auto again = [](const void* p) {
            const auto* c = static_cast<const LaunchKernelEx*>(p);
            return api.cuLaunchKernelEx(c->config, c->function, c->parameters, c->extra) == CUDA_SUCCESS;
        };
        replay(launch, parameters, again, data.functionParams);
    } else {
        auto again = [](const void* p) {
            const auto* c = static_cast<const LaunchKernel*>(p);
            return api.cuLaunchKernel(c->function, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1],
                                      c->block[2], c->shared_bytes, c->stream, c->parameters, c->extra) == CUDA_SUCCESS;
        };
        replay(launch, parameters, again, data.functionParams);
    }
}

}  // namespace tileprof
