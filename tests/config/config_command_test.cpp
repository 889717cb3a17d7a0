// SPDX-License-Identifier: Apache-2.0
// The program `accelerate config` and its sub-commands.
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include "support/program.h"
#include "support/subprocess.h"

namespace accelerate::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ConfigCommand : public ::testing::Test {
 protected:
  ProcessResult run(
      std::vector<std::string> arguments,
      std::map<std::string, std::string> variables = {}) {
    arguments.insert(arguments.begin(), {kProgram, "config"});
    variables.emplace("HF_HOME", folder_.path().string());
    variables.emplace("CUDA_VISIBLE_DEVICES", "");
    return run_process(arguments, variables);
  }
  std::filesystem::path file() const {
    return folder_.path() / "accelerate" / "default_config.yaml";
  }

  TempDir folder_;
};

TEST_F(ConfigCommand, DefaultWritesOnceAndNeverOverwrites) {
  const auto first = run({"default", "--mixed-precision", "bf16"});
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(
      first.out,
      "accelerate configuration saved at " + file().string() +
          "\n  1 process, on the CPU, bf16\nNext: accelerate launch "
          "train.py\n");
  EXPECT_THAT(read_file(file()), HasSubstr("mixed_precision: bf16\n"));
  const std::string before = read_file(file());
  const auto second = run({"default"});
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_THAT(
      second.err, HasSubstr("already exists. Remove the file first, or run"));
  EXPECT_EQ(read_file(file()), before);
}

