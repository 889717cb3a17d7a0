// SPDX-License-Identifier: Apache-2.0
// Two ends of a control connection, each with its own loop.
#include "launcher/launch/machines/connection.h"

#include <gmock/gmock.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>

#include "launch/needs_codes.h"

namespace accelerate {
namespace {

using namespace std::chrono_literals;
using ConnectionTest = testing::NeedsCodes;

/// One end, run by a thread; authenticated with keys that both ends share.
class End {
 public:
  End(int socket, Patience patience, const char* own, const char* other)
      : connection_(
            loop_,
            pulse_,
            UniqueFile(socket),
            patience,
            {[](const Message&) {},
             [this](const std::string& reason) {
               why = reason;
               is_closed = true;
             },
             [this](const std::string&) { ++num_silences; },
             [this](std::chrono::seconds) { ++num_returns; }}) {
    connection_.seal(FrameSeal(own), FrameSeal(other));
  }
  ~End() { join(); }

  void run(std::chrono::milliseconds time) {
    loop_.after(time, [this] { loop_.stop(); });
    thread_ = std::thread([this] { loop_.run(); });
  }
  void join() {
    if (thread_.joinable()) {
      thread_.join();
    }
  }
  EventLoop& loop() { return loop_; }

  std::string why;
  std::atomic<bool> is_closed = false;
  std::atomic<int> num_silences = 0;
  std::atomic<int> num_returns = 0;

 private:
  EventLoop loop_;
  Pulse pulse_;
  Connection connection_;
  std::thread thread_;
};

struct Ends {
  explicit Ends(Patience patience) {
    int sockets[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
    one = std::make_unique<End>(sockets[0], patience, "a", "b");
    two = std::make_unique<End>(sockets[1], patience, "b", "a");
  }
  std::unique_ptr<End> one;
  std::unique_ptr<End> two;
};

// A log on a slow disk blocks the loop for longer than the other side waits.
TEST_F(ConnectionTest, OfALauncherThatIsHeldUpStaysAlive) {
  Ends ends({3000ms, 4000ms});
  ends.two->loop().after(0ms, [] { std::this_thread::sleep_for(7000ms); });
  ends.one->run(6000ms);
  ends.two->run(6000ms);
  ends.one->join();
  EXPECT_FALSE(ends.one->is_closed) << ends.one->why;
  EXPECT_EQ(ends.one->num_silences, 0);
}

TEST_F(ConnectionTest, ToAPeerThatIsSilentIsNamedThenGivenUp) {
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
  const UniqueFile silent(sockets[1]);
  End end(sockets[0], {1000ms, 3000ms}, "a", "b");
  end.run(6000ms);
  end.join();
  EXPECT_EQ(end.num_silences, 1);
  EXPECT_TRUE(end.is_closed);
  EXPECT_THAT(end.why, ::testing::HasSubstr("has been silent for"));
}

TEST_F(ConnectionTest, WithAForgedFrameIsClosed) {
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
  const UniqueFile forger(sockets[1]);
  End end(sockets[0], {}, "a", "b");
  const std::string frame =
      frame_of(FrameSeal("guess").close(encode_payload(StopMessage{})));
  ASSERT_GT(send(forger.get(), frame.data(), frame.size(), 0), 0);
  end.run(1000ms);
  end.join();
  EXPECT_TRUE(end.is_closed);
  EXPECT_THAT(end.why, ::testing::HasSubstr("changed, repeated or dropped"));
}

} // namespace
} // namespace accelerate
