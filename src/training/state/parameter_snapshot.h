// SPDX-License-Identifier: Apache-2.0
// A snapshot of a model's parameters, to detect changes.
#pragma once

#include <string>
#include <vector>

#include "core/base/internal.h"
#include "training/state/parameter_set.h"

namespace accelerate {

/// Names, shapes, dtypes, devices and `requires_grad` of parameters, and the
/// identity of their tensors. Keeps no tensor alive.
class ACCELERATE_INTERNAL ParameterSnapshot {
 public:
  ParameterSnapshot() = default;
  explicit ParameterSnapshot(const ParameterSet& model);

  /// Throws a `UsageError` that names the first parameter that was added,
  /// removed or changed; `where` begins the message.
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
