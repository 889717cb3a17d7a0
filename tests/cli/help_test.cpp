// SPDX-License-Identifier: Apache-2.0
// The output of the program without a command, with `--help`, and for mistakes.
#include <gmock/gmock.h>

#include <sstream>

#include "accelerate/version.h"
#include "support/program.h"
#include "support/subprocess.h"
#include "support/terminal.h"

namespace accelerate::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

ProcessResult run(
    const std::string& arguments,
    std::map<std::string, std::string> variables = {}) {
  variables.emplace("CUDA_VISIBLE_DEVICES", "");
  return run_process({"sh", "-c", kProgram + " " + arguments}, variables);
}

/// The folders of a virtual environment that has a torch.
std::string write_python(const TempDir& folder) {
  std::filesystem::create_directories(folder.path() / "venv/bin");
  std::filesystem::create_directories(
      folder.path() /
      "venv/lib/python3.11/site-packages/torch-2.15.0.dist-info");
  std::filesystem::create_directory(folder.path() / "accelerate");
  folder.write("venv/pyvenv.cfg", "home = /usr/bin\n");
  // It is found without being started.
  const auto python = folder.write("venv/bin/python3", "#!/bin/sh\nexit 1\n");
  std::filesystem::permissions(python, std::filesystem::perms::all);
  return python.parent_path().string();
}

TEST(Overview, ShowsWhatWasFoundAndWhatToTry) {
  const TempDir folder;
  const std::string bin = write_python(folder);
  const std::map<std::string, std::string> variables = {
      {"PATH", bin + ":/usr/bin:/bin"}, {"HF_HOME", folder.path().string()}};
  const auto result = run("", variables);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(
      result.out,
      AllOf(
          StartsWith("accelerate " ACCELERATE_VERSION "\n"),
          HasSubstr("\n  GPUs    none: "),
          HasSubstr("\n  torch   2.15.0 (" + bin + "/python3)\n"),
          HasSubstr(
              "\n  config  1 process, on the CPU (no file yet: defaults)\n"),
          HasSubstr("\nTry next:\n  accelerate new demo "),
          HasSubstr("  accelerate launch train.py ")));
  const auto file = folder.write(
      "accelerate/default_config.yaml",
      "distributed_type: MULTI_CPU\nnum_processes: 3\nmixed_precision: bf16\n");
  EXPECT_THAT(
      run("", variables).out,
      HasSubstr(
          "\n  config  3 processes, on the CPU, bf16 (" + file.string() +
          ")\n"));
  // An unusable file must not prevent the overview.
  folder.write("accelerate/default_config.yaml", "num_proceses: 3\n");
  const auto wrong = run("", variables);
  EXPECT_EQ(wrong.exit_code, 0);
  EXPECT_THAT(
      wrong.out,
      HasSubstr(
          "\n  config  [" + file.string() +
          ":1] unknown key 'num_proceses'; did you mean 'num_processes'?\n"));
}

TEST(Help, HasShorthands) {
  for (const char* version : {"-V", "--version", "version"}) {
    const auto result = run(version);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, ACCELERATE_VERSION "\n");
  }
  EXPECT_EQ(run("help").out, run("--help").out);
  EXPECT_EQ(run("help launch").out, run("launch --help").out);
  EXPECT_EQ(run("help config show").out, run("config show -h").out);
  EXPECT_THAT(run("help launch").out, HasSubstr("Usage: accelerate launch "));
}

// Also the wide options, and those of every command.
TEST(Help, FitsIn80ColumnsInWordsThatUsersKnow) {
  for (const char* command :
       {"",
        "launch",
        "new",
        "config",
        "config default",
        "config update",
        "config show",
        "test",
        "watch",
        "doctor",
        "env",
        "estimate-memory",
        "merge-weights",
        "completion"}) {
    for (const char* flag : {" --help", " --help-all"}) {
      const auto result = run(std::string(command) + flag);
      EXPECT_EQ(result.exit_code, 0) << command << result.err;
      EXPECT_THAT(
          result.out,
          AllOf(
              Not(HasSubstr(" TEXT")),
              Not(HasSubstr(":{")),
              Not(HasSubstr(" INT")),
              Not(HasSubstr("\x1b")),
              Not(HasSubstr("\n\n\n"))))
          << command;
      std::istringstream lines(result.out);
      for (std::string line; std::getline(lines, line);) {
        EXPECT_LE(line.size(), 80U) << command << ": " << line;
      }
    }
  }
}

