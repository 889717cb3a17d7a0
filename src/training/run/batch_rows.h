// SPDX-License-Identifier: Apache-2.0
// Decides which rows of the current batch are real, for metrics.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/distributed/collectives.h"
#include "core/base/internal.h"
#include "training/state/step_state.h"

namespace accelerate {

class ACCELERATE_INTERNAL BatchRows {
 public:
  BatchRows(ProcessGroup group, std::shared_ptr<const StepState> step_state)
      : group_(std::move(group)), step_state_(std::move(step_state)) {}

  /// The rows of all ranks without repeats (`gather_for_metrics`).
  std::vector<at::Tensor> gather_real(const detail::Leaves& leaves) const;
  /// Returns how many of `size` rows or objects are real. The real ones come
  /// first. `are_copies` means that all of them are copies of one value. See
  /// `BatchFacts`.
  int64_t num_real(int64_t size, bool are_copies = false) const;
  /// The message about `BatchFacts::mixes_repeats`, if it applies.
  std::optional<std::string> mixed_repeats(int64_t size) const;
  /// The real rows of a tensor. Equal rows of floating-point values are treated
  /// as copies of one value.
  at::Tensor real_rows(const at::Tensor& values) const;

 private:
  ProcessGroup group_;
  std::shared_ptr<const StepState> step_state_;
};

} // namespace accelerate
