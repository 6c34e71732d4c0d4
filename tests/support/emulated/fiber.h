// Stacks that are switched by assembly code.
#pragma once

#include <cstdint>

#if defined(__x86_64__)

struct Context {
    void* stack;
};

extern "C" void switch_stack(void** from, void* to);
asm(R"(
.text
switch_stack:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

inline void make_context(Context& context, unsigned char* stack, std::uint64_t bytes, void (*entry)()) {
    auto* top = reinterpret_cast<void**>(stack + bytes) - 8;  // six registers, the entry, and alignment
    top[6] = reinterpret_cast<void*>(entry);
    context.stack = top;
}

inline void switch_context(Context& from, Context& to) { switch_stack(&from.stack, to.stack); }

#else

#include <ucontext.h>

using Context = ucontext_t;

inline void make_context(Context& context, unsigned char* stack, std::uint64_t bytes, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = bytes;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
}

inline void switch_context(Context& from, Context& to) { swapcontext(&from, &to); }

#endif
