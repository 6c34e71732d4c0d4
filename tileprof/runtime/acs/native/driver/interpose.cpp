// Interception of the program's calls. The library is preloaded. It replaces the launching functions of the driver
// under their own names, in the results of dlsym, and in the results of cuGetProcAddress, from which the CUDA runtime
// and the libraries above it get their functions. Every other driver function that may change or observe an order is
// replaced by a trampoline that notifies the engine and then jumps to the function with all arguments unchanged.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mutex>
#include <string>

#include "engine.h"

#if !defined(__x86_64__)
#error "trampolines are written for x86-64"
#endif

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace tileprof::acs {

namespace {

using DlsymFunction = void* (*)(void*, const char*);

DlsymFunction find_dlsym() {
    for (const char* version : {"GLIBC_2.34", "GLIBC_2.2.5"})
        if (void* function = dlvsym(RTLD_NEXT, "dlsym", version)) return reinterpret_cast<DlsymFunction>(function);
    abort();  // not a C library for which this was written
}

DlsymFunction dlsym_below() {
    static DlsymFunction function = find_dlsym();
    return function;
}

void* driver_library() {
    static void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    return library;
}

constexpr int kMostSlots = 1024;

// A driver function that has a trampoline.
struct Slot {
    void* real = nullptr;
    char symbol[64] = "";
    Meaning meaning = Meaning::kOrdered;
};

// Functions that programs linked with libcuda call under their own names.
// clang-format off: it indents each line further
#define TILEPROF_ACS_DIRECT(X)                                                                           \
    X(cuCtxDestroy_v2) X(cuCtxSynchronize) X(cuDevicePrimaryCtxRelease_v2) X(cuDevicePrimaryCtxReset_v2) \
    X(cuGraphLaunch) X(cuGraphUpload)                         \
    X(cuLaunchCooperativeKernel) X(cuLaunchHostFunc) X(cuLibraryUnload) X(cuMemAllocAsync)               \
    X(cuMemAllocFromPoolAsync) X(cuMemFree_v2) X(cuMemFreeAsync) X(cuMemFreeHost) X(cuMemHostUnregister) \
    X(cuMemPoolDestroy) X(cuMemPrefetchAsync) X(cuMemRelease) X(cuMemUnmap) X(cuMemcpy)                  \
    X(cuMemcpy2DAsync_v2) X(cuMemcpy2DUnaligned_v2) X(cuMemcpy2D_v2) X(cuMemcpy3DAsync_v2)               \
    X(cuMemcpy3D_v2) X(cuMemcpy3DPeer) X(cuMemcpy3DPeerAsync) X(cuMemcpyAsync) X(cuMemcpyAtoD_v2)        \
    X(cuMemcpyAtoH_v2) X(cuMemcpyDtoA_v2) X(cuMemcpyDtoD_v2) X(cuMemcpyDtoHAsync_v2) X(cuMemcpyDtoH_v2)  \
    X(cuMemcpyHtoA_v2) X(cuMemcpyHtoDAsync_v2) X(cuMemcpyHtoD_v2) X(cuMemcpyPeer) X(cuMemcpyPeerAsync)   \
    X(cuMemsetD16_v2) X(cuMemsetD2D16Async) X(cuMemsetD2D16_v2) X(cuMemsetD2D32Async)                    \
    X(cuMemsetD2D32_v2) X(cuMemsetD2D8Async) X(cuMemsetD2D8_v2) X(cuMemsetD32_v2) X(cuMemsetD8_v2)       \
    X(cuModuleUnload) X(cuStreamAddCallback) X(cuStreamAttachMemAsync) X(cuStreamBatchMemOp_v2)          \
    X(cuStreamBeginCapture_v2) X(cuStreamBeginCaptureToGraph) X(cuStreamDestroy_v2)                      \
    X(cuStreamEndCapture) X(cuStreamQuery) X(cuStreamSynchronize) X(cuStreamUpdateCaptureDependencies)   \
    X(cuStreamWaitValue32_v2) X(cuStreamWaitValue64_v2) X(cuStreamWriteValue32_v2)  \
    X(cuStreamWriteValue64_v2) X(cuEventDestroy_v2) X(cuEventElapsedTime) X(cuEventElapsedTime_v2)       \
    X(cuEventQuery) X(cuEventSynchronize) X(cuFuncSetCacheConfig) X(cuFuncSetSharedMemConfig)            \
    X(cuCtxSetCacheConfig) X(cuCtxSetLimit) X(cuCtxSetSharedMemConfig) X(cuKernelSetCacheConfig)         \
    X(cuProfilerStart) X(cuProfilerStop) X(cuStreamSetAttribute) X(cuIpcGetEventHandle)
// clang-format on

#define X(name) {nullptr, #name, meaning_of(#name)},
Slot slots[kMostSlots] = {TILEPROF_ACS_DIRECT(X)};  // these first, looked up in the driver at their first call
#undef X
#define X(name) +1
int slot_count = 0 TILEPROF_ACS_DIRECT(X);
#undef X
std::mutex slots_mutex;

}  // namespace

void* real_dlsym(void* handle, const char* name) { return dlsym_below()(handle, name); }

void* driver_symbol(const char* name) {
    void* library = driver_library();
    return library == nullptr ? nullptr : real_dlsym(library, name);
}

const Driver& Driver::get() {
    static const Driver* instance = [] {
        auto* driver = new Driver;
#define X(name, arguments)                                                         \
    driver->name = reinterpret_cast<decltype(driver->name)>(driver_symbol(#name)); \
    if (driver->name == nullptr && driver->missing == nullptr) driver->missing = #name;
        TILEPROF_ACS_DRIVER(X)
#undef X
        return driver;
    }();
    return *instance;
}

namespace {

// Whether launches are intercepted. Calls that this thread makes during the initialisation pass through.
bool ready() {
    thread_local bool initialising = false;
    if (initialising) return false;
    initialising = true;
    static const bool active = [] {
        std::string problem = engine().start();
        if (problem.empty() && engine().on() && Driver::get().missing != nullptr)
            problem = std::string("libcuda.so.1 has no symbol ") + Driver::get().missing +
                      ": CUDA 12.4 is the first that has all";
        if (problem.empty()) {
            if (engine().on()) atexit([] { engine().finish(); });
            return engine().on();
        }
        fprintf(stderr, "tileprof: the program runs in stream order: %s\n", problem.c_str());
        return false;
    }();
    initialising = false;
    return active;
}

CUstream resolved(CUstream stream, bool per_thread) {
    if (stream != nullptr) return stream;
    return per_thread ? per_thread_stream() : legacy_stream();
}

CUresult launch_kernel(bool per_thread, CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                       unsigned bz, unsigned shared, CUstream stream, void** parameters, void** extra) {
    stream = resolved(stream, per_thread);
    if (!ready()) return Driver::get().cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra);
    return engine().launch({f, {{gx, gy, gz}, {bx, by, bz}, shared}, stream, nullptr, 0, parameters, extra, false});
}

CUresult launch_extended(bool per_thread, const LaunchConfig* config, CUfunction f, void** parameters, void** extra) {
    if (config == nullptr || !ready()) return Driver::get().cuLaunchKernelEx(config, f, parameters, extra);
    Launch launch{
        f,     {},  resolved(config->stream, per_thread), config->attributes, config->attribute_count, parameters,
        extra, true};
    memcpy(&launch.shape, config, sizeof launch.shape);
    static_assert(sizeof(Shape) == 28, "as the beginning of CUlaunchConfig");
    return engine().launch(launch);
}

}  // namespace

}  // namespace tileprof::acs

using namespace tileprof::acs;

EXPORT CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                               unsigned bz, unsigned shared, CUstream stream, void** parameters, void** extra) {
    return launch_kernel(false, f, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra);
}
EXPORT CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                    unsigned bz, unsigned shared, CUstream stream, void** parameters, void** extra) {
    return launch_kernel(true, f, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra);
}
EXPORT CUresult cuLaunchKernelEx(const LaunchConfig* config, CUfunction f, void** parameters, void** extra) {
    return launch_extended(false, config, f, parameters, extra);
}
EXPORT CUresult cuLaunchKernelEx_ptsz(const LaunchConfig* config, CUfunction f, void** parameters, void** extra) {
    return launch_extended(true, config, f, parameters, extra);
}

