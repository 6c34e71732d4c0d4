// The meaning of driver calls for the order of launches.
#pragma once

namespace tileprof::acs {

// `kIssued`: the call changes no order, but earlier launches must have been issued to the driver. `kShared`: the
// same, and from now on also for records on events.
enum class Meaning { kHarmless, kIssued, kShared, kOrdered, kCaptureBegins, kCaptureEnds, kUnloads };

Meaning meaning_of(const char* symbol);

// Returns whether a call reports errors of earlier launches.
bool reports_errors(const char* symbol);

}  // namespace tileprof::acs
