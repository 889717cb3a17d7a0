// SPDX-License-Identifier: Apache-2.0
// Optimizer state by parameter name.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/state/state_dict.h"

namespace torch::nn {
class Module;
} // namespace torch::nn

namespace accelerate {

/// Parameters with their names in the model.
using NamedParameters = std::vector<std::pair<std::string, at::Tensor>>;

/// The parameters of a module. A parameter with two names is listed once, under
/// its first name.
ACCELERATE_API NamedParameters named_parameters(const torch::nn::Module& model);

/// The interface for saving optimizer state by name. The optimizers of
/// `optimizers.h` implement it. To support it in a custom optimizer, derive
/// from this class in addition to `torch::optim::Optimizer`.
class ACCELERATE_API SavableOptimizer {
 public:
  virtual ~SavableOptimizer() = default;
  /// The name of the state's format, such as "AdamW". Loading rejects other
  /// kinds.
  virtual std::string kind() const = 0;
  /// The hyper-parameters of a group.
  virtual StateDict group_state(size_t group) const = 0;
  virtual void load_group_state(size_t group, const StateDict& state) = 0;
  /// The state of one parameter. Empty before its first step.
  virtual StateDict parameter_state(const at::Tensor& parameter) const = 0;
  virtual void load_parameter_state(
      const at::Tensor& parameter,
      const StateDict& state) = 0;
};

/// Returns everything that the optimizer needs to resume:
///
/// | name                      | value                                      |
/// |---------------------------|--------------------------------------------|
/// | kind                      | "AdamW"                                    |
/// | groups.0.lr               | 0.001 (and every other hyper-parameter)    |
/// | groups.0.parameters.0     | "encoder.weight"                           |
/// | state.encoder.weight.step | a tensor (and exp_avg, ...)                |
///
/// Tensors are shared with the optimizer, so a later step changes them.
/// Supports the optimizers of this library, torch::optim's Adam, AdamW, SGD,
/// RMSprop and Adagrad, and every `SavableOptimizer`. LBFGS is not supported,
/// because its state is not per parameter. Throws `UsageError` for optimizers
/// that are not supported, and if a parameter of the optimizer is missing in
/// `names`.
///
///     accelerate::StateDict state = accelerate::optimizer_state(
///         optimizer, accelerate::named_parameters(*model));
ACCELERATE_API StateDict optimizer_state(
    const torch::optim::Optimizer& optimizer,
    const NamedParameters& names);

/// Checks `state` without loading it. Throws the same `UsageError` as
/// `load_optimizer_state`.
ACCELERATE_API void check_optimizer_state(
    const torch::optim::Optimizer& optimizer,
    const NamedParameters& names,
    const StateDict& state);

/// Loads state into an optimizer of the same kind with the same parameter
/// names. Tensors are copied to the devices of the parameters. Throws
/// `UsageError` if the kind, groups, names or shapes differ.
ACCELERATE_API void load_optimizer_state(
    torch::optim::Optimizer& optimizer,
    const NamedParameters& names,
    const StateDict& state);

} // namespace accelerate
