// SPDX-License-Identifier: Apache-2.0
// What a model's parameters were like at one moment.
#pragma once

#include <string>
#include <vector>

#include "accelerate/export.h"
#include "state/parameter_set.h"

namespace accelerate {

/// Names, shapes, dtypes and devices of parameters, which of them are trained,
/// and which tensors they are. Keeps no tensor alive.
class ACCELERATE_API ParameterSnapshot {
 public:
  ParameterSnapshot() = default;
  explicit ParameterSnapshot(const ParameterSet& model);

  /// Throws `UsageError` naming the first parameter that came, went or changed;
  /// `where` is what found out.
  void check_unchanged(const std::string& where, const ParameterSet& now) const;

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
