// SPDX-License-Identifier: Apache-2.0
// Mixed precision: the dtype in which operators compute.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include "accelerate/export.h"
#include "accelerate/training/precision_name.h"

namespace accelerate {

/// While the guard exists, operators that this thread runs on devices of one
/// type choose their precision as in `torch.autocast`. With `Precision::kNo`,
/// they use the dtypes of their inputs, even inside another guard. Guards may
/// be nested. Cast weights are cached until the outermost guard is destroyed.
///
///     {
///       accelerate::AutocastGuard guard(
///           at::kCPU, accelerate::Precision::kBf16);
///       loss = net->forward(x);
///     }
///     loss.backward();
class ACCELERATE_API AutocastGuard {
 public:
  AutocastGuard(c10::DeviceType device, Precision precision);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  c10::DeviceType device_;
  bool was_enabled_;
  c10::ScalarType previous_type_;
};

} // namespace accelerate
