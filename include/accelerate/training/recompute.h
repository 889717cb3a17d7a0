// SPDX-License-Identifier: Apache-2.0
// Activation checkpointing: trades computation for memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/state/tree.h"

namespace accelerate {

namespace detail {

/// Takes tensors and returns tensors. It is called once in the forward pass and
/// once in the backward pass.
using Segment =
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

ACCELERATE_API std::vector<at::Tensor> recompute(
    Segment segment,
    const std::vector<at::Tensor>& inputs);

} // namespace detail

/// Computes `function(inputs...)` without keeping its activations: the backward
/// pass runs `function` again on the saved inputs. Inputs and output are trees
/// (`tree.h`). Other values are copied. Parameters that `function` uses get
/// their gradients as usual, even if no input requires one.
///
///     auto h = accelerate::recompute(block1, x); // a module holder
///     h = accelerate::recompute([&](auto h) { return block2(h); }, h);
///
/// With n layers of activation size A, a plain forward pass needs n A of
/// memory, and a forward pass with s segments needs about (s + n/s) A, which is
/// smallest for s = sqrt(n).
///
/// The second run uses the random state (of the CPU and of the inputs'
/// devices), the autocast state and the values of the first run, so gradients
/// are bit-identical to those of a plain call. During the second run, other
/// threads may draw from the CPU's default generator, but not from the default
/// generator of a device. Both runs cast weights again, because autocast's
/// cache is disabled. `function` and everything it refers to must exist until
/// the backward pass has ended. It must compute the same values both times and
/// must not depend on state that it changes itself. (Running statistics, for
/// example those of batch normalisation, are updated twice.) Segments may be
/// nested. If gradients are recorded, the output always requires gradients. If
/// not, `function` is simply called.
///
/// Call `backward()` without a list of inputs. `torch::autograd::grad` and a
/// list of inputs throw `UsageError`. Under DDP without `static_graph`, a
/// parameter may be used in only one segment and by no other part of the model,
/// or else `backward()` throws `UsageError`. `find_unused_parameters` cannot
/// see into segments and must be off. `static_graph` is supported.
template <class Function, class... Inputs>
auto recompute(Function function, Inputs... inputs) {
  using Output = std::decay_t<std::invoke_result_t<Function&, Inputs&...>>;
  std::tuple<Inputs...> arguments(std::move(inputs)...);
  const auto tensors = tree::flatten(arguments);
  // The structure of the arguments without their tensors, which autograd keeps.
  arguments = tree::map(
      std::move(arguments), [](const at::Tensor&) { return at::Tensor(); });
  auto output = std::make_shared<std::optional<Output>>();
  auto results = detail::recompute(
      [function = std::move(function),
       arguments = std::move(arguments),
       weak_output = std::weak_ptr(output)](
          const std::vector<at::Tensor>& values) mutable {
        auto filled = tree::unflatten(arguments, values);
        Output result = std::apply(function, filled);
        auto leaves = tree::flatten(result);
        // Only the first run has a caller that needs more than tensors.
        if (const auto wanted = weak_output.lock()) {
          wanted->emplace(std::move(result));
        }
        return leaves;
      },
      tensors);
  return tree::unflatten(std::move(**output), results);
}

} // namespace accelerate
