// SPDX-License-Identifier: Apache-2.0
// The questionnaire on a terminal, key by key.
#include "support/terminal.h"

#include <gmock/gmock.h>
#include <signal.h>

#include "core/config/config_file.h"
#include "support/temp_dir.h"

namespace accelerate::testing {
namespace {

using ::testing::HasSubstr;

class Questions : public ::testing::Test {
 protected:
  Questions()
      : terminal_(
            {std::string(TEST_BIN_DIR) + "/accelerate", "config"},
            {{"HF_HOME", folder_.path().string()},
             {"HOME", "/home/x"},
             {"CUDA_VISIBLE_DEVICES", ""}}) {}

  std::filesystem::path file() const {
    return folder_.path() / "accelerate" / "default_config.yaml";
  }
  bool answer(const std::string& question, const std::string& keys) {
    return terminal_.answer(question, keys);
  }
  /// A menu is open once its last option is drawn.
  bool choose(
      const std::string& question,
      const std::string& last_option,
      const std::string& keys) {
    return terminal_.shows(question) && answer(last_option, keys);
  }
  bool choose_kind(const std::string& keys) {
    return choose("How do you train?", "1) Several processes", keys);
  }
  std::string saved(const std::string& field) {
    const auto values = read_config_file(file()).values;
    const auto found = values.find(field);
    return found == values.end() ? "(unset)" : found->second.text;
  }

