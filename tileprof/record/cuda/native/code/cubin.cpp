#include "code/cubin.h"

#include <elf.h>
#include <string.h>

#include <algorithm>
#include <set>

namespace tileprof {

namespace {

// Operations of the 16-byte instructions of sm_70 and later: the low 9 bits; the next three bits give the kinds of
// the operands. The values were taken from machine code that ptxas makes for sm_90 from cp.async.bulk.tensor and
// cp.reduce.async.bulk.tensor, with and without multicast and im2col.
constexpr uint16_t kOpcodeMask = 0x1ff, kTensorLoad = 0x1b4, kTensorStore = 0x1b5, kTensorReduce = 0x1b6;
constexpr size_t kInstructionBytes = 16;
// The values are taken from what ptxas makes for sm_80 and sm_90: TEX 160, TLD4 163, TLD 166, TXD 16c, SULD 199, SUST
// 19d, SURED 19f. The last digits vary with the places of the operands; no other operation lies in between.
constexpr uint16_t kFirstTexture = 0x160, kLastTexture = 0x16d, kFirstSurface = 0x198, kFirstSurfaceStore = 0x19c,
                   kLastSurface = 0x19f;

constexpr char kText[] = ".text.", kRelocated[] = ".rel.text.", kRelocatedToo[] = ".rela.text.",
               kShared[] = ".nv.shared.", kInfo[] = ".nv.info", kConstants[] = ".nv.constant0.",
               kVariables[] = ".nv.constant3";

// Attributes of a module and of each kernel: records of format (4: with a size), name, size, value. The values of
// these: a symbol and the registers of a thread; a symbol, the offset and the size of the parameters.
constexpr uint8_t kSized = 4, kRegisters = 0x2f, kParameters = 0x0a;

void scan_code(const char* code, size_t bytes, KernelCode* kernel) {
    uint64_t hash = 0xcbf29ce484222325ull;
    for (size_t at = 0; at + kInstructionBytes <= bytes; at += kInstructionBytes) {
        uint64_t words[2];
        memcpy(words, code + at, sizeof words);
        hash = (hash ^ words[0]) * 0x100000001b3ull;
        hash = (hash ^ words[1] ^ hash >> 32) * 0x100000001b3ull;
        uint16_t opcode = words[0] & kOpcodeMask;
        kernel->tensor_load |= opcode == kTensorLoad;
        kernel->tensor_store |= opcode == kTensorStore;
        kernel->tensor_reduce |= opcode == kTensorReduce;
        kernel->texture |= (opcode >= kFirstTexture && opcode <= kLastTexture) ||
                           (opcode >= kFirstSurface && opcode < kFirstSurfaceStore);
        kernel->surface |= opcode >= kFirstSurfaceStore && opcode <= kLastSurface;
    }
    kernel->fingerprint = hash;
}

// Calls visit(attribute, two words of its value) for each attribute with at least as many.
template <typename Visit>
void scan_info(const char* info, size_t bytes, Visit visit) {
    for (size_t at = 0; at + 4 <= bytes;) {
        uint8_t format = static_cast<uint8_t>(info[at]), attribute = static_cast<uint8_t>(info[at + 1]);
        uint16_t size;
        memcpy(&size, info + at + 2, sizeof size);
        at += 4;
        if (format != kSized) continue;
        uint32_t value[2];
        if (size >= sizeof value && at + sizeof value <= bytes) {
            memcpy(value, info + at, sizeof value);
            visit(attribute, value);
        }
        at += size;
    }
}

// Adds offsets of the instructions that the entries of a relocation section change; one beyond all code if the section
// is not whole.
template <typename Relocation>
void add_relocated(const char* image, size_t bytes, const Elf64_Shdr& section, KernelCode* kernel) {
    if (section.sh_offset + section.sh_size > bytes) {
        kernel->relocated.push_back(UINT32_MAX);
        return;
    }
    for (size_t at = 0; at + sizeof(Relocation) <= section.sh_size; at += sizeof(Relocation)) {
        Relocation entry;
        memcpy(&entry, image + section.sh_offset + at, sizeof entry);
        kernel->relocated.push_back(static_cast<uint32_t>(entry.r_offset / kInstructionBytes * kInstructionBytes));
    }
}

// Names of the driver's functions that code needs if it launches kernels or graphs, as the linker of 13.0 writes
// them.
int launched_by(const char* symbol) {
    if (strcmp(symbol, "cudaGraphLaunch") == 0) return 2;
    return strncmp(symbol, "__cuda_syscall_cnp", 18) == 0 ? 1 : 0;
}

}  // namespace

void KernelCode::calls(const KernelCode& other) {
    fingerprint = (fingerprint ^ other.fingerprint) * 0x100000001b3ull;
    does(other);
}

void KernelCode::does(const KernelCode& other) {
    tensor_load |= other.tensor_load;
    tensor_store |= other.tensor_store;
    tensor_reduce |= other.tensor_reduce;
    texture |= other.texture;
    surface |= other.surface;
}

std::map<std::string, KernelCode> scan_cubin(const char* image, size_t bytes, bool all_text) {
    std::map<std::string, KernelCode> kernels;
    Elf64_Ehdr header;
    if (image == nullptr || bytes < sizeof header) return kernels;
    memcpy(&header, image, sizeof header);
    if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_shentsize != sizeof(Elf64_Shdr)) return kernels;
    if (header.e_shoff + static_cast<size_t>(header.e_shnum) * sizeof(Elf64_Shdr) > bytes) return kernels;
    auto section = [&](size_t i) {
        Elf64_Shdr s;
        memcpy(&s, image + header.e_shoff + i * sizeof s, sizeof s);
        return s;
    };
    Elf64_Shdr names = section(header.e_shstrndx), symbols{}, strings{}, info{};
    size_t variables = 0;           // the section of constant variables
    std::set<std::string> entries;  // kernels have parameters, functions that they call have not
    for (size_t i = 0; i < header.e_shnum; ++i) {
        Elf64_Shdr s = section(i);
        if (names.sh_offset + s.sh_name >= bytes) continue;
        const char* name = image + names.sh_offset + s.sh_name;
        if (strncmp(name, kText, sizeof kText - 1) == 0 && s.sh_offset + s.sh_size <= bytes) {
            KernelCode& kernel = kernels[name + sizeof kText - 1];
            scan_code(image + s.sh_offset, s.sh_size, &kernel);
            if (all_text || kernel.stores_through_maps())
                kernel.text = std::make_shared<const std::string>(image + s.sh_offset, s.sh_size);
        } else if (strncmp(name, kRelocated, sizeof kRelocated - 1) == 0) {
            add_relocated<Elf64_Rel>(image, bytes, s, &kernels[name + sizeof kRelocated - 1]);
        } else if (strncmp(name, kRelocatedToo, sizeof kRelocatedToo - 1) == 0) {
            add_relocated<Elf64_Rela>(image, bytes, s, &kernels[name + sizeof kRelocatedToo - 1]);
        } else if (strncmp(name, kConstants, sizeof kConstants - 1) == 0) {
            entries.insert(name + sizeof kConstants - 1);
        } else if (strcmp(name, kVariables) == 0) {
            variables = i;
        } else if (strncmp(name, kShared, sizeof kShared - 1) == 0) {
            kernels[name + sizeof kShared - 1].static_shared_bytes = static_cast<uint32_t>(s.sh_size);
        } else if (strncmp(name, kInfo, sizeof kInfo - 1) == 0 && name[sizeof kInfo - 1] == '.' &&
                   s.sh_offset + s.sh_size <= bytes) {
            KernelCode& kernel = kernels[name + sizeof kInfo];
            scan_info(image + s.sh_offset, s.sh_size, [&](uint8_t attribute, const uint32_t* value) {
                if (attribute != kParameters) return;
                kernel.parameter_offset = value[1] & 0xffff;
                kernel.parameter_bytes = value[1] >> 16;
            });
        } else if (strcmp(name, kInfo) == 0 && s.sh_offset + s.sh_size <= bytes) {
            info = s;
        } else if (s.sh_type == SHT_SYMTAB && s.sh_offset + s.sh_size <= bytes && s.sh_link < header.e_shnum) {
            symbols = s;
            strings = section(s.sh_link);
        }
    }
    const auto* symbol = reinterpret_cast<const Elf64_Sym*>(image + symbols.sh_offset);
    scan_info(image + info.sh_offset, info.sh_size, [&](uint8_t attribute, const uint32_t* value) {
        if (attribute == kRegisters && value[0] < symbols.sh_size / sizeof(Elf64_Sym))
            kernels[image + strings.sh_offset + symbol[value[0]].st_name].registers = value[1];
    });
    std::vector<std::string> constants;
    int launches = 0;
    for (size_t i = 0; i < symbols.sh_size / sizeof(Elf64_Sym); ++i) {
        const char* name = image + strings.sh_offset + symbol[i].st_name;
        launches = std::max(launches, launched_by(name));
        if (variables != 0 && symbol[i].st_shndx == variables && ELF64_ST_TYPE(symbol[i].st_info) == STT_OBJECT)
            constants.push_back(name);
    }
    // The call graph is not analysed: any kernel may call any function.
    for (const std::string& entry : entries) {
        auto kernel = kernels.find(entry);
        if (kernel == kernels.end()) continue;
        kernel->second.entry = true;
        kernel->second.constants = constants;
        kernel->second.launches = launches;
    }
    KernelCode functions;
    for (const auto& [name, code] : kernels)
        if (entries.count(name) == 0 && code.fingerprint != 0) functions.calls(code);
    if (functions.fingerprint != 0)
        for (const std::string& entry : entries)
            if (kernels.count(entry) != 0) kernels[entry].calls(functions);
    // A kernel that launches others accesses memory as they do. Which kernels it launches is not analysed.
    KernelCode any;
    for (const std::string& entry : entries)
        if (launches != 0 && kernels.count(entry) != 0) any.does(kernels[entry]);
    for (const std::string& entry : entries)
        if (kernels.count(entry) != 0) kernels[entry].does(any);
    return kernels;
}

}  // namespace tileprof
