// SPDX-License-Identifier: Apache-2.0
// The kinds of mixed precision and their names; needs no torch.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "accelerate/export.h"

namespace accelerate {

/// Weights stay in fp32; these are the types that operators may choose.
enum class Precision { kNo, kBf16, kFp16 };

struct PrecisionName {
  Precision precision;
  /// As flags, files and variables write it.
  std::string_view name;
  bool runs_on_cpu;
};

/// All there are: the one list of legal values.
ACCELERATE_API std::span<const PrecisionName> precision_names();

ACCELERATE_API const PrecisionName& find_precision(Precision precision);
/// Null for a text that is none of the names.
ACCELERATE_API const PrecisionName* find_precision(std::string_view name);

/// The precision of a name. Throws `ConfigError` with the legal ones for
/// anything else; for "fp8" it says that there is none.
ACCELERATE_API Precision parse_precision(std::string_view name);

/// What was expected where `text` is none of the names: "no, fp16 or bf16", and
/// for "fp8" what to use instead.
ACCELERATE_API std::string expected_precision(std::string_view text);

} // namespace accelerate
