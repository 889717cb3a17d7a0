// SPDX-License-Identifier: Apache-2.0
#include "core/config/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "core/base/str.h"
#include "core/base/words.h"
#include "core/config/fields.h"
#include "core/config/foreign.h"
#include "core/config/nearest.h"

namespace accelerate {
namespace {

void add_flag(
    CLI::App& command,
    const Field& field,
    const std::shared_ptr<ConfigLayer>& layer) {
  const std::string name(field.name);
  const std::string spellings = flag_spellings(name, field.letter);
  const std::string help =
      field.choices.empty() || !field.has_effect
          ? std::string(field.help)
          : str_cat(field.help, ": ", either(field.choices));
  const std::string group(field.group);
  if (field.is_flag()) {
    // CLI11 passes "true" for `--x` and the text for `--x=text`.
    command
        .add_option(
            spellings,
            [layer, name](const CLI::results_t& results) {
              (*layer)[name] = {results.back(), "--" + name};
              return true;
            },
            help)
        ->expected(0)
        ->take_last()
        ->group(group);
    return;
  }
  auto* option = command
                     .add_option_function<std::string>(
                         spellings,
                         [layer, name](const std::string& text) {
                           (*layer)[name] = {text, "--" + name};
                         },
                         help)
                     ->group(group)
                     ->type_name(value_placeholder(field));
  if (field.adds_up) {
    option->join(',');
  } else {
    option->take_last();
  }
}

void add_ignored_flag(
    CLI::App& command,
    const IgnoredFlag& flag,
    const std::shared_ptr<ConfigLayer>& layer) {
  constexpr const char* kHidden = "";
  const std::string name(flag.name);
  command
      .add_option(
          flag_spellings(name, 0),
          [layer, name](const CLI::results_t& results) {
            (*layer)[name] = {results.back(), "--" + name};
            return true;
          },
          std::string(flag.reason))
      ->expected(flag.takes_value ? 1 : 0)
      ->take_last()
      ->group(kHidden);
}

} // namespace

std::string value_placeholder(const Field& field) {
  return field.choices.empty() ? std::string(field.value_name) : "NAME";
}

std::string flag_spellings(const std::string& name, char letter) {
  std::string dashed = name;
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  std::string all = letter == 0 ? "" : str_cat("-", letter, ",");
  all += "--" + name;
  return dashed == name ? all : all + ",--" + dashed;
}

std::string explain_unknown_flag(const std::string& flag) {
  std::string name = flag.substr(0, flag.find('='));
  name.erase(0, name.find_first_not_of('-'));
  std::replace(name.begin(), name.end(), '-', '_');
  const std::string_view advice = foreign_flag(name);
  if (!advice.empty()) {
    return str_cat("[launch] --", name, ": ", advice);
  }
  std::vector<std::string> names = {"config_file", "help"};
  for (const Field& field : launch_fields()) {
    names.emplace_back(field.name);
  }
  const std::string nearest = nearest_name(name, names);
  return str_cat(
      "[launch] unknown option '",
      flag,
      "'; ",
      nearest.empty() ? "see `accelerate launch --help`"
                      : "did you mean '--" + nearest + "'?");
}

std::shared_ptr<ConfigLayer> add_launch_flags(CLI::App& command) {
  auto layer = std::make_shared<ConfigLayer>();
  command
      .add_option_function<std::string>(
          flag_spellings("config_file", 0),
          [layer](const std::string& text) {
            (*layer)["config_file"] = {text, "--config_file"};
          },
          "Configuration file to use instead of the default one")
      ->take_last()
      ->type_name("FILE");
  for (const Field& field : launch_fields()) {
    add_flag(command, field, layer);
  }
  for (const IgnoredFlag& flag : ignored_flags()) {
    add_ignored_flag(command, flag, layer);
  }
  return layer;
}

} // namespace accelerate
