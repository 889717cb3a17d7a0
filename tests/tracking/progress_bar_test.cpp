// SPDX-License-Identifier: Apache-2.0
#include "accelerate/progress_bar.h"

#include <gmock/gmock.h>

#include <sstream>

namespace accelerate {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ProgressBar, DrawsCountsAndEndsItsLine) {
  std::ostringstream out;
  {
    ProgressBar bar(
        4,
        {.description = "train",
         .enabled = true,
         .output = &out,
         .columns = 80});
    bar.set_postfix("loss 0.5");
    bar.update(3);
    bar.update();
    EXPECT_EQ(bar.done(), 4);
    EXPECT_EQ(bar.total(), 4);
  }
  EXPECT_THAT(out.str(), HasSubstr("\rtrain:   0%|"));
  EXPECT_THAT(out.str(), HasSubstr("train: 100%|#"));
  EXPECT_THAT(out.str(), HasSubstr(" 4/4 ["));
  EXPECT_THAT(out.str(), HasSubstr("loss 0.5"));
  EXPECT_THAT(out.str(), EndsWith("\n"));
}

TEST(ProgressBar, NeverDrawsALineWiderThanTheTerminal) {
  std::ostringstream out;
  ProgressBar bar(1, {.enabled = true, .output = &out, .columns = 20});
  bar.update();
  std::istringstream lines(out.str());
  for (std::string line; std::getline(lines, line, '\r');) {
    EXPECT_LT(line.substr(0, line.find("\033")).size(), 20U);
  }
}

TEST(ProgressBar, RedrawsRarelyHoweverOftenItIsUpdated) {
  std::ostringstream out;
  ProgressBar bar(1'000'000, {.enabled = true, .output = &out, .columns = 80});
  for (int i = 0; i < 100'000; ++i) {
    bar.update();
  }
  EXPECT_LT(out.str().size(), 100U * 100U);
}

TEST(ProgressBar, IsSilentWhereDisabledOrNotOnATerminal) {
  std::ostringstream out;
  {
    ProgressBar bar(2, {.enabled = false, .output = &out});
    bar.update(2);
  }
  EXPECT_THAT(out.str(), IsEmpty());
}

TEST(ProgressBar, SurvivesAMoveAndATotalOfZero) {
  std::ostringstream out;
  ProgressBar empty(0, {.enabled = true, .output = &out, .columns = 80});
  ProgressBar moved = std::move(empty);
  moved.update(0);
  EXPECT_THAT(out.str(), HasSubstr("100%"));
}

} // namespace
} // namespace accelerate