namespace {

CUresult move(Move::Kind kind, CUdeviceptr to, CUdeviceptr from, unsigned value, size_t count, CUstream stream,
              bool per_thread) {
    const Move call{kind, to, from, value, count, resolved(stream, per_thread)};
    const Work work = work_of(call);
    return ready() ? engine().move(call) : work.make(work.what, call.stream);
}

}  // namespace

#define MOVES(suffix, per_thread)                                                                                   \
    EXPORT CUresult cuMemsetD8Async##suffix(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {   \
        return move(Move::kFill8, to, 0, value, count, stream, per_thread);                                         \
    }                                                                                                               \
    EXPORT CUresult cuMemsetD16Async##suffix(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) { \
        return move(Move::kFill16, to, 0, value, count, stream, per_thread);                                        \
    }                                                                                                               \
    EXPORT CUresult cuMemsetD32Async##suffix(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {       \
        return move(Move::kFill32, to, 0, value, count, stream, per_thread);                                        \
    }                                                                                                               \
    EXPORT CUresult cuMemcpyDtoDAsync_v2##suffix(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) { \
        return move(Move::kCopy, to, from, 0, bytes, stream, per_thread);                                           \
    }
MOVES(, false)
MOVES(_ptsz, true)
#undef MOVES

namespace {

CUresult not_supported() { return 801; }

CUresult record(CUevent event, CUstream stream, unsigned flags, bool per_thread) {
    const Mark mark{Mark::kRecord, event, resolved(stream, per_thread)};
    if (flags == 0) return ready() ? engine().mark(mark, make) : make(mark);
    static auto* real =
        reinterpret_cast<CUresult (*)(CUevent, CUstream, unsigned)>(driver_symbol("cuEventRecordWithFlags"));
    if (real == nullptr) return not_supported();
    if (ready()) engine().before("cuEventRecordWithFlags", Meaning::kOrdered);
    return real(event, mark.stream, flags);
}

CUresult wait(CUstream stream, CUevent event, unsigned flags, bool per_thread) {
    const Mark mark{Mark::kWait, event, resolved(stream, per_thread)};
    if (flags == 0) return ready() ? engine().mark(mark, make) : make(mark);
    if (ready()) engine().before("cuStreamWaitEvent", Meaning::kOrdered);
    return Driver::get().cuStreamWaitEvent(mark.stream, event, flags);
}

CUresult set_attribute(const void* function, int attribute, int value) {
    return Driver::get().cuFuncSetAttribute(static_cast<CUfunction>(const_cast<void*>(function)), attribute, value);
}
}  // namespace

