// SPDX-License-Identifier: Apache-2.0
// Tensors that must be equal on all ranks at the start.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "accelerate/distributed/process_group.h"
#include "training/state/parameter_set.h"

namespace accelerate {

/// What ranks compare before a forward that communicates.
inline constexpr const char* kForward = "the forward pass of a prepared model";
inline constexpr const char* kRefrozenForward =
    "the forward pass of a prepared model after freezing or unfreezing "
    "parameters";

/// Names, dtypes and shapes, one line each, for ranks to compare.
std::string describe_model(const ParameterSet& model);

/// Whether any of its parameters requires a gradient.
bool is_trained(const ParameterSet& model);
/// Of the parameters that require a gradient, one line each.
std::string trained_names(const ParameterSet& model);

/// The buffers of a model, which each rank's own forward may replace.
class SharedBuffers {
 public:
  explicit SharedBuffers(const ParameterSet& model);

  void set(
      const std::vector<std::string>& names,
      const std::vector<at::Tensor>& tensors);
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  /// `operation` with a description of buffers that differ from those last
  /// shared, so that only ranks with matching buffers agree on it.
  std::string name(const std::string& operation) const;
  /// Whether ranks must agree on anything.
  bool is_shared() const { return !tensors_.empty() || are_other_; }
  /// Gives all ranks `root`'s.
  void share(const ProcessGroup& group, int root);

 private:
  using Shapes = std::map<std::string, std::string>;
  std::vector<at::Tensor> tensors_;
  Shapes shapes_;
  /// Those that ranks shared last.
  Shapes shared_;
  bool are_other_ = false;
};

/// Gives all ranks `root`'s tensors. `what` names them in messages.
void broadcast_tensors(
    const ProcessGroup& group,
    const char* what,
    const std::vector<at::Tensor>& tensors,
    int root);

} // namespace accelerate
