// SPDX-License-Identifier: Apache-2.0
// The kinds of mixed precision and their names, without torch.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "accelerate/export.h"

namespace accelerate {

/// Weights stay in fp32, but operators may compute in these types.
enum class Precision { kNo, kBf16, kFp16 };

struct PrecisionName {
  Precision precision;
  /// The name that is used in flags, files and variables.
  std::string_view name;
  bool runs_on_cpu;
};

/// The table of all valid values.
ACCELERATE_API std::span<const PrecisionName> precision_names();

ACCELERATE_API const PrecisionName& find_precision(Precision precision);
/// The row with this name. Null if there is no such row.
ACCELERATE_API const PrecisionName* find_precision(std::string_view name);

/// Returns the precision with this name. For any other string, throws a
/// `ConfigError` that lists the valid names. For "fp8", the message says that
/// fp8 is not supported.
ACCELERATE_API Precision parse_precision(std::string_view name);

/// Returns the valid values for a message about an invalid `text`: "no, fp16 or
/// bf16", with a hint for "fp8".
ACCELERATE_API std::string expected_precision(std::string_view text);

} // namespace accelerate
