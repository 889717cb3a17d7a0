// SPDX-License-Identifier: Apache-2.0
// The memory of devices over time, for the trace of a profile.
#pragma once

#include <filesystem>

namespace accelerate {

/// Adds counters to a trace that Kineto wrote: the bytes of each device at each
/// allocation, by the part of the step that allocated them. Throws
/// `SystemError`, and leaves no trace behind, where it is none of Kineto's or
/// cannot be written.
void add_memory_lines(const std::filesystem::path& trace);

} // namespace accelerate
