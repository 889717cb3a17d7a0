// SPDX-License-Identifier: Apache-2.0
// How the program ends, where no worker's exit code decides, and the one exit
// code of workers that means more than a failure.
#pragma once

namespace accelerate {

inline constexpr int kExitFailure = 1;
/// Wrong use, or nothing could be started.
inline constexpr int kExitUsage = 2;
/// A worker that was asked to stop, has saved, and wants to be started again:
/// it is, and it does not count as a failure. The launcher's own where SIGTERM
/// ended it and all its workers left so: whoever started it may start it again.
/// (EX_TEMPFAIL of sysexits.h.)
inline constexpr int kExitPreempted = 75;
/// By Ctrl-C at a question.
inline constexpr int kExitInterrupted = 130;

} // namespace accelerate
