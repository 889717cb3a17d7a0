// SPDX-License-Identifier: Apache-2.0
// How an uncaught exception ends the process.
#pragma once

#include "accelerate/process.h"

namespace accelerate {

/// After this call, an uncaught exception ends the process with one line that
/// names the rank, and with exit code 1. Without it, the process ends with a
/// signal, which a launcher cannot distinguish from a crash. No effect if the
/// program has its own terminate handler.
void report_uncaught_exceptions(const ProcessTopology& topology);

} // namespace accelerate
