// SPDX-License-Identifier: Apache-2.0
// The program `accelerate launch` with real processes.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "core/hardware/ports.h"
#include "launcher/launch/machines/sockets.h"
#include "launcher/launch/supervise/oom_kills.h"
#include "support/program.h"
#include "support/subprocess.h"

namespace accelerate::testing {
namespace {

using ::testing::ContainsRegex;
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
  EXPECT_EQ(result.err, "[launch] Rank 1 failed with exit code 7\n");
}

TEST(Launch, NamesTheSignalThatEndedARank) {
  const auto result = run_process(
      launch_shell(2, "if [ $RANK = 0 ]; then kill -9 $$; fi; exec sleep 960"));
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_THAT(result.err, HasSubstr("[launch] Rank 0 was killed (SIGKILL)"));
}

ProcessResult run_in(const TempDir& folder, const std::string& arguments) {
  return run_process(
      {"sh",
       "-c",
       "cd " + folder.path().string() + " && exec " + kProgram +
           " launch --cpu " + arguments});
}

std::string report_of(const std::string& folder) {
  return "printf '{\"pid\": 1, \"folder\": \"" + folder +
         "\", \"steps\": 30, \"checkpoint\": \"/c\"}\\n' > "
         "$ACCELERATE_RUN_REPORT; ";
}

TEST(Launch, SummarisesARunThatReportsItself) {
  const auto result = run_process(
      launch_shell(2, "[ $RANK = 1 ] || " + report_of("/runs/a") + "true"));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(
      result.err,
      ContainsRegex("^\\[launch\\] Finished in [0-9.]+ s: 30 steps \\([0-9.]+ "
                    "steps/s\\), last checkpoint /c, logs in /runs/a\n$"));
}

TEST(Launch, AddsTheStepsOfAllAttempts) {
  auto command = launch_shell(
      1, report_of("/runs/a") + "exit $((1 - $TORCHELASTIC_RESTART_COUNT))");
  command.insert(command.begin() + 2, {"--max_restarts", "1"});
  const auto result = run_process(command);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr(": 60 steps ("));
}

TEST(Launch, WritesHowARunEndedIntoItsFolder) {
  const TempDir folder;
  const auto path = folder.path().string();
  const auto command = launch_shell(
      2,
      "if [ $RANK = 0 ]; then " + report_of(path) + "touch " + path +
          "/ready; exec sleep 960; fi; until [ -e " + path +
          "/ready ]; do sleep 0.05; done; "
          "printf 'Traceback (most recent call last):\n"
          "  File \"a.py\", line 1, in f\nValueError: bad batch\n' >&2; "
          "exit 3");
  EXPECT_EQ(run_process(command).exit_code, 3);
  const auto line = read_file(folder.path() / "exits.jsonl");
  EXPECT_THAT(line, HasSubstr(R"("event":"exit","exit_code":3,"rank":1,)"));
  EXPECT_THAT(
      line,
      HasSubstr(R"("how":"failed with exit code 3",)"
                R"("error":"ValueError: bad batch"})"));
}

TEST(Launch, ShowsARunOnAPageUntilItEnds) {
  TempDir folder;
  folder.write("metrics.jsonl", "");
  const std::string seen = folder.path() / "seen";
  auto command = launch_shell(
      1,
      report_of(folder.path()) + "while [ ! -e " + seen +
          " ]; do sleep 0.1; done");
  command.insert(command.begin() + 2, "--watch");
  Subprocess job(command);
  const bool is_shown = eventually(
      [&] { return job.err().find("[watch] ") != std::string::npos; }, kLimit);
  const std::string said = job.err();
  std::ofstream(seen) << '1';
  EXPECT_EQ(job.wait().exit_code, 0);
  ASSERT_TRUE(is_shown) << said;
  if (said.find("http://127.0.0.1:") == std::string::npos) {
    GTEST_SKIP() << "built without a server of pages: " << said;
  }
  EXPECT_THAT(said, ContainsRegex("http://127.0.0.1:[0-9]+/\\?token="));
}

