// SPDX-License-Identifier: Apache-2.0
// The state of an optimizer, by the names of the parameters.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/state_dict.h"

namespace torch::nn {
class Module;
} // namespace torch::nn

namespace accelerate {

/// Parameters under the names that their model gives them.
using NamedParameters = std::vector<std::pair<std::string, at::Tensor>>;

/// The parameters of a module; one with two names stands under the first.
ACCELERATE_API NamedParameters named_parameters(const torch::nn::Module& model);

/// What an optimizer offers to have its state saved by name. The optimizers of
/// `optimizers.h` have it; an optimizer of your own gets it by deriving from
/// this class beside `torch::optim::Optimizer`.
class ACCELERATE_API SavableOptimizer {
 public:
  virtual ~SavableOptimizer() = default;
  /// Loading refuses the state of another kind.
  virtual std::string kind() const = 0;
  /// The hyper-parameters of a group.
  virtual StateDict group_state(size_t group) const = 0;
  virtual void load_group_state(size_t group, const StateDict& state) = 0;
  /// What was gathered for one parameter; nothing before its first step.
  virtual StateDict parameter_state(const at::Tensor& parameter) const = 0;
  virtual void load_parameter_state(
      const at::Tensor& parameter,
      const StateDict& state) = 0;
};

/// Everything that the optimizer needs to go on later:
///
/// | name                      | value                                      |
/// |---------------------------|--------------------------------------------|
/// | kind                      | "AdamW"                                    |
/// | groups.0.lr               | 0.001 (and every other hyper-parameter)    |
/// | groups.0.parameters.0     | "encoder.weight"                           |
/// | state.encoder.weight.step | a tensor (and exp_avg, ...)                |
///
/// Tensors are shared with the optimizer: a later step changes them. For the
/// optimizers of this library, torch::optim's Adam, AdamW, SGD, RMSprop and
/// Adagrad, and every `SavableOptimizer`; not for LBFGS, whose state belongs to
/// no parameter. Throws `UsageError` for others, and where a parameter of the
/// optimizer is not among `names`.
///
///     accelerate::StateDict state = accelerate::optimizer_state(
///         optimizer, accelerate::named_parameters(*model));
ACCELERATE_API StateDict optimizer_state(
    const torch::optim::Optimizer& optimizer,
    const NamedParameters& names);

/// Throws `UsageError` where `load_optimizer_state` would because the kind, the
/// groups, the names or the shapes differ; changes nothing.
ACCELERATE_API void check_optimizer_state(
    const torch::optim::Optimizer& optimizer,
    const NamedParameters& names,
    const StateDict& state);

/// Puts the state into an optimizer of the same kind over the same names;
/// tensors are copied to the parameters' devices. Throws `UsageError` where the
/// kind, the groups, the names or the shapes differ.
ACCELERATE_API void load_optimizer_state(
    torch::optim::Optimizer& optimizer,
    const NamedParameters& names,
    const StateDict& state);

} // namespace accelerate
