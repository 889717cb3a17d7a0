// SPDX-License-Identifier: Apache-2.0
// Device memory over time, for the trace of a profile.
#pragma once

#include <filesystem>

namespace accelerate {

/// Adds counters to a trace that Kineto wrote: the bytes of each device at each
/// allocation, by the part of the step that allocated them. If it is not one of
/// Kineto's or cannot be written, throws `SystemError` and removes the trace.
void add_memory_lines(const std::filesystem::path& trace);

} // namespace accelerate
