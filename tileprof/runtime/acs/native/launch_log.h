// The log of a program's launches, from which a footprint table is made: one line per launch, which is made
// unchanged.
#pragma once

#include <stdio.h>

#include <string>

#include "driver/launch.h"

namespace tileprof::acs {

class LaunchLog {
  public:
    // Creates a file of this process in `folder`; returns "" or an error.
    std::string open(const std::string& folder);
    bool is_open() const { return file_ != nullptr; }
    // Makes the launch and writes its line.
    CUresult launch(const Launch& launch, const Function& function);
    void flush() { fflush(file_); }

  private:
    FILE* file_ = nullptr;
    Parameters parameters_;
};

}  // namespace tileprof::acs
