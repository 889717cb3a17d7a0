// SPDX-License-Identifier: Apache-2.0
// How the program ends, where no worker's exit code decides.
#pragma once

namespace accelerate {

inline constexpr int kExitFailure = 1;
/// Wrong use, or nothing could be started.
inline constexpr int kExitUsage = 2;
/// By Ctrl-C at a question.
inline constexpr int kExitInterrupted = 130;

} // namespace accelerate