TEST(Launch, SuggestsTheScriptThatWasMeant) {
  TempDir folder;
  std::ofstream(folder.path() / "slow.py") << "pass\n";
  EXPECT_THAT(
      run_in(folder, "slwo.py").err, HasSubstr("did you mean 'slow.py'?"));
  EXPECT_THAT(run_in(folder, "slow").err, HasSubstr("did you mean 'slow.py'?"));
  EXPECT_THAT(
      run_in(folder, "./slwo.py").err, HasSubstr("did you mean './slow.py'?"));
  EXPECT_THAT(run_in(folder, "other.py").err, Not(HasSubstr("did you mean")));
}

TEST(Launch, SaysWhatToDoWithAFileThatIsNotAProgram) {
  const TempDir folder;
  const std::pair<const char*, const char*> cases[] = {
      {"train.ipynb", "is a notebook, not a program. Call notebook_launcher"},
      {"train.cpp",
       "is source code, not a program. Build it, and pass the program"},
      {"train.yaml", "launch --config_file train.yaml train.py`"},
      {"--dry_run train.cpp", "is source code"},
      {"train.txt", "to run the file in the current folder, pass ./train.txt"},
  };
  for (const auto& [name, advice] : cases) {
    folder.write(name, "num_processes: 2\n");
    EXPECT_THAT(run_in(folder, name).err, HasSubstr(advice)) << name;
  }
  EXPECT_THAT(
      run_in(folder, "./build/train").err,
      HasSubstr("check the path of the program"));
}

TEST(Launch, SaysThatOptionsGoBeforeTheScriptOnlyIfItFailsOnThem) {
  const std::string hint =
      "[launch] The script was given --num_processes, which is an option of "
      "`accelerate launch`. Launch options go before the script: accelerate "
      "launch --num_processes ... sh\n";
  TempDir folder;
  const auto failing = run_in(folder, "sh -c 'exit 2' --num_processes=2");
  EXPECT_EQ(failing.exit_code, 2);
  EXPECT_EQ(failing.err, "[launch] Rank 0 failed with exit code 2\n" + hint);
  EXPECT_EQ(run_in(folder, "sh -c true --num_processes 2").err, "");
  EXPECT_THAT(
      run_in(folder, "sh -c 'exit 3' --num_processes 2").err,
      Not(HasSubstr(hint)));
}

void write(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

TEST(OutOfMemory, IsSeenInCountersOfBothVersions) {
  TempDir folder;
  const auto groups = folder.path() / "cgroup";
  const auto root = folder.path() / "root";
  write(groups, "1:cpu:/\n0::/user/job\n");
  EXPECT_EQ(oom_counter_file(groups, root), "");
  const auto events = root / "user/job/memory.events";
  write(events, "low 0\noom 3\noom_kill 3\noom_group_kill 0\n");
  EXPECT_EQ(oom_counter_file(groups, root), events);
  OomKills kills(events);
  EXPECT_FALSE(kills.may_have_killed(getpid()));
  write(events, "low 0\noom 4\noom_kill 4\noom_group_kill 0\n");
  EXPECT_TRUE(kills.may_have_killed(getpid()));

  write(groups, "4:memory:/only/on/the/host\n0::/\n");
  const auto control = root / "memory/memory.oom_control";
  write(control, "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n");
  EXPECT_EQ(oom_counter_file(groups, root), control);
  OomKills older(control);
  EXPECT_FALSE(older.may_have_killed(getpid()));
  write(control, "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n");
  EXPECT_TRUE(older.may_have_killed(getpid()));
}

/// A control group below this process's own; removed by the destructor.
struct MemoryGroup {
  MemoryGroup() {
    const auto parent = oom_counter_file().parent_path();
    is_old = std::filesystem::exists(parent / "memory.oom_control");
    folder = parent / ("accelerate_test_" + std::to_string(getpid()));
    std::error_code error;
    std::filesystem::create_directory(folder, error);
    const auto limit =
        folder / (is_old ? "memory.limit_in_bytes" : "memory.max");
    is_limited = !error && std::filesystem::exists(limit) &&
                 (std::ofstream(limit) << (128 << 20)).flush().good();
  }
  ~MemoryGroup() { rmdir(folder.c_str()); }
  bool is_old = false;
  bool is_limited = false;
  std::filesystem::path folder;
};

TEST(OutOfMemory, IsNamedIfTheKernelKillsARank) {
  const MemoryGroup group;
  if (!group.is_limited) {
    GTEST_SKIP() << "this user cannot limit the memory of a control group";
  }
  auto command =
      launch_shell(2, "[ $RANK = 0 ] || exec tail /dev/zero; exec sleep 960");
  command.insert(
      command.begin(),
      {"sh",
       "-c",
       "echo $$ > " + (group.folder / "cgroup.procs").string() +
           "; exec \"$@\"",
       "sh"});
  const auto result = run_process(command);
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_EQ(
      result.err,
      "[launch] Rank 1 was killed (SIGKILL) because memory ran out. Use a "
      "smaller batch or fewer processes\n");
}

TEST(Launch, SaysThatMachine0CannotBeReached) {
  const auto port = std::to_string(find_free_port());
  const auto result = run_process(
      {kProgram,
       "launch",
       "--num_machines",
       "2",
       "--machine_rank",
       "1",
       "--num_processes",
       "2",
       "--main_process_ip",
       "127.0.0.1",
       "--main_process_port",
       port,
       "--join_timeout",
       "1",
       "true"},
      {{"ACCELERATE_JOB_TOKEN", "open sesame"}});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(
      result.err,
      "[launch] machine 0 could not be reached at 127.0.0.1 port " + port +
          " within 1 s (Connection refused); check that its launcher is "
          "running, that --main_process_ip and --main_process_port are "
          "correct, and that the firewall allows that port\n");
}

TEST(Launch, SaysWhichRankHadLeftBeforeAnotherFailed) {
  const auto result = run_process(
      launch_shell(2, "if [ $RANK = 1 ]; then exit 0; fi; sleep 0.3; exit 3"));
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("; rank 1 had already finished"));
}

