#include "log/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "log/events.h"

namespace tileprof {

namespace {

constexpr int kMostPrograms = 1000;  // programs that one process executes one after another

}  // namespace

Log& log_ = *new Log;

bool Log::open(const std::string& folder) {
    folder_ = folder;
    // A process that executes another program keeps its id: the files of the first program are kept, too.
    for (int n = 1; access((folder + "/events.jsonl").c_str(), F_OK) == 0 && n < kMostPrograms; ++n)
        rename(folder.c_str(), (folder + "-" + std::to_string(n)).c_str());
    mkdir(folder.c_str(), 0777);
    events_ = fopen((folder + "/events.jsonl").c_str(), "w");
    entries_ = fopen((folder + "/entries.bin").c_str(), "wb");
    return events_ != nullptr && entries_ != nullptr;
}

void Log::event(const char* format, ...) {
    if (events_ == nullptr) return;
    FILE* out = static_cast<FILE*>(events_);
    va_list arguments;
    va_start(arguments, format);
    flockfile(out);  // complaints are written without the recorder's mutex
    fputc('{', out);
    vfprintf(out, format, arguments);
    fputs("}\n", out);
    funlockfile(out);
    va_end(arguments);
}

void Log::entries(const void* bytes, size_t count) {
    if (entries_ == nullptr || count == 0) return;
    if (fwrite(bytes, 1, count, static_cast<FILE*>(entries_)) != count) no_more_entries();
}

// The file is then complete up to some drain, which the reader finds.
void Log::no_more_entries() {
    complain("the disk under %s took no more entries", folder_.c_str());
    fclose(static_cast<FILE*>(entries_));
    entries_ = nullptr;
}

int64_t Log::parameters(const std::vector<char>& block) {
    if (events_ == nullptr || parameter_bytes_ < 0) return -1;
    auto [place, fresh] = parameter_places_.try_emplace(std::string(block.begin(), block.end()), parameter_bytes_);
    if (!fresh) return place->second;
    if (parameters_ == nullptr) parameters_ = fopen((folder_ + "/parameters.bin").c_str(), "wb");
    FILE* out = static_cast<FILE*>(parameters_);
    if (out == nullptr || fwrite(block.data(), 1, block.size(), out) != block.size()) {
        complain("the disk under %s took no more parameters", folder_.c_str());
        parameter_places_.erase(place);
        return parameter_bytes_ = -1;
    }
    parameter_bytes_ += static_cast<int64_t>(block.size());
    return place->second;
}

void Log::file(const std::string& name, const void* bytes, size_t count) {
    FILE* out = fopen((folder_ + "/" + name).c_str(), "wb");
    if (out == nullptr) return complain("cannot write %s/%s", folder_.c_str(), name.c_str());
    fwrite(bytes, 1, count, out);
    fclose(out);
}

// Parameters first: an event that is read names a place that is in the file, or beyond its end.
void Log::flush() {
    if (parameters_ != nullptr) fflush(static_cast<FILE*>(parameters_));
    if (events_ != nullptr) fflush(static_cast<FILE*>(events_));
    if (entries_ != nullptr && fflush(static_cast<FILE*>(entries_)) != 0) no_more_entries();
}

void Log::close() {
    if (events_ != nullptr) fclose(static_cast<FILE*>(events_));
    if (entries_ != nullptr) fclose(static_cast<FILE*>(entries_));
    if (parameters_ != nullptr) fclose(static_cast<FILE*>(parameters_));
    events_ = entries_ = parameters_ = nullptr;
}

void complain(const char* format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    events::complaint(text);
}

std::string quoted(const char* text) {
    std::string out = "\"";
    for (const char* c = text; *c != 0; ++c) {
        unsigned char u = static_cast<unsigned char>(*c);
        if (u == '"' || u == '\\') {
            out += '\\';
            out += *c;
        } else if (u < 0x20) {
            char escape[8];
            snprintf(escape, sizeof escape, "\\u%04x", u);
            out += escape;
        } else {
            out += *c;
        }
    }
    return out + "\"";
}

uint64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return static_cast<uint64_t>(t.tv_sec) * 1000000000ull + static_cast<uint64_t>(t.tv_nsec);
}

}  // namespace tileprof
