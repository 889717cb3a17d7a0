// SPDX-License-Identifier: Apache-2.0
#include "core/base/process_stat.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>

#include "core/base/programs.h"

namespace accelerate {
namespace {

TEST(ProcessStat, ReadsTheFieldsOfThisProcess) {
  const auto stat = read_process_stat("self");
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->state, 'R');
  EXPECT_EQ(stat->parent, getppid());
  const auto* const arguments =
      reinterpret_cast<const char*>(stat->arguments_begin);
  std::ifstream file("/proc/self/cmdline");
  const std::string shown(std::istreambuf_iterator<char>(file), {});
  EXPECT_EQ(
      std::string(arguments, stat->arguments_end - stat->arguments_begin),
      shown);
  EXPECT_EQ(
      read_process_stat(std::to_string(getpid()))->start_time,
      stat->start_time);
}

TEST(ProcessStat, SurvivesAnyNameOfAProgram) {
  const auto stat = parse_process_stat("7 (a) R 1 (b) S 42 1 1 0 -1");
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->state, 'S');
  EXPECT_EQ(stat->parent, 42);
  EXPECT_EQ(stat->start_time, 0u);
  for (const char* text : {"", "7", "7 (a", "7 (a)", "7 (a) S", "7 (a) S x"}) {
    EXPECT_FALSE(parse_process_stat(text)) << text;
  }
  EXPECT_FALSE(read_process_stat("0"));
}

TEST(Programs, KnowThisProgram) {
  EXPECT_TRUE(own_program().is_absolute());
  EXPECT_EQ(own_program().filename(), "base_test");
}

} // namespace
} // namespace accelerate
