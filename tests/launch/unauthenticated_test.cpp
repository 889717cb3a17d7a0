// SPDX-License-Identifier: Apache-2.0
// UnauthenticatedPeers connections to the control port: rejected, and the job
// continues.
#include <gmock/gmock.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <thread>

#include "accelerate/version.h"
#include "core/hardware/ports.h"
#include "launch/needs_codes.h"
#include "launcher/launch/machines/handshake.h"
#include "launcher/launch/machines/job_token.h"
#include "launcher/launch/machines/sockets.h"
#include "support/program.h"
#include "support/subprocess.h"

namespace accelerate::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

UniqueFile connect_to(int port) {
  UniqueFile file = begin_connect("127.0.0.1", port);
  pollfd waited{file.get(), POLLOUT, 0};
  poll(&waited, 1, 2000);
  return connect_error(file.get()) == 0 ? std::move(file) : UniqueFile();
}

/// Reads until the other side closes the connection, for two seconds at most.
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

/// The next frame with its length; empty if there is none.
std::string read_frame(int file) {
  std::string frame;
  const auto read_more = [&](size_t size) {
    pollfd waited{file, POLLIN, 0};
    char byte = 0;
    while (frame.size() < size && poll(&waited, 1, 5000) > 0 &&
           recv(file, &byte, 1, 0) == 1) {
      frame += byte;
    }
    return frame.size() == size;
  };
  if (read_more(4)) {
    read_more(
        4 + static_cast<size_t>(static_cast<unsigned char>(frame[2])) * 256 +
        static_cast<unsigned char>(frame[3]));
  }
  return frame;
}

/// Sends a message and returns the frame that answers it.
std::string say(int file, const Message& message) {
  send_text(file, frame_of(encode_payload(message)));
  return read_frame(file);
}

std::unique_ptr<Subprocess> start_machine(
    int rank,
    int port,
    const std::vector<std::string>& program,
    const std::vector<std::string>& before = {}) {
  std::vector<std::string> command = before;
  command.insert(
      command.end(),
      {kProgram,
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
       std::to_string(port)});
  command.insert(command.end(), program.begin(), program.end());
  return std::make_unique<Subprocess>(
      command,
      std::map<std::string, std::string>{
          {"ACCELERATE_JOB_TOKEN", "the token"}});
}

/// Machine 0 of two, with a token, on the loopback interface.
class UnauthenticatedPeers : public NeedsCodes {
 protected:
  void SetUp() override {
    NeedsCodes::SetUp();
    if (IsSkipped()) {
      return;
    }
    port_ = find_free_port();
    first_ = launch(0);
    ASSERT_TRUE(
        eventually([&] { return static_cast<bool>(connect_to(port_)); }));
  }

  virtual std::unique_ptr<Subprocess> launch(int rank) {
    return start_machine(
        rank, port_, {"sh", "-c", "echo rank $RANK ran; sleep 0.5"});
  }

