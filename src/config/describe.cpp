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

<!-- `accelerate config options-markdown` writes this page, and a test checks it. -->

You can set an option in four places. If several of them set it, the first in
this list takes precedence:

1. a flag: `--num_processes 4` or `--num-processes 4`;
2. an environment variable;
3. the configuration file (`--config_file FILE`, the file that
   `)",
      variables::kConfigFile,
      R"(` names, or the default file that `accelerate config` writes);
4. the default.

`accelerate config show` prints each value and its source. A boolean flag also
accepts a value: `--debug=false` overrides `debug: true` in the file. Keys
marked with * exist only in this program. Hugging Face Accelerate rejects files
that contain them. Options whose meaning starts with "No effect" or "Not
supported" are accepted so that existing command lines and files keep working.
)");
}

std::string code(std::string_view text) {
  return text.empty() ? "" : str_cat("`", text, "`");
}

std::string escape_bars(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    escaped += c == '|' ? "\\|" : std::string(1, c);
  }
  return escaped;
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
                   field.is_flag() ? "boolean" : escape_bars(field.value_name))
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
        escape_bars(field.help),
        " |\n");
  }
  return text;
}

std::string summarize(const LaunchConfig& config, int num_gpus) {
  const int used = config.cpu ? 0 : num_gpus;
  const int num_processes = config.num_processes.value_or(
      std::max(1, used) * config.num_machines.most);
  std::string text = str_cat(
      num_processes,
      num_processes == 1 ? " process" : " processes",
      config.num_machines.most > 1
          ? str_cat(
                " on ",
                format_field(config, *find_field("num_machines")),
                " machines")
          : std::string(),
      config.multi_gpu || used > 0
          ? (num_processes == 1 ? ", on a GPU" : ", one GPU each")
          : ", on the CPU");
  if (config.mixed_precision != "no") {
    text += ", " + config.mixed_precision;
  }
  if (config.use_fsdp) {
    text += ", FSDP";
  }
  return config.use_deepspeed ? text + ", DeepSpeed" : text;
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
