// The files of a recording: events as JSON lines in issue order, entries as raw bytes, complaints as events that the
// reader turns into notes of the trace. The recorded program owns stdout and stderr.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <string>

namespace tileprof {

class Log {
  public:
    // Files events.jsonl and entries.bin in `folder`, which is made.
    bool open(const std::string& folder);
    // One event; `format` makes the inside of a JSON object.
    void event(const char* format, ...) __attribute__((format(printf, 2, 3)));
    void entries(const void* bytes, size_t count);
    // Another file of the same folder, whole.
    void file(const std::string& name, const void* bytes, size_t count);
    void flush();
    void close();
    // In a forked child, whose files these are not.
    void forget() { events_ = entries_ = nullptr; }
    const std::string& folder() const { return folder_; }

  private:
    void no_more_entries();

    std::string folder_;
    void* events_ = nullptr;
    void* entries_ = nullptr;
};

// Never destroyed: the driver calls back while the process ends, after the destructors of this library.
extern Log& log_;

void complain(const char* format, ...) __attribute__((format(printf, 1, 2)));

// A string as JSON, with its quotes.
std::string quoted(const char* text);

// Since 1970: what PyTorch's allocator stamps its history with.
uint64_t now_ns();

}  // namespace tileprof
