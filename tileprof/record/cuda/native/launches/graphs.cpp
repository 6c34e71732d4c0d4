#include "launches/graphs.h"

#include <stdio.h>

#include "log/events.h"
#include "memory/stream_operations.h"

namespace tileprof {

namespace {

// CUgraphNodeType, whose name older versions of cuda.h lack.
constexpr int kConditionalNode = 13;

// One per thread. Leaked, because threads end before the driver's last callback.
GraphLaunch& graph_launch_of_thread() {
    thread_local GraphLaunch* present = new GraphLaunch;
    return *present;
}

}  // namespace

void Graphs::node(const Sanitizer_GraphNodeLaunchData& data) {
    if (data.isGraphUpload) return;
    GraphLaunch& present = graph_launch_of_thread();
    switch (static_cast<int>(data.nodeType)) {
        case CU_GRAPH_NODE_TYPE_KERNEL:
            launches_.begin(data.launchData, present.number < 0 ? nullptr : &present);
            open_launch = OpenLaunch{};
            break;
        case CU_GRAPH_NODE_TYPE_MEMCPY:
            if (options_.capturing) events::copy(data.memcpyData, present.number);
            break;
        case CU_GRAPH_NODE_TYPE_MEMSET:
            if (options_.capturing) events::set(data.memsetData, present.number);
            break;
        case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
            memory_.changed(SANITIZER_CBID_RESOURCE_MEMORY_ALLOC_ASYNC, data.memAllocData);
            break;
        case CU_GRAPH_NODE_TYPE_MEM_FREE: {
            Sanitizer_ResourceMemoryData allocation{};
            allocation.address = data.memFreeAddress;
            memory_.changed(SANITIZER_CBID_RESOURCE_MEMORY_FREE_ASYNC, allocation);
            break;
        }
        case CU_GRAPH_NODE_TYPE_GRAPH:  // never seen: the inner nodes are announced instead (13.4.92)
        case kBatchMemOpNode:  // they write memory, and the callbacks do not say where
        case kConditionalNode:
            if (options_.capturing) events::opaque(static_cast<int>(data.nodeType), present.number, "graph");
            break;
        default:
            break;
    }
}

void Graphs::launch(uint32_t cbid, const Sanitizer_GraphLaunchData& data) {
    if (data.isGraphUpload) return;
    GraphLaunch& present = graph_launch_of_thread();
    if (cbid == SANITIZER_CBID_GRAPHS_LAUNCH_BEGIN) {
        present.number = ++last_number_;
        present.nodes.clear();
        present.kernels.clear();
        events::graph(present.number, data.graphExec, data.hStream);
    } else if (cbid == SANITIZER_CBID_GRAPHS_LAUNCH_END) {
        present.exec = data.graphExec;
        present.stream = data.hStream;
        if (!in_launching_call) wait();
    }
}

void Graphs::wait() {
    const GraphLaunch launch = graph_launch_of_thread();
    graph_launch_of_thread() = GraphLaunch{};
    if (launch.nodes.empty()) return;
    if (in_launching_call)
        for (const Kernel* kernel : launch.kernels) modules_.report_constants(*kernel);
    ClosedGate closed_gate(options_.wait_ns);  // the next launch waits
    for (const auto& [context, shared] : launch.nodes) {
        events::graph_end(shared.launch, shared.nodes);
        Arena* arena = arenas_.of(context);
        bool behind = arena->is_blocked(), spins = spinning_.count(launch.exec) != 0;
        if (arena->graph_launched(launch.stream, shared.last->name, spins)) continue;
        events::spinning_graph(shared.launch, launch.number);
        if (!behind && spinning_.insert(launch.exec).second)
            fprintf(stderr, "tileprof: a CUDA graph with %s has not ended in %g s; it is not waited for any more\n",
                    short_name(shared.last->name).c_str(), static_cast<double>(options_.wait_ns) * 1e-9);
    }
}

}  // namespace tileprof
