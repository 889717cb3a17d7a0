// SPDX-License-Identifier: Apache-2.0
// One forward pass of a prepared model, independent of the language.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>

#include "accelerate/export.h"
#include "accelerate/training/precision.h"

namespace at {
struct RecordFunction;
}

namespace accelerate {

class ParallelEngine;
struct ModelContext;

namespace detail {

/// Runs the engine's callbacks and sets the precision around the user's
/// `forward`.
class ACCELERATE_API ForwardScope {
 public:
  explicit ForwardScope(ModelContext& context);
  /// Abandons the forward pass if it has not finished.
  ~ForwardScope();
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;
  bool wants_outputs() const;
  /// Converts an argument of the model. If the weights have a reduced dtype,
  /// fp32 tensors are converted to that dtype. Other arguments are unchanged.
  template <class Argument>
  Argument&& input(Argument&& argument) {
    if constexpr (std::is_same_v<std::remove_cvref_t<Argument>, at::Tensor>) {
      if (at::Tensor* cast = cast_input(argument)) {
        return static_cast<Argument&&>(*cast);
      }
    }
    return static_cast<Argument&&>(argument);
  }
  /// Ends the forward pass. May replace the output tensors.
  void finish(std::span<at::Tensor* const> outputs);

 private:
  /// Returns the converted tensor, or null if no conversion is needed.
  at::Tensor* cast_input(const at::Tensor& input);

  ModelContext& context_;
  /// Owns the tensors that `input` returns references to.
  std::deque<at::Tensor> inputs_;
  std::optional<AutocastGuard> autocast_;
  bool is_finished_ = false;
  /// The activity that the forward pass interrupts (see `RankRecord`).
  uint8_t phase_before_;
  /// Marks the forward pass for profilers.
  std::unique_ptr<at::RecordFunction> recorded_;
};

ACCELERATE_API ParallelEngine& engine_of(ModelContext& context);

} // namespace detail

} // namespace accelerate
