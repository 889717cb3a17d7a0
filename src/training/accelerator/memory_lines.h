// SPDX-License-Identifier: Apache-2.0
// Device memory over time, for the trace of a profile.
#pragma once

#include <filesystem>

namespace accelerate {

/// Adds counters to a trace that Kineto wrote: the bytes of each device at each
/// allocation, by the phase of the step that allocated them. Throws
/// `SystemError` and removes the trace if it is not a trace of Kineto or cannot
/// be written.
void add_memory_lines(const std::filesystem::path& trace);

} // namespace accelerate
