// SPDX-License-Identifier: Apache-2.0
#include "launcher/watch/json_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace accelerate {
namespace {

/// No step and no time of a run is larger than this.
constexpr double kMaxNumber = 1e15;

} // namespace

std::string shortened(std::string text) {
  if (text.size() > kMaxWatchedText) {
    text.resize(kMaxWatchedText);
  }
  return text;
}

std::string text_field(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string()
             ? shortened(found->get<std::string>())
             : std::string();
}

std::optional<double> number_of(const nlohmann::json& value) {
  if (value.is_boolean()) {
    return value.get<bool>() ? 1 : 0;
  }
  if (!value.is_number()) {
    return std::nullopt;
  }
  const auto number = value.get<double>();
  return std::isfinite(number) ? std::optional(number) : std::nullopt;
}

std::optional<double> number_field(
    const nlohmann::json& object,
    const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) {
    return std::nullopt;
  }
  const auto number = number_of(*found);
  return number && is_in_range(*number) ? number : std::nullopt;
}

double amount_field(const nlohmann::json& object, const char* name) {
  return std::max(number_field(object, name).value_or(0), 0.0);
}

bool is_in_range(double value) {
  return std::abs(value) <= kMaxNumber;
}

std::optional<double> logged_number(std::string_view text) {
  if (text == "NaN") {
    return std::numeric_limits<double>::quiet_NaN();
  }
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return text == "Infinity"    ? std::optional(kInfinity)
         : text == "-Infinity" ? std::optional(-kInfinity)
                               : std::nullopt;
}

const char* name_of_not_finite(double value) {
  if (std::isnan(value)) {
    return "NaN";
  }
  if (std::isinf(value)) {
    return value > 0 ? "Infinity" : "-Infinity";
  }
  return nullptr;
}

const nlohmann::json* RunLine::values() const {
  const auto found = object.find("values");
  return step && found != object.end() && found->is_object() &&
                 !object.contains("event")
             ? &*found
             : nullptr;
}

std::optional<RunLine> parse_run_line(std::string_view text) {
  RunLine line;
  line.object =
      nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!line.object.is_object()) {
    return std::nullopt;
  }
  const auto time = number_field(line.object, "time");
  if (!time || *time <= 0) {
    return std::nullopt;
  }
  line.time = *time;
  if (const auto step = number_field(line.object, "step")) {
    line.step = static_cast<int64_t>(*step);
  }
  return line;
}

} // namespace accelerate
