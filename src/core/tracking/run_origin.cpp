// SPDX-License-Identifier: Apache-2.0
#include "core/tracking/run_origin.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <sstream>
#include <string_view>

#include "accelerate/error.h"
#include "core/base/small_file.h"
#include "core/base/words.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMask = "***";
constexpr std::array<std::string_view, 12> kSecretWords = {
    "token",
    "secret",
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "credential",
    "credentials",
    "apikey",
    "accesskey",
    "privatekey",
    "auth"};
/// "key" alone may be anything. After one of these words, it is a secret.
constexpr std::array<std::string_view, 4> kBeforeKey = {
    "api",
    "access",
    "private",
    "account"};
/// Hugging Face, OpenAI and Anthropic, GitHub, GitLab, Slack, AWS.
constexpr std::array<std::string_view, 9> kSecretBeginnings = {
    "hf_",
    "sk-",
    "ghp_",
    "gho_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "AKIA"};
constexpr size_t kLeastSecret = 16;

template <class List>
bool contains(const List& list, std::string_view wanted) {
  return std::find(list.begin(), list.end(), wanted) != list.end();
}

/// "hubToken", "HUB_TOKEN" and "--hub-token" are "hub" and "token".
std::vector<std::string> words_of(std::string_view name) {
  std::vector<std::string> words(1);
  char before = '_';
  for (const char letter : name) {
    const auto code = static_cast<unsigned char>(letter);
    if (std::isalnum(code) == 0) {
      words.emplace_back();
    } else {
      const bool is_hump =
          std::isupper(code) != 0 &&
          std::islower(static_cast<unsigned char>(before)) != 0;
      if (is_hump) {
        words.emplace_back();
      }
      words.back() += static_cast<char>(std::tolower(code));
    }
    before = letter;
  }
  return words;
}

bool is_secret_value(std::string_view value) {
  return value.size() >= kLeastSecret &&
         std::any_of(
             kSecretBeginnings.begin(),
             kSecretBeginnings.end(),
             [&](std::string_view begin) { return value.starts_with(begin); });
}

/// "https://user:password@host" without the password.
std::string without_password(std::string value) {
  const auto scheme = value.find("://");
  if (scheme == std::string::npos) {
    return value;
  }
  const auto begin = scheme + 3;
  const auto host = value.find_first_of("/?#", begin);
  const auto at = value.rfind('@', host);
  const auto colon = value.find(':', begin);
  if (at != std::string::npos && at > begin && colon < at) {
    value.replace(colon + 1, at - colon - 1, kMask);
  }
  return value;
}

std::string masked_value(const std::string& value) {
  return is_secret_value(value) ? kMask : without_password(value);
}

/// Quotes an argument for a shell, so that users can copy the line.
std::string quoted(const std::string& argument) {
  const bool is_plain =
      !argument.empty() &&
      std::all_of(argument.begin(), argument.end(), [](char letter) {
        return std::isalnum(static_cast<unsigned char>(letter)) != 0 ||
               std::string_view("-_./=:,@+%*").find(letter) !=
                   std::string_view::npos;
      });
  if (is_plain) {
    return argument;
  }
  std::string text = "'";
  for (const char letter : argument) {
    text += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  }
  return text + '\'';
}

/// The first line; empty if it cannot be read.
std::string first_line(const fs::path& path) {
  try {
    const auto text = read_small_file(path, "the file");
    return text.substr(0, text.find('\n'));
  } catch (const ConfigError&) {
    return {};
  }
}

bool is_commit(const std::string& text) {
  return (text.size() == 40 || text.size() == 64) &&
         text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string packed_commit(const fs::path& folder, const std::string& name) {
  std::ifstream file(folder / "packed-refs");
  for (std::string line; std::getline(file, line);) {
    const auto space = line.find(' ');
    if (space != std::string::npos && line.substr(space + 1) == name) {
      return line.substr(0, space);
    }
  }
  return {};
}

} // namespace

bool is_secret_name(std::string_view name) {
  const auto words = words_of(name);
  for (size_t i = 0; i < words.size(); ++i) {
    if (contains(kSecretWords, words[i]) ||
        (i > 0 && words[i] == "key" && contains(kBeforeKey, words[i - 1]))) {
      return true;
    }
  }
  return false;
}

std::string masked_command(const std::vector<std::string>& arguments) {
  std::vector<std::string> shown;
  bool is_secret_next = false;
  for (const auto& argument : arguments) {
    const bool is_option = argument.starts_with('-');
    const auto equals = argument.find('=');
    const bool is_pair = equals != std::string::npos && equals > 0 &&
                         argument.find("://") > equals;
    if (is_pair) {
      const auto name = argument.substr(0, equals);
      const auto value = argument.substr(equals + 1);
      shown.push_back(
          quoted(name + '=') +
          (is_secret_name(name) ? kMask : quoted(masked_value(value))));
      is_secret_next = false;
    } else if (is_secret_next && !is_option) {
      shown.emplace_back(kMask);
      is_secret_next = false;
    } else {
      shown.push_back(quoted(masked_value(argument)));
      is_secret_next = is_option && is_secret_name(argument);
    }
  }
  return join(shown, " ");
}

std::string own_command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) {
    arguments.push_back(argument);
  }
  return masked_command(arguments);
}

std::string git_commit(fs::path folder) {
  std::error_code error;
  for (folder = fs::absolute(folder, error); !error;
       folder = folder.parent_path()) {
    fs::path git = folder / ".git";
    if (fs::is_regular_file(git, error)) {
      // The file ".git" of a work tree or a submodule contains "gitdir: PATH".
      constexpr std::string_view kPrefix = "gitdir: ";
      const auto line = first_line(git);
      git = line.starts_with(kPrefix) ? folder / line.substr(kPrefix.size())
                                      : fs::path();
    }
    if (fs::is_regular_file(git / "HEAD", error)) {
      const auto head = first_line(git / "HEAD");
      constexpr std::string_view kReference = "ref: ";
      if (!head.starts_with(kReference)) {
        return is_commit(head) ? head : std::string();
      }
      const auto name = head.substr(kReference.size());
      const auto common = first_line(git / "commondir");
      const auto base = common.empty() ? git : git / common;
      auto commit = first_line(base / name);
      commit = commit.empty() ? packed_commit(base, name) : commit;
      return is_commit(commit) ? commit : std::string();
    }
    if (folder == folder.parent_path()) {
      return {};
    }
    error.clear();
  }
  return {};
}

} // namespace accelerate
