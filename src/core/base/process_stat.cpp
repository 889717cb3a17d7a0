// SPDX-License-Identifier: Apache-2.0
#include "core/base/process_stat.h"

#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

#include "core/base/parse.h"

namespace accelerate {

std::optional<ProcessStat> parse_process_stat(const std::string& text) {
  // The program name, in parentheses, may contain anything.
  const auto name_end = text.rfind(')');
  if (name_end == std::string::npos) {
    return std::nullopt;
  }
  std::istringstream rest(text.substr(name_end + 1));
  const std::vector<std::string> fields(
      std::istream_iterator<std::string>(rest), {});
  // Field numbers of proc(5), which start at 1.
  constexpr size_t kState = 3;
  const auto field = [&](size_t number) {
    const auto i = number - kState;
    return i < fields.size() ? fields[i] : std::string();
  };
  const auto parent = parse_number<pid_t>(field(4));
  if (field(kState).size() != 1 || !parent) {
    return std::nullopt;
  }
  return ProcessStat{
      .state = field(kState)[0],
      .parent = *parent,
      .start_time = parse_number<uint64_t>(field(22)).value_or(0),
      .arguments_begin = parse_number<uintptr_t>(field(48)).value_or(0),
      .arguments_end = parse_number<uintptr_t>(field(49)).value_or(0)};
}

std::optional<ProcessStat> read_process_stat(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  return parse_process_stat({std::istreambuf_iterator<char>(file), {}});
}

} // namespace accelerate