TEST_F(ConfigCommand, DefaultRejectsAnUnsupportedPrecision) {
  const auto result = run({"default", "--mixed_precision", "fp8"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(
      result.err, HasSubstr("fp8 is not supported; use no, fp16 or bf16"));
  EXPECT_FALSE(std::filesystem::exists(file()));
}

TEST_F(ConfigCommand, UpdateBringsAnOldFileUpToDate) {
  const auto path = folder_.write(
      "old.yaml",
      "distributed_type: FSDP\nfp16: true\nfsdp_config:\n  fsdp_version: 2\n");
  const auto result = run({"update", "--config_file", path});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::string text = read_file(path);
  EXPECT_THAT(text, HasSubstr("distributed_type: FSDP\n"));
  EXPECT_THAT(text, HasSubstr("fsdp_config:\n  fsdp_version: 2\n"));
  EXPECT_THAT(text, HasSubstr("mixed_precision: fp16\n"));
  EXPECT_THAT(text, HasSubstr("num_machines: 1\n"));
  run({"update", "--config_file", path});
  EXPECT_EQ(read_file(path), text);
}

TEST_F(ConfigCommand, TakesTheFileBeforeItsCommandToo) {
  const std::string path = folder_.path() / "mine.yaml";
  const auto result = run({"--config_file", path, "default"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(std::filesystem::exists(path));
  EXPECT_FALSE(std::filesystem::exists(file()));
}

TEST_F(ConfigCommand, UpdateNeedsAFile) {
  const auto result = run({"update"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("cannot read"));
}

TEST_F(ConfigCommand, ShowPrintsEachValueWithItsSource) {
  const auto path = folder_.write(
      "c.yaml", "num_machines: 2\nnum_processes: 4\ndebug: true\n");
  const auto result =
      run({"show", "--config_file", path, "--num-processes", "6"},
          {{"ACCELERATE_DEBUG_MODE", "0"}});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("file: " + path.string()));
  EXPECT_THAT(
      result.out, ContainsRegex("num_processes +6 +flag --num_processes\n"));
  EXPECT_THAT(
      result.out,
      ContainsRegex("debug +false +environment ACCELERATE_DEBUG_MODE\n"));
  EXPECT_THAT(result.out, ContainsRegex("num_machines +2 +file .*c.yaml:1\n"));
  EXPECT_THAT(result.out, ContainsRegex("max_restarts +0 +default\n"));
  EXPECT_THAT(result.err, IsEmpty());
}

TEST_F(ConfigCommand, ShowReportsAMissingFile) {
  const auto result = run({"show"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("file: none (" + file().string()));
}

TEST_F(ConfigCommand, ShowNamesWhatCannotBeLaunched) {
  const auto path = folder_.write("c.yaml", "distributed_type: XLA\n");
  const auto result = run({"show", "--config_file", path});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(
      result.err,
      HasSubstr("XLA (" + path.string() + ":1): TPUs are not supported."));
}

TEST_F(ConfigCommand, AsksThroughAPipeToo) {
  const auto path = folder_.path() / "piped.json";
  const auto result = run_process(
      {"/bin/sh",
       "-c",
       "printf '1\\n\\n\\n\\n4\\n\\n\\n1\\n' | " + kProgram +
           " config --config_file " + path.string()},
      {{"CUDA_VISIBLE_DEVICES", ""}});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(read_file(path), HasSubstr("\"num_processes\": 4"));
  EXPECT_THAT(result.err, HasSubstr("How do you train?"));
}

TEST_F(ConfigCommand, AsksBeforeItReplacesAFileAndKeepsItsValues) {
  const auto path = folder_.write(
      "c.yaml",
      "distributed_type: MULTI_CPU\nnum_processes: 3\nlog_dir: logs\n"
      "mixed_precision: bf16\n");
  const auto answer = [&](const std::string& lines) {
    return run_process(
        {"/bin/sh",
         "-c",
         "printf '" + lines + "' | " + kProgram + " config --config_file " +
             path.string()},
        {{"CUDA_VISIBLE_DEVICES", ""}});
  };
  const std::string before = read_file(path);
  const auto kept = answer("\\n\\n\\n\\n\\n\\n\\n\\nno\\n");
  EXPECT_EQ(kept.exit_code, 1) << kept.err;
  EXPECT_THAT(
      kept.err, HasSubstr("Replace " + path.string() + "? (yes/no) [yes]: "));
  EXPECT_EQ(read_file(path), before);
  // Every answer keeps the current value.
  const auto replaced = answer("\\n\\n\\n\\n\\n\\n\\n\\n\\n");
  EXPECT_EQ(replaced.exit_code, 0) << replaced.err;
  EXPECT_THAT(
      replaced.out,
      EndsWith(
          "\n  3 processes, on the CPU, bf16\nNext: accelerate launch "
          "--config_file " +
          path.string() + " train.py\n"));
  EXPECT_THAT(read_file(path), HasSubstr("num_processes: 3\n"));
  EXPECT_THAT(read_file(path), HasSubstr("log_dir: logs\n"));
}

TEST_F(ConfigCommand, ErrorsAboutValuesOfTheFileNameItsLine) {
  const std::pair<std::string, std::string> cases[] = {
      {"num_machines: 1\ndistributed_type: MULTI_GPU\n",
       ":2] distributed_type MULTI_GPU, but this machine has no usable GPU: "},
      {"num_machines: 3\nmain_process_ip: a\nnum_processes: 2\n",
       ":3] num_processes 2 cannot be divided evenly between 3 machines. The "
       "number is the total for all machines, so use a multiple of 3\n"},
      {"mixed_precision: fp8\n", ":1] mixed_precision: fp8: fp8 is not"},
      {"debug: no\nmixed_precision: half\n",
       ":2] mixed_precision half is not supported; use no, fp16 or bf16\n"},
  };
  for (const auto& [text, part] : cases) {
    const auto path = folder_.write("wrong.yaml", text);
    const auto result = run_process(
        {kProgram, "launch", "--config_file", path, "true"},
        {{"CUDA_VISIBLE_DEVICES", ""}});
    EXPECT_EQ(result.exit_code, 2) << text;
    EXPECT_THAT(result.err, HasSubstr("accelerate: [" + path.string() + part));
  }
}

TEST_F(ConfigCommand, BadFilesGetOneLineAndExitCode2) {
  const auto path = folder_.write("c.yaml", "\nnum_proceses: 2\n");
  const auto result = run({"show", "--config_file", path});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(
      result.err,
      "accelerate: [" + path.string() +
          ":2] unknown key 'num_proceses'; did you mean 'num_processes'?\n");
}

TEST_F(ConfigCommand, HelpFitsATerminalAndShowsOneSpelling) {
  const auto result = run({"show", "--help-all"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("Several machines:\n"));
  EXPECT_THAT(result.out, HasSubstr("--num_processes N"));
  EXPECT_THAT(result.out, ::testing::Not(HasSubstr("--num-processes")));
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 80U) << line;
  }
}

TEST_F(ConfigCommand, ReplacesNothingButPlainFiles) {
  const std::string pipe = folder_.path() / "pipe";
  const std::string socket_path = folder_.path() / "socket";
  const std::string device = folder_.path() / "device";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int listener = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un place{};
  place.sun_family = AF_UNIX;
  socket_path.copy(place.sun_path, sizeof(place.sun_path) - 1);
  ASSERT_EQ(
      bind(listener, reinterpret_cast<sockaddr*>(&place), sizeof(place)), 0);
  close(listener);
  std::vector<std::string> paths = {pipe, socket_path};
  if (mknod(device.c_str(), S_IFCHR | 0600, makedev(1, 7)) == 0) {
    paths.push_back(device);
  }
  for (const std::string& path : paths) {
    struct stat before {};
    struct stat after {};
    ASSERT_EQ(lstat(path.c_str(), &before), 0);
    const auto result = run({"--config_file", path});
    EXPECT_EQ(result.exit_code, 2) << path;
    EXPECT_EQ(
        result.err,
        "accelerate: [write] '" + path +
            "' is a device, a pipe or a socket. Pass the name of a plain "
            "file\n");
    ASSERT_EQ(lstat(path.c_str(), &after), 0);
    EXPECT_EQ(before.st_ino, after.st_ino);
    EXPECT_EQ(before.st_mode, after.st_mode);
  }
}

TEST_F(ConfigCommand, FollowsADanglingLink) {
  const auto link = folder_.path() / "link.yaml";
  std::filesystem::create_symlink("made/real.yaml", link);
  const auto result = run({"default", "--config_file", link});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_THAT(
      read_file(folder_.path() / "made" / "real.yaml"),
      HasSubstr("mixed_precision: 'no'\n"));
}

TEST_F(ConfigCommand, LeavesNoFileIfTheSizeLimitIsExceeded) {
  const auto place = folder_.path() / "place";
  std::filesystem::create_directory(place);
  // Through a pipe, because the limit also applies to the test's own files.
  const auto result = run_process(
      {"bash",
       "-c",
       "(ulimit -f 0; " + kProgram + " config default --config_file " +
           (place / "c.yaml").string() + " 2>&1; echo $?) | cat"});
  EXPECT_THAT(
      result.out,
      AllOf(HasSubstr("File too large. Raise the limit"), EndsWith("\n2\n")));
  EXPECT_TRUE(std::filesystem::is_empty(place));
}

TEST_F(ConfigCommand, TheListOfOptionsInTheDocsIsUpToDate) {
  const auto result = run({"options-markdown"});
  EXPECT_EQ(result.out, read_file(std::string(TEST_DOCS_DIR) + "/options.md"))
      << "run: accelerate config options-markdown > docs/options.md";
}

} // namespace
} // namespace accelerate::testing
