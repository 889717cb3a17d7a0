// SPDX-License-Identifier: Apache-2.0
// Exit codes of `accelerate` if no worker's exit code decides, and the exit
// code of workers that does not count as a failure.
#pragma once

namespace accelerate {

inline constexpr int kExitFailure = 1;
/// The command line is invalid, or nothing could be started.
inline constexpr int kExitUsage = 2;
/// A worker was asked to stop, has saved, and wants to be restarted. The
/// restart does not count as a failure. The launcher also exits with this code
/// if SIGTERM ended it, a worker exited with this code, and no worker failed.
/// The caller may then restart the launcher. (EX_TEMPFAIL of sysexits.h.)
inline constexpr int kExitPreempted = 75;
/// Ctrl-C at a prompt.
inline constexpr int kExitInterrupted = 130;

} // namespace accelerate
