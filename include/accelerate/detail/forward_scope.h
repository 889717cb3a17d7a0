// SPDX-License-Identifier: Apache-2.0
// One forward of a prepared model, whatever language it is written in.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>

#include "accelerate/export.h"
#include "accelerate/precision.h"

namespace accelerate {

class ParallelEngine;
struct ModelContext;

namespace detail {

/// One forward of a prepared model: the seams of its engine and its precision
/// around the user's code.
class ACCELERATE_API ForwardScope {
 public:
  explicit ForwardScope(ModelContext& context);
  /// Abandons the forward where it was not finished.
  ~ForwardScope();
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;
  bool wants_outputs() const;
  /// May replace the tensors.
  void finish(std::span<at::Tensor* const> outputs);

 private:
  ModelContext& context_;
  std::optional<AutocastGuard> autocast_;
  bool is_finished_ = false;
};

ACCELERATE_API ParallelEngine& engine_of(ModelContext& context);

} // namespace detail

} // namespace accelerate
