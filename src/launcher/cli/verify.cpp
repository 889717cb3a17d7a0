// SPDX-License-Identifier: Apache-2.0
// `accelerate verify`: runs the first steps in the user's layout and in one
// process, and compares them.
#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "accelerate/error.h"
#include "core/base/printable.h"
#include "core/base/str.h"
#include "core/base/variables.h"
#include "core/config/flags.h"
#include "core/config/resolve.h"
#include "core/verify/comparison.h"
#include "core/verify/rank_agreement.h"
#include "launcher/cli/commands.h"
#include "launcher/cli/help.h"
#include "launcher/cli/program_mark.h"
#include "launcher/launch/plan/placement.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;

constexpr int kExitNotComparable = 2;

/// A folder for the records, removed at the end.
class RecordFolder {
 public:
  RecordFolder() {
    std::error_code error;
    const fs::path parent = fs::temp_directory_path(error);
    if (error) {
      throw SystemError(
          "[verify] TMPDIR is not a folder. Set it to a folder that you may "
          "write to");
    }
    std::string path = parent / "accelerate-verify-XXXXXX";
    if (mkdtemp(path.data()) == nullptr) {
      throw SystemError(str_cat(
          "[verify] Cannot create a folder in ",
          parent.string(),
          ". Set TMPDIR to a folder that you may write to"));
    }
    path_ = path;
    for (const char* run :
         {verify::kFirstRun, verify::kReferenceRun, verify::kSameBatchRun}) {
      fs::create_directory(path_ / run);
    }
  }
  ~RecordFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  RecordFolder(const RecordFolder&) = delete;
  RecordFolder& operator=(const RecordFolder&) = delete;

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

void set_variable(const char* name, const std::string& value) {
  setenv(name, value.c_str(), /*overwrite=*/1);
}

void say(const std::string& line) {
  std::cout << "[verify] " << printable(line) << std::endl;
}

std::vector<verify::ProcessRecord> read_run(const fs::path& folder) {
  std::vector<verify::ProcessRecord> run;
  for (int rank = 0;; ++rank) {
    const auto file = verify::record_file(folder, rank);
    if (!fs::exists(file)) {
      return run;
    }
    run.push_back(verify::read_process_record(file));
  }
}

/// How an outcome is reported, in the order of `Outcome`.
struct Report {
  const char* head;
  int exit_code;
};
constexpr Report kReports[] = {
    {"", 0},
    {"The processes compute different results than a single process:",
     kExitFailure},
    {"The steps could not be compared:", kExitNotComparable}};

/// `head` replaces that of the outcome. Returns the exit code.
int report(const verify::Verdict& verdict, std::string head = {}) {
  const Report& row = kReports[static_cast<size_t>(verdict.outcome)];
  head = head.empty() ? row.head : head;
  if (!head.empty()) {
    say(head);
  }
  for (const auto& line : verdict.lines) {
    say(line);
  }
  return row.exit_code;
}

/// `hint` is appended to the report.
int fail_run(
    const char* where,
    const char* hint,
    int exit_code,
    const std::vector<verify::ProcessRecord>& run) {
  if (exit_code == 128 + SIGINT || exit_code == 128 + SIGTERM) {
    return exit_code; // the user has ended it
  }
  // If the library has rejected the program, that is the answer.
  const auto verdict =
      run.empty() ? verify::Verdict() : verify::check_ranks(run);
  if (verdict.outcome == verify::Outcome::kDisagrees) {
    return report(verdict, "The program failed, probably because of:");
  }
  return report(
      {.outcome = verify::Outcome::kNotComparable,
       .lines = {str_cat(
           "The program failed with exit code ",
           exit_code,
           " ",
           where,
           ". See its output above",
           hint)}});
}

std::string seconds(std::chrono::steady_clock::duration time) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(1)
      << std::chrono::duration<double>(time).count();
  return out.str();
}

