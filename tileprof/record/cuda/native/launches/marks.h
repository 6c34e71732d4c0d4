// Which operator and module each thread's launches belong to, as the hooks inside Python programs say.
#pragma once

namespace tileprof::marks {

// This thread's launches belong to an operator and a module from now on; "" for none.
void set(const char* op, const char* module);

// Writes the mark of this thread unless it is the last one in the log. Called before each event of work: marks of calls
// that launch nothing are not written, and launches of one thread do not get the names of another.
void write();

// Whether the last mark in the log is that of this thread's last call of `set`.
bool is_written();

}  // namespace tileprof::marks
