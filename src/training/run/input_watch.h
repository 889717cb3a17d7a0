// SPDX-License-Identifier: Apache-2.0
// Detects that all ranks train on the same batches.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/internal.h"

namespace accelerate {

/// Hashes the inputs of models in the first steps of a run. Ranks exchange the
/// hashes in a message that they send anyway.
class ACCELERATE_INTERNAL InputWatch {
 public:
  explicit InputWatch(bool is_alone) : is_over_(is_alone) {}

  bool is_over() const { return is_over_; }
  /// An input of a forward in training.
  void note(const at::Tensor& input);
  /// The hash of the inputs since the last call; 0 if there were none.
  int64_t take();
  /// The results of `take` on each rank.
  void hear(std::span<const int64_t> hashes);
  /// True once, if the first steps were equal on all ranks but differed from
  /// each other (a batch that never changes proves nothing).
  bool is_shared();

 private:
  bool is_over_;
  bool is_shared_ = false;
  uint64_t hash_ = 0;
  std::vector<int64_t> steps_;
};

} // namespace accelerate