TEST(Launch, ShowsTheStderrOfTheFailingRankOnce) {
  const auto result = run_process(launch_shell(
      2,
      "if [ $RANK = 0 ]; then exec sleep 60; fi; echo no such file >&2; "
      "exit 9"));
  EXPECT_EQ(result.exit_code, 9);
  EXPECT_EQ(
      result.err,
      "[rank 1] no such file\n[launch] Rank 1 failed with exit code 9\n");
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
  EXPECT_THAT(result.err, HasSubstr("pass ./trainer"));
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

TEST(Launch, PassesEmptyArgumentsOn) {
  const auto result = run_process(
      {kProgram,
       "launch",
       "--num_processes",
       "2",
       "sh",
       "-c",
       "echo $0 $RANK",
       "--given="});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("--given= 1\n"));
}

TEST(Launch, TakesAnyProgramBehindTheMark) {
  TempDir folder;
  const auto program = folder.write("-odd=", "#!/bin/sh\necho it runs\n");
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  const auto result = run_process(
      {"sh",
       "-c",
       "PATH=" + folder.path().string() + ":$PATH " + kProgram +
           " launch -- -odd="});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "it runs\n");
}

TEST(Launch, ShowsTheProgramInItsUsage) {
  const auto result = run_process({kProgram, "launch", "--help"});
  EXPECT_THAT(result.out, HasSubstr("PROGRAM [ARGUMENTS]"));
}