int verify_program(
    const ConfigLayer& flags,
    const std::vector<std::string>& program,
    int num_steps) {
  if (program.empty() || program[0].empty()) {
    throw ConfigError(
        "[verify] no program was given; use `accelerate verify [OPTIONS] "
        "train.py`, or see `accelerate verify --help`");
  }
  const LaunchConfig config =
      resolve_launch_config(flags, variables_of_new_job(system_env)).values;
  if (config.num_processes == 1) {
    throw ConfigError(
        "[verify] --num_processes is 1, but a single process has nothing to "
        "compare with; pass --num_processes 2 or more");
  }
  if (config.num_machines.most > 1) {
    throw ConfigError(str_cat(
        "[verify] --num_machines is ",
        config.num_machines.most,
        ", but verify runs on one machine; pass --num_machines 1 and the same "
        "number of processes"));
  }
  if (config.dry_run) {
    return launch(flags, program);
  }
  const RecordFolder folder;
  set_variable(variables::kVerifyFolder, folder.path());
  set_variable(variables::kVerifySteps, std::to_string(num_steps));
  // The process ends without flushing Python's streams, and both runs must
  // iterate over sets in the same order.
  set_variable("PYTHONUNBUFFERED", "1");
  set_variable("PYTHONHASHSEED", "0");
  // Compiled models have a dropout of their own.
  set_variable("TORCHDYNAMO_DISABLE", "1");

  const auto begin = std::chrono::steady_clock::now();
  const int run_exit = launch(flags, program);
  const auto run = read_run(folder.path() / verify::kFirstRun);
  if (run_exit != 0) {
    return fail_run("in the launch that you asked for", "", run_exit, run);
  }
  if (run.empty()) {
    return report(
        {.outcome = verify::Outcome::kNotComparable,
         .lines = {
             "The program created no Accelerator. Run a program that uses "
             "accelerate"}});
  }
  const auto found = verify::check_ranks(run);
  if (found.outcome != verify::Outcome::kAgrees) {
    return report(found);
  }
  const int num_data_ranks = run[0].num_data_ranks;
  if (static_cast<size_t>(run[0].num_ranks) != run.size() ||
      num_data_ranks < 2) {
    return report(
        {.outcome = verify::Outcome::kNotComparable,
         .lines = {str_cat(
             "The program ran on ",
             run.size(),
             run.size() == 1 ? " process" : " processes",
             " of this machine. Pass --num_processes 2 or more, and run on "
             "one machine")}});
  }

  set_variable(variables::kVerifyRun, verify::kReferenceRun);
  set_variable(variables::kVerifyMergedRanks, std::to_string(num_data_ranks));
  auto alone = flags;
  alone["num_processes"] = {"1", "--num_processes"};
  say("Running the same steps in one process");
  const auto begin_alone = std::chrono::steady_clock::now();
  const int reference_exit = launch(alone, program);
  const auto end = std::chrono::steady_clock::now();
  const auto reference = read_run(folder.path() / verify::kReferenceRun);
  if (reference_exit != 0 || reference.empty()) {
    return fail_run(
        "in one process",
        ". There, a batch contains the samples of all processes, so the "
        "program must read the batch size from the batch",
        reference_exit,
        reference);
  }
  auto verdict = verify::compare(run, reference[0], num_steps);
  if (verdict.outcome == verify::Outcome::kDisagrees) {
    say("The steps disagree. Running a step with the same batch on all ranks");
    set_variable(variables::kVerifyRun, verify::kSameBatchRun);
    set_variable(variables::kVerifySteps, "1");
    launch(flags, program);
    const auto found = verify::difference_on_same_batch(
        read_run(folder.path() / verify::kSameBatchRun));
    if (!found.empty()) {
      verdict.lines = {verdict.lines[0], str_cat("Likely mistake: ", found)};
    }
  } else if (verdict.outcome == verify::Outcome::kAgrees) {
    verdict.lines.push_back(str_cat(
        "  time        ",
        seconds(end - begin),
        " s; ",
        seconds(end - begin_alone),
        " s in one process"));
  }
  return report(verdict);
}

} // namespace

void add_verify_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "verify",
      "Check that several processes compute the same results as a single "
      "process");
  command->group(kTrainCommands);
  const auto flags = add_launch_flags(*command);
  const auto num_steps = std::make_shared<int>(5);
  command->add_option("--steps", *num_steps, "How many updates to compare")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->footer(
      "Runs the first steps twice, in fp32 and without dropout, and writes no "
      "checkpoints:\n"
      "  accelerate verify --num_processes 2 train.py --epochs 3\n"
      "Exit code: 0 if the steps agree, 1 if not, 2 if they could not be "
      "compared.");
  command->prefix_command();
  command->callback([=, &exit_code] {
    auto program = command->remaining();
    const bool is_marked = unmark_program(program);
    if (!is_marked && !program.empty() && program[0].starts_with('-')) {
      throw ConfigError(explain_unknown_flag(program[0]));
    }
    exit_code = verify_program(*flags, program, *num_steps);
  });
}

} // namespace accelerate
