// The files of a recording: events as JSON lines in issue order, entries as raw bytes, and complaints as events that
// the reader turns into notes of the trace. stdout and stderr belong to the recorded program.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace tileprof {

class Log {
  public:
    // Creates `folder` with the files events.jsonl and entries.bin.
    bool open(const std::string& folder);
    // Writes one event; `format` makes the inside of a JSON object.
    void event(const char* format, ...) __attribute__((format(printf, 2, 3)));
    void entries(const void* bytes, size_t count);
    // Appends the parameters of a launch to parameters.bin and returns their place there, or -1 if the disk takes no
    // more. Equal parameters have one place.
    int64_t parameters(const std::vector<char>& block);
    // Writes another file into the same folder.
    void file(const std::string& name, const void* bytes, size_t count);
    void flush();
    void close();
    // Called in a forked child, which must not write these files.
    void forget() { events_ = entries_ = parameters_ = nullptr; }
    const std::string& folder() const { return folder_; }

  private:
    void no_more_entries();

    std::string folder_;
    void* events_ = nullptr;
    void* entries_ = nullptr;
    void* parameters_ = nullptr;  // made when it is needed
    std::unordered_map<std::string, int64_t> parameter_places_;
    int64_t parameter_bytes_ = 0;  // -1: the disk took no more
};

// Never destroyed, because the driver makes callbacks at process exit, after the destructors of this library.
extern Log& log_;

void complain(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Returns a string as JSON, with its quotes.
std::string quoted(const char* text);

// Nanoseconds since 1970, the epoch of the microseconds with which PyTorch's allocator stamps its history.
uint64_t now_ns();

}  // namespace tileprof