#define MARKS(suffix, per_thread)                                                                    \
    EXPORT CUresult cuEventRecord##suffix(CUevent event, CUstream stream) {                          \
        return record(event, stream, 0, per_thread);                                                 \
    }                                                                                                \
    EXPORT CUresult cuEventRecordWithFlags##suffix(CUevent event, CUstream stream, unsigned flags) { \
        return record(event, stream, flags, per_thread);                                             \
    }                                                                                                \
    EXPORT CUresult cuStreamWaitEvent##suffix(CUstream stream, CUevent event, unsigned flags) {      \
        return wait(stream, event, flags, per_thread);                                               \
    }
MARKS(, false)
MARKS(_ptsz, true)
#undef MARKS

EXPORT CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value) {
    return ready() ? engine().set_attribute(function, attribute, value, set_attribute)
                   : set_attribute(function, attribute, value);
}

EXPORT CUresult cuKernelSetAttribute(int attribute, int value, CUkernel kernel, int device) {
    CUfunction function = nullptr;
    if (ready() && device == 0 && Driver::get().cuKernelGetFunction(&function, kernel) == kSuccess)
        return engine().set_attribute(function, attribute, value, set_attribute);
    if (ready()) engine().before("cuKernelSetAttribute", Meaning::kIssued);
    return Driver::get().cuKernelSetAttribute(attribute, value, kernel, device);
}

EXPORT CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
    static auto* real =
        reinterpret_cast<CUresult (*)(CUkernel*, CUlibrary, const char*)>(driver_symbol("cuLibraryGetKernel"));
    CUresult result = real(kernel, library, name);
    if (result == kSuccess && ready()) engine().note_kernel(*kernel);
    return result;
}

EXPORT CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned count, CUlibrary library) {
    static auto* real =
        reinterpret_cast<CUresult (*)(CUkernel*, unsigned, CUlibrary)>(driver_symbol("cuLibraryEnumerateKernels"));
    CUresult result = real(kernels, count, library);
    if (result == kSuccess && ready())
        for (unsigned i = 0; i < count; ++i) engine().note_kernel(kernels[i]);
    return result;
}

// ---- trampolines: they preserve everything and make one call in between

namespace {

// Returned instead of the call: the error of an earlier launch.
thread_local CUresult earlier_error = kSuccess;
CUresult return_earlier_error() { return earlier_error; }

}  // namespace

extern "C" __attribute__((visibility("hidden"), used)) void* tileprof_acs_before(uint64_t number) {
    Slot& slot = slots[number];
    if (slot.real == nullptr) slot.real = driver_symbol(slot.symbol);
    if (slot.real == nullptr)
        // the program was linked against a newer driver than the one that runs it
        return reinterpret_cast<void*>(not_supported);
    if (ready() && (earlier_error = engine().before(slot.symbol, slot.meaning)) != kSuccess)
        return reinterpret_cast<void*>(return_earlier_error);
    return slot.real;
}

