// SPDX-License-Identifier: Apache-2.0
// Phases of a step as ranges for profilers.
#pragma once

#include <ATen/record_function.h>

#include <array>
#include <memory>

namespace accelerate {

inline constexpr const char* kRecordedForward = "accelerate::forward";
inline constexpr const char* kRecordedBackward = "accelerate::backward";
inline constexpr const char* kRecordedOptimizer = "accelerate::optimizer_step";
inline constexpr std::array<const char*, 3> kRecordedRanges = {
    kRecordedForward,
    kRecordedBackward,
    kRecordedOptimizer};

/// A profiler range during its lifetime. Null if no profiler is active. `name`
/// must be a string literal.
inline std::unique_ptr<at::RecordFunction> record_range(const char* name) {
  auto listeners = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
  if (!listeners) {
    return nullptr;
  }
  auto range = std::make_unique<at::RecordFunction>(std::move(*listeners));
  range->before(name);
  return range;
}

} // namespace accelerate
