// For programs of these tests: calls that end them with a message, and functions of the driver.
#pragma once

#include <dlfcn.h>
#include <stdio.h>

// A function of the driver, so that nothing has to be linked. The names of cuda.h are macros for the present versions.
#define NAME(name) #name
#define DRIVER(name) reinterpret_cast<decltype(&name)>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), NAME(name)))
#define OK(call)                                                           \
    do {                                                                   \
        int result = static_cast<int>(call);                               \
        if (result != 0) return printf("%s gives %d\n", #call, result), 1; \
    } while (0)
