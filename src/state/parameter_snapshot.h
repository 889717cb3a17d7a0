// SPDX-License-Identifier: Apache-2.0
// What a model's tensors were like at one moment.
#pragma once

#include <string>
#include <vector>

#include "accelerate/export.h"
#include "state/parameter_set.h"

namespace accelerate {

/// Names, shapes, dtypes and devices of parameters and buffers, which of the
/// parameters are trained, and which tensors they are; a forward may put
/// another tensor in the place of a buffer. Keeps no tensor alive.
class ACCELERATE_API ParameterSnapshot {
 public:
  ParameterSnapshot() = default;
  explicit ParameterSnapshot(const ParameterSet& model);

  /// Throws `UsageError` naming the first tensor that came, went or changed.
  void check_unchanged(const ParameterSet& now) const;

 private:
  struct Entry {
    std::string name;
    std::string description;
    const void* identity;
  };
  static std::vector<Entry> entries_of(const ParameterSet& model);

  std::vector<Entry> entries_;
};

} // namespace accelerate