TEST(Help, ListsLaunchFirstAndOptionsWithoutEffectOnlyOnDemand) {
  const std::string all = run("--help").out;
  EXPECT_LT(all.find("\n  launch "), all.find("\n  new "));
  EXPECT_LT(all.find("\n  new "), all.find("\n  config "));
  const std::string launch = run("launch --help").out;
  EXPECT_THAT(launch, HasSubstr("--fsdp_ignored_modules REGEX"));
  EXPECT_THAT(launch, Not(HasSubstr("--zero3_init_flag")));
  EXPECT_THAT(launch, Not(HasSubstr("--rdzv_backend")));
  const std::string whole = run("launch --help-all").out;
  EXPECT_THAT(whole, HasSubstr("\nAccepted without effect:\n"));
  EXPECT_THAT(whole, HasSubstr("--zero3_init_flag"));
  EXPECT_THAT(whole, HasSubstr("--rdzv_backend"));
  for (const char* command : {"doctor", "test", "config show"}) {
    const std::string help = run(std::string(command) + " --help").out;
    EXPECT_THAT(help, Not(HasSubstr("--num_processes")));
    EXPECT_THAT(
        help,
        HasSubstr("\nThis command also accepts the options of `accelerate "
                  "launch`; see `accelerate\nlaunch --help`.\n"));
  }
}

TEST(Help, IsColouredOnATerminalOnly) {
  const std::vector<std::string> command = {kProgram, "--help"};
  Terminal coloured(command, {});
  EXPECT_EQ(coloured.wait(), 0);
  EXPECT_THAT(coloured.shown(), HasSubstr("\x1b[1mTrain:\x1b[0m"));
  Terminal plain(command, {{"NO_COLOR", "1"}});
  EXPECT_EQ(plain.wait(), 0);
  EXPECT_THAT(plain.shown(), Not(HasSubstr("\x1b")));
  EXPECT_THAT(plain.shown(), HasSubstr("Train:"));
}

TEST(Mistakes, GetOneSentenceWithAnAction) {
  const TempDir folder;
  const auto bad = folder.write("bad.yaml", "debug: no\nnum_proceses: 2\n");
  const std::string missing = folder.path() / "missing.yaml";
  const std::pair<std::string, std::string> cases[] = {
      {"lanch train.py", "unknown command 'lanch'; did you mean 'launch'?"},
      {"banana",
       "unknown command 'banana'; `accelerate --help` lists all "
       "commands"},
      {"launch --num_proceses 2 train.py",
       "[launch] unknown option '--num_proceses'; did you mean "
       "'--num_processes'?"},
      {"launch",
       "[launch] no program was given; use `accelerate launch [OPTIONS] "
       "train.py`, or see `accelerate launch --help`"},
      {"launch --num_processes two train.py",
       "--num_processes must be a whole number from 1 to 4096, or auto, not "
       "'two'"},
      {"launch --mixed_precision fp8 train.py",
       "--mixed_precision fp8 is not supported; use no, fp16 or bf16"},
      {"launch --tpu train.py",
       "[launch] --tpu: TPUs are not supported. Use --multi_gpu or --cpu "
       "(distributed_type MULTI_GPU or MULTI_CPU)"},
      {"launch --config_file " + bad.string() + " train.py",
       "[" + bad.string() +
           ":2] unknown key 'num_proceses'; did you mean 'num_processes'?"},
      {"launch --config_file " + missing + " train.py",
       "[config] cannot read the configuration file '" + missing +
           "'; check the path, or create the file with `accelerate config "
           "--config_file " +
           missing + "`"},
      {"launch --cpu --multi_gpu train.py",
       "[config] --cpu and --multi_gpu contradict each other: use only one of "
       "them"},
      {"launch --num_machines 3 --num_processes 2 --main_process_ip a x",
       "[launch] --num_processes 2 cannot be divided evenly between 3 "
       "machines. The number is the total for all machines, so use a multiple "
       "of 3"},
      {"watch --prt 3 runs", "unknown option '--prt'; did you mean '--port'?"},
      {"watch --port x runs",
       "--port must be a whole number from 0 to 65535, not 'x'"},
      {"watch --port", "--port needs a value; see `accelerate watch --help`"},
      {"new", "`accelerate new` needs FOLDER; see `accelerate new --help`"},
      {"new a --language rust", "--language must be cpp or python, not 'rust'"},
      {"launch --config x.yaml train.py",
       "[launch] unknown option '--config'; did you mean '--config_file'?"},
      {"launch --nproc_per_node 2 train.py",
       "[launch] --nproc_per_node: This is an option of torchrun. Use "
       "--num_processes, the total for all machines"},
      {"config defualt",
       "unexpected argument 'defualt'; did you mean "
       "'default'?"},
      {bad.string(),
       "'" + bad.string() +
           "' is a file, not a command; did you mean "
           "`accelerate launch " +
           bad.string() + "`?"},
      {"env more", "unexpected argument 'more'; see `accelerate env --help`"},
      {"estimate-memory m --dtypes half",
       "--dtypes must be float32, float16, int8 or int4, not 'half'"},
  };
  for (const auto& [arguments, expected] : cases) {
    const auto result = run(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_EQ(result.err, "accelerate: " + expected + "\n") << arguments;
    EXPECT_EQ(result.out, "") << arguments;
  }
}

TEST(Mistakes, AboutMissingGpusNameTheFlag) {
  EXPECT_THAT(
      run("launch --multi_gpu train.py").err,
      StartsWith("accelerate: [launch] --multi_gpu, but this machine has no "
                 "usable GPU: "));
}

} // namespace
} // namespace accelerate::testing
