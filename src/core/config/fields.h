// SPDX-License-Identifier: Apache-2.0
// The single list of launch options, from which flags, files, environment,
// questions, `docs/options.md`, completion and `config show` are derived.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/internal.h"
#include "core/config/launch_config.h"

namespace accelerate {

/// The member of `LaunchConfig` that a field sets. Its type determines the
/// syntax.
using FieldMember = std::variant<
    bool LaunchConfig::*,
    int LaunchConfig::*,
    MachineRange LaunchConfig::*,
    std::optional<int> LaunchConfig::*,
    std::string LaunchConfig::*,
    std::filesystem::path LaunchConfig::*,
    std::vector<std::string> LaunchConfig::*>;

/// Checks a text beyond its type: returns what the field expects if the text is
/// invalid, else an empty string.
using FieldCheck = std::string (*)(const std::string& text);

/// Whether workers receive the variable of a field.
enum class WorkerRule {
  kNever,
  /// Yes, if the value is not the default. Otherwise an inherited variable
  /// remains.
  kWhereDecided,
  /// Yes, if any field of its group is not the default. Workers can then
  /// distinguish off from not set.
  kWhereGroupDecided,
  kAlways,
};

struct Field {
  /// The long flag without dashes. It is also the name in messages and sources.
  std::string_view name = {};
  FieldMember member = {};
  /// Heading in `--help` and in `docs/options.md`.
  std::string_view group = {};
  /// If false, the option is accepted for compatibility with existing command
  /// lines and files, but it has no effect or is not supported. Only
  /// `--help-all` shows it.
  bool has_effect = true;
  std::string_view help = {};
  /// The placeholder of the value in `--help`: "N", "FILE".
  std::string_view value_name = {};
  std::vector<std::string_view> choices = {};
  /// Bounds of integers.
  int least = 0;
  int most = 2147483647;
  FieldCheck check = nullptr;
  /// The word for "not set", accepted everywhere: "all", "auto".
  std::string_view unset_word = {};
  /// Whether repeated flags of a list accumulate. Otherwise, the last one is
  /// used.
  bool adds_up = false;
  /// One-letter flag, or 0.
  char letter = 0;
  /// Dotted path in the file. Empty if not stored in files.
  std::string_view yaml_key = {};
  /// Whether Hugging Face's loader also knows the key.
  bool is_shared_key = false;
  /// The environment variable that sets it.
  std::string_view variable = {};
  /// Whether the launcher also sets it for the workers.
  WorkerRule workers = WorkerRule::kNever;
  /// The question in the questionnaire. Empty if the questionnaire does not ask
  /// for this field.
  std::string_view question = {};

  bool is_flag() const {
    return std::holds_alternative<bool LaunchConfig::*>(member);
  }
  bool is_number() const {
    return std::holds_alternative<int LaunchConfig::*>(member) ||
           std::holds_alternative<std::optional<int> LaunchConfig::*>(member);
  }
  /// Whether a value is one number, or two separated by a colon: 4, 2:4.
  bool is_range() const {
    return std::holds_alternative<MachineRange LaunchConfig::*>(member);
  }
  bool is_list() const {
    return std::holds_alternative<std::vector<std::string> LaunchConfig::*>(
        member);
  }
};

/// Every field, in the order of the help.
ACCELERATE_INTERNAL std::span<const Field> launch_fields();
/// The field with this name. Null if there is none.
ACCELERATE_INTERNAL const Field* find_field(std::string_view name);

/// Sets the field of `config` from `text`. Throws a `ConfigError` that names
/// the value's `location` and what was expected.
ACCELERATE_INTERNAL void
assign_field(LaunchConfig& config, const Field& field, const LayerValue& value);
/// The value as a text that `assign_field` accepts.
ACCELERATE_INTERNAL std::string format_field(
    const LaunchConfig& config,
    const Field& field);
/// "a whole number from 1 to 4096", "no, fp16 or bf16", "true or false".
std::string expectation(const Field& field);

} // namespace accelerate
