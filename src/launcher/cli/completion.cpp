// SPDX-License-Identifier: Apache-2.0
// `accelerate completion`: shell scripts generated from the registered commands
// and the list of launch options. Their JSON form is what the parsers of the
// Python package are built from.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/base/words.h"
#include "core/config/fields.h"
#include "launcher/cli/commands.h"
#include "launcher/cli/help.h"

namespace accelerate {
namespace {

struct OptionInfo {
  /// The name with underscores, without leading dashes.
  std::string name;
  std::string help;
  bool takes_value = false;
  std::string choices;
};

struct CommandInfo {
  /// The full name of the command, such as "config show".
  std::string path;
  std::string help;
  std::vector<OptionInfo> options;
  std::vector<std::string> subcommands;
};

OptionInfo describe(const CLI::Option& option) {
  const auto& names = option.get_lnames();
  const auto shown =
      std::find_if(names.begin(), names.end(), [](const std::string& name) {
        return name.find('_') != std::string::npos;
      });
  OptionInfo info{
      .name = shown == names.end() ? names.at(0) : *shown,
      .help = option.get_description(),
      .takes_value = option.get_items_expected_max() > 0,
      .choices = {}};
  if (const Field* field = find_field(info.name)) {
    info.choices = join(field->choices, " ");
  }
  return info;
}

void collect(
    const CLI::App& app,
    const std::string& path,
    std::vector<CommandInfo>& commands) {
  CommandInfo info{path, app.get_description(), {}, {}};
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_lnames().empty() && !option->get_group().empty()) {
      info.options.push_back(describe(*option));
    }
  }
  std::vector<const CLI::App*> shown = app.get_subcommands(
      [](const CLI::App* sub) { return !sub->get_group().empty(); });
  for (const CLI::App* sub : shown) {
    info.subcommands.push_back(sub->get_name());
  }
  commands.push_back(std::move(info));
  for (const CLI::App* sub : shown) {
    collect(
        *sub,
        path.empty() ? sub->get_name() : path + " " + sub->get_name(),
        commands);
  }
}

std::string in_single_quotes(const std::string& text) {
  std::string quoted;
  for (const char c : text) {
    quoted += c == '\'' ? "'\\''" : std::string(1, c);
  }
  return "'" + quoted + "'";
}

constexpr const char* kBashHead = R"(# bash completion for accelerate
_accelerate() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
  local path="" i word options subcommands valued skip=""
  COMPREPLY=()
  for ((i = 1; i <= COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    case "$path" in
)";

constexpr const char* kBashTail = R"(    esac
    [ "$i" -eq "$COMP_CWORD" ] && break
    if [ -n "$skip" ]; then
      skip=""
    elif [[ $word == -* ]]; then
      [[ " $valued " == *" ${word//-/_} "* ]] && skip=1
    elif [[ " $subcommands " == *" $word "* ]]; then
      path="${path:+$path }$word"
    elif [ "$path" = launch ]; then
      COMPREPLY=($(compgen -f -- "$cur"))
      return
    fi
  done
  if [[ $cur == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$cur"))
    return
  fi
  if [ -n "$skip" ]; then
    case "${prev//-/_}" in
)";

constexpr const char* kBashEnd =
    R"(      *) COMPREPLY=($(compgen -f -- "$cur")) ;;
    esac
  elif [ "$path" = launch ]; then
    COMPREPLY=($(compgen -f -- "$cur"))
  else
    COMPREPLY=($(compgen -W "$subcommands" -- "$cur"))
  fi
}
complete -o filenames -F _accelerate accelerate
)";

std::string bash_script(const std::vector<CommandInfo>& commands) {
  std::string script = kBashHead;
  std::string choices;
  for (const CommandInfo& command : commands) {
    std::string options;
    std::string valued;
    for (const OptionInfo& option : command.options) {
      options += "--" + option.name + " ";
      // The script replaces every dash with an underscore, so that both
      // spellings are equal.
      valued += option.takes_value ? "__" + option.name + " " : "";
      const std::string label = "      __" + option.name + ") ";
      if (!option.choices.empty() && choices.find(label) == std::string::npos) {
        choices += str_cat(
            label,
            "COMPREPLY=($(compgen -W '",
            option.choices,
            "' -- \"$cur\")) ;;\n");
      }
    }
    script += str_cat(
        "      '",
        command.path,
        "') options='",
        options,
        "' subcommands='",
        join(command.subcommands, " "),
        "' valued='",
        valued,
        "' ;;\n");
  }
  return script + kBashTail + choices + kBashEnd;
}

// Brackets and colons are special in a specification of `_arguments`.
std::string zsh_option(const OptionInfo& option) {
  std::string help;
  for (const char c : option.help) {
    help += c == '[' || c == ']' || c == ':' ? std::string("\\") + c
                                             : std::string(1, c);
  }
  std::string text = "--" + option.name + "[" + help + "]";
  if (!option.choices.empty()) {
    text += ":value:(" + option.choices + ")";
  } else if (option.takes_value) {
    text += ":value:_files";
  }
  return in_single_quotes(text);
}