asm(R"(
    .pushsection .text
    .balign 16
    .type tileprof_acs_common, @function
tileprof_acs_common:
    pushq %rdi
    pushq %rsi
    pushq %rdx
    pushq %rcx
    pushq %r8
    pushq %r9
    pushq %rax
    subq $136, %rsp
    movups %xmm0, 0(%rsp)
    movups %xmm1, 16(%rsp)
    movups %xmm2, 32(%rsp)
    movups %xmm3, 48(%rsp)
    movups %xmm4, 64(%rsp)
    movups %xmm5, 80(%rsp)
    movups %xmm6, 96(%rsp)
    movups %xmm7, 112(%rsp)
    movq 192(%rsp), %rdi
    call tileprof_acs_before
    movq %rax, %r11
    movups 0(%rsp), %xmm0
    movups 16(%rsp), %xmm1
    movups 32(%rsp), %xmm2
    movups 48(%rsp), %xmm3
    movups 64(%rsp), %xmm4
    movups 80(%rsp), %xmm5
    movups 96(%rsp), %xmm6
    movups 112(%rsp), %xmm7
    addq $136, %rsp
    popq %rax
    popq %r9
    popq %r8
    popq %rcx
    popq %rdx
    popq %rsi
    popq %rdi
    addq $8, %rsp
    jmp *%r11
    .size tileprof_acs_common, . - tileprof_acs_common

    .balign 16
    .globl tileprof_acs_trampolines
    .hidden tileprof_acs_trampolines
    .type tileprof_acs_trampolines, @object
tileprof_acs_trampolines:
    .set number, 0
    .rept 1024
    .balign 16
    pushq $number
    jmp tileprof_acs_common
    .set number, number + 1
    .endr
    .popsection
)");
extern "C" char tileprof_acs_trampolines[];

asm(".set direct, 0");
#define X(name)                                                                    \
    asm(".pushsection .text\n.globl " #name "\n.type " #name ", @function\n" #name \
        ":\n"                                                                      \
        "pushq $direct\njmp tileprof_acs_common\n.set direct, direct + 1\n.popsection\n");
TILEPROF_ACS_DIRECT(X)
#undef X

