// SPDX-License-Identifier: Apache-2.0
#include "accelerate/observe/progress_bar.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <sstream>

#include "accelerate/observe/logger.h"
#include "core/base/utf8.h"

namespace accelerate {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

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

TEST(ProgressBar, CutsBetweenCharacters) {
  for (int columns = 1; columns < 12; ++columns) {
    std::ostringstream out;
    {
      ProgressBar bar(
          1,
          {.description = "\xC3\xBC\xE4\xB8\xAD\xC3\xBC",
           .enabled = true,
           .output = &out,
           .columns = columns});
      bar.update();
    }
    EXPECT_FALSE(find_invalid_utf8(out.str())) << columns;
  }
}

TEST(ProgressBar, OfManyBytesIsStillOneRow) {
  std::ostringstream out;
  {
    ProgressBar bar(
        2,
        {.description = "\xC3\xBC\xC3\xBC\xC3\xBC\xC3\xBC",
         .enabled = true,
         .output = &out,
         .columns = 40});
    print_line(out, "above");
    bar.update(2);
  }
  // Moving up would overwrite a line that is not the bar's.
  EXPECT_EQ(out.str().find('A'), std::string::npos) << out.str();
}

TEST(ProgressBar, RedrawsRarelyHoweverOftenItIsUpdated) {
  std::ostringstream out;
  ProgressBar bar(1'000'000, {.enabled = true, .output = &out, .columns = 80});
  for (int i = 0; i < 100'000; ++i) {
    bar.update();
  }
  EXPECT_LT(out.str().size(), 100U * 100U);
}

TEST(ProgressBar, DrawsNothingIfDisabledOrNotOnATerminal) {
  std::ostringstream out;
  {
    ProgressBar bar(2, {.enabled = false, .output = &out});
    bar.update(2);
  }
  EXPECT_THAT(out.str(), IsEmpty());
}

/// What a terminal of this width shows after these bytes: rows with the effects
/// of cursor movements, carriage returns and erasures.
std::vector<std::string> shown_by(const std::string& bytes, size_t columns) {
  std::vector<std::string> rows(1);
  size_t row = 0;
  size_t column = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == '\r') {
      column = 0;
    } else if (bytes[i] == '\n') {
      ++row;
      column = 0;
    } else if (bytes[i] == '\033') {
      const size_t end = bytes.find_first_of("AJK", i);
      if (bytes[end] == 'A') {
        row -= std::stoul(bytes.substr(i + 2, end - i - 2));
      } else {
        rows[row].resize(std::min(rows[row].size(), column));
        rows.resize(bytes[end] == 'J' ? row + 1 : rows.size());
      }
      i = end;
    } else {
      if (column == columns) {
        ++row;
        column = 0;
      }
      rows.resize(std::max(rows.size(), row + 1));
      rows[row].resize(std::max(rows[row].size(), column + 1), ' ');
      rows[row][column++] = bytes[i];
    }
    rows.resize(std::max(rows.size(), row + 1));
  }
  return rows;
}

ProgressBarOptions drawn_on(std::ostream& out, const std::string& name) {
  return {.description = name, .enabled = true, .output = &out, .columns = 60};
}

TEST(ProgressBar, LinesAppearAboveSeveralBars) {
  std::ostringstream out;
  const Logger logger("train", {.topology = ProcessTopology{}, .output = &out});
  {
    ProgressBar epochs(2, drawn_on(out, "epochs"));
    logger.info("begin");
    {
      ProgressBar steps(3, drawn_on(out, "steps"));
      steps.update(3);
      logger.warning("in the middle of an epoch");
      const auto rows = shown_by(out.str(), 60);
      ASSERT_EQ(rows.size(), 4U);
      EXPECT_EQ(rows[0], "[RANK 0] INFO train: begin");
      EXPECT_THAT(rows[1], HasSubstr("WARNING train: in the middle"));
      EXPECT_THAT(rows[2], HasSubstr("epochs:   0%|"));
      EXPECT_THAT(rows[3], HasSubstr("steps: 100%|"));
    }
    epochs.update(2);
  }
  const auto rows = shown_by(out.str(), 60);
  ASSERT_EQ(rows.size(), 4U) << out.str();
  EXPECT_THAT(rows[2], HasSubstr("epochs: 100%|"));
  EXPECT_THAT(rows[3], IsEmpty());
}

TEST(ProgressBar, ShowsRatesTotalsAndValuesAsTqdmDoes) {
  std::ostringstream out;
  {
    ProgressBar bar(
        -1,
        {.enabled = true,
         .output = &out,
         .columns = 80,
         .initial = 40,
         .unit = "batch"});
    bar.set_postfix({{"loss", 0.123456}, {"seen", 42}, {"note", "warm"}});
    bar.update(2);
  }
  EXPECT_THAT(out.str(), HasSubstr("42 [00:0"));
  EXPECT_THAT(out.str(), HasSubstr("batch/s] loss=0.123, seen=42, note=warm"));
  EXPECT_EQ(out.str().find('%'), std::string::npos);
}

TEST(ProgressBar, SurvivesAMoveAndATotalOfZero) {
  std::ostringstream out;
  ProgressBar empty(0, {.enabled = true, .output = &out, .columns = 80});
  ProgressBar moved = std::move(empty);
  moved.update(0);
  EXPECT_THAT(out.str(), HasSubstr("100%"));
}

TEST(ProgressBar, IsInactiveAfterAMove) {
  std::ostringstream out;
  ProgressBar bar(2, {.enabled = true, .output = &out, .columns = 80});
  ProgressBar moved = std::move(bar);
  const auto drawn = out.str();
  bar.update(); // NOLINT(bugprone-use-after-move)
  bar.set_postfix("text");
  bar.set_postfix({{"loss", 1}});
  bar.set_description("train");
  EXPECT_EQ(bar.done(), 0);
  EXPECT_EQ(bar.total(), 0);
  EXPECT_EQ(out.str(), drawn);
  bar = ProgressBar(1, {.enabled = false});
  bar.update();
  EXPECT_EQ(bar.done(), 1);
}

TEST(ProgressBar, IsOneLineWhateverItsTextsHold) {
  std::ostringstream out;
  {
    ProgressBar bar(
        1,
        {.description = "a\nb",
         .enabled = true,
         .output = &out,
         .columns = 200,
         .unit = "\r"});
    bar.set_postfix({{"no\x1b[2Jte", "x\ty\x07"}});
    bar.update();
    bar.set_description("c\nd");
    bar.set_postfix("e\nf");
  }
  const auto rows = shown_by(out.str(), 200);
  ASSERT_EQ(rows.size(), 2U) << out.str();
  EXPECT_THAT(rows[0], StartsWith("c\\x0ad: 100%|"));
  EXPECT_THAT(rows[0], EndsWith("e\\x0af"));
  EXPECT_THAT(out.str(), HasSubstr("a\\x0ab: 100%|"));
  EXPECT_THAT(out.str(), HasSubstr("\\x0d/s] no\\x1b[2Jte=x y\\x07"));
}

} // namespace
} // namespace accelerate
