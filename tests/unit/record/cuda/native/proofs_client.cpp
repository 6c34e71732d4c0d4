// Asks a server, as recorded programs do, which launches need no patches: arguments are the socket, the time limit in
// ms, the number of threads of which each asks all questions, and how often a signal interrupts them, in ms, or 0.
//
// A question is a line of stdin: kernel, what its code launches, code, offset of the parameters, bytes at which
// instructions are relocated, grid, block, cluster, parameters, words of them that are pointers. Lists are separated by
// commas, bytes are hexadecimal, "-" is empty. The answers are lines of stdout, and so are complaints.
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#include <iostream>
#include <mutex>
#include <sstream>
#include <thread>

#include "code/proofs.h"
#include "driver/locks.h"
#include "log/log.h"

namespace tileprof {

static std::recursive_mutex mutex;
static thread_local int holds = 0;

Lock::Lock() { mutex.lock(), ++holds; }
Lock::~Lock() { --holds, mutex.unlock(); }
Unlock::Unlock() : holds_(holds) {
    for (; holds > 0; --holds) mutex.unlock();
}
Unlock::~Unlock() {
    for (; holds < holds_; ++holds) mutex.lock();
}
void pause_without_holds() {
    Unlock unlock;
    nap(kMs / 10);
}

void complain(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
    fflush(stdout);
}

}  // namespace tileprof

using namespace tileprof;

struct Question {
    uint32_t kernel;
    KernelCode code;
    Geometry geometry;
    std::vector<char> parameters;
    std::vector<bool> pointers;
};

static std::vector<uint32_t> numbers(const std::string& text) {
    std::vector<uint32_t> out;
    std::istringstream in(text == "-" ? "" : text);
    for (std::string number; std::getline(in, number, ',');) out.push_back(std::stoul(number));
    return out;
}

static std::string bytes(const std::string& text) {
    std::string out;
    for (size_t i = 0; text != "-" && i < text.size(); i += 2)
        out += static_cast<char>(std::stoul(text.substr(i, 2), nullptr, 16));
    return out;
}

static Question question(const std::string& line) {
    Question q{};
    std::istringstream in(line);
    std::string text, relocated, geometry, parameters, pointers;
    in >> q.kernel >> q.code.launches >> text >> q.code.parameter_offset >> relocated >> geometry >> parameters >>
        pointers;
    if (text != "-") q.code.text = std::make_shared<const std::string>(bytes(text));
    q.code.relocated = numbers(relocated);
    std::vector<uint32_t> sizes = numbers(geometry);
    memcpy(&q.geometry, sizes.data(), sizeof q.geometry);
    std::string block = bytes(parameters);
    q.parameters.assign(block.begin(), block.end());
    q.pointers.resize((block.size() + 7) / 8);
    for (uint32_t word : numbers(pointers)) q.pointers[word] = true;
    return q;
}

int main(int, char** arguments) {
    std::string socket = arguments[1];
    Proofs proofs(socket, atoi(arguments[2]) * kMs);
    int count = atoi(arguments[3]), ms = atoi(arguments[4]);
    if (ms > 0) {
        struct sigaction action{};
        action.sa_handler = [](int) {};
        sigaction(SIGALRM, &action, nullptr);
        itimerval often{{0, 1000 * ms}, {0, 1000 * ms}};
        setitimer(ITIMER_REAL, &often, nullptr);
    }
    auto ask = [&](const Question& q) {
        Lock lock;
        bool proven = proofs.proven(q.kernel, q.code, q.geometry, q.parameters, q.pointers);
        printf("%d\n", proven);
        fflush(stdout);
    };
    std::vector<Question> questions;
    for (std::string line; std::getline(std::cin, line);) {
        questions.push_back(question(line));
        if (count == 1) ask(questions.back());
    }
    std::vector<std::thread> threads;
    for (int i = 0; count > 1 && i < count; ++i)
        threads.emplace_back([&] {
            for (const Question& q : questions) ask(q);
        });
    for (std::thread& thread : threads) thread.join();
}
