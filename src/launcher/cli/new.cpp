// SPDX-License-Identifier: Apache-2.0
// `accelerate new`: creates a small project that trains.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "accelerate/error.h"
#include "accelerate/process.h"
#include "core/base/atomic_file.h"
#include "core/base/programs.h"
#include "core/base/str.h"
#include "launcher/cli/commands.h"
#include "launcher/cli/help.h"
#include "launcher/cli/new_project.h"
#include "launcher/cli/python_packages.h"
#include "launcher/launch/plan/plan.h"
#include "launcher/launch/plan/shell_quote.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;

struct NewProject {
  std::string folder = {};
  /// Default: the language of this installation.
  std::string language = {};
};

/// The installation prefix of this program, for CMake.
fs::path installed_prefix() {
  const auto program = own_program();
  return program.empty() ? fs::path("/usr/local")
                         : program.parent_path().parent_path();
}

/// Whether CMake finds the training library in that prefix.
bool has_cmake_package() {
  for (const char* folder : {"lib", "lib64"}) {
    std::error_code ignored;
    if (fs::exists(
            installed_prefix() / folder /
                "cmake/accelerate/accelerateConfig.cmake",
            ignored)) {
      return true;
    }
  }
  return false;
}

/// Prints a step on one line: the command, and its purpose.
void print_step(const std::string& command, const char* purpose) {
  std::cout << "  " << command << "\n      " << purpose << '\n';
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
        "' already exists and is not empty; choose another name"));
  }
  fs::create_directories(folder, error);
  if (error) {
    throw SystemError(str_cat(
        "[new] cannot create the folder '",
        folder.string(),
        "': ",
        error.message()));
  }
  const bool is_python = project.language.empty()
                             ? !has_cmake_package()
                             : project.language == "python";
  const std::string quoted_path = shell_quoted(folder.string());
  if (is_python) {
    write_new_file(folder / "train.py", kNewTrainPy);
  } else {
    write_new_file(folder / "CMakeLists.txt", kNewCMakeLists);
    write_new_file(folder / "train.cpp", kNewTrainCpp);
  }
  std::cout << "Created " << quoted_path << ". Next:\n";
  print_step("cd " + quoted_path, "go to the project");
  if (is_python) {
    const auto versions = package_versions(
        read_machine_facts(LaunchConfig{.cpu = true}, system_env).python,
        {"torch", "tqdm"});
    if (versions[1].empty()) {
      print_step("pip install tqdm", "optional: shows a progress bar");
    }
  } else {
    const bool has_library = has_cmake_package();
    print_step(
        "cmake -B build " +
            shell_quoted(
                "-DCMAKE_PREFIX_PATH=" +
                (has_library ? installed_prefix().string() : "LIBRARY")) +
            " && cmake --build build",
        has_library
            ? "build it"
            : "build it; LIBRARY is the folder where you installed the C++ "
              "library, which this Python package does not include");
  }
  const std::string program = is_python ? "train.py" : "build/train";
  print_step(
      "accelerate launch --num_processes 2 " + program,
      "train on 2 processes; writes metrics and checkpoints to runs");
  print_step("accelerate watch runs", "see the run in the browser");
  print_step(
      "accelerate launch --num_processes 2 " + program +
          (is_python ? " --epochs 20" : " 20"),
      "resume from the last checkpoint and train up to epoch 20");
}

} // namespace

void add_new_command(CLI::App& app, int& /*exit_code*/) {
  CLI::App* command =
      app.add_subcommand("new", "Create a small training project");
  command->group(kTrainCommands);
  auto project = std::make_shared<NewProject>();
  command
      ->add_option(
          "folder", project->folder, "Folder to create (or an empty one)")
      ->required();
  command
      ->add_option(
          "--language",
          project->language,
          "cpp or python (default: cpp if the C++ library is installed next to "
          "this program, otherwise python)")
      ->type_name("NAME")
      ->check(one_of({"cpp", "python"}));
  command->callback([project] { make_project(*project); });
}

} // namespace accelerate