  static void expect_no_secret(const std::string& heard) {
    for (const char* part :
         {"the token", "num_machines", "rank", "sleep", ACCELERATE_VERSION}) {
      EXPECT_THAT(heard, Not(HasSubstr(part)));
    }
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

TEST_F(UnauthenticatedPeers, WithAWrongTokenLearnNothingElse) {
  const auto thief = connect_to(port_);
  Handshake guess(Side::kMember, "a guess");
  std::string heard = say(thief.get(), guess.first_message());
  const auto step = guess.take(decode_payload(heard.substr(4)));
  heard += say(thief.get(), step.answer.value());
  EXPECT_THAT(heard, HasSubstr("the job token is wrong"));
  expect_no_secret(heard);
  expect_that_the_job_runs();
}

TEST_F(UnauthenticatedPeers, WithAnotherProtocolLearnNothingElse) {
  const Message greetings[] = {
      ChallengeRequestMessage{.protocol = 7},
      HelloMessage{.version = "99.0", .machine_rank = 1},
      ChallengeMessage{random_token()}};
  for (const auto& greeting : greetings) {
    const auto peer = connect_to(port_);
    const std::string heard = say(peer.get(), greeting);
    EXPECT_THAT(heard, HasSubstr("install the same version"));
    expect_no_secret(heard);
  }
  expect_that_the_job_runs();
}

TEST_F(UnauthenticatedPeers, WhoRepeatWhatTheyHeardAreRefused) {
  Handshake member(Side::kMember, "the token");
  const auto first = connect_to(port_);
  const auto challenge = say(first.get(), member.first_message());
  const Message proof =
      member.take(decode_payload(challenge.substr(4))).answer.value();
  EXPECT_THAT(say(first.get(), proof), HasSubstr("\"proof\""));
  const auto second = connect_to(port_);
  say(second.get(), member.first_message());
  EXPECT_THAT(say(second.get(), proof), HasSubstr("the job token is wrong"));
  expect_that_the_job_runs();
}

TEST_F(UnauthenticatedPeers, CannotWriteToTheTerminal) {
  const auto peer = connect_to(port_);
  send_text(
      peer.get(),
      frame_of("{\"type\":\"\\u001b]0;owned\\u0007\\n[launch] forged\"}"));
  read_all(peer.get());
  expect_that_the_job_runs();
  EXPECT_THAT(first_->err(), HasSubstr("\\x1b]0;owned\\x07\\x0a[launch]"));
  EXPECT_THAT(first_->err(), Not(HasSubstr("\x1b")));
}

// A listener in place of machine 0.
using Impostor = NeedsCodes;

TEST_F(Impostor, LearnsNeitherTheTokenNorTheConfiguration) {
  const int port = find_free_port();
  const UniqueFile listener = listen_on("127.0.0.1", port);
  auto member = start_machine(1, port, {"sh", "-c", "echo secret"});
  pollfd waited{listener.get(), POLLIN, 0};
  ASSERT_EQ(poll(&waited, 1, 10000), 1);
  const UniqueFile peer(accept(listener.get(), nullptr, nullptr));
  std::string heard = read_frame(peer.get());
  heard += say(peer.get(), ChallengeMessage{random_token()});
  // The member's own proof, sent back.
  const auto proof = heard.substr(heard.rfind("\"proof\":\"") + 9, 64);
  heard += say(peer.get(), ProofMessage{proof});
  const auto result = member->wait(15s);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("does not have the job token"));
  for (const char* part : {"the token", "secret", "num_machines"}) {
    EXPECT_THAT(heard, Not(HasSubstr(part)));
  }
}

TEST_F(UnauthenticatedPeers, SendingGarbageAreDisconnected) {
  for (const std::string& garbage :
       {std::string("GET / HTTP/1.1\r\n\r\n"),
        std::string("\xFF\xFF\xFF\xFF whatever", 14),
        std::string("\0\0\0\0", 4),
        std::string("\0\0\0\x02{}", 6),
        frame_of(encode_payload(FinishedMessage{}))}) {
    const auto peer = connect_to(port_);
    send_text(peer.get(), garbage);
    read_all(peer.get());
  }
  expect_that_the_job_runs();
}

TEST_F(UnauthenticatedPeers, SilentOrIncompleteDoNotDelayTheJob) {
  std::vector<UniqueFile> silent;
  for (int i = 0; i < 20; ++i) {
    silent.push_back(connect_to(port_));
    send_text(silent.back().get(), std::string("\0\0\x01\0{\"type\"", 11));
  }
  expect_that_the_job_runs();
}

TEST_F(UnauthenticatedPeers, AThousandAtATimeDoNotStopTheJob) {
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

/// Machine 0 with few descriptors.
class UnauthenticatedAtALowLimit : public UnauthenticatedPeers {
 protected:
  std::unique_ptr<Subprocess> launch(int rank) override {
    return start_machine(
        rank,
        port_,
        {"sh", "-c", "echo rank $RANK ran; sleep 0.5"},
        {"sh", "-c", "ulimit -n 40; exec \"$@\"", "sh"});
  }
};

/// Of all processes of a group, in seconds.
double processor_time(pid_t group) {
  const auto result =
      run_process({"ps", "-o", "cputimes=", "-g", std::to_string(group)});
  std::istringstream in(result.out);
  double total = 0;
  for (double one = 0; in >> one;) {
    total += one;
  }
  return total;
}

TEST_F(UnauthenticatedAtALowLimit, SilentDoNotMakeItSpin) {
  std::vector<UniqueFile> crowd;
  for (int i = 0; i < 60; ++i) {
    crowd.push_back(begin_connect("127.0.0.1", port_));
  }
  const double before = processor_time(first_->pid());
  std::this_thread::sleep_for(4s);
  EXPECT_LT(processor_time(first_->pid()) - before, 2);
  expect_that_the_job_runs();
}

TEST_F(UnauthenticatedPeers, DoNotDisturbAJobThatRuns) {
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
