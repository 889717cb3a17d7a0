// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/machines/protocol.h"

#include <gmock/gmock.h>

#include "accelerate/error.h"
#include "launcher/launch/machines/job_token.h"
#include "launcher/launch/plan/hosts.h"
#include "support/temp_dir.h"
#include "support/variables.h"

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

std::string encode_frame(const Message& message) {
  return frame_of(encode_payload(message));
}

Message round_trip(const Message& message) {
  FrameReader reader;
  reader.add(encode_frame(message));
  return decode_payload(reader.next().value());
}

TEST(Protocol, EveryMessageRoundTrips) {
  StartMessage start;
  start.order.attempt = 2;
  start.order.first_rank = 4;
  start.order.world_size = 8;
  start.order.group_rank = 1;
  start.order.group_world_size = 2;
  start.order.master_port = 29501;
  start.order.run_id = "abc";
  start.roll = "the roll";
  const Message messages[] = {
      ChallengeRequestMessage{.number = random_token()},
      ChallengeMessage{random_token()},
      ProofMessage{random_token()},
      HelloMessage{
          .version = "0.1.0",
          .machine_rank = 3,
          .host = "node3",
          .num_local = 8,
          .devices = "8 x H200",
          .problems = {"no GPU"},
          .agreement = {{"num_machines", "4"}}},
      AcceptedMessage{},
      RefusedMessage{"because"},
      start,
      StopMessage{{2, true, true}},
      EndMessage{{7, "rank 1 failed"}},
      FailedMessage{{1, "node1", 137, "signal 9 (Killed)", {"a", "b"}}},
      CannotStartMessage{"no such file"},
      FinishedMessage{},
      StoppedMessage{{true, false}},
      InterruptedMessage{15},
      SignalMessage{SIGUSR1},
      AliveMessage{}};
  for (const auto& message : messages) {
    EXPECT_EQ(round_trip(message), message) << encode_frame(message);
  }
}

TEST(Protocol, FramesAreALengthAndJson) {
  // Written by hand from docs/launch_protocol.md.
  EXPECT_EQ(
      encode_frame(AliveMessage{}),
      std::string("\0\0\0\x10{\"type\":\"alive\"}", 20));
}

TEST(Protocol, FramesMayArriveByteByByte) {
  FrameReader reader;
  for (const char byte : encode_frame(StopMessage{{2, true, true}})) {
    EXPECT_FALSE(reader.next());
    reader.add({&byte, 1});
  }
  EXPECT_EQ(
      decode_payload(reader.next().value()),
      Message(StopMessage{{2, true, true}}));
}

TEST(Protocol, RefusesFramesThatAreTooLongBeforeTheyArrive) {
  FrameReader reader;
  reader.set_limit(1000);
  reader.add(std::string("\0\0\x03\xE9", 4));
  EXPECT_THAT(
      [&] { reader.next(); },
      ThrowsMessage<CommError>(HasSubstr("1001 bytes, but at most 1000")));
}

TEST(Protocol, RejectsInvalidMessages) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "not a JSON object"},
      {"[1]", "not a JSON object"},
      {"GET / HTTP/1.1", "not a JSON object"},
      {"{}", "'type' is missing"},
      {R"({"type":"dance"})", "unknown type 'dance'"},
      {R"({"type":7})", "'type' contains something other than strings"},
      {"{\"type\":\"\\u001b[2J\"}", "unknown type '\\x1b[2J'"},
      {R"({"type":"proof","proof":"12"})", "'proof' is not 64 digits"},
      {R"({"type":"stop","signal":0,"is_to_restart":true})", "'signal'"},
      {R"({"type":"stop","signal":1e9,"is_to_restart":true})", "'signal'"},
      {R"({"type":"stop","signal":15,"is_to_restart":1})", "'is_to_restart'"},
      {R"({"type":"stop","signal":15,"is_to_restart":true})", "'is_request'"},
      {R"({"type":"end","exit_code":-1,"summary":""})", "'exit_code'"},
      {R"({"type":"interrupted","signal":18446744073709551615})", "'signal'"},
      {R"({"type":"signal","signal":9})", "signal 9 is not forwarded"},
  };
  for (const auto& [payload, part] : cases) {
    EXPECT_THAT(
        [&payload = payload] { decode_payload(payload); },
        ThrowsMessage<CommError>(HasSubstr(part)));
  }
}

TEST(Protocol, ShortensWhatAWorkerWroteUntilItFits) {
  FailureReport report{1, "node1", 1, "exit code 1", {}};
  for (int i = 0; i < 20; ++i) {
    report.last_lines.emplace_back(100000, '\x01'); // Six bytes each in JSON.
  }
  report.last_lines.emplace_back("\xFF the last line");
  EXPECT_LE(encode_frame(FailedMessage{report}).size(), kMaxFrameBytes + 4);
  const auto message =
      std::get<FailedMessage>(round_trip(FailedMessage{report}));
  EXPECT_THAT(message.report.last_lines.back(), HasSubstr("the last line"));
  const auto end = std::get<EndMessage>(
      round_trip(EndMessage{{1, std::string(1 << 20, 'x')}}));
  EXPECT_LE(end.ending.summary.size(), kMaxFrameBytes);
}

