// SPDX-License-Identifier: Apache-2.0
// Training steps that are captured as CUDA graphs.
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
#include "accelerate/state/tree.h"

namespace accelerate {

class TrainingRun;

struct ACCELERATE_API CaptureOptions {
  /// The number of eager calls for each shape of the inputs before a call is
  /// captured. During these calls, libraries choose their kernels and
  /// optimizers create their state.
  int num_warmup = 2;
  /// How many graphs are kept. The least recently used graph is dropped first.
  size_t max_graphs = 8;
};

namespace detail {

/// A captured step, independent of the types of its inputs and result.
class ACCELERATE_API StepCapture {
 public:
  struct Outcome {
    /// The tensors of the result, detached from autograd.
    std::vector<at::Tensor> tensors = {};
    std::shared_ptr<const void> value = {};
  };
  using Body = std::function<Outcome(const std::vector<at::Tensor>& inputs)>;

  /// If `looks_first` is true, warm-up calls check that the function never
  /// waits for the device. This check also rejects code that waits only when it
  /// is not being recorded.
  StepCapture(
      TrainingRun& run,
      CaptureOptions options,
      bool looks_first = true);
  ~StepCapture();
  StepCapture(const StepCapture&) = delete;
  StepCapture& operator=(const StepCapture&) = delete;

  /// `structure` describes the tree that the inputs belong to.
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

/// What `Accelerator::capture` returns. Call it instead of the function. Copies
/// share the graphs.
template <class Function>
class CapturedStep {
 public:
  CapturedStep(Function function, std::shared_ptr<detail::StepCapture> capture)
      : function_(std::make_shared<Function>(std::move(function))),
        capture_(std::move(capture)) {}

  /// Inputs and result are trees (`tree.h`). The tensors of the result are
  /// copies that belong to the caller and are detached from autograd.
  template <class... Inputs>
  auto operator()(const Inputs&... inputs) {
    static_assert(
        (!std::is_arithmetic_v<Inputs> && ...),
        "a number would keep the value it had when the step was captured: pass "
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

  /// The number of input shapes that have a graph.
  size_t num_graphs() const { return capture_->num_graphs(); }
  /// The number of calls that replayed a graph.
  size_t num_replays() const { return capture_->num_replays(); }
  /// Why calls run eagerly. Empty if they can be captured.
  const std::string& refusal() const { return capture_->refusal(); }

 private:
  std::shared_ptr<Function> function_;
  std::shared_ptr<detail::StepCapture> capture_;
};

} // namespace accelerate
