// SPDX-License-Identifier: Apache-2.0
#include "core/base/programs.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <memory>
#include <sstream>
#include <string_view>

#include "core/base/variables.h"

namespace accelerate {

std::filesystem::path own_program() {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/exe", ignored);
}

std::filesystem::path selftest_program() {
  return own_program().parent_path() / "accelerate-selftest";
}

bool is_script(const std::filesystem::path& file) {
  char start[2] = {};
  std::ifstream(file).read(start, sizeof(start));
  return start[0] == '#' && start[1] == '!';
}

std::filesystem::path interpreter_of(const std::filesystem::path& script) {
  if (!is_script(script)) {
    return {};
  }
  std::ifstream lines(script);
  std::string line;
  std::getline(lines, line);
  std::string interpreter = line.substr(2);
  // If its path is long or has spaces, pip writes a line that both sh and
  // Python accept: '''exec' "/my folder/bin/python3" "$0" "$@"
  constexpr std::string_view kExec = "'''exec' ";
  if (interpreter == "/bin/sh" && std::getline(lines, line) &&
      line.starts_with(kExec)) {
    std::istringstream words(line.substr(kExec.size()));
    words >> std::quoted(interpreter);
  }
  return access(interpreter.c_str(), X_OK) == 0 ? interpreter : std::string();
}

std::string find_program(const std::string& program) {
  const auto is_program = [](const std::string& path) {
    std::error_code ignored;
    return access(path.c_str(), X_OK) == 0 &&
           std::filesystem::is_regular_file(path, ignored);
  };
  if (program.find('/') != std::string::npos) {
    return is_program(program) ? program : std::string();
  }
  const char* path = std::getenv(variables::kPath);
  std::istringstream folders(path != nullptr ? path : "/bin:/usr/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string candidate = folder + "/" + program;
    if (is_program(candidate)) {
      return candidate;
    }
  }
  return {};
}

std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(
      popen(command.c_str(), "re"), pclose);
  std::string output;
  char buffer[4096];
  while (pipe != nullptr && std::fgets(buffer, sizeof(buffer), pipe.get())) {
    output += buffer;
  }
  return output;
}

} // namespace accelerate
