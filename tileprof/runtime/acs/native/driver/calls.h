// What calls of the driver mean for the order of launches.
#pragma once

namespace tileprof::acs {

// `kIssued`: the call changes no order, but what was launched before it has to be with the driver. `kShared`: the same,
// and of records on events from now on.
enum class Meaning { kHarmless, kIssued, kShared, kOrdered, kCaptureBegins, kCaptureEnds, kUnloads };

Meaning meaning_of(const char* symbol);

// Whether a call reports errors of earlier launches.
bool reports_errors(const char* symbol);

}  // namespace tileprof::acs