TEST(Launch, SaysThatAChoiceOfRanksHidesThemAll) {
  TempDir folder;
  for (const std::string& option :
       {std::string("--local_ranks_filter=2"),
        "--tee=2:3 --log_dir=" + folder.path().string()}) {
    const auto result = run_process(
        {"sh", "-c", kProgram + " launch --num_processes 2 " + option + " id"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, IsEmpty());
    EXPECT_THAT(
        result.err,
        HasSubstr("matches no process: this machine has local ranks 0 to 1\n"));
  }
}

TEST(Launch, PassesOpenMpsListOfThreadsOn) {
  const auto command = launch_shell(2, "echo $OMP_NUM_THREADS threads");
  const auto list = run_process(command, {{"OMP_NUM_THREADS", "4,2"}});
  EXPECT_THAT(list.out, HasSubstr("[rank 1] 4,2 threads\n"));
  const auto none = run_process(command, {{"OMP_NUM_THREADS", ""}});
  EXPECT_THAT(none.out, ContainsRegex("\\[rank 1\\] [0-9]+ threads\n"));
}

TEST(Launch, KeepsTheMemoryOfAStepByDefault) {
  const auto command = launch_shell(2, "echo ${MIMALLOC_PURGE_DELAY} ms");
  const auto own = run_process(command, {{"MIMALLOC_PURGE_DELAY", "7"}});
  EXPECT_THAT(own.out, HasSubstr("[rank 1] 7 ms\n"));
  const auto none = run_process(command, {{"MIMALLOC_PURGE_DELAY", ""}});
  EXPECT_THAT(none.out, HasSubstr("[rank 1] 10000 ms\n"));
}

TEST(Launch, NeedsItsFolderOnlyForRelativePaths) {
  TempDir folder;
  const auto in_lost_folder = [&](const std::string& arguments) {
    return run_process(
        {"sh",
         "-c",
         "mkdir " + folder.path().string() + "/gone && cd " +
             folder.path().string() + "/gone && rmdir $PWD && exec " +
             kProgram + " launch --num_processes 2 " + arguments});
  };
  for (const char* arguments : {"--log_dir logs true", "script.py"}) {
    const auto result = in_lost_folder(arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(
        result.err,
        "accelerate: [launch] the current folder cannot be accessed (No such "
        "file or directory). Change to another one, or use absolute paths\n");
  }
  const auto result =
      in_lost_folder("--log_dir " + folder.path().string() + "/logs echo hi");
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(Launch, SaysThatAPortNeedsRights) {
  int first_free = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_unprivileged_port_start") >> first_free;
  const std::vector<std::string> as_nobody = {
      "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"};
  auto probe = as_nobody;
  probe.insert(probe.end(), {kProgram, "--version"});
  if (first_free < 2 || run_process(probe).exit_code != 0) {
    GTEST_SKIP() << "needs root, and ports that need it";
  }
  const std::string port = std::to_string(first_free - 1);
  auto command = as_nobody;
  command.insert(
      command.end(),
      {kProgram, "launch", "--main_process_port", port, "--num_processes=2"});
  auto alone = command;
  alone.push_back("true");
  const auto replaced = run_process(alone);
  EXPECT_EQ(replaced.exit_code, 0);
  EXPECT_THAT(
      replaced.err,
      HasSubstr(
          "[launch] port " + port +
          " is not allowed for this user (Permission denied); using "));
  command.insert(
      command.end(),
      {"--num_machines=2", "--main_process_ip=127.0.0.1", "true"});
  const auto refused = run_process(command);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(
      refused.err,
      HasSubstr("is not allowed for this user (Permission denied); pass "
                "another --main_process_port on every machine\n"));
}

TEST(Launch, ChecksThatTheWorkersCanBeStarted) {
  for (const char* program : {"./nope", "/etc"}) {
    const auto result = run_process(
        {kProgram, "launch", "--check", "--num_processes", "2", program});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(
        result.err,
        HasSubstr("--check found problems, so nothing was started"));
  }
}

TEST(Launch, KnowsEverySpellingOfALoopbackAddress) {
  for (const char* address : {"[::1]", "::ffff:127.0.0.1"}) {
    const auto result = run_process(
        {kProgram,
         "launch",
         "--num_machines=2",
         "--num_processes=2",
         "--join_timeout=1",
         "--main_process_port",
         std::to_string(find_free_port("")),
         "--main_process_ip",
         address,
         "true"});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, HasSubstr("machine 1 did not join")) << address;
  }
}

TEST(LaunchErrors, SayThatThereIsNoRouteToAHost) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "a machine without a network needs root";
  }
  const auto result = run_process(
      {"/usr/bin/unshare",
       "--net",
       kProgram,
       "launch",
       "--hosts",
       "localhost,10.9.9.9",
       "true"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("no route to '10.9.9.9'"));
}

TEST(LaunchErrors, GetOneLineAndExitCode2) {
  TempDir folder;
  const auto plain = folder.write("plain", "#!/bin/sh\n");
  std::filesystem::permissions(plain, std::filesystem::perms::owner_read);
  const auto script = folder.write("script.py", "");
  const auto empty =
      folder.write("empty.yaml", "num_machines: 1\nlog_dir: ''\n");
  const auto filtering =
      folder.write("filter.yaml", "local_ranks_filter: '99999999999'\n");
  const auto deep = folder.write(
      "deep.yaml",
      "debug: " + std::string(2000, '[') + std::string(2000, ']') + "\n");
  const std::string pipe = folder.path() / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0700), 0);
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{kProgram, "launch"}, "[launch] no program was given"},
      {{kProgram, "launch", ""}, "[launch] no program was given"},
      {{kProgram, "launch", "--num_processes", "0", "true"}, "num_processes"},
      {{kProgram, "launch", "--num_processes", "two", "true"}, "num_processes"},
      {{kProgram, "launch", "--num_procs", "2", "true"}, "--num_processes"},
      {{kProgram, "launch", "./no_such_program"}, "'./no_such_program'"},
      {{kProgram, "launch", "no_such_script.py"},
       "no file 'no_such_script.py'"},
      {{"env", "PATH=/nonexistent", kProgram, "launch", script},
       "cannot execute 'python3': No such file or directory; install Python"},
      {{kProgram, "launch", "--no_python", plain}, "chmod +x"},
      {{kProgram, "launch", "--no_python", "/etc"}, "it is a folder"},
      {{kProgram, "lunch"}, "did you mean 'launch'?"},
      {{kProgram, "launch", "--num_processes=", "true"},
       "--num_processes must be a whole number from 1 to 4096, or auto, not "
       "''"},
      {{kProgram, "launch", "--num_processes", "-1", "true"},
       "--num_processes must be a whole number from 1 to 4096, or auto, not "
       "'-1'"},
      {{kProgram, "launch", "--max_restarts", "-1", "true"},
       "--max_restarts must be a whole number from 0"},
      {{kProgram, "launch", "--log_dir", "", "true"},
       "--log_dir is empty. Pass a folder, or leave it out"},
      {{kProgram, "launch", "--config_file", "", "true"},
       "--config_file is empty. Pass a file, or leave it out"},
      {{kProgram, "launch", "--config_file", empty, "true"},
       "empty.yaml:2] log_dir is empty. Pass a folder, or leave it out"},
      {{kProgram, "launch", "x.yaml"},
       "Use `accelerate launch --config_file x.yaml train.py`"},
      {{kProgram, "launch", "a b.json", "train.py", "--lr", "3"},
       "Use `accelerate launch --config_file 'a b.json' train.py --lr 3`"},
      {{kProgram, "launch", "--debug=", "true"},
       "--debug must be true or false, not ''"},
      {{kProgram, "launch", "--nope=", "true"}, "unknown option '--nope='"},
      {{kProgram, "launch", "--local_ranks_filter", "2147483648", "true"},
       "--local_ranks_filter must be local ranks from 0 to 4095"},
      {{"env",
        "ACCELERATE_LOCAL_RANKS_FILTER=0,4096",
        kProgram,
        "launch",
        "true"},
       "ACCELERATE_LOCAL_RANKS_FILTER must be local ranks"},
      {{kProgram, "launch", "--config_file", filtering, "true"},
       "local ranks from 0 to 4095"},
      {{kProgram, "launch", "--config_file", folder.path(), "true"},
       "is a folder"},
      {{kProgram, "launch", "--config_file", deep, "true"},
       "nested too deeply"},
      {{kProgram, "launch", pipe}, "it is a device, a pipe or a socket"},
      {{kProgram, "launch", "--num_cpu_threads_per_process=2147483648", "true"},
       "from 1 to 65536"},
      {{"env", "RANK=0", "WORLD_SIZE=99999999999", kProgram, "launch", "true"},
       "is not a whole number from 1 to 2147483647"},
      {{kProgram, "launch", "./a\nb\x1b[31m"}, "'./a\\x0ab\\x1b[31m'"},
      {{kProgram, "launch", "a\nb\x1b[31m.py"}, "a\\x0ab\\x1b[31m.py' in "},
      {{kProgram,
        "launch",
        "--num_machines=2",
        "--main_process_ip=a\nb\x1b[31m",
        "true"},
       "IP address, not 'a\\x0ab\\x1b[31m'"},
  };
  for (const auto& [command, part] : cases) {
    const auto result = run_process(command);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr(part));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1)
        << result.err;
  }
}

} // namespace
} // namespace accelerate::testing
