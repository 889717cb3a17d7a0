// SPDX-License-Identifier: Apache-2.0
// The program `accelerate launch` with real processes.
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include "hardware/ports.h"
#include "launch/machines/sockets.h"
#include "support/program.h"
#include "support/subprocess.h"

namespace accelerate::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::vector<std::string> launch_shell(
    int processes,
    const std::string& script) {
  return {
      kProgram,
      "launch",
      "--num_processes",
      std::to_string(processes),
      "sh",
      "-c",
      script};
}

TEST(Launch, StartsEveryRankAndForwardsItsOutput) {
  const auto result = run_process(
      launch_shell(3, "echo rank $RANK of $WORLD_SIZE at $MASTER_ADDR"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* line :
       {"rank 0 of 3 at 127.0.0.1", "rank 1 of 3", "rank 2 of 3"}) {
    EXPECT_THAT(result.out, HasSubstr(line));
  }
  EXPECT_THAT(result.err, IsEmpty());
}

TEST(Launch, AcceptsDashesAndPassesTheProgramsOptionsOn) {
  const auto result = run_process(
      {kProgram,
       "launch",
       "--num-processes",
       "1",
       "echo",
       "--num_processes",
       "--help"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "--num_processes --help\n");
}

TEST(Launch, ReturnsTheCodeOfTheFirstRankThatFailsAndEndsTheOthers) {
  const auto result = run_process(
      launch_shell(3, "if [ $RANK = 1 ]; then exit 7; fi; exec sleep 960"));
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_THAT(result.err, HasSubstr("first failure: rank 1 on "));
  EXPECT_THAT(result.err, HasSubstr("ended with exit code 7"));
}

TEST(Launch, NamesTheSignalThatEndedARank) {
  const auto result = run_process(
      launch_shell(2, "if [ $RANK = 0 ]; then kill -9 $$; fi; exec sleep 960"));
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_THAT(result.err, HasSubstr("rank 0"));
  EXPECT_THAT(result.err, HasSubstr("signal 9 (Killed)"));
}

TEST(Launch, SaysWhichRankHadLeftBeforeAnotherFailed) {
  const auto result = run_process(
      launch_shell(2, "if [ $RANK = 1 ]; then exit 0; fi; sleep 0.3; exit 3"));
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("rank 1 had left before with exit code 0"));
}

TEST(Launch, ShowsTheLastLinesOfTheFailingRanksStderr) {
  const auto result = run_process(launch_shell(
      2,
      "if [ $RANK = 0 ]; then exec sleep 60; fi; echo out of memory >&2; "
      "exit 9"));
  EXPECT_EQ(result.exit_code, 9);
  EXPECT_THAT(
      result.err,
      HasSubstr("the last lines of its stderr:\n    out of memory\n"));
}

TEST(Launch, RestartsAllWorkersWithTorchrunsVariables) {
  const auto result = run_process(
      {kProgram,
       "launch",
       "--num_processes",
       "2",
       "--max_restarts",
       "2",
       "sh",
       "-c",
       "echo r$RANK c$TORCHELASTIC_RESTART_COUNT m$TORCHELASTIC_MAX_RESTARTS; "
       "if [ $TORCHELASTIC_RESTART_COUNT = 2 ]; then exit 0; fi; "
       "if [ $RANK = 1 ]; then exit 3; fi; exec sleep 960"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* line : {"r1 c0 m2", "r1 c1 m2", "r1 c2 m2", "r0 c2 m2"}) {
    EXPECT_THAT(result.out, HasSubstr(line));
  }
  EXPECT_THAT(result.err, HasSubstr("restart 2 of 2"));
}

TEST(Launch, ReturnsTheLastFailureWhenNoRestartIsLeft) {
  const auto result = run_process(
      {kProgram,
       "launch",
       "--max_restarts",
       "1",
       "sh",
       "-c",
       "exit $((5 + TORCHELASTIC_RESTART_COUNT))"});
  EXPECT_EQ(result.exit_code, 6);
}

TEST(Launch, ReplacesABusyPortOnOneMachineAndNamesItsOwner) {
  const int port = find_free_port();
  const auto listener = listen_on("127.0.0.1", port);
  const auto result = run_process(
      {kProgram,
       "launch",
       "--num_processes",
       "2",
       "--main_process_port",
       std::to_string(port),
       "sh",
       "-c",
       "echo port $MASTER_PORT"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      result.out, Not(HasSubstr("port " + std::to_string(port) + "\n")));
  EXPECT_THAT(
      result.err,
      HasSubstr(
          "is taken by pid " + std::to_string(getpid()) + " (launch_test)"));
}

TEST(Launch, PrintsTheWorkersInADryRunAndStartsNothing) {
  const auto result = run_process(
      {kProgram,
       "launch",
       "--num_processes",
       "2",
       "--mixed_precision",
       "bf16",
       "--dry_run",
       "train.py",
       "a b"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("# rank 1\n"));
  EXPECT_THAT(result.out, HasSubstr("ACCELERATE_MIXED_PRECISION=bf16"));
  EXPECT_THAT(result.out, HasSubstr("python3 -u train.py 'a b'\n"));
}

TEST(Launch, RunsModulesAndScriptsThroughPythonAndOthersAsTheyAre) {
  TempDir folder;
  const auto script =
      folder.write("show.py", "import sys; print('python', sys.argv[1])\n");
  const auto program = folder.write("tool.py", "#!/bin/sh\necho shell $1\n");
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  EXPECT_EQ(run_process({kProgram, "launch", script, "x"}).out, "python x\n");
  EXPECT_EQ(
      run_process({kProgram, "launch", "--no_python", program, "x"}).out,
      "shell x\n");
  const auto result = run_process(
      {kProgram, "launch", "-m", "show", "y"}, {{"PYTHONPATH", folder.path()}});
  EXPECT_EQ(result.out, "python y\n") << result.err;
}

TEST(LaunchErrors, ProposeAFileOfThisFolder) {
  TempDir folder;
  folder.write("trainer", "#!/bin/sh\n");
  const auto result = run_process(
      {"sh",
       "-c",
       "cd " + folder.path().string() + " && " + kProgram + " launch trainer"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("write ./trainer"));
}

TEST(Launch, TakesTwoDashesBeforeTheProgram) {
  const auto result = run_process(
      {kProgram,
       "launch",
       "--num_processes",
       "2",
       "--",
       "sh",
       "-c",
       "echo $1$RANK",
       "sh",
       "--"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("--0\n"));
}

TEST(Launch, ShowsTheProgramInItsUsage) {
  const auto result = run_process({kProgram, "launch", "--help"});
  EXPECT_THAT(result.out, HasSubstr("PROGRAM [ARGUMENTS]"));
}

TEST(LaunchErrors, GetOneLineAndExitCode2) {
  TempDir folder;
  const auto plain = folder.write("plain", "#!/bin/sh\n");
  std::filesystem::permissions(plain, std::filesystem::perms::owner_read);
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{kProgram, "launch"}, "no program"},
      {{kProgram, "launch", "--num_processes", "0", "true"}, "num_processes"},
      {{kProgram, "launch", "--num_processes", "two", "true"}, "num_processes"},
      {{kProgram, "launch", "--num_procs", "2", "true"}, "--num_processes"},
      {{kProgram, "launch", "./no_such_program"}, "'./no_such_program'"},
      {{kProgram, "launch", "no_such_script.py"}, "no file no_such_script.py"},
      {{kProgram, "launch", "--no_python", plain}, "chmod +x"},
      {{kProgram, "launch", "--no_python", "/etc"}, "it is a folder"},
      {{kProgram, "lunch"}, "did you mean 'launch'?"},
  };
  for (const auto& [command, part] : cases) {
    const auto result = run_process(command);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr(part));
  }
}

} // namespace
} // namespace accelerate::testing
