// SPDX-License-Identifier: Apache-2.0
// Lets code outside of a prepared model's forward read its parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/internal.h"
#include "training/parallel/lazy_storage.h"

namespace accelerate {

/// Reads the parameters of a model in its own methods, such as `generate`.
/// Exists while one such method runs. If parameters are sharded, all ranks must
/// call `run` and `is_on_any_rank` in the same order. Otherwise these do not
/// communicate.
class ACCELERATE_INTERNAL SharedReads {
 public:
  /// `operation` appears in messages ("generate").
  SharedReads(std::string operation, const std::vector<at::Tensor>& parameters);

  /// Whether parameters are sharded over ranks.
  bool are_spread() const { return are_spread_; }
  /// Whether this rank does the work of a single rank, such as writing files.
  bool is_main() const;
  /// `work` may read parameters: the same ones, in the same order, on all
  /// ranks. Records no graph.
  void run(const std::function<void()>& work) const;
  /// Whether `flag` is true on any of the ranks that read together. Throws
  /// `MismatchError` if ranks call different operations.
  bool is_on_any_rank(bool flag) const;

 private:
  std::string operation_;
  bool are_spread_ = false;
  /// Empty if parameters are not sharded, or their Accelerator is gone.
  std::optional<MemorySharers> sharers_;
};

} // namespace accelerate
