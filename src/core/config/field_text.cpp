// SPDX-License-Identifier: Apache-2.0
// Converts between the value of a field and its text.
#include <algorithm>
#include <sstream>

#include "accelerate/error.h"
#include "core/base/parse.h"
#include "core/base/printable.h"
#include "core/base/str.h"
#include "core/base/words.h"
#include "core/config/fields.h"

namespace accelerate {
namespace {

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    parts.push_back(part);
  }
  return parts;
}

/// "--num_processes", the name of a variable, "[FILE:7] num_processes".
std::string name_setting(const Field& field, const std::string& location) {
  if (location.find(':') == std::string::npos) {
    return location;
  }
  const std::string_view key =
      field.yaml_key.empty() ? field.name : field.yaml_key;
  return str_cat("[", location, "] ", key.substr(key.rfind('.') + 1));
}

[[noreturn]] void refuse(
    const Field& field,
    const LayerValue& value,
    const std::string& expected) {
  throw ConfigError(str_cat(
      name_setting(field, value.location),
      " must be ",
      expected,
      ", not '",
      printable(value.text),
      "'"));
}

int number_in_range(const Field& field, const LayerValue& value) {
  const auto number = parse_number<int>(value.text);
  if (!number || *number < field.least || *number > field.most) {
    const auto& unset = field.unset_word;
    refuse(
        field,
        value,
        unset.empty() ? expectation(field)
                      : str_cat(expectation(field), ", or ", unset));
  }
  return *number;
}

// An empty file name would mean unset, which is never the intention.
void check_path(const Field& field, const LayerValue& value) {
  const bool is_folder = field.value_name == "FOLDER";
  if (value.text.empty() && field.unset_word.empty() &&
      (is_folder || field.value_name == "FILE")) {
    throw ConfigError(str_cat(
        name_setting(field, value.location),
        " is empty. Pass a ",
        is_folder ? "folder" : "file",
        ", or leave it out"));
  }
}

// The range in a text: 2:4, or a single number for both ends.
MachineRange range_of(const Field& field, const LayerValue& value) {
  const size_t colon = value.text.find(':');
  if (colon == std::string::npos) {
    return number_in_range(field, value);
  }
  const auto least = parse_number<int>(value.text.substr(0, colon));
  const auto most = parse_number<int>(value.text.substr(colon + 1));
  if (!least || !most || *least < field.least || *most > field.most ||
      *least > *most) {
    refuse(field, value, expectation(field));
  }
  return {*least, *most};
}

void check_text(const Field& field, const LayerValue& value) {
  if (field.check != nullptr) {
    const std::string expected = field.check(value.text);
    if (!expected.empty()) {
      refuse(field, value, expected);
    }
  }
  const auto& choices = field.choices;
  if (!choices.empty() &&
      std::find(choices.begin(), choices.end(), value.text) == choices.end()) {
    throw ConfigError(str_cat(
        name_setting(field, value.location),
        " ",
        value.text.find_first_of(" \t") == std::string::npos &&
                !value.text.empty()
            ? printable(value.text)
            : "'" + printable(value.text) + "'",
        " is not supported; use ",
        expectation(field)));
  }
}

} // namespace

std::string expectation(const Field& field) {
  if (field.is_flag()) {
    return "true or false";
  }
  if (field.is_number() || field.is_range()) {
    const std::string text =
        field.most == Field{}.most
            ? str_cat("a whole number of at least ", field.least)
            : str_cat("a whole number from ", field.least, " to ", field.most);
    return field.is_range() ? text + " or a range such as 2:4" : text;
  }
  if (!field.choices.empty()) {
    return either(field.choices);
  }
  return "a string";
}

void assign_field(
    LaunchConfig& config,
    const Field& field,
    const LayerValue& value) {
  const bool is_unset =
      !field.unset_word.empty() && value.text == field.unset_word;
  std::visit(
      Overloaded{
          [&](bool LaunchConfig::*member) {
            const auto parsed = parse_bool(value.text);
            if (!parsed) {
              refuse(field, value, expectation(field));
            }
            config.*member = *parsed;
          },
          [&](int LaunchConfig::*member) {
            config.*member = number_in_range(field, value);
          },
          [&](MachineRange LaunchConfig::*member) {
            config.*member = range_of(field, value);
          },
          [&](std::optional<int> LaunchConfig::*member) {
            config.*member = is_unset
                                 ? std::nullopt
                                 : std::optional(number_in_range(field, value));
          },
          [&](std::vector<std::string> LaunchConfig::*member) {
            if (!is_unset) {
              check_text(field, value);
            }
            config.*member =
                is_unset ? std::vector<std::string>() : split(value.text);
          },
          [&](auto member) { // Strings and paths.
            if (is_unset) {
              (config.*member).clear();
              return;
            }
            check_path(field, value);
            check_text(field, value);
            config.*member = value.text;
          },
      },
      field.member);
}

std::string format_field(const LaunchConfig& config, const Field& field) {
  const std::string unset(field.unset_word);
  return std::visit(
      Overloaded{
          [&](bool LaunchConfig::*member) {
            return std::string(config.*member ? "true" : "false");
          },
          [&](int LaunchConfig::*member) {
            return std::to_string(config.*member);
          },
          [&](MachineRange LaunchConfig::*member) {
            const MachineRange& range = config.*member;
            return range.is_elastic() ? str_cat(range.least, ':', range.most)
                                      : std::to_string(range.most);
          },
          [&](std::optional<int> LaunchConfig::*member) {
            const auto& number = config.*member;
            return number ? std::to_string(*number) : unset;
          },
          [&](std::string LaunchConfig::*member) {
            return (config.*member).empty() ? unset : config.*member;
          },
          [&](std::filesystem::path LaunchConfig::*member) {
            return (config.*member).string();
          },
          [&](std::vector<std::string> LaunchConfig::*member) {
            const auto& parts = config.*member;
            return parts.empty() ? unset : join(parts, ",");
          },
      },
      field.member);
}

} // namespace accelerate
