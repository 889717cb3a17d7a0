// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/plan/host_file.h"

#include <sstream>

#include "accelerate/error.h"
#include "core/base/host_name.h"
#include "core/base/parse.h"
#include "core/base/printable.h"
#include "core/base/str.h"

namespace accelerate {
namespace {

constexpr size_t kMaxHosts = 4096;

[[noreturn]] void refuse(
    const std::string& location,
    const std::string& word,
    const char* expected) {
  throw ConfigError(str_cat(
      "[launch] ",
      location,
      ": '",
      printable(word),
      "' is not ",
      expected,
      "; write each line as `HOST slots=N`"));
}

std::optional<HostEntry> read_line(
    std::string line,
    const std::string& location) {
  line = line.substr(0, line.find('#'));
  std::istringstream in(line);
  HostEntry entry;
  if (!(in >> entry.name)) {
    return std::nullopt;
  }
  if (!is_ssh_target(entry.name)) {
    refuse(location, entry.name, "a host name");
  }
  for (std::string word; in >> word;) {
    const auto slots =
        parse_number<int>(word.starts_with("slots=") ? word.substr(6) : "");
    if (!slots || *slots < 1) {
      refuse(location, word, "slots=N");
    }
    entry.slots = slots;
  }
  return entry;
}

} // namespace

std::vector<HostEntry> parse_host_file(
    std::string_view text,
    const std::string& path) {
  std::vector<HostEntry> hosts;
  std::istringstream lines{std::string(text)};
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    if (auto entry = read_line(line, str_cat(path, ":", ++number))) {
      hosts.push_back(std::move(*entry));
    }
  }
  if (hosts.empty() || hosts.size() > kMaxHosts) {
    throw ConfigError(str_cat(
        "[launch] the host file ",
        path,
        " lists ",
        hosts.size(),
        " hosts; list 1 to ",
        kMaxHosts,
        ", one per line"));
  }
  return hosts;
}

} // namespace accelerate
