// SPDX-License-Identifier: Apache-2.0
#include "accelerate/training/precision_name.h"

#include <algorithm>
#include <vector>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/base/words.h"

namespace accelerate {
namespace {

constexpr PrecisionName kNames[] = {
    {Precision::kNo, "no", true},
    {Precision::kFp16, "fp16", false},
    {Precision::kBf16, "bf16", true},
};

} // namespace

std::span<const PrecisionName> precision_names() {
  return kNames;
}

const PrecisionName& find_precision(Precision precision) {
  return *std::ranges::find(kNames, precision, &PrecisionName::precision);
}

const PrecisionName* find_precision(std::string_view name) {
  const auto* found = std::ranges::find(kNames, name, &PrecisionName::name);
  return found == std::end(kNames) ? nullptr : found;
}

std::string expected_precision(std::string_view text) {
  std::vector<std::string_view> names;
  for (const PrecisionName& row : kNames) {
    names.push_back(row.name);
  }
  const std::string expected = either(names);
  return text == "fp8" ? expected + " (fp8 is not supported)" : expected;
}

Precision parse_precision(std::string_view name) {
  const PrecisionName* found = find_precision(name);
  if (found == nullptr) {
    throw ConfigError(str_cat(
        "[mixed_precision] must be ",
        expected_precision(name),
        ", not '",
        name,
        "'"));
  }
  return found->precision;
}

} // namespace accelerate