  TempDir folder_;
  Terminal terminal_;
};

TEST_F(Questions, EnterTakesTheMarkedOption) {
  ASSERT_TRUE(choose_kind("0\r"));
  ASSERT_TRUE(choose("mixed precision", "1) bf16", "\r"));
  EXPECT_EQ(terminal_.wait(), 0) << terminal_.shown();
  EXPECT_TRUE(terminal_.is_restored());
  EXPECT_THAT(
      terminal_.shown(),
      HasSubstr("accelerate configuration saved at " + file().string()));
  EXPECT_EQ(saved("cpu"), "true");
  EXPECT_EQ(saved("mixed_precision"), "no");
  EXPECT_EQ(saved("num_processes"), "1");
}

TEST_F(Questions, ArrowsMoveAndWrapAround) {
  ASSERT_TRUE(choose_kind(std::string("0") + kDown + kDown + kUp + "\r"));
  ASSERT_TRUE(answer("How many machines", "\r"));
  ASSERT_TRUE(answer("Check collectives", "yes\r"));
  ASSERT_TRUE(answer("with mpirun", "no\r"));
  ASSERT_TRUE(answer("How many processes", "3\r"));
  ASSERT_TRUE(answer("with FSDP?", "no\r"));
  ASSERT_TRUE(answer("DeepSpeed", "no\r"));
  // Up from the first option is the last one.
  ASSERT_TRUE(choose("mixed precision", "1) bf16", std::string(kUp) + "\r"));
  EXPECT_EQ(terminal_.wait(), 0) << terminal_.shown();
  EXPECT_EQ(saved("cpu"), "true");
  EXPECT_EQ(saved("debug"), "true");
  EXPECT_EQ(saved("num_processes"), "3");
  EXPECT_EQ(saved("mixed_precision"), "bf16");
}

TEST_F(Questions, SeveralMachines) {
  ASSERT_TRUE(choose_kind("1\r"));
  ASSERT_TRUE(answer("How many machines", "3\r"));
  ASSERT_TRUE(choose("Rank of this machine", "machine 2", "jj\r"));
  ASSERT_TRUE(answer("Host name or IP", "node0\r"));
  ASSERT_TRUE(answer("TCP port", "29777\r"));
  ASSERT_TRUE(answer("Check collectives", "\r"));
  ASSERT_TRUE(answer("with mpirun", "\r"));
  ASSERT_TRUE(answer("How many processes", "2\r"));
  ASSERT_TRUE(answer("Please enter a number of at least 3.", ""));
  ASSERT_TRUE(answer("How many processes", "4\r"));
  ASSERT_TRUE(
      answer("Please enter a multiple of 3, the number of machines.", ""));
  ASSERT_TRUE(answer("How many processes", "6\r"));
  ASSERT_TRUE(answer("with FSDP?", "\r"));
  ASSERT_TRUE(answer("DeepSpeed", "\r"));
  ASSERT_TRUE(choose("mixed precision", "1) bf16", "1\r"));
  EXPECT_EQ(terminal_.wait(), 0) << terminal_.shown();
  EXPECT_EQ(saved("cpu"), "true");
  EXPECT_EQ(saved("num_machines"), "3");
  EXPECT_EQ(saved("machine_rank"), "2");
  EXPECT_EQ(saved("main_process_ip"), "node0");
  EXPECT_EQ(saved("main_process_port"), "29777");
  EXPECT_EQ(saved("num_processes"), "6");
  EXPECT_EQ(saved("mixed_precision"), "bf16");
}

TEST_F(Questions, MpirunAndAnInvalidAnswer) {
  ASSERT_TRUE(choose_kind("1\r"));
  ASSERT_TRUE(answer("How many machines", "zero\r"));
  ASSERT_TRUE(answer("Please enter a whole number", ""));
  ASSERT_TRUE(answer("How many machines", "1\r"));
  ASSERT_TRUE(answer("Check collectives", "perhaps\r"));
  ASSERT_TRUE(answer("Please enter yes or no.", ""));
  ASSERT_TRUE(answer("Check collectives", "no\r"));
  ASSERT_TRUE(answer("with mpirun", "yes\r"));
  ASSERT_TRUE(answer("Host file", "\r"));
  ASSERT_TRUE(answer("How many processes", "2\r"));
  ASSERT_TRUE(answer("with FSDP?", "\r"));
  ASSERT_TRUE(answer("DeepSpeed", "\r"));
  ASSERT_TRUE(choose("mixed precision", "1) bf16", "\r"));
  EXPECT_EQ(terminal_.wait(), 0) << terminal_.shown();
  EXPECT_EQ(saved("mpirun_hostfile"), "/home/x/hostfile");
}

TEST_F(Questions, KeysWithoutAMeaningChangeNothing) {
  ASSERT_TRUE(choose_kind("0x\x1b[C9\x1b"));
  terminal_.type("\r");
  ASSERT_TRUE(choose("mixed precision", "1) bf16", "\r"));
  EXPECT_EQ(terminal_.wait(), 0) << terminal_.shown();
  EXPECT_EQ(saved("cpu"), "true");
  EXPECT_EQ(saved("num_processes"), "1");
}

TEST_F(Questions, CtrlCInAMenuWritesNothingAndRestoresTheTerminal) {
  ASSERT_TRUE(choose_kind(kCtrlC));
  EXPECT_EQ(terminal_.wait(), 130);
  EXPECT_TRUE(terminal_.is_restored());
  EXPECT_THAT(terminal_.shown(), HasSubstr("nothing was written"));
  EXPECT_FALSE(std::filesystem::exists(file()));
}

TEST_F(Questions, CtrlCInATypedAnswerToo) {
  ASSERT_TRUE(choose_kind("1\r"));
  ASSERT_TRUE(answer("How many machines", kCtrlC));
  EXPECT_EQ(terminal_.wait(), 130);
  EXPECT_TRUE(terminal_.is_restored());
  EXPECT_FALSE(std::filesystem::exists(file()));
}

TEST_F(Questions, TheEndOfTheInputIsAnError) {
  ASSERT_TRUE(choose_kind(kCtrlD));
  EXPECT_EQ(terminal_.wait(), 2);
  EXPECT_TRUE(terminal_.is_restored());
  EXPECT_THAT(terminal_.shown(), HasSubstr("The input ended"));
}

class QuestionsKilled : public Questions,
                        public ::testing::WithParamInterface<int> {};

TEST_P(QuestionsKilled, RestoreTheTerminal) {
  ASSERT_TRUE(choose_kind(""));
  ASSERT_FALSE(terminal_.is_restored());
  terminal_.send(GetParam());
  EXPECT_EQ(terminal_.wait(), 128 + GetParam());
  EXPECT_TRUE(terminal_.is_restored());
  EXPECT_FALSE(std::filesystem::exists(file()));
}

INSTANTIATE_TEST_SUITE_P(
    Signals,
    QuestionsKilled,
    ::testing::Values(SIGINT, SIGTERM, SIGHUP, SIGQUIT));

} // namespace
} // namespace accelerate::testing
