// SPDX-License-Identifier: Apache-2.0
// What engines of all ranks begin with alike.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "accelerate/process_group.h"
#include "state/parameter_set.h"

namespace accelerate {

/// Names, types and shapes, a line each, for ranks to compare.
std::string describe_model(const ParameterSet& model);

/// Throws `UsageError` where one of these, by their places, is trained by now.
/// `why` says what comes of it and what to do.
void check_frozen(
    const ParameterSet& model,
    const std::vector<size_t>& frozen,
    const char* why);

/// The buffers of a model, which each rank's own forward may replace.
class SharedBuffers {
 public:
  explicit SharedBuffers(const ParameterSet& model);

  void set(
      const std::vector<std::string>& names,
      const std::vector<at::Tensor>& tensors);
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  /// `operation` and which buffers are not what ranks shared last: so named,
  /// only ranks whose buffers fit each other agree on it.
  std::string name(const std::string& operation) const;
  /// Whether there is anything for ranks to agree on.
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

/// Gives all ranks `root`'s tensors. `what` names it in messages.
void broadcast_tensors(
    const ProcessGroup& group,
    const char* what,
    const std::vector<at::Tensor>& tensors,
    int root);

} // namespace accelerate
