#include <string.h>

#include "segment.h"

namespace tileprof::acs {

namespace {

constexpr size_t kMostGraphs = 256, kMostExact = 4096;
constexpr size_t kFewest = 4;                     // launches in a graph
constexpr size_t kShortest = 32;  // launches, before a segment ends by itself; then one in as many ends it
constexpr uint64_t kSeenBefore = 2;  // times, before it is worth a graph

KernelNode node_of(const Held& held) {
    KernelNode node{};
    const Shape& s = held.launch.shape;
    node.function = held.function->handle;
    for (int i = 0; i < 3; ++i) node.grid[i] = s.grid[i], node.block[i] = s.block[i];
    node.shared_bytes = s.shared_bytes;
    node.parameters = const_cast<void**>(held.pointers.data());
    return node;
}

}  // namespace

void Held::hold(const Launch& made, const Function& of, const Entry& entry, const Parameters& parameters) {
    launch = made;
    function = &of;
    id = entry.id;
    words = parameters.words;
    slots = entry.slots;
    attributes.assign(made.attributes, made.attributes + made.attribute_count);
    launch.attributes = attributes.data();
    pointers.clear();
    auto* base = reinterpret_cast<char*>(words.data());
    for (const auto& [offset, size] : of.layout) pointers.push_back(base + offset);
}

bool Graphs::build(const std::vector<Held>& segment, const std::vector<std::vector<int>>& after, Kept* kept) {
    const Driver& driver = Driver::get();
    if (driver.cuGraphCreate(&kept->graph, 0) != kSuccess) return false;
    for (size_t i = 0; i < segment.size(); ++i) {
        std::vector<CUgraphNode> parents;
        for (int parent : after[i]) parents.push_back(kept->nodes[parent]);
        KernelNode node = node_of(segment[i]);
        CUgraphNode made = nullptr;
        if (driver.cuGraphAddKernelNode_v2(&made, kept->graph, parents.data(), parents.size(), &node) != kSuccess)
            return false;
        for (const Attribute& a : segment[i].attributes)
            if (a.id != kIgnored && a.id != kProgrammatic &&
                driver.cuGraphKernelNodeSetAttribute(made, a.id, a.bytes) != kSuccess)
                return false;
        kept->nodes.push_back(made);
        kept->words.push_back(segment[i].words);
    }
    return driver.cuGraphInstantiateWithFlags(&kept->exec, kept->graph, 0) == kSuccess;
}

bool Graphs::update(const std::vector<Held>& segment, Kept* kept) {
    for (size_t i = 0; i < segment.size(); ++i) {
        if (kept->words[i] == segment[i].words) continue;
        KernelNode node = node_of(segment[i]);
        if (Driver::get().cuGraphExecKernelNodeSetParams_v2(kept->exec, kept->nodes[i], &node) != kSuccess)
            return false;
        kept->words[i] = segment[i].words;
        ++counts_->updated;
    }
    return true;
}

bool ends_segment(const std::vector<Held>& held) {
    if (held.size() < kShortest) return false;
    uint64_t hash = 1;
    for (auto launch = held.end() - 3; launch != held.end(); ++launch) hash = mixed(hash, launch->id);
    return hash % kShortest == 0;
}

// The graph of a segment that was launched with the same parameters before.
Graphs::Kept* Graphs::same(const std::vector<Held>& segment, uint64_t exactly) {
    auto found = exact_.find(exactly);
    if (found == exact_.end() || found->second->refused || found->second->words.size() != segment.size())
        return nullptr;
    for (size_t i = 0; i < segment.size(); ++i)
        if (found->second->words[i] != segment[i].words) return nullptr;
    return found->second;
}

void Graphs::run(const Kept& kept, CUstream stream, CUresult* result) {
    *result = Driver::get().cuGraphLaunch(kept.exec, stream);
    ++counts_->graph_launches;
    counts_->graph_kernels += kept.nodes.size();
}

bool Graphs::launch(const std::vector<Held>& segment, CUstream stream, CUresult* result) {
    if (segment.size() < kFewest) return false;
    uint64_t exactly = segment.size();
    for (const Held& held : segment) {
        exactly = mixed(mixed(exactly, held.id), reinterpret_cast<uint64_t>(held.function->handle));
        for (const Attribute& a : held.attributes) exactly = mixed(exactly, a);
        for (uint64_t word : held.words) exactly = mixed(exactly, word);
    }
    if (const Kept* kept = same(segment, exactly)) {
        run(*kept, stream, result);
        return true;
    }
    std::vector<Access> accesses;
    for (const Held& held : segment) accesses.push_back(held.access);
    const std::vector<std::vector<int>> after = dependencies(accesses);
    uint64_t key = segment.size();
    for (size_t i = 0; i < segment.size(); ++i) {
        const Held& held = segment[i];
        key = mixed(key, reinterpret_cast<uint64_t>(held.function->handle));
        const Shape& s = held.launch.shape;
        for (unsigned value : {s.grid[0], s.grid[1], s.grid[2], s.block[0], s.block[1], s.block[2], s.shared_bytes})
            key = mixed(key, uint64_t{value});
        for (const Attribute& a : held.attributes) key = mixed(key, a);
        for (int parent : after[i]) key = mixed(key, static_cast<uint64_t>(parent) + 1);
        key = mixed(key, uint64_t{after[i].size()});
    }
    Kept& kept = kept_[key];
    if (kept.refused || ++kept.seen < kSeenBefore) return false;
    if (kept.exec == nullptr) {
        if (kept_.size() > kMostGraphs || !build(segment, after, &kept)) {
            kept.refused = true;
            return false;
        }
        ++counts_->graphs;
    } else if (!update(segment, &kept)) {
        kept.refused = true;
        return false;
    }
    if (exact_.size() >= kMostExact) exact_.clear();
    exact_[exactly] = &kept;
    run(kept, stream, result);
    return true;
}

void Graphs::forget() {
    for (auto& [key, kept] : kept_) {
        if (kept.exec != nullptr) Driver::get().cuGraphExecDestroy(kept.exec);
        if (kept.graph != nullptr) Driver::get().cuGraphDestroy(kept.graph);
    }
    kept_.clear();
    exact_.clear();
}

}  // namespace tileprof::acs
