// SPDX-License-Identifier: Apache-2.0
// A console with a slow reader.
#include "launcher/launch/supervise/console.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace accelerate {
namespace {

TEST(Console, ReportsRoomAfterAnyWrite) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFile reader(ends[0]);
  const UniqueFile writer(ends[1]);
  EventLoop loop;
  Console console(loop, writer.get());
  int num_rooms = 0;
  console.on({[&] { ++num_rooms; }, {}, {}});
  while (!console.is_full()) {
    console.write_line(std::string(1000, 'x'));
  }
  // A bar is drawn whenever the reader has read something, so the loop itself
  // never writes.
  char buffer[65536];
  for (int i = 0; i < 1000 && console.is_full(); ++i) {
    ASSERT_GT(read(reader.get(), buffer, sizeof(buffer)), 0);
    console.write_raw("\r50%");
  }
  EXPECT_FALSE(console.is_full());
  EXPECT_EQ(num_rooms, 1);
}

} // namespace
} // namespace accelerate
