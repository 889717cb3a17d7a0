// SPDX-License-Identifier: Apache-2.0
// The kinds of mixed precision and their names, without torch.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "accelerate/export.h"

namespace accelerate {

/// Weights stay in fp32; operators may compute in these types.
enum class Precision { kNo, kBf16, kFp16 };

struct PrecisionName {
  Precision precision;
  /// The name as written in flags, files and variables.
  std::string_view name;
  bool runs_on_cpu;
};

/// The table of all legal values.
ACCELERATE_API std::span<const PrecisionName> precision_names();

ACCELERATE_API const PrecisionName& find_precision(Precision precision);
/// The row with this name; null if there is none.
ACCELERATE_API const PrecisionName* find_precision(std::string_view name);

/// The precision with this name. Throws `ConfigError` with the legal names for
/// any other string; for "fp8" it says that fp8 is not supported.
ACCELERATE_API Precision parse_precision(std::string_view name);

/// What to write instead of an invalid `text`: "no, fp16 or bf16", and a hint
/// for "fp8".
ACCELERATE_API std::string expected_precision(std::string_view text);

} // namespace accelerate