namespace {

void* trampoline(int number) { return tileprof_acs_trampolines + 16 * number; }

// Returns a trampoline for a driver function, or the function itself if there are no more trampolines.
void* before_real(const char* symbol, void* real, Meaning meaning) {
    std::lock_guard<std::mutex> lock(slots_mutex);
    for (int i = 0; i < slot_count; ++i)
        if (slots[i].real == real) return trampoline(i);
    if (slot_count == kMostSlots) return real;
    Slot& slot = slots[slot_count];
    slot.real = real;
    snprintf(slot.symbol, sizeof slot.symbol, "%s", symbol);
    slot.meaning = meaning;
    return trampoline(slot_count++);
}

using GetProcAddress1 = CUresult (*)(const char*, void**, int, uint64_t);
using GetProcAddress2 = CUresult (*)(const char*, void**, int, uint64_t, int*);
constexpr uint64_t kPerThread = 2;  // CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM

CUresult proc_address_1(const char* symbol, void** function, int version, uint64_t flags);
CUresult proc_address_2(const char* symbol, void** function, int version, uint64_t flags, int* status);

bool is(const char* a, const char* b) { return strcmp(a, b) == 0; }

// Returns what the program gets instead of a driver function.
void* replacement_of(const char* symbol, void* real, bool per_thread, int version) {
    if (is(symbol, "cuGetProcAddress"))
        return version >= 12000 ? reinterpret_cast<void*>(proc_address_2) : reinterpret_cast<void*>(proc_address_1);
    if (is(symbol, "cuGetProcAddress_v2")) return reinterpret_cast<void*>(proc_address_2);
    if (is(symbol, "cuLaunchKernel")) return reinterpret_cast<void*>(per_thread ? cuLaunchKernel_ptsz : cuLaunchKernel);
    if (is(symbol, "cuLaunchKernel_ptsz")) return reinterpret_cast<void*>(cuLaunchKernel_ptsz);
    if (is(symbol, "cuLaunchKernelEx"))
        return reinterpret_cast<void*>(per_thread ? cuLaunchKernelEx_ptsz : cuLaunchKernelEx);
    if (is(symbol, "cuLaunchKernelEx_ptsz")) return reinterpret_cast<void*>(cuLaunchKernelEx_ptsz);
    if (is(symbol, "cuFuncSetAttribute")) return reinterpret_cast<void*>(cuFuncSetAttribute);
    if (is(symbol, "cuKernelSetAttribute")) return reinterpret_cast<void*>(cuKernelSetAttribute);
    if (is(symbol, "cuLibraryGetKernel")) return reinterpret_cast<void*>(cuLibraryGetKernel);
    if (is(symbol, "cuLibraryEnumerateKernels")) return reinterpret_cast<void*>(cuLibraryEnumerateKernels);
#define REPLACE(name, function)                                                                    \
    if (is(symbol, name)) return reinterpret_cast<void*>(per_thread ? function##_ptsz : function); \
    if (is(symbol, name "_ptsz")) return reinterpret_cast<void*>(function##_ptsz);
    REPLACE("cuMemsetD8Async", cuMemsetD8Async)
    REPLACE("cuMemsetD16Async", cuMemsetD16Async)
    REPLACE("cuMemsetD32Async", cuMemsetD32Async)
    REPLACE("cuMemcpyDtoDAsync_v2", cuMemcpyDtoDAsync_v2)
    REPLACE("cuEventRecord", cuEventRecord)
    REPLACE("cuEventRecordWithFlags", cuEventRecordWithFlags)
    REPLACE("cuStreamWaitEvent", cuStreamWaitEvent)
#undef REPLACE
    // Before version 2 addresses had 32 bits.
    if (is(symbol, "cuMemcpyDtoDAsync") && version >= 3020)
        return reinterpret_cast<void*>(per_thread ? cuMemcpyDtoDAsync_v2_ptsz : cuMemcpyDtoDAsync_v2);
    const Meaning meaning = meaning_of(symbol);
    return meaning == Meaning::kHarmless ? real : before_real(symbol, real, meaning);
}

CUresult proc_address_1(const char* symbol, void** function, int version, uint64_t flags) {
    static auto* real = reinterpret_cast<GetProcAddress1>(driver_symbol("cuGetProcAddress"));
    CUresult result = real(symbol, function, version, flags);
    if (result == 0 && function != nullptr && *function != nullptr && ready())
        *function = replacement_of(symbol, *function, (flags & kPerThread) != 0, version);
    return result;
}

CUresult proc_address_2(const char* symbol, void** function, int version, uint64_t flags, int* status) {
    static auto* real = reinterpret_cast<GetProcAddress2>(driver_symbol("cuGetProcAddress_v2"));
    CUresult result = real(symbol, function, version, flags, status);
    if (result == 0 && function != nullptr && *function != nullptr && ready())
        *function = replacement_of(symbol, *function, (flags & kPerThread) != 0, version);
    return result;
}

// Tools that run beside the program: their launches are not intercepted.
bool is_tool(void* caller) {
    Dl_info info{};
    if (dladdr(caller, &info) == 0 || info.dli_fname == nullptr) return false;
    for (const char* name : {"/libtileprof.so", "libsanitizer", "libcupti", "libnvperf", "libcuda.so"})
        if (strstr(info.dli_fname, name) != nullptr) return true;
    return false;
}

bool of_driver(void* function) {
    Dl_info info{};
    return dladdr(function, &info) != 0 && info.dli_fname != nullptr && strstr(info.dli_fname, "libcuda.so") != nullptr;
}

void* replacement_for(void* handle, const char* name, void* caller) {
    if (name == nullptr || name[0] != 'c' || name[1] != 'u' || name[2] < 'A' || name[2] > 'Z') return nullptr;
    if (handle == RTLD_NEXT || is_tool(caller) || !ready()) return nullptr;
    void* real = real_dlsym(handle, name);
    if (real == nullptr || !of_driver(real)) return nullptr;
    return replacement_of(name, real, false, 0);
}

}  // namespace

EXPORT CUresult cuGetProcAddress(const char* symbol, void** function, int version, uint64_t flags) {
    return proc_address_1(symbol, function, version, flags);
}
EXPORT CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, uint64_t flags, int* status) {
    return proc_address_2(symbol, function, version, flags, status);
}

// The last call is a jump, so that the callee sees the program as its caller, on which RTLD_NEXT depends.
EXPORT __attribute__((optimize("O2"), noinline)) void* dlsym(void* handle, const char* name) noexcept {
    if (void* function = replacement_for(handle, name, __builtin_return_address(0))) return function;
    return dlsym_below()(handle, name);
}
