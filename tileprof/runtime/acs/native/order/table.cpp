#include "order/table.h"

#include <string.h>

#include <fstream>
#include <sstream>

namespace tileprof::acs {

namespace {

constexpr size_t kMostBytes = 1 << 16;  // maximum bytes of parameters: the driver accepts 32,764

int digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

// Hex digits to bytes, padded with zeros to whole words.
bool words_of(const std::string& hex, std::vector<uint64_t>* out) {
    if (hex.size() % 2 != 0) return false;
    std::vector<unsigned char> bytes((hex.size() / 2 + 7) / 8 * 8);
    for (size_t i = 0; i < hex.size(); i += 2) {
        int high = digit(hex[i]), low = digit(hex[i + 1]);
        if (high < 0 || low < 0) return false;
        bytes[i / 2] = static_cast<unsigned char>(high << 4 | low);
    }
    out->resize(bytes.size() / 8);
    memcpy(out->data(), bytes.data(), bytes.size());
    return true;
}

uint64_t word_at(const uint64_t* parameters, uint32_t offset) {
    uint64_t word;
    memcpy(&word, reinterpret_cast<const char*>(parameters) + offset, sizeof word);
    return word;
}

}  // namespace

bool Shape::operator==(const Shape& other) const { return memcmp(this, &other, sizeof *this) == 0; }

bool Entry::matches(const uint64_t* parameters, size_t words) const {
    if (words != bytes.size()) return false;
    for (size_t i = 0; i < words; ++i)
        if (((parameters[i] ^ bytes[i]) & mask[i]) != 0) return false;
    for (const Distance& a : distances)
        if (static_cast<int64_t>(word_at(parameters, slots[a.other]) - word_at(parameters, slots[a.one])) !=
            a.difference)
            return false;
    for (const Null& n : nulls)
        if ((word_at(parameters, n.offset) == 0) != n.null) return false;
    for (size_t i = 0; i < slots.size(); ++i)
        if (!loose[i] && word_at(parameters, slots[i]) == 0) return false;
    return true;
}

void Entry::access(const uint64_t* parameters, Access* out) const {
    auto add = [&](const std::vector<TouchedRange>& from, std::vector<Range>* to) {
        for (const TouchedRange& t : from) {
            uint64_t base = word_at(parameters, slots[t.slot]);
            if (base == 0) continue;  // loose: the slot contains no pointer
            to->push_back({base + static_cast<uint64_t>(t.low), base + static_cast<uint64_t>(t.high)});
        }
    };
    add(reads, &out->reads);
    add(writes, &out->writes);
}

const Entry* KernelEntries::find(const Shape& shape, const uint64_t* parameters, size_t words) const {
    for (const Entry& entry : entries)
        if (entry.shape == shape && entry.matches(parameters, words)) return &entry;
    return nullptr;
}

const KernelEntries* Table::of(const char* symbol) const {
    auto entries = kernels_.find(symbol);
    return entries == kernels_.end() ? nullptr : &entries->second;
}

std::string Table::read(const std::string& path) {
    std::ifstream file(path);
    if (!file) return "cannot read " + path;
    std::string line;
    size_t number = 0;
    KernelEntries* kernel = nullptr;
    Entry* entry = nullptr;
    uint64_t next = 1;
    size_t parameter_bytes = 0;
    auto error = [&](const char* what) { return path + ", line " + std::to_string(number) + ": " + what; };
    while (std::getline(file, line)) {
        ++number;
        std::istringstream in(line);
        std::string word;
        if (!(in >> word)) continue;
        if (number == 1) {
            int version = 0;
            if (word != "tileprof-acs" || !(in >> version) || version != 1)
                return error("not a footprint table of version 1");
        } else if (word == "program") {
            std::getline(in >> std::ws, program_);
        } else if (word == "kernel") {
            if (!(in >> word)) return error("a kernel without a name");
            kernel = &kernels_[word];
            entry = nullptr;
        } else if (word == "entry") {
            if (kernel == nullptr) return error("an entry of no kernel");
            kernel->entries.emplace_back();
            entry = &kernel->entries.back();
            entry->id = next++;
            Shape& s = entry->shape;
            if (!(in >> s.grid[0] >> s.grid[1] >> s.grid[2] >> s.block[0] >> s.block[1] >> s.block[2] >>
                  s.shared_bytes >> parameter_bytes) ||
                parameter_bytes > kMostBytes)
                return error("an entry that is none");
            entry->bytes.assign((parameter_bytes + 7) / 8, 0);
            entry->mask = entry->bytes;
        } else if (entry == nullptr) {
            return error("a line outside of an entry");
        } else if (word == "bytes") {
            std::string bytes, mask;
            const size_t words = entry->bytes.size();
            if (!(in >> bytes >> mask) || !words_of(bytes, &entry->bytes) || !words_of(mask, &entry->mask) ||
                entry->bytes.size() != words || entry->mask.size() != words)
                return error("parameters of another size");
        } else if (word == "slot" || word == "null") {
            uint32_t offset = 0;
            int null = 0;
            if (!(in >> offset) || offset % 4 != 0 || offset + 8 > entry->bytes.size() * 8)
                return error("a slot outside of the parameters");
            if (word == "slot")
                entry->slots.push_back(offset), entry->loose.push_back(false);
            else if (in >> null)
                entry->nulls.push_back({offset, null != 0});
            else
                return error("a null without 0 or 1");
        } else if (word == "loose") {
            size_t slot = 0;
            if (!(in >> slot) || slot >= entry->slots.size()) return error("a slot that there is not");
            entry->loose[slot] = true;
        } else if (word == "apart") {
            Entry::Distance a{};
            if (!(in >> a.one >> a.other >> a.difference) || a.one >= entry->slots.size() ||
                a.other >= entry->slots.size())
                return error("slots that there are not");
            entry->distances.push_back(a);
        } else if (word == "read" || word == "write") {
            Entry::TouchedRange t{};
            if (!(in >> t.slot >> t.low >> t.high) || t.slot >= entry->slots.size() || t.low >= t.high)
                return error("a range that is none");
            (word == "read" ? entry->reads : entry->writes).push_back(t);
        } else {
            return error("a word that this version does not know");
        }
    }
    return number == 0 ? path + " is empty" : "";
}

}  // namespace tileprof::acs