std::string zsh_function(const std::string& path) {
  std::string name = "_accelerate" + (path.empty() ? "" : "_" + path);
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

std::string zsh_script(const std::vector<CommandInfo>& commands) {
  std::string script = "#compdef accelerate\n";
  for (const CommandInfo& command : commands) {
    script += "\n" + zsh_function(command.path) + "() {\n  _arguments -S";
    for (const OptionInfo& option : command.options) {
      script += " \\\n    " + zsh_option(option);
    }
    if (command.path == "launch") {
      script += " \\\n    '*:: :_normal'";
    } else if (!command.subcommands.empty()) {
      script += str_cat(
          " \\\n    '1:command:(",
          join(command.subcommands, " "),
          ")' \\\n    '*:: :->rest'\n  [[ $state == rest ]] || return\n  case "
          "$words[1] in\n");
      for (const std::string& sub : command.subcommands) {
        const std::string path =
            command.path.empty() ? sub : command.path + " " + sub;
        script += str_cat("    ", sub, ") ", zsh_function(path), " ;;\n");
      }
      script += "  esac\n}\n";
      continue;
    }
    script += "\n}\n";
  }
  return script + "\ncompdef _accelerate accelerate\n";
}

std::string fish_condition(const CommandInfo& command) {
  std::string condition;
  if (command.path.empty()) {
    return "__fish_use_subcommand";
  }
  std::istringstream words(command.path);
  for (std::string word; words >> word;) {
    condition += str_cat(
        condition.empty() ? "" : "; and ",
        "__fish_seen_subcommand_from ",
        word);
  }
  if (!command.subcommands.empty()) {
    condition += "; and not __fish_seen_subcommand_from " +
                 join(command.subcommands, " ");
  }
  return condition;
}

std::string fish_script(const std::vector<CommandInfo>& commands) {
  std::string script = "# fish completion for accelerate\n";
  for (const CommandInfo& command : commands) {
    const std::string start =
        str_cat("complete -c accelerate -n '", fish_condition(command), "' ");
    for (const CommandInfo& sub : commands) {
      const std::string prefix = command.path.empty() ? "" : command.path + " ";
      const std::string name =
          sub.path.substr(std::min(prefix.size(), sub.path.size()));
      if (!sub.path.empty() && sub.path.starts_with(prefix) && !name.empty() &&
          name.find(' ') == std::string::npos && sub.path != command.path) {
        script += str_cat(
            start, "-f -a ", name, " -d ", in_single_quotes(sub.help), "\n");
      }
    }
    for (const OptionInfo& option : command.options) {
      const std::string value = !option.choices.empty()
                                    ? " -x -a '" + option.choices + "'"
                                    : (option.takes_value ? " -r" : "");
      script += str_cat(
          start,
          "-l ",
          option.name,
          value,
          " -d ",
          in_single_quotes(option.help),
          "\n");
    }
  }
  return script;
}

using nlohmann::ordered_json;

std::vector<std::string> all_names(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& letter : option.get_snames()) {
    names.push_back("-" + letter);
  }
  for (const std::string& name : option.get_lnames()) {
    names.push_back("--" + name);
  }
  if (names.empty()) { // positional
    names.push_back(option.get_name());
  }
  return names;
}

// Converts an option to JSON, including hidden ones: the parser accepts all.
ordered_json option_as_json(const CLI::Option& option) {
  const Field* field =
      option.get_lnames().empty() ? nullptr : find_field(describe(option).name);
  return {
      {"names", all_names(option)},
      {"help", option.get_description()},
      {"group", option.get_group()},
      {"value_name", option.get_type_name()},
      {"default", option.get_default_str()},
      {"takes_value", option.get_items_expected_max() > 0},
      {"takes_several", option.get_items_expected_max() > 1},
      {"adds_up", field != nullptr && field->adds_up},
      {"is_number", field != nullptr && field->is_number()},
      {"is_required", option.get_required()},
  };
}

ordered_json command_as_json(const CLI::App& app) {
  ordered_json options = ordered_json::array();
  for (const CLI::Option* option : app.get_options()) {
    if (option != app.get_help_ptr() && option != app.get_help_all_ptr()) {
      options.push_back(option_as_json(*option));
    }
  }
  ordered_json commands = ordered_json::object();
  for (const CLI::App* sub : app.get_subcommands(
           [](const CLI::App* one) { return !one->get_group().empty(); })) {
    commands[sub->get_name()] = command_as_json(*sub);
  }
  return {
      {"help", app.get_description()},
      {"takes_program", app.get_prefix_command()},
      {"options", std::move(options)},
      {"commands", std::move(commands)},
  };
}

} // namespace

void add_completion_command(CLI::App& app, int& /*exit_code*/) {
  CLI::App* command = app.add_subcommand(
      "completion", "Print a completion script for bash, zsh or fish");
  command->group(kShellCommands);
  auto shell = std::make_shared<std::string>();
  command->add_option("shell", *shell, "bash, zsh, fish or json")->required();
  command->footer(
      "bash: source <(accelerate completion bash)\n"
      "zsh:  source <(accelerate completion zsh)\n"
      "fish: accelerate completion fish | source\n"
      "json: all commands and options, for other programs");
  command->callback([&app, shell] {
    std::vector<CommandInfo> commands;
    collect(app, "", commands);
    if (*shell == "bash") {
      std::cout << bash_script(commands);
    } else if (*shell == "zsh") {
      std::cout << zsh_script(commands);
    } else if (*shell == "fish") {
      std::cout << fish_script(commands);
    } else if (*shell == "json") {
      std::cout << command_as_json(app).dump(2) << '\n';
    } else {
      throw ConfigError(str_cat(
          "[completion] unknown shell '",
          *shell,
          "'; use bash, zsh, fish or json"));
    }
  });
}

} // namespace accelerate
