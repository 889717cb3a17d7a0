// SPDX-License-Identifier: Apache-2.0
// What a run is asked for by its code and by variables: the one rule between
// them.
#pragma once

#include <cstdint>
#include <optional>

#include "accelerate/precision_name.h"
#include "accelerate/process.h"

namespace accelerate {

/// What the code gives explicitly wins over the variable, that over the
/// default. A launcher writes flags and its file into the variables
/// (`worker_variables`), so the file comes behind both. An empty variable
/// counts as unset; one that is overruled is not looked at. Each function
/// throws `ConfigError` with the variable and its value where that is
/// malformed.
///
///     const bool cpu = RunSettings(system_env).cpu(options.cpu);
class ACCELERATE_API RunSettings {
 public:
  explicit RunSettings(EnvLookup env) : env_(std::move(env)) {}

  /// Whether the run keeps off GPUs; by default it does not.
  bool cpu(const std::optional<bool>& code) const;
  /// `Precision::kNo` by default.
  Precision mixed_precision(const std::optional<Precision>& code) const;
  /// 1 by default. A number from the code is not checked.
  int64_t gradient_accumulation_steps(const std::optional<int64_t>& code) const;
  /// Whether to check what is normally trusted; by default not.
  bool debug(const std::optional<bool>& code) const;
  /// Whether a run that ends says what bounds it; by default not.
  bool step_summary(const std::optional<bool>& code) const;

 private:
  EnvLookup env_;
};

} // namespace accelerate
