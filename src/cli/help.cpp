// SPDX-License-Identifier: Apache-2.0
#include "cli/help.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <sstream>
#include <string>

namespace accelerate {
namespace {

constexpr size_t kColumns = 80;

std::string wrap(const std::string& text, size_t width) {
  std::istringstream words(text);
  std::string wrapped;
  size_t column = 0;
  for (std::string word; words >> word;) {
    const bool fits = column + 1 + word.size() <= width;
    if (column > 0) {
      wrapped += fits ? " " : "\n";
    }
    column = fits && column > 0 ? column + 1 + word.size() : word.size();
    wrapped += word;
  }
  return wrapped;
}

class ReadableFormatter : public CLI::Formatter {
 public:
  ReadableFormatter() { column_width(26); }

  std::string make_group(
      std::string group,
      bool is_positional,
      std::vector<const CLI::Option*> options) const override {
    const std::string text =
        CLI::Formatter::make_group(group, is_positional, options);
    return text.starts_with('\n') ? text.substr(1) : text;
  }

  std::string make_usage(const CLI::App* app, std::string name) const override {
    std::string usage = CLI::Formatter::make_usage(app, std::move(name));
    if (app->get_prefix_command()) {
      usage.insert(usage.find_last_not_of('\n') + 1, " PROGRAM [ARGUMENTS]");
    }
    return usage;
  }

  // `--num-processes` is accepted, but twice the names are half as readable.
  std::string make_option_name(const CLI::Option* option, bool is_positional)
      const override {
    if (is_positional) {
      return CLI::Formatter::make_option_name(option, is_positional);
    }
    std::string names;
    for (const std::string& letter : option->get_snames()) {
      names += "-" + letter + ", ";
    }
    const auto& all = option->get_lnames();
    const auto shown =
        std::find_if(all.begin(), all.end(), [](const std::string& name) {
          return name.find('_') != std::string::npos;
        });
    return names + "--" + (shown == all.end() ? all.at(0) : *shown);
  }

  std::string make_option_desc(const CLI::Option* option) const override {
    return wrap(
        CLI::Formatter::make_option_desc(option),
        kColumns - get_column_width());
  }
};

} // namespace

void use_readable_help(CLI::App& app) {
  app.formatter(std::make_shared<ReadableFormatter>());
}

} // namespace accelerate
