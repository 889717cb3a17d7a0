// SPDX-License-Identifier: Apache-2.0
// Whoever else knocks on the control port: refused, and the job goes on.
#include <gmock/gmock.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "hardware/ports.h"
#include "launch/machines/protocol.h"
#include "launch/machines/sockets.h"
#include "support/subprocess.h"

namespace accelerate::testing {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

const std::string kProgram = std::string(TEST_BIN_DIR) + "/accelerate";

UniqueFile connect_to(int port) {
  UniqueFile file = begin_connect("127.0.0.1", port);
  pollfd waited{file.get(), POLLOUT, 0};
  poll(&waited, 1, 2000);
  return connect_error(file.get()) == 0 ? std::move(file) : UniqueFile();
}

/// What comes until the other side hangs up, for two seconds at most.
std::string read_all(int file) {
  std::string text;
  char buffer[4096];
  pollfd waited{file, POLLIN, 0};
  while (poll(&waited, 1, 2000) > 0) {
    const auto size = recv(file, buffer, sizeof(buffer), 0);
    if (size <= 0) {
      break;
    }
    text.append(buffer, static_cast<size_t>(size));
  }
  return text;
}

void send_text(int file, const std::string& text) {
  send(file, text.data(), text.size(), MSG_NOSIGNAL);
}

/// Machine 0 of two, with a token, on the loopback interface.
class Strangers : public ::testing::Test {
 protected:
  void SetUp() override {
    port_ = find_free_port();
    first_ = launch(0);
    ASSERT_TRUE(
        eventually([&] { return static_cast<bool>(connect_to(port_)); }));
  }

  std::unique_ptr<Subprocess> launch(int rank) {
    return std::make_unique<Subprocess>(
        std::vector<std::string>{
            kProgram,
            "launch",
            "--num_machines",
            "2",
            "--num_processes",
            "2",
            "--machine_rank",
            std::to_string(rank),
            "--main_process_ip",
            "127.0.0.1",
            "--main_process_port",
            std::to_string(port_),
            "sh",
            "-c",
            "echo rank $RANK ran; sleep 0.5"},
        std::map<std::string, std::string>{
            {"ACCELERATE_JOB_TOKEN", "the token"}});
  }

  void expect_that_the_job_runs() {
    auto second = launch(1);
    EXPECT_EQ(second->wait(15s).exit_code, 0) << second->err();
    EXPECT_EQ(first_->wait(15s).exit_code, 0) << first_->err();
    EXPECT_THAT(first_->out(), HasSubstr("rank 0 ran"));
    EXPECT_THAT(second->out(), HasSubstr("rank 1 ran"));
  }

  int port_ = 0;
  std::unique_ptr<Subprocess> first_;
};

TEST_F(Strangers, WithAWrongTokenAreTold) {
  const auto thief = connect_to(port_);
  HelloMessage hello;
  hello.token = "a guess";
  send_text(thief.get(), encode_frame(hello));
  EXPECT_THAT(read_all(thief.get()), HasSubstr("the job token is wrong"));
  expect_that_the_job_runs();
}

TEST_F(Strangers, WithAnotherVersionAreTold) {
  const auto peer = connect_to(port_);
  HelloMessage hello;
  hello.token = "the token";
  hello.version = "99.0";
  hello.protocol = 7;
  send_text(peer.get(), encode_frame(hello));
  EXPECT_THAT(
      read_all(peer.get()), HasSubstr("it runs accelerate 99.0 (protocol 7)"));
  expect_that_the_job_runs();
}

TEST_F(Strangers, ThatSendGarbageAreSentAway) {
  for (const std::string& garbage :
       {std::string("GET / HTTP/1.1\r\n\r\n"),
        std::string("\xFF\xFF\xFF\xFF whatever", 14),
        std::string("\0\0\0\0", 4),
        std::string("\0\0\0\x02{}", 6),
        encode_frame(FinishedMessage{})}) {
    const auto peer = connect_to(port_);
    send_text(peer.get(), garbage);
    read_all(peer.get());
  }
  expect_that_the_job_runs();
}

TEST_F(Strangers, ThatSayNothingOrHalfASentenceDoNotHoldTheJobUp) {
  std::vector<UniqueFile> silent;
  for (int i = 0; i < 20; ++i) {
    silent.push_back(connect_to(port_));
    send_text(silent.back().get(), std::string("\0\0\x01\0{\"type\"", 11));
  }
  expect_that_the_job_runs();
}

TEST_F(Strangers, ThousandAtATimeAreTooFewToStopTheJob) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 4096);
  setrlimit(RLIMIT_NOFILE, &limit);
  std::vector<UniqueFile> crowd;
  for (int i = 0; i < 1000; ++i) {
    crowd.push_back(begin_connect("127.0.0.1", port_));
  }
  expect_that_the_job_runs();
}

TEST_F(Strangers, DoNotDisturbAJobThatRuns) {
  auto second = launch(1);
  ASSERT_TRUE(eventually(
      [&] { return first_->out().find("rank 0 ran") != std::string::npos; }));
  std::vector<UniqueFile> crowd;
  for (int i = 0; i < 200; ++i) {
    crowd.push_back(begin_connect("127.0.0.1", port_));
    send_text(crowd.back().get(), "garbage garbage");
  }
  EXPECT_EQ(second->wait(15s).exit_code, 0) << second->err();
  EXPECT_EQ(first_->wait(15s).exit_code, 0) << first_->err();
}

} // namespace
} // namespace accelerate::testing
