#include <string.h>

#include "order/segment.h"

namespace tileprof::acs {

namespace {

constexpr size_t kMostGraphs = 256, kMostExact = 4096;
constexpr size_t kFewest = 4;                     // minimum number of launches in a graph
// number of launches before a segment may end on its own; after that, one in as many ends it
constexpr size_t kShortest = 32;
constexpr uint64_t kSeenBefore = 2;  // number of repetitions after which a graph is worth its cost

KernelNode node_of(const SegmentLaunch& member) {
    KernelNode node{};
    const Shape& s = member.launch.shape;
    node.function = member.function->handle;
    for (int i = 0; i < 3; ++i) node.grid[i] = s.grid[i], node.block[i] = s.block[i];
    node.shared_bytes = s.shared_bytes;
    node.parameters = const_cast<void**>(member.pointers.data());
    return node;
}

}  // namespace

void SegmentLaunch::assign(const Launch& call, const Function& of, const Entry& entry, const Parameters& parameters) {
    launch = call;
    function = &of;
    id = entry.id;
    words = parameters.words;
    slots = entry.slots;
    attributes.assign(call.attributes, call.attributes + call.attribute_count);
    launch.attributes = attributes.data();
    pointers.clear();
    auto* base = reinterpret_cast<char*>(words.data());
    for (const auto& [offset, size] : of.layout) pointers.push_back(base + offset);
}

bool Graphs::build(const std::vector<SegmentLaunch>& segment, const std::vector<std::vector<int>>& after,
                   CachedGraph* cached_graph) {
    const Driver& driver = Driver::get();
    if (driver.cuGraphCreate(&cached_graph->graph, 0) != kSuccess) return false;
    for (size_t i = 0; i < segment.size(); ++i) {
        std::vector<CUgraphNode> parents;
        for (int parent : after[i]) parents.push_back(cached_graph->nodes[parent]);
        if (random_delay_.delay(cached_graph->graph, &parents) != kSuccess) return false;
        KernelNode node = node_of(segment[i]);
        CUgraphNode node_handle = nullptr;
        if (driver.cuGraphAddKernelNode_v2(&node_handle, cached_graph->graph, parents.data(), parents.size(), &node) !=
            kSuccess)
            return false;
        for (const Attribute& a : segment[i].attributes)
            if (a.id != kIgnored && a.id != kProgrammatic &&
                driver.cuGraphKernelNodeSetAttribute(node_handle, a.id, a.bytes) != kSuccess)
                return false;
        cached_graph->nodes.push_back(node_handle);
        cached_graph->words.push_back(segment[i].words);
    }
    return driver.cuGraphInstantiateWithFlags(&cached_graph->exec, cached_graph->graph, 0) == kSuccess;
}

bool Graphs::update(const std::vector<SegmentLaunch>& segment, CachedGraph* cached_graph) {
    for (size_t i = 0; i < segment.size(); ++i) {
        if (cached_graph->words[i] == segment[i].words) continue;
        KernelNode node = node_of(segment[i]);
        if (Driver::get().cuGraphExecKernelNodeSetParams_v2(cached_graph->exec, cached_graph->nodes[i], &node) !=
            kSuccess)
            return false;
        cached_graph->words[i] = segment[i].words;
        ++counts_->updated;
    }
    return true;
}

bool ends_segment(const std::vector<SegmentLaunch>& segment) {
    if (segment.size() < kShortest) return false;
    uint64_t hash = 1;
    for (auto launch = segment.end() - 3; launch != segment.end(); ++launch) hash = mix(hash, launch->id);
    return hash % kShortest == 0;
}

// The graph of a segment that was launched before with the same parameters.
Graphs::CachedGraph* Graphs::same(const std::vector<SegmentLaunch>& segment, uint64_t exact_key) {
    auto entry = exact_.find(exact_key);
    if (entry == exact_.end() || entry->second->unusable || entry->second->words.size() != segment.size())
        return nullptr;
    for (size_t i = 0; i < segment.size(); ++i)
        if (entry->second->words[i] != segment[i].words) return nullptr;
    return entry->second;
}

void Graphs::run(const CachedGraph& cached_graph, CUstream stream, CUresult* result) {
    *result = Driver::get().cuGraphLaunch(cached_graph.exec, stream);
    ++counts_->graph_launches;
    counts_->graph_kernels += cached_graph.nodes.size();
}

bool Graphs::launch(const std::vector<SegmentLaunch>& segment, CUstream stream, CUresult* result) {
    if (segment.size() < kFewest) return false;
    uint64_t exact_key = segment.size();
    for (const SegmentLaunch& member : segment) {
        exact_key = mix(mix(exact_key, member.id), reinterpret_cast<uint64_t>(member.function->handle));
        for (const Attribute& a : member.attributes) exact_key = mix(exact_key, a);
        for (uint64_t word : member.words) exact_key = mix(exact_key, word);
    }
    if (const CachedGraph* cached_graph = same(segment, exact_key)) {
        run(*cached_graph, stream, result);
        return true;
    }
    std::vector<Access> accesses;
    for (const SegmentLaunch& member : segment) accesses.push_back(member.access);
    const std::vector<std::vector<int>> after = dependencies(accesses);
    uint64_t key = segment.size();
    for (size_t i = 0; i < segment.size(); ++i) {
        const SegmentLaunch& member = segment[i];
        key = mix(key, reinterpret_cast<uint64_t>(member.function->handle));
        const Shape& s = member.launch.shape;
        for (unsigned value : {s.grid[0], s.grid[1], s.grid[2], s.block[0], s.block[1], s.block[2], s.shared_bytes})
            key = mix(key, uint64_t{value});
        for (const Attribute& a : member.attributes) key = mix(key, a);
        for (int parent : after[i]) key = mix(key, static_cast<uint64_t>(parent) + 1);
        key = mix(key, uint64_t{after[i].size()});
    }
    CachedGraph& cached_graph = graphs_[key];
    if (cached_graph.unusable || ++cached_graph.seen < kSeenBefore) return false;
    if (cached_graph.exec == nullptr) {
        if (graphs_.size() > kMostGraphs || !build(segment, after, &cached_graph)) {
            cached_graph.unusable = true;
            return false;
        }
        ++counts_->graphs;
    } else if (!update(segment, &cached_graph)) {
        cached_graph.unusable = true;
        return false;
    }
    if (exact_.size() >= kMostExact) exact_.clear();
    exact_[exact_key] = &cached_graph;
    run(cached_graph, stream, result);
    return true;
}

void Graphs::forget() {
    for (auto& [key, cached_graph] : graphs_) {
        if (cached_graph.exec != nullptr) Driver::get().cuGraphExecDestroy(cached_graph.exec);
        if (cached_graph.graph != nullptr) Driver::get().cuGraphDestroy(cached_graph.graph);
    }
    graphs_.clear();
    exact_.clear();
}

}  // namespace tileprof::acs
