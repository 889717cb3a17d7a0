// SPDX-License-Identifier: Apache-2.0
#include "core/config/nearest.h"

#include <gtest/gtest.h>

namespace accelerate {
namespace {

TEST(EditDistance, CountsInsertionsDeletionsReplacementsAndSwaps) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("num_proceses", "num_processes"), 1);
  EXPECT_EQ(edit_distance("mian", "main"), 1);
  EXPECT_EQ(edit_distance("flaw", "lawn"), 2);
}

TEST(NearestName, IsTheOneWithTheFewestChanges) {
  EXPECT_EQ(nearest_name("tea", {"seat", "tee", "quiet"}), "tee");
}

TEST(NearestName, PrefersTheRestOfANameThatWasCutOff) {
  EXPECT_EQ(nearest_name("config", {"contain", "config_file"}), "config_file");
  EXPECT_EQ(
      nearest_name("main", {"main_process_ip", "mean"}), "main_process_ip");
  EXPECT_EQ(nearest_name("te", {"timestamps", "tee"}), "tee");
}

TEST(NearestName, IsEmptyWhereNothingIsNear) {
  EXPECT_EQ(nearest_name("banana", {"num_processes", "cpu"}), "");
  EXPECT_EQ(nearest_name(std::string(100000, 'x'), {"cpu"}), "");
}

} // namespace
} // namespace accelerate
