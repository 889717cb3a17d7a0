// SPDX-License-Identifier: Apache-2.0
// The one list of launch options. Flags, files, environment, questions,
// `docs/options.md`, completion and `config show` are visitors of it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/launch_config.h"

namespace accelerate {

/// Which member of `LaunchConfig` a field fills; its type decides what a text
/// must look like.
using FieldMember = std::variant<
    bool LaunchConfig::*,
    int LaunchConfig::*,
    MachineRange LaunchConfig::*,
    std::optional<int> LaunchConfig::*,
    std::string LaunchConfig::*,
    std::filesystem::path LaunchConfig::*,
    std::vector<std::string> LaunchConfig::*>;

/// Checks a text beyond its type: returns what the field expects if the text
/// does not fit, else an empty string.
using FieldCheck = std::string (*)(const std::string& text);

/// Whether workers get the variable of a field.
enum class WorkerRule {
  kNever,
  /// Where the value is not the default, so that else an inherited one stays.
  kWhereDecided,
  /// Where that is so of a field of its group: off is told from not asked.
  kWhereGroupDecided,
  kAlways,
};

struct Field {
  /// The long flag without dashes; also the name in messages and sources.
  std::string_view name = {};
  FieldMember member = {};
  /// Heading in `--help` and in `docs/options.md`.
  std::string_view group = {};
  /// False: accepted for the sake of existing command lines and files, but it
  /// changes nothing or is not supported. Only `--help-all` shows it.
  bool has_effect = true;
  std::string_view help = {};
  /// What stands for the value in `--help`: "N", "FILE".
  std::string_view value_name = {};
  std::vector<std::string_view> choices = {};
  /// Bounds of whole numbers.
  int least = 0;
  int most = 2147483647;
  FieldCheck check = nullptr;
  /// The word for "not set", accepted everywhere: "all", "auto".
  std::string_view unset_word = {};
  /// A flag of a list that was given twice means both, not the last.
  bool adds_up = false;
  /// One-letter flag, or 0.
  char letter = 0;
  /// Path in the file, parts joined by a dot; empty: not kept in files.
  std::string_view yaml_key = {};
  /// Whether Hugging Face's loader knows the key too.
  bool is_shared_key = false;
  /// The environment variable that sets it.
  std::string_view variable = {};
  /// Whether the launcher sets it for the workers, too.
  WorkerRule workers = WorkerRule::kNever;
  /// How the questionnaire asks for it; empty: it does not.
  std::string_view question = {};

  bool is_flag() const {
    return std::holds_alternative<bool LaunchConfig::*>(member);
  }
  bool is_number() const {
    return std::holds_alternative<int LaunchConfig::*>(member) ||
           std::holds_alternative<std::optional<int> LaunchConfig::*>(member);
  }
  /// A number or two with a colon between: 4, 2:4.
  bool is_range() const {
    return std::holds_alternative<MachineRange LaunchConfig::*>(member);
  }
  bool is_list() const {
    return std::holds_alternative<std::vector<std::string> LaunchConfig::*>(
        member);
  }
};

/// Every field, in the order of the help.
ACCELERATE_API std::span<const Field> launch_fields();
/// Null where no field has this name.
ACCELERATE_API const Field* find_field(std::string_view name);

/// Sets the field of `config` from `text`. Throws `ConfigError` that names
/// `place` and says what was expected.
ACCELERATE_API void
assign_field(LaunchConfig& config, const Field& field, const LayerValue& value);
/// The value as a text that `assign_field` takes back.
ACCELERATE_API std::string format_field(
    const LaunchConfig& config,
    const Field& field);
/// "a whole number from 1 to 4096", "no, fp16 or bf16", "true or false".
ACCELERATE_API std::string expectation(const Field& field);

} // namespace accelerate
