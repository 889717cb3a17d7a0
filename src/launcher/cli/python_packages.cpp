// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/python_packages.h"

#include <filesystem>
#include <sstream>

#include "core/base/programs.h"
#include "core/base/str.h"
#include "launcher/launch/plan/shell_quote.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;

/// PREFIX/lib/python3.X/site-packages of a virtual environment.
std::vector<fs::path> environment_folders(const fs::path& python) {
  std::error_code error;
  const fs::path prefix = python.parent_path().parent_path();
  std::vector<fs::path> folders;
  if (!fs::exists(prefix / "pyvenv.cfg", error)) {
    return folders;
  }
  for (const auto& entry : fs::directory_iterator(prefix / "lib", error)) {
    if (entry.path().filename().string().starts_with("python3")) {
      folders.push_back(entry.path() / "site-packages");
    }
  }
  return folders;
}

std::vector<fs::path> folders_of_interpreter(const std::string& python) {
  std::istringstream lines(output_of(
      shell_quoted(python) +
      " -c 'import sys; print(*sys.path, sep=\"\\n\")' 2>/dev/null"));
  std::vector<fs::path> folders;
  for (std::string line; std::getline(lines, line);) {
    folders.emplace_back(line);
  }
  return folders;
}

/// The version of a package: "2.15.0" for torch-2.15.0.dist-info.
std::string version_in(
    const std::vector<fs::path>& folders,
    const std::string& name) {
  const std::string start = name + "-";
  constexpr std::string_view kEnd = ".dist-info";
  for (const fs::path& folder : folders) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      const std::string file = entry.path().filename();
      if (file.starts_with(start) && file.ends_with(kEnd)) {
        return file.substr(
            start.size(), file.size() - start.size() - kEnd.size());
      }
    }
  }
  return {};
}

std::vector<std::string> versions_in(
    const std::vector<fs::path>& folders,
    const std::vector<std::string>& names) {
  std::vector<std::string> versions;
  for (const std::string& name : names) {
    versions.push_back(version_in(folders, name));
  }
  return versions;
}

} // namespace

std::string first_line_of(const std::string& command) {
  const std::string output = output_of(command);
  return output.substr(0, output.find('\n'));
}

std::vector<std::string> package_versions(
    const std::string& python,
    const std::vector<std::string>& names) {
  const std::string path = find_program(python);
  if (path.empty()) {
    return std::vector<std::string>(names.size());
  }
  // An environment may include packages of the system. Ask the interpreter if
  // the first package is not in the environment itself.
  const auto own = versions_in(environment_folders(path), names);
  return own.empty() || own[0].empty()
             ? versions_in(folders_of_interpreter(path), names)
             : own;
}

} // namespace accelerate
