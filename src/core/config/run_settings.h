// SPDX-License-Identifier: Apache-2.0
// The settings of a run from code and environment variables, with one
// precedence rule.
#pragma once

#include <cstdint>
#include <optional>

#include "accelerate/distributed/mesh_shape.h"
#include "accelerate/process.h"
#include "accelerate/training/precision_name.h"
#include "core/base/internal.h"

namespace accelerate {

/// An explicit value in code takes precedence over the variable, and the
/// variable over the default. A launcher writes its flags and its file into the
/// variables (`worker_variables`), so the file has a lower precedence than code
/// and variables. An empty variable counts as unset. A variable that is
/// overridden by code is not parsed. Each function throws a `ConfigError` that
/// contains the variable and its value if the value is malformed.
///
///     const bool cpu = RunSettings(system_env).cpu(options.cpu);
class ACCELERATE_INTERNAL RunSettings {
 public:
  explicit RunSettings(EnvLookup env) : env_(std::move(env)) {}

  /// Whether the run must not use GPUs. Default: false.
  bool cpu(const std::optional<bool>& code) const;
  /// Default: `Precision::kNo`.
  Precision mixed_precision(const std::optional<Precision>& code) const;
  /// Default: 1. A number from the code is not checked.
  int64_t gradient_accumulation_steps(const std::optional<int64_t>& code) const;
  /// If the code leaves the default, the sizes of the mesh from the launcher,
  /// with 1 for a number that is not set. Default: `MeshSizes()`.
  MeshSizes parallelism(const MeshSizes& code) const;
  /// Whether the launcher asked for `fast`, which Python programs support.
  /// Default: false.
  bool fast() const;
  /// Whether to enable expensive checks. Default: false.
  bool debug(const std::optional<bool>& code) const;
  /// Whether to report at the end what limits the speed. Default: false.
  bool step_summary(const std::optional<bool>& code) const;

 private:
  EnvLookup env_;
};

} // namespace accelerate
