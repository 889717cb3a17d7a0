// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/help.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <sstream>
#include <string>

#include "core/base/parse.h"
#include "core/base/str.h"
#include "core/base/variables.h"
#include "core/base/words.h"
#include "core/config/fields.h"
#include "core/config/foreign.h"
#include "core/config/nearest.h"

namespace accelerate {
namespace {

constexpr size_t kColumns = 80;
/// The column of option descriptions.
constexpr size_t kOptionColumn = 26;
constexpr const char* kWithoutEffect = "Accepted without effect";

std::string wrap(const std::string& text, size_t indent) {
  std::istringstream words(text);
  std::string wrapped;
  size_t column = indent;
  for (std::string word; words >> word;) {
    const bool fits = column + 1 + word.size() <= kColumns;
    if (!wrapped.empty()) {
      wrapped += fits ? " " : "\n" + std::string(indent, ' ');
      column = fits ? column + 1 : indent;
    }
    column += word.size();
    wrapped += word;
  }
  return wrapped;
}

// `--num-processes` is accepted, but showing both names makes the help less
// readable.
std::string shown_name(const CLI::Option& option) {
  const auto& names = option.get_lnames();
  const auto shown =
      std::find_if(names.begin(), names.end(), [](const std::string& name) {
        return name.find('_') != std::string::npos;
      });
  return shown == names.end() ? names.at(0) : *shown;
}

std::string path_of(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  return parent == nullptr ? app.get_name()
                           : path_of(*parent) + " " + app.get_name();
}

const Field* field_of(const CLI::Option& option) {
  return option.get_lnames().empty() ? nullptr : find_field(shown_name(option));
}

const IgnoredFlag* ignored_flag_of(const CLI::Option& option) {
  const auto flags = ignored_flags();
  const auto found =
      std::find_if(flags.begin(), flags.end(), [&](const IgnoredFlag& flag) {
        return !option.get_lnames().empty() &&
               flag.name == option.get_lnames()[0];
      });
  return found == flags.end() ? nullptr : &*found;
}

std::string positional_name(const CLI::Option& option) {
  std::string name = option.get_name();
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) {
    return static_cast<char>(std::toupper(c));
  });
  return option.get_items_expected_max() > 1 ? name + "..." : name;
}

bool takes_value(const CLI::Option& option) {
  return option.get_items_expected_max() > 0;
}

class ReadableFormatter : public CLI::FormatterBase {
 public:
  ReadableFormatter()
      : is_coloured_(
            isatty(STDOUT_FILENO) == 1 &&
            std::getenv(variables::kNoColor) == nullptr) {}

  std::string make_help(
      const CLI::App* app,
      std::string /*name*/,
      CLI::AppFormatMode mode) const override {
    const bool is_all = mode == CLI::AppFormatMode::All;
    std::string text = wrap(app->get_description(), 0) + "\n\n" + usage(*app);
    text += commands(*app) + options(*app, is_all);
    const CLI::App* parent = app->get_parent(); // CLI11 inherits footers
    if (!app->get_footer().empty() &&
        (parent == nullptr || app->get_footer() != parent->get_footer())) {
      text += "\n" + app->get_footer() + "\n";
    }
    return text;
  }

 private:
  std::string heading(const std::string& text) const {
    return is_coloured_ ? "\x1b[1m" + text + ":\x1b[0m\n" : text + ":\n";
  }

  /// `name` is coloured, and what follows it (the value) is not.
  std::string row(
      const std::string& name,
      const std::string& value,
      const std::string& description,
      size_t column = kOptionColumn) const {
    const size_t width = 2 + name.size() + value.size();
    std::string text =
        "  " + (is_coloured_ ? "\x1b[36m" + name + "\x1b[0m" : name) + value;
    if (!description.empty()) {
      text += width + 1 >= column ? "\n" + std::string(column, ' ')
                                  : std::string(column - width, ' ');
      text += wrap(description, column);
    }
    return text + "\n";
  }

  std::string usage(const CLI::App& app) const {
    std::string text = (is_coloured_ ? "\x1b[1mUsage:\x1b[0m " : "Usage: ") +
                       path_of(app) + " [OPTIONS]";
    for (const CLI::Option* option : app.get_options()) {
      if (option->get_positional()) {
        text += " " + positional_name(*option);
      }
    }
    if (app.get_prefix_command()) {
      text += " PROGRAM [ARGUMENTS]";
    }
    if (!app.get_subcommands(nullptr).empty()) {
      text +=
          app.get_require_subcommand_min() > 0 || app.get_parent() == nullptr
              ? " COMMAND"
              : " [COMMAND]";
    }
    return text + "\n";
  }

  std::string commands(const CLI::App& app) const {
    const auto shown = app.get_subcommands(
        [](const CLI::App* one) { return !one->get_group().empty(); });
    std::vector<std::string> groups;
    size_t width = 0;
    for (const CLI::App* command : shown) {
      width = std::max(width, command->get_name().size());
      if (std::find(groups.begin(), groups.end(), command->get_group()) ==
          groups.end()) {
        groups.push_back(command->get_group());
      }
    }
    std::string text;
    for (const std::string& group : groups) {
      text += "\n" + heading(group == "Subcommands" ? "Commands" : group);
      for (const CLI::App* command : shown) {
        if (command->get_group() == group) {
          text += row(
              command->get_name(), "", command->get_description(), width + 4);
        }
      }
    }
    return text;
  }

  // Whether the help of a command only refers to this option of `launch`.
  static bool
  is_folded(const CLI::App& app, const CLI::Option& option, bool is_all) {
    return !is_all && !app.get_prefix_command() &&
           field_of(option) != nullptr &&
           option.get_group() == field_of(option)->group;
  }

