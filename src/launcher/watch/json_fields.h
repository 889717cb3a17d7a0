// SPDX-License-Identifier: Apache-2.0
// Reads fields of lines from files, in which anything may be missing or wrong.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/internal.h"

namespace accelerate {

inline constexpr size_t kMaxWatchedText = 1000;

std::string shortened(std::string text);

/// A field that is a string. Empty if it is missing or something else.
std::string text_field(const nlohmann::json& object, const char* name);

/// The value as a number. Booleans are 1 and 0. Empty if it is not a finite
/// number.
std::optional<double> number_of(const nlohmann::json& value);

/// A number that can be a step or a time.
std::optional<double> number_field(
    const nlohmann::json& object,
    const char* name);

/// A field that is never negative. 0 if it is missing.
double amount_field(const nlohmann::json& object, const char* name);

/// Whether a step or a time can be this large.
bool is_in_range(double value);

/// The value of the strings for NaN and the infinities in run folders.
std::optional<double> logged_number(std::string_view text);

/// "NaN", "Infinity" or "-Infinity". Null for a finite number.
const char* name_of_not_finite(double value);

/// A line of a run's folder.
struct RunLine {
  nlohmann::json object = {};
  double time = 0;
  std::optional<int64_t> step = {};

  /// The values that were logged for `step`. Null if the line is another one.
  const nlohmann::json* values() const;
};
ACCELERATE_INTERNAL std::optional<RunLine> parse_run_line(
    std::string_view line);

} // namespace accelerate
