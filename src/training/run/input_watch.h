// SPDX-License-Identifier: Apache-2.0
// Detects that all ranks train on the same batches.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace accelerate {

/// Hashes the inputs of models in the first steps of a run. Ranks exchange the
/// hashes in a message that they send anyway.
class InputWatch {
 public:
  explicit InputWatch(bool is_alone) : is_over_(is_alone) {}

  bool is_over() const { return is_over_; }
  /// Adds an input of a forward pass in training to the hash.
  void note(const at::Tensor& input);
  /// The hash of the inputs since the last call. 0 if there were none.
  int64_t take();
  /// Compares the results of `take` on all ranks.
  void compare(std::span<const int64_t> hashes);
  /// Returns true once, if all ranks had the same inputs in each of the first
  /// steps, but different steps had different inputs. A batch that never
  /// changes is ignored.
  bool is_shared();

 private:
  bool is_over_;
  bool is_shared_ = false;
  uint64_t hash_ = 0;
  std::vector<int64_t> steps_;
};

} // namespace accelerate