  static std::string group_of(const CLI::Option& option, bool is_all) {
    const Field* field = field_of(option);
    const bool is_ignored = ignored_flag_of(option) != nullptr;
    if (is_ignored || (field != nullptr && !field->has_effect)) {
      return is_all ? kWithoutEffect : "";
    }
    return option.get_positional() ? "Arguments" : option.get_group();
  }

  std::string options(const CLI::App& app, bool is_all) const {
    std::vector<std::string> groups;
    std::map<std::string, std::string> rows;
    bool has_folded = false;
    bool has_hidden = false;
    for (const CLI::Option* option : app.get_options()) {
      if (option == app.get_help_all_ptr()) {
        continue;
      }
      if (is_folded(app, *option, is_all)) {
        has_folded = true;
        continue;
      }
      const std::string group = group_of(*option, is_all);
      if (group.empty()) {
        has_hidden = has_hidden || app.get_prefix_command();
        continue;
      }
      if (!rows.contains(group)) {
        // Required arguments come first. Other groups keep their order.
        groups.insert(
            option->get_positional() ? groups.begin() : groups.end(), group);
      }
      rows[group] += option_row(*option);
    }
    // Options without effect come last.
    const auto last =
        std::find(groups.begin(), groups.end(), std::string(kWithoutEffect));
    if (last != groups.end()) {
      std::rotate(last, last + 1, groups.end());
    }
    std::string text;
    for (const std::string& group : groups) {
      text += "\n" + heading(group) + rows[group];
    }
    if (has_folded) {
      text += "\n" +
              wrap(
                  "This command also accepts the options of `accelerate "
                  "launch`; see `accelerate launch --help`.",
                  0) +
              "\n";
    }
    if (has_hidden && !is_all) {
      text += "\n" +
              wrap(
                  "`" + path_of(app) +
                      " --help-all` also lists options that are accepted but "
                      "have no effect.",
                  0) +
              "\n";
    }
    return text;
  }

  std::string option_row(const CLI::Option& option) const {
    std::string description = option.get_description();
    if (option.get_positional()) {
      return row(positional_name(option), "", description);
    }
    std::string name;
    for (const std::string& letter : option.get_snames()) {
      name += "-" + letter + ", ";
    }
    name += "--" + shown_name(option);
    const std::string preset(trimmed(option.get_default_str(), "[]"));
    if (!preset.empty()) {
      description += " (default: " + preset + ")";
    }
    std::string value = takes_value(option) ? " " + option.get_type_name() : "";
    if (option.get_items_expected_max() > 1) {
      value += "...";
    }
    return row(name, value, description);
  }

  bool is_coloured_;
};

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_lnames().empty()) {
      names.push_back("--" + shown_name(*option));
    }
  }
  return names;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    if (!command->get_group().empty()) {
      names.push_back(command->get_name());
    }
  }
  return names;
}

} // namespace

void use_readable_help(CLI::App& app) {
  app.formatter(std::make_shared<ReadableFormatter>());
  app.set_help_flag("-h,--help", "Show this help");
  app.set_help_all_flag(
      "--help-all", "Show all options, including those that have no effect");
}

std::string explain_parse_error(
    const CLI::ParseError& error,
    const CLI::App& command) {
  const auto is = [&](CLI::ExitCodes code) {
    return error.get_exit_code() == static_cast<int>(code);
  };
  const std::string help = "see `" + path_of(command) + " --help`";
  if (is(CLI::ExitCodes::ExtrasError)) {
    const CLI::App* owner = &command;
    while (owner->remaining().empty() && owner->get_parent() != nullptr) {
      owner = owner->get_parent();
    }
    const auto extras = owner->remaining();
    const std::string first = extras.empty() ? "" : extras.front();
    if (!first.starts_with('-')) {
      const std::string meant = nearest_name(first, command_names(*owner));
      return str_cat(
          "unexpected argument '",
          first,
          "'; ",
          meant.empty() ? help : "did you mean '" + meant + "'?");
    }
    const std::string nearest =
        nearest_name(first.substr(0, first.find('=')), option_names(command));
    return str_cat(
        "unknown option '",
        first,
        "'; ",
        nearest.empty() ? help : "did you mean '" + nearest + "'?");
  }
  if (is(CLI::ExitCodes::RequiredError)) {
    for (const CLI::Option* option : command.get_options()) {
      if (option->get_positional() && option->get_required() &&
          option->count() == 0) {
        return str_cat(
            "`",
            path_of(command),
            "` needs ",
            positional_name(*option),
            "; ",
            help);
      }
    }
  }
  std::string text = error.what();
  if (is(CLI::ExitCodes::ArgumentMismatch)) {
    return str_cat(text.substr(0, text.find(':')), " needs a value; ", help);
  }
  // Removes the colon: "--x: must ..." becomes "--x must ...".
  if (const size_t colon = text.find(": must "); colon != std::string::npos) {
    text.erase(colon, 1);
  }
  return text;
}

CLI::Validator whole_number_from(int least, int most) {
  return CLI::Validator(
      [=](std::string& text) {
        const auto number = parse_number<int>(text);
        return number && *number >= least && *number <= most
                   ? std::string()
                   : str_cat(
                         "must be a whole number from ",
                         least,
                         " to ",
                         most,
                         ", not '",
                         text,
                         "'");
      },
      "");
}

CLI::Validator one_of(std::vector<std::string> words) {
  return CLI::Validator(
      [words = std::move(words)](std::string& text) {
        return std::find(words.begin(), words.end(), text) != words.end()
                   ? std::string()
                   : str_cat("must be ", either(words), ", not '", text, "'");
      },
      "");
}

} // namespace accelerate
