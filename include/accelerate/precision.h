// SPDX-License-Identifier: Apache-2.0
// Mixed precision: which number type operators compute in.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include "accelerate/export.h"
#include "accelerate/precision_name.h"

namespace accelerate {

/// While it lives, operators of this thread on devices of one kind choose their
/// precision as `torch.autocast` does; with `Precision::kNo`, they use the
/// types they are given, also inside of another guard. Guards nest; weights
/// that were cast are kept until the outermost guard goes.
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
