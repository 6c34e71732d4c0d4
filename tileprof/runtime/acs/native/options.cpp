#include "options.h"

#include <stdio.h>

#include <fstream>
#include <sstream>

namespace tileprof::acs {

std::string Options::read(const char* path) {
    std::ifstream file(path);
    if (!file) return std::string("cannot read ") + path;
    std::string line;
    while (std::getline(file, line)) {
        std::istringstream in(line);
        std::string name, value;
        if (!(in >> name)) continue;
        std::getline(in >> std::ws, value);
        if (name == "mode") {
            if (value == "log")
                mode = Mode::kLog;
            else if (value == "streams")
                mode = Mode::kStreams;
            else if (value == "graph")
                mode = Mode::kGraph;
            else if (value == "check")
                mode = Mode::kCheck;
            else
                return "there is no mode " + value;
        } else if (name == "table") {
            table = value;
        } else if (name == "folder") {
            folder = value;
        } else {
            int64_t number = 0;
            if (!(std::istringstream(value) >> number) || number < 0) return name + " " + value + " is not a number";
            if (name == "lanes")
                lanes = static_cast<int>(number);
            else if (name == "threads")
                threads = static_cast<int>(number);
            else if (name == "workers")
                workers = static_cast<int>(number);
            else if (name == "window")
                window = static_cast<int>(number);
            else if (name == "segment")
                segment = static_cast<int>(number);
            else if (name == "orders")
                orders = static_cast<int>(number);
            else if (name == "rest")
                rest = static_cast<uint64_t>(number);
            else if (name == "delay_us")
                delay_us = static_cast<int>(number);
            else if (name == "seed")
                seed = static_cast<uint64_t>(number);
            else if (name == "memory_bytes")
                memory_bytes = static_cast<uint64_t>(number);
            else
                return "there is no option " + name;
        }
    }
    return "";
}

namespace {

std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (unsigned char c : text) {
        char escaped[8];
        if (c == '"' || c == '\\' || c < 0x20) {
            snprintf(escaped, sizeof escaped, "\\u%04x", c);
            out += escaped;
        } else {
            out += static_cast<char>(c);
        }
    }
    return out + "\"";
}

std::string object(const std::map<std::string, uint64_t>& values) {
    std::string out = "{";
    for (const auto& [name, value] : values)
        out += (out.size() > 1 ? "," : "") + quoted(name) + ":" + std::to_string(value);
    return out + "}";
}

}  // namespace

void Counts::write(const std::string& path) const {
    FILE* file = fopen(path.c_str(), "w");
    if (file == nullptr) return;
    std::map<std::string, uint64_t> plain{{"launches", launches},
                                          {"placed", placed},
                                          {"unknown", unknown},
                                          {"barriers", barriers},
                                          {"waits", waits},
                                          {"records", records},
                                          {"missed", missed},
                                          {"spread", spread},
                                          {"graphs", graphs},
                                          {"graph_launches", graph_launches},
                                          {"graph_kernels", graph_kernels},
                                          {"updated", updated},
                                          {"segments", segments},
                                          {"checked", checked},
                                          {"unchecked", unchecked},
                                          {"differing", differing},
                                          {"captured", captured},
                                          {"moves", moves},
                                          {"rested", rested},
                                          {"queued", queued},
                                          {"probed", probed},
                                          {"capture_at", capture_at}};
    std::map<std::string, uint64_t> by_lane;
    for (const auto& [lane, count] : lanes) by_lane[std::to_string(lane)] = count;
    std::string text = object(plain);
    text.pop_back();
    text += ",\"reasons\":" + object(reasons) + ",\"calls\":" + object(calls) +
            ",\"differences\":" + object(differences) + ",\"awaited_ns\":" + object(awaited_ns) +
            ",\"lanes\":" + object(by_lane) + ",\"unknown_at\":[";
    for (uint64_t at : unknown_at) text += (text.back() == '[' ? "" : ",") + std::to_string(at);
    text += "]}\n";
    fputs(text.c_str(), file);
    fclose(file);
}

}  // namespace tileprof::acs
