// SPDX-License-Identifier: Apache-2.0
// Exit codes of the program, unless a worker's decides, and the one code of
// workers that is more than a failure.
#pragma once

namespace accelerate {

inline constexpr int kExitFailure = 1;
/// Wrong use, or nothing could be started.
inline constexpr int kExitUsage = 2;
/// A worker that was asked to stop, has saved, and wants to be restarted, which
/// does not count as a failure. Also the launcher's own code if SIGTERM ended
/// it and all its workers exited this way: the caller may restart it.
/// (EX_TEMPFAIL of sysexits.h.)
inline constexpr int kExitPreempted = 75;
/// Ctrl-C at a prompt.
inline constexpr int kExitInterrupted = 130;

} // namespace accelerate
