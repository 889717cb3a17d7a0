// SPDX-License-Identifier: Apache-2.0
// `accelerate new`: a project that trains, to begin with.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "accelerate/error.h"
#include "base/atomic_file.h"
#include "base/str.h"
#include "cli/commands.h"
#include "cli/new_project.h"
#include "launch/plan/shell_quote.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;

struct NewProject {
  std::string folder = {};
  std::string language = "cpp";
};

/// Where this program was installed, as CMake is to be told.
fs::path installed_prefix() {
  std::error_code error;
  const auto program = fs::read_symlink("/proc/self/exe", error);
  return error ? fs::path("/usr/local") : program.parent_path().parent_path();
}

void write_new_file(const fs::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

void make_project(const NewProject& project) {
  const fs::path folder = project.folder;
  std::error_code error;
  if (fs::exists(folder, error) && !fs::is_empty(folder, error)) {
    throw UsageError(str_cat(
        "[new] '",
        folder.string(),
        "' is there already, expected a new folder or an empty one; give "
        "another name"));
  }
  fs::create_directories(folder, error);
  if (error) {
    throw SystemError(str_cat(
        "[new] the folder '",
        folder.string(),
        "' cannot be made: ",
        error.message()));
  }
  if (project.language == "python") {
    write_new_file(folder / "train.py", kNewTrainPy);
    const auto script = shell_quoted((folder / "train.py").string());
    std::cout << "python " << script << '\n'
              << "accelerate launch --num_processes 2 " << script << '\n';
    return;
  }
  write_new_file(folder / "CMakeLists.txt", kNewCMakeLists);
  write_new_file(folder / "train.cpp", kNewTrainCpp);
  const auto build = folder / "build";
  std::cout << "cmake -S " << shell_quoted(folder.string()) << " -B "
            << shell_quoted(build.string()) << ' '
            << shell_quoted(
                   "-DCMAKE_PREFIX_PATH=" + installed_prefix().string())
            << " && cmake --build " << shell_quoted(build.string()) << '\n'
            << "accelerate launch --num_processes 2 "
            << shell_quoted((build / "train").string()) << '\n';
}

} // namespace

void add_new_command(CLI::App& app, int& /*exit_code*/) {
  CLI::App* command = app.add_subcommand(
      "new", "Writes a project that trains, and says how to run it");
  auto project = std::make_shared<NewProject>();
  command->add_option("folder", project->folder, "Where; must not exist yet")
      ->required();
  command->add_option("--language", project->language, "cpp or python")
      ->check(CLI::IsMember({"cpp", "python"}));
  command->callback([project] { make_project(*project); });
}

} // namespace accelerate
