// SPDX-License-Identifier: Apache-2.0
// Has training been lost to NaN for a while?
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "accelerate/export.h"

namespace accelerate {

/// Looks at the losses of one rank, one per backward. Never waits for a device:
/// of losses there it copies every fourth to the host, and looks at it when it
/// has arrived.
class ACCELERATE_API LossWatch {
 public:
  /// How many losses in a row are too many.
  static constexpr int64_t kPatience = 20;

  LossWatch();
  ~LossWatch();
  LossWatch(const LossWatch&) = delete;
  LossWatch& operator=(const LossWatch&) = delete;

  /// True once, when the last `kPatience` losses were all NaN or infinite.
  bool is_lost(const at::Tensor& loss);

 private:
  struct Copy;
  void count(double loss, int64_t num_losses);

  int64_t num_bad_ = 0;
  int64_t num_seen_ = 0;
  bool is_over_ = false;
  std::unique_ptr<Copy> copy_;
};

} // namespace accelerate
