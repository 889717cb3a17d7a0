// SPDX-License-Identifier: Apache-2.0
// What the end of a process by an exception looks like.
#pragma once

#include "accelerate/process.h"

namespace accelerate {

/// From now on an exception that nobody catches ends the process with one line
/// that names the rank, and with exit code 1 instead of a signal, by which a
/// launcher could not tell it from a crash. Nothing where the program has a
/// terminate handler of its own.
void report_uncaught_exceptions(const ProcessTopology& topology);

} // namespace accelerate
