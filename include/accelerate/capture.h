// SPDX-License-Identifier: Apache-2.0
// A training step that the host only starts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/tree.h"

namespace accelerate {

class TrainingRun;

struct ACCELERATE_API CaptureOptions {
  /// Calls of each shape of inputs that run as they are before one is captured:
  /// libraries choose their kernels in them, optimizers make their state.
  int num_warmup = 2;
  /// Graphs that are kept; the one that was not used for longest goes first.
  size_t max_graphs = 8;
};

namespace detail {

/// A captured step without the types of its inputs and of its result.
class ACCELERATE_API StepCapture {
 public:
  struct Outcome {
    /// The tensors of `value`, without a graph of autograd.
    std::vector<at::Tensor> tensors = {};
    std::shared_ptr<const void> value = {};
  };
  using Body = std::function<Outcome(const std::vector<at::Tensor>& inputs)>;

  /// `looks_first`: whether warm-up looks for waits. Code that waits only while
  /// nothing is recorded is refused then without need.
  StepCapture(
      TrainingRun& run,
      CaptureOptions options,
      bool looks_first = true);
  ~StepCapture();
  StepCapture(const StepCapture&) = delete;
  StepCapture& operator=(const StepCapture&) = delete;

  /// `structure` says how the inputs hang together.
  Outcome call(
      const std::vector<at::Tensor>& inputs,
      const std::string& structure,
      const Body& body);
  size_t num_graphs() const;
  size_t num_replays() const;
  const std::string& refusal() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace detail

/// What `Accelerator::capture` makes of a function: called in its place. Copies
/// share the graphs.
template <class Function>
class CapturedStep {
 public:
  CapturedStep(Function function, std::shared_ptr<detail::StepCapture> capture)
      : function_(std::make_shared<Function>(std::move(function))),
        capture_(std::move(capture)) {}

  /// Inputs and result are trees (`tree.h`). The result's tensors are copies
  /// that belong to the caller, without a graph of autograd.
  template <class... Inputs>
  auto operator()(const Inputs&... inputs) {
    static_assert(
        (!std::is_arithmetic_v<Inputs> && ...),
        "a number would stay what it was when the step was captured: pass "
        "tensors");
    using Trees = std::tuple<Inputs...>;
    using Result = std::invoke_result_t<Function&, Inputs&...>;
    const Trees trees(inputs...);
    const auto body = [&](const std::vector<at::Tensor>& tensors) {
      Trees own = tree::unflatten(trees, tensors);
      if constexpr (std::is_void_v<Result>) {
        std::apply(*function_, own);
        return detail::StepCapture::Outcome();
      } else {
        const Result result = tree::map(
            Result(std::apply(*function_, own)), [](const at::Tensor& tensor) {
              return tensor.defined() ? tensor.detach() : tensor;
            });
        return detail::StepCapture::Outcome{
            tree::flatten(result), std::make_shared<const Result>(result)};
      }
    };
    const auto outcome =
        capture_->call(tree::flatten(trees), tree::structure(trees), body);
    if constexpr (!std::is_void_v<Result>) {
      return tree::unflatten(
          *static_cast<const Result*>(outcome.value.get()), outcome.tensors);
    }
  }

  /// Shapes of inputs that are replayed.
  size_t num_graphs() const { return capture_->num_graphs(); }
  /// Calls that were replays.
  size_t num_replays() const { return capture_->num_replays(); }
  /// Why calls run as they are; empty while they do not have to.
  const std::string& refusal() const { return capture_->refusal(); }

 private:
  std::shared_ptr<Function> function_;
  std::shared_ptr<detail::StepCapture> capture_;
};

} // namespace accelerate
