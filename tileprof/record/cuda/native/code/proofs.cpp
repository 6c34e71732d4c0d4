#include "code/proofs.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>

#include "driver/locks.h"
#include "log/log.h"

namespace tileprof {

namespace {

constexpr char kMagic[] = "TPP2";
constexpr uint32_t kArchitecture = 90;  // of the code that the server understands
constexpr size_t kMostCode = 256u << 10;
// What a pointer decides, beside the addresses behind it: these bits, and whether it may be null with what is added.
constexpr uint64_t kLowBits = 0xff, kHigh = 1ull << 40;

void append(std::string* out, const void* bytes, size_t count) { out->append(static_cast<const char*>(bytes), count); }

void append(std::string* out, uint32_t word) { append(out, &word, sizeof word); }

// Calls a function of the C library until it is not interrupted by a signal of the program, or the time is over. A call
// with a time limit is never continued by itself.
template <typename Call>
ssize_t uninterrupted(uint64_t end_ns, Call call) {
    ssize_t result;
    do {
        result = call();
    } while (result < 0 && errno == EINTR && clock_ns() < end_ns);
    return result;
}

bool send_all(int connection, const std::string& bytes, uint64_t end_ns) {
    for (size_t sent = 0; sent < bytes.size();) {
        ssize_t n = uninterrupted(
            end_ns, [&] { return send(connection, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL); });
        if (n <= 0) return false;
        sent += static_cast<size_t>(n);
    }
    return true;
}

bool receive_all(int connection, char* bytes, size_t count, uint64_t end_ns) {
    for (size_t received = 0; received < count;) {
        ssize_t n = uninterrupted(end_ns, [&] { return recv(connection, bytes + received, count - received, 0); });
        if (n <= 0) return false;
        received += static_cast<size_t>(n);
    }
    return true;
}

// The words of 4 bytes that have a bit in `used`; others are zero.
std::string masked(std::string words, const std::string& used) {
    for (size_t i = 0; i < words.size(); ++i)
        if ((used[i / 32] >> (i / 4 % 8) & 1) == 0) words[i] = 0;
    return words;
}

// Whether a pointer may be null with what is added to it.
uint32_t any_low(const std::vector<char>& parameters, const std::vector<bool>& pointers) {
    for (size_t i = 0; i < pointers.size() && 8 * i + 8 <= parameters.size(); ++i) {
        uint64_t address;
        memcpy(&address, parameters.data() + 8 * i, sizeof address);
        if (pointers[i] && address < kHigh) return 1;
    }
    return 0;
}

int connected(const std::string& path, uint64_t patience_ns) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) return -1;
    memcpy(address.sun_path, path.c_str(), path.size() + 1);
    int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connection < 0) return -1;
    timeval patience{static_cast<time_t>(patience_ns / (1000 * kMs)),
                     static_cast<suseconds_t>(patience_ns % (1000 * kMs) / 1000)};
    setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (uninterrupted(clock_ns() + patience_ns, [&] {
            return connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof address);
        }) == 0)
        return connection;
    close(connection);
    return -1;
}

}  // namespace

bool Proofs::proven(uint32_t kernel, const KernelCode& code, const Geometry& geometry,
                    const std::vector<char>& parameters, const std::vector<bool>& pointers) {
    if (silent_ || !code.text || code.text->size() > kMostCode || code.launches != 0) return false;
    std::string words(parameters.begin(), parameters.end()), bits((pointers.size() + 7) / 8, '\0');
    std::string launch = words;  // what a proof may depend on, and which words are pointers
    std::string tags(parameters.size(), '\0');
    for (size_t i = 0; i < pointers.size() && 8 * i + 8 <= words.size(); ++i) {
        if (!pointers[i]) continue;
        bits[i / 8] = static_cast<char>(bits[i / 8] | 1 << i % 8);
        uint64_t address;
        memcpy(&address, words.data() + 8 * i, sizeof address);
        address = (address & kLowBits) | (address >= kHigh ? kHigh : 0);
        memcpy(launch.data() + 8 * i, &address, sizeof address);
        tags.replace(8 * i, 8, 8, 1);
    }
    std::string kind;
    append(&kind, kernel);
    append(&kind, &geometry, sizeof geometry);
    append(&kind, any_low(parameters, pointers));
    for (const Such& such : such_[kind])
        if (such.words == masked(launch, such.used) && such.tags == masked(tags, such.used)) return true;

    std::string request(kMagic, 4);
    for (size_t word : {size_t{kArchitecture}, code.text->size(), code.relocated.size(), size_t{code.parameter_offset},
                        parameters.size()})
        append(&request, static_cast<uint32_t>(word));
    append(&request, &geometry, sizeof geometry);
    request += *code.text;
    append(&request, code.relocated.data(), code.relocated.size() * sizeof(uint32_t));
    request += words + bits;
    std::string used(((parameters.size() + 3) / 4 + 7) / 8, '\0');
    if (ask(request, &used) != kYes) return false;
    such_[kind].push_back({used, masked(launch, used), masked(tags, used)});
    return true;
}

char Proofs::ask(const std::string& request, std::string* used) {
    while (asking_) pause_without_holds();
    if (silent_) return kNo;
    asking_ = true;
    char answer = kNo;
    bool answered = false;
    {
        Unlock unlock;
        if (connection_ < 0) connection_ = connected(socket_, patience_ns_);
        uint64_t end_ns = clock_ns() + patience_ns_;
        answered = connection_ >= 0 && send_all(connection_, request, end_ns) &&
                   receive_all(connection_, &answer, 1, end_ns) &&
                   (answer != kYes || receive_all(connection_, used->data(), used->size(), end_ns));
    }
    asking_ = false;
    if (!answered) hang_up();
    return answered ? answer : static_cast<char>(kNo);
}

// Everything is patched from now on.
void Proofs::hang_up() {
    if (connection_ >= 0) close(connection_);
    connection_ = -1;
    silent_ = true;
    complain("nobody answered which kernels need no patches; all are patched from here on");
}

}  // namespace tileprof
