// SPDX-License-Identifier: Apache-2.0
#include <ATen/autocast_mode.h>

#include "accelerate/training/precision.h"

namespace accelerate {

AutocastGuard::AutocastGuard(c10::DeviceType device, Precision precision)
    : device_(device),
      was_enabled_(at::autocast::is_autocast_enabled(device)),
      previous_type_(at::autocast::get_autocast_dtype(device)) {
  at::autocast::set_autocast_enabled(device, precision != Precision::kNo);
  if (precision != Precision::kNo) {
    at::autocast::set_autocast_dtype(
        device, precision == Precision::kBf16 ? at::kBFloat16 : at::kHalf);
  }
  at::autocast::increment_nesting();
}

AutocastGuard::~AutocastGuard() {
  // Clear the cache, because it holds casts of weights that the next step
  // changes.
  if (at::autocast::decrement_nesting() == 0) {
    at::autocast::clear_cache();
  }
  at::autocast::set_autocast_enabled(device_, was_enabled_);
  at::autocast::set_autocast_dtype(device_, previous_type_);
}

} // namespace accelerate
