// SPDX-License-Identifier: Apache-2.0
// Detects that training has diverged to NaN.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace accelerate {

/// Checks the losses of one rank, one per backward. Never waits for a device:
/// copies every fourth loss to the host, and checks the copy after it has
/// arrived.
class LossWatch {
 public:
  /// The number of consecutive non-finite losses that means divergence.
  static constexpr int64_t kPatience = 20;

  LossWatch();
  ~LossWatch();
  LossWatch(const LossWatch&) = delete;
  LossWatch& operator=(const LossWatch&) = delete;

  /// Returns true once, when the last `kPatience` losses were all NaN or
  /// infinite.
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