// Control characters, a forged line, a terminal's title.
TEST(Protocol, TextsOfOthersAreEscaped) {
  const auto hello = std::get<HelloMessage>(round_trip(HelloMessage{
      .host = "node\x1b]0;owned\a",
      .devices = "a\n[launch] all is well",
      .problems = {"\r"},
      .agreement = {{"program", "x\x1b[2J"}}}));
  EXPECT_EQ(hello.host, "node\\x1b]0;owned\\x07");
  EXPECT_EQ(hello.devices, "a\\x0a[launch] all is well");
  EXPECT_EQ(hello.problems[0], "\\x0d");
  EXPECT_EQ(hello.agreement.at("program"), "x\\x1b[2J");
  const auto failed = std::get<FailedMessage>(
      round_trip(FailedMessage{{1, "h\n", 1, "exit\x1b", {"\x1b[31mred"}}}));
  EXPECT_EQ(failed.report.host, "h\\x0a");
  EXPECT_EQ(failed.report.how, "exit\\x1b");
  EXPECT_THAT(failed.report.last_lines, ElementsAre("\\x1b[31mred"));
  // What has several lines by its nature keeps them, and nothing else.
  const auto end =
      std::get<EndMessage>(round_trip(EndMessage{{1, "one\ntwo\x1b"}}));
  EXPECT_EQ(end.ending.summary, "one\ntwo\\x1b");
}

TEST(JobToken, IsRandomAndComesFromAPrivateFile) {
  EXPECT_THAT(random_token(), SizeIs(64));
  EXPECT_NE(random_token(), random_token());
  testing::TempDir folder;
  const auto file = folder.write("token", "first line\nsecond\n");
  const auto env =
      testing::lookup({{"ACCELERATE_JOB_TOKEN_FILE", file.string()}});
  std::filesystem::permissions(file, std::filesystem::perms(0644));
  EXPECT_THAT(
      [&] { find_token(env); },
      ThrowsMessage<ConfigError>(HasSubstr("is readable by other users")));
  std::filesystem::permissions(file, std::filesystem::perms(0600));
  EXPECT_EQ(find_token(env), "first line");
  folder.write("token", "");
  EXPECT_THAT(
      [&] { find_token(env); },
      ThrowsMessage<ConfigError>(HasSubstr("has no token")));
}

TEST(Hosts, AreReadFromAFileLineByLine) {
  testing::TempDir folder;
  LaunchConfig config;
  config.hostfile = folder.write(
      "hosts", "# machines\nnode0 slots=2\n\n  me@node1   # the other\n");
  EXPECT_THAT(
      find_hosts(config),
      ElementsAre(HostEntry{"node0", 2}, HostEntry{"me@node1", std::nullopt}));
  EXPECT_EQ(find_hosts(config)[1].address(), "node1");
  config.hostfile = folder.write("bad", "node0\nnode1 slots=two\n");
  EXPECT_THAT(
      [&] { find_hosts(config); },
      ThrowsMessage<ConfigError>(
          HasSubstr("bad:2: 'slots=two' is not slots=N")));
  config.hostfile = folder.write("option", "node0\n-oProxyCommand=x\n");
  EXPECT_THAT(
      [&] { find_hosts(config); },
      ThrowsMessage<ConfigError>(
          HasSubstr("option:2: '-oProxyCommand=x' is not a host name")));
  config.hostfile = "/dev/zero";
  EXPECT_THAT(
      [&] { find_hosts(config); },
      ThrowsMessage<ConfigError>(HasSubstr("has more than")));
  config.hostfile = folder.path() / "none";
  EXPECT_THAT(
      [&] { find_hosts(config); },
      ThrowsMessage<ConfigError>(HasSubstr("cannot be read (No such file")));
}

TEST(Hosts, OrdersAreCompleteAndVariablesLackTheToken) {
  JoinOrder order;
  order.token = "secret";
  order.machine_rank = 2;
  order.num_machines = 3;
  order.rendezvous = {"10.0.0.1", 29500};
  order.num_local = 4;
  order.folder = "/some where";
  order.options = {{"mixed_precision", "bf16"}};
  order.program = {"./train", "line\nbreak", "quote'"};
  order.variables = {{"PATH", "/bin"}};
  const std::string line = encode_join_order(order);
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  EXPECT_EQ(decode_join_order(line), order);
  EXPECT_THROW(decode_join_order("{}"), ConfigError);
  const char* environment[] = {
      "PATH=/bin",
      "ACCELERATE_JOB_TOKEN=secret",
      "NCCL_DEBUG=INFO",
      "HOME=/root",
      nullptr};
  EXPECT_EQ(
      variables_to_pass_on(environment),
      (std::map<std::string, std::string>{
          {"NCCL_DEBUG", "INFO"}, {"PATH", "/bin"}}));
  EXPECT_EQ(variables_to_pass_on(environment, {"HOME"}).at("HOME"), "/root");
  EXPECT_FALSE(variables_to_pass_on(environment, {"ACCELERATE_JOB_TOKEN"})
                   .contains("ACCELERATE_JOB_TOKEN"));
  EXPECT_THAT(
      [&] { variables_to_pass_on(environment, {"WANDB_KEY"}); },
      ThrowsMessage<ConfigError>(
          HasSubstr("--export names WANDB_KEY, which is not set")));
}

TEST(Hosts, AreReachedWithTheUsersOwnCommand) {
  const auto command = ssh_command(
      {"node1"}, "ssh -i '/my keys/a' -o \"ProxyCommand=nc %h\" a\\ b", "/a b");
  EXPECT_THAT(
      std::vector(command.begin(), command.begin() + 6),
      ElementsAre(
          "ssh", "-i", "/my keys/a", "-o", "ProxyCommand=nc %h", "a b"));
  EXPECT_EQ(command.back(), "exec '/a b' launch --join_from_stdin");
  EXPECT_THROW(ssh_command({"a"}, "ssh 'x", "l"), ConfigError);
}

} // namespace
} // namespace accelerate
