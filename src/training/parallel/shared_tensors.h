// SPDX-License-Identifier: Apache-2.0
// Tensors that must be equal on all ranks before training.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "accelerate/distributed/process_group.h"
#include "training/state/parameter_set.h"

namespace accelerate {

/// The description that ranks compare before a forward pass that communicates.
inline constexpr const char* kForward = "the forward pass of a prepared model";
inline constexpr const char* kRefrozenForward =
    "the forward pass of a prepared model after freezing or unfreezing "
    "parameters";

/// Names, dtypes and shapes of a model's tensors, one line each. Ranks compare
/// them.
std::string describe_model(const ParameterSet& model);

/// Whether any parameter of the model requires a gradient.
bool is_trained(const ParameterSet& model);
/// The names of the parameters that require a gradient, one line each.
std::string trained_names(const ParameterSet& model);

/// The buffers of a model. A forward pass may replace them on its own rank.
class SharedBuffers {
 public:
  explicit SharedBuffers(const ParameterSet& model);

  void set(
      const std::vector<std::string>& names,
      const std::vector<at::Tensor>& tensors);
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  /// Returns `operation` with a description of the buffers whose shapes differ
  /// from those that were shared last. Only ranks with matching buffers
  /// therefore agree on it.
  std::string name(const std::string& operation) const;
  /// Whether ranks must agree before they share buffers.
  bool is_shared() const { return !tensors_.empty() || are_other_; }
  /// Broadcasts the buffers of `root` to all ranks.
  void share(const ProcessGroup& group, int root);

 private:
  using Shapes = std::map<std::string, std::string>;
  std::vector<at::Tensor> tensors_;
  Shapes shapes_;
  /// The shapes of the buffers that ranks have shared last.
  Shapes shared_;
  bool are_other_ = false;
};

/// Broadcasts `root`'s tensors to all ranks. `what` names them in messages.
void broadcast_tensors(
    const ProcessGroup& group,
    const char* what,
    const std::vector<at::Tensor>& tensors,
    int root);

} // namespace accelerate
