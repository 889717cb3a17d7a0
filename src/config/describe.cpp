// SPDX-License-Identifier: Apache-2.0
#include "config/describe.h"

#include <algorithm>

#include "base/str.h"
#include "base/variables.h"
#include "config/fields.h"

namespace accelerate {
namespace {

std::string introduction() {
  return str_cat(
      R"(# Options of `accelerate launch`

<!-- Written by `accelerate config options-markdown`; a test compares it. -->

Every option can come from four places. The first that has it wins:

1. a flag: `--num_processes 4`, also spelt `--num-processes 4`;
2. an environment variable;
3. the configuration file (`--config_file FILE`, else `)",
      variables::kConfigFile,
      R"(`,
   else the default file that `accelerate config` writes);
4. the default.

`accelerate config show` prints each value with the place it came from. A
switch takes a value too: `--debug=false` beats `debug: true` in the file.
Keys marked with * are read by this program only: Hugging Face Accelerate
refuses a file that has them.
)");
}

std::string code(std::string_view text) {
  return text.empty() ? "" : str_cat("`", text, "`");
}

std::string flag_column(const Field& field) {
  std::string text =
      field.letter == 0 ? "" : str_cat("`-", field.letter, "`, ");
  return str_cat(text, "`--", field.name, "`");
}

std::string values_column(const Field& field) {
  std::string choices;
  for (const std::string_view choice : field.choices) {
    choices += (choices.empty() ? "" : ", ") + code(choice);
  }
  return choices.empty()
             ? str_cat(
                   field.is_flag() ? "switch" : std::string(field.value_name))
             : choices;
}

std::string source_text(const Source& source) {
  switch (source.kind) {
    case SourceKind::kDefault:
      return "default";
    case SourceKind::kFile:
      return "file " + source.place;
    case SourceKind::kEnvironment:
      return "environment " + source.place;
    case SourceKind::kFlag:
      return "flag " + source.place;
  }
  return {};
}

} // namespace

std::string options_markdown() {
  std::string text = introduction();
  std::string_view group;
  for (const Field& field : launch_fields()) {
    if (field.group != group) {
      group = field.group;
      text += str_cat(
          "\n## ",
          group,
          "\n\n| flag | values | default | key in the file | variable | "
          "meaning |\n|---|---|---|---|---|---|\n");
    }
    const bool is_own_key = !field.yaml_key.empty() && !field.is_shared_key;
    text += str_cat(
        "| ",
        flag_column(field),
        " | ",
        values_column(field),
        " | ",
        code(format_field(LaunchConfig{}, field)),
        " | ",
        code(field.yaml_key),
        is_own_key ? " *" : "",
        " | ",
        code(field.variable),
        " | ",
        field.help,
        " |\n");
  }
  return text;
}

std::string describe_sources(const ResolvedConfig& config) {
  size_t name_width = 0;
  size_t value_width = 0;
  for (const Field& field : launch_fields()) {
    name_width = std::max(name_width, field.name.size());
    value_width =
        std::max(value_width, format_field(config.values, field).size());
  }
  const auto pad = [](std::string_view text, size_t width) {
    return std::string(text) +
           std::string(width - std::min(width, text.size()) + 2, ' ');
  };
  std::string text;
  for (const Field& field : launch_fields()) {
    const auto source = config.sources.find(std::string(field.name));
    text += pad(field.name, name_width) +
            pad(format_field(config.values, field), value_width) +
            source_text(
                source == config.sources.end() ? Source{} : source->second) +
            "\n";
  }
  return text;
}

} // namespace accelerate
