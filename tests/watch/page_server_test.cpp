// SPDX-License-Identifier: Apache-2.0
// The program `accelerate watch`, asked over real sockets.
#include "launcher/watch/page_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "core/base/str.h"
#include "core/base/unique_file.h"
#include "support/program.h"
#include "support/subprocess.h"

namespace accelerate::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using namespace std::chrono_literals;

const std::string kGood = "HTTP/1.1 200";
const std::string kForbidden = "HTTP/1.1 403";
const std::string kNotFound = "HTTP/1.1 404";

class WatchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_.write("secret.txt", "do not show");
    const auto run = dir_.path() / "<script>alert(1)<" / "";
    const auto logs = run / "logs" / "run_1" / "attempt_0" / "rank_0";
    std::filesystem::create_directories(logs);
    std::ofstream(run / "metrics.jsonl")
        << R"({"time":1000,"event":"start","num_processes":1})" << '\n'
        << R"({"time":1001,"step":1,"values":{"<img src=x>":0.5}})" << '\n';
    std::ofstream(logs / "stderr.log") << "first\n\x1b[31mlast\n";
    program_.emplace(
        std::vector<std::string>{kProgram, "watch", dir_.path().string()});
    const std::regex address(R"(127\.0\.0\.1:(\d+)/\?token=([0-9a-f]{32}))");
    std::smatch found;
    std::string out;
    ASSERT_TRUE(eventually(
        [&] {
          out = program_->out();
          return std::regex_search(out, found, address);
        },
        kLimit))
        << program_->err();
    port_ = std::stoi(found[1]);
    token_ = found[2];
  }

  UniqueFile connect_to() const {
    UniqueFile file(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port_));
    EXPECT_EQ(
        connect(
            file.get(), reinterpret_cast<sockaddr*>(&address), sizeof address),
        0);
    return file;
  }
  static void send_all(const UniqueFile& file, std::string_view bytes) {
    while (!bytes.empty()) {
      const auto sent =
          send(file.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) {
        return; // The server has heard enough.
      }
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }
  /// Until the server closes the connection.
  static std::string read_all(const UniqueFile& file) {
    std::string text;
    char block[4096];
    for (;;) {
      pollfd wait = {.fd = file.get(), .events = POLLIN, .revents = 0};
      const auto limit = std::chrono::milliseconds(kLimit).count();
      if (poll(&wait, 1, static_cast<int>(limit)) <= 0) {
        ADD_FAILURE() << "the server keeps the connection open";
        return text;
      }
      const auto got = recv(file.get(), block, sizeof block, 0);
      if (got <= 0) {
        return text;
      }
      text.append(block, static_cast<size_t>(got));
    }
  }
  std::string ask(const std::string& request) const {
    const auto file = connect_to();
    send_all(file, request);
    return read_all(file);
  }
  std::string get(const std::string& path, const std::string& headers = {})
      const {
    return ask(str_cat(
        "GET ", path, " HTTP/1.1\r\nHost: localhost\r\n", headers, "\r\n"));
  }
  std::string with_token(const std::string& path) const {
    return str_cat(
        path,
        path.find('?') == std::string::npos ? "?" : "&",
        "token=",
        token_);
  }

  TempDir dir_;
  std::optional<Subprocess> program_;
  int port_ = 0;
  std::string token_;
};

TEST_F(WatchTest, RefusesWhoDoesNotKnowTheToken) {
  for (const char* path : {"/", "/page.js", "/runs", "/run?run=0", "/x"}) {
    EXPECT_THAT(get(path), StartsWith(kForbidden)) << path;
  }
  EXPECT_THAT(get("/runs?token="), StartsWith(kForbidden));
  EXPECT_THAT(get("/runs?token=" + std::string(32, '0')), HasSubstr(" 403"));
  EXPECT_THAT(get("/runs?token=" + token_ + "0"), StartsWith(kForbidden));
  EXPECT_THAT(get("/runs?token=" + token_.substr(1)), HasSubstr(" 403"));
  EXPECT_THAT(
      get("/runs", "Cookie: accelerate_watch=0\r\n"), HasSubstr(" 403"));
  // A wrong token in the address is not made good by a cookie.
  EXPECT_THAT(
      get("/runs?token=x", "Cookie: a=" + token_ + "\r\n"), HasSubstr(" 403"));
}

TEST_F(WatchTest, TheTokenMovesFromTheAddressIntoACookie) {
  const auto first = get(with_token("/"));
  EXPECT_THAT(first, StartsWith("HTTP/1.1 303"));
  EXPECT_THAT(first, HasSubstr("Location: /\r\n"));
  EXPECT_THAT(first, HasSubstr("HttpOnly; SameSite=Strict"));
  std::smatch cookie;
  ASSERT_TRUE(
      std::regex_search(first, cookie, std::regex("Set-Cookie: ([^;]+);")));
  const auto header = str_cat("Cookie: other=1; ", cookie[1].str(), "\r\n");
  const auto page = get("/", header);
  EXPECT_THAT(page, StartsWith(kGood));
  EXPECT_THAT(page, HasSubstr("Content-Security-Policy: default-src 'none'"));
  EXPECT_THAT(page, Not(HasSubstr("Access-Control")));
  EXPECT_THAT(page, Not(HasSubstr(token_)));
  EXPECT_THAT(get("/page.js", header), StartsWith(kGood));
  EXPECT_THAT(get("/page.css", header), StartsWith(kGood));
}

TEST_F(WatchTest, NamesOfOtherHostsDoNotLeadHere) {
  for (const char* host :
       {"evil.example",
        "127.0.0.1.evil.example",
        "evil.example:80",
        "localhost.evil.example",
        "[::2]",
        ""}) {
    const auto answer = ask(str_cat(
        "GET ", with_token("/runs"), " HTTP/1.1\r\nHost: ", host, "\r\n\r\n"));
    EXPECT_THAT(answer, Not(StartsWith(kGood))) << host;
  }
  for (const char* host : {"localhost:9999", "127.0.0.1", "[::1]:80"}) {
    const auto answer = ask(str_cat(
        "GET ", with_token("/runs"), " HTTP/1.1\r\nHost: ", host, "\r\n\r\n"));
    EXPECT_THAT(answer, StartsWith(kGood)) << host;
  }
}

TEST_F(WatchTest, NoPathLeadsOutOfTheRuns) {
  for (const char* path :
       {"/../secret.txt",
        "/%2e%2e/secret.txt",
        "/..%2fsecret.txt",
        "/%252e%252e/secret.txt",
        "//etc/passwd",
        "/page.js/../../secret.txt",
        "/log?run=0&log=../secret.txt",
        "/log?run=0&log=-1",
        "/log?run=0&log=1",
        "/log?run=1&log=0",
        "/log?run=0&log=99999999999999999999999",
        "/run?run=../../etc",
        "/range?run=0&axis=../x&from=0&to=1",
        "/range?run=../x&axis=step&from=0&to=1",
        "/csv?run=../secret.txt",
        "/csv?run=1",
        "/run",
        "/log"}) {
    const auto answer = get(with_token(path));
    EXPECT_THAT(answer, Not(StartsWith(kGood))) << path;
    EXPECT_THAT(answer, Not(HasSubstr("do not show"))) << path;
    EXPECT_THAT(answer, Not(HasSubstr("root:"))) << path;
  }
}

TEST_F(WatchTest, OtherMethodsAndBodiesAreRefused) {
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "HEAD"}) {
    const auto answer = ask(str_cat(
        method,
        ' ',
        with_token("/runs"),
        " HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 405")) << method;
  }
  EXPECT_THAT(
      get(with_token("/runs"), "Content-Length: 1000000000\r\n"),
      StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(
      get(with_token("/runs"), "Transfer-Encoding: chunked\r\n"),
      StartsWith("HTTP/1.1 413"));
}

TEST_F(WatchTest, LargeRequestsAreRefused) {
  EXPECT_THAT(
      get(with_token("/runs"),
          "X: " + std::string(PageServer::kMaxHeaderBytes, 'x') + "\r\n"),
      Not(HasSubstr("200")));
  EXPECT_THAT(
      get(with_token("/runs?x=") + std::string(1 << 20, 'x')),
      Not(HasSubstr("200")));
  EXPECT_THAT(get(with_token("/runs")), StartsWith(kGood));
}

TEST_F(WatchTest, SlowSendersAreCutOffAndDelayNoOtherClient) {
  const auto slow = connect_to();
  send_all(slow, "GET /runs HTTP/1.1\r\nHost: localhost\r\nX: ");
  std::vector<UniqueFile> idle;
  for (size_t i = 0; i < PageServer::kMaxConnections / 2; ++i) {
    idle.push_back(connect_to());
  }
  EXPECT_THAT(get(with_token("/runs")), StartsWith(kGood));
  // One byte now and then, forever: the time limit is for the whole request.
  EXPECT_TRUE(eventually(
      [&] {
        send_all(slow, "x");
        pollfd state = {.fd = slow.get(), .events = POLLIN, .revents = 0};
        return poll(&state, 1, 200) > 0;
      },
      kLimit));
  EXPECT_THAT(read_all(slow), Not(HasSubstr("200")));
  EXPECT_THAT(get(with_token("/runs")), StartsWith(kGood));
}

TEST_F(WatchTest, AnswersDespiteMoreSlowSendersThanItAccepts) {
  // On its own, so that no time limit makes room: these send a byte now and
  // then for as long as the answer takes.
  PageServer server(0, [](const PageRequest&) { return PageAnswer(); });
  port_ = server.port();
  std::vector<UniqueFile> slow;
  for (size_t i = 0; i < 3 * PageServer::kMaxConnections; ++i) {
    slow.push_back(connect_to());
    send_all(slow.back(), "GET / HTTP/1.1\r\nX: ");
  }
  const auto file = connect_to();
  send_all(file, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_TRUE(eventually(
      [&] {
        for (const auto& one : slow) {
          send_all(one, "x");
        }
        pollfd state = {.fd = file.get(), .events = POLLIN, .revents = 0};
        return poll(&state, 1, 100) > 0;
      },
      30s));
  EXPECT_THAT(read_all(file), StartsWith(kGood));
}

TEST_F(WatchTest, MoreConnectionsThanItTakesEndAndLeaveItAlive) {
  {
    std::vector<UniqueFile> many;
    for (size_t i = 0; i < 4 * PageServer::kMaxConnections; ++i) {
      many.push_back(connect_to());
    }
  }
  EXPECT_TRUE(eventually(
      [&] { return get(with_token("/runs")).starts_with(kGood); }, kLimit));
}

TEST_F(WatchTest, ShowsRunsAndTheEndOfTheirLogs) {
  const auto body_of = [](const std::string& answer) {
    return answer.substr(answer.find("\r\n\r\n") + 4);
  };
  const auto list = nlohmann::json::parse(body_of(get(with_token("/runs"))));
  EXPECT_EQ(list["runs"][0]["name"], "<script>alert(1)<");
  const auto answer = get(with_token("/run?run=0"));
  EXPECT_THAT(answer, HasSubstr("Content-Type: application/json\r\n"));
  const auto run = nlohmann::json::parse(body_of(answer));
  EXPECT_EQ(run["metrics"][0]["name"], "<img src=x>");
  EXPECT_EQ(run["logs"].size(), 1U);
  EXPECT_EQ(body_of(get(with_token("/csv?run=0"))), "1001,1,<img src=x>,0.5\n");
  const auto range = nlohmann::json::parse(
      body_of(get(with_token("/range?run=0&axis=step&from=0&to=9"))));
  EXPECT_EQ(range["metrics"][0]["mean"], nlohmann::json({0.5}));
  const auto log = get(with_token("/log?run=0&log=0"));
  EXPECT_THAT(log, HasSubstr("Content-Type: text/plain"));
  EXPECT_EQ(body_of(log), "first\n\\x1b[31mlast\n");
}

TEST_F(WatchTest, SignalsEndItAtOnce) {
  const auto idle = connect_to();
  program_->send(SIGINT);
  EXPECT_EQ(program_->wait(kLimit).exit_code, 128 + SIGINT);
}

TEST(Watch, WaitsForTheFirstRunOfAnEmptyFolder) {
  const TempDir dir;
  Subprocess program({kProgram, "watch", dir.path().string()});
  ASSERT_TRUE(eventually(
      [&] { return program.out().find("Ctrl-C") != std::string::npos; },
      kLimit))
      << program.err();
  const auto folder = dir.path().string();
  EXPECT_THAT(
      program.out(),
      StartsWith(
          "[watch] No runs in '" + folder +
          "' yet. Waiting for one. Add to your program:\n"
          "  Python: accelerator = Accelerator(log_with=\"jsonl\", "
          "project_dir=\"" +
          folder +
          "\"); accelerator.init_trackers(\"first\")\n"
          "  C++:    accelerator.init_trackers(\"first\", {.log_with = "
          "{\"jsonl\"}, .logging_dir = \"" +
          folder + "\"});\n[watch] 0 runs: http://127.0.0.1:"));
  program.send(SIGTERM);
  EXPECT_EQ(program.wait(kLimit).exit_code, 128 + SIGTERM);
}

TEST(Watch, SaysWhatIsWrong) {
  const TempDir dir;
  const auto gone = (dir.path() / "runs").string();
  const auto missing = run_process({kProgram, "watch", gone});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_EQ(
      missing.err,
      "accelerate: [watch] Cannot read the folder '" + gone +
          "': No such file or directory. Pass the folder of a run, "
          "logging_dir/PROJECT\n");
  dir.write("metrics.jsonl", "");
  UniqueFile taken(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const plain = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(bind(taken.get(), plain, size), 0);
  ASSERT_EQ(listen(taken.get(), 1), 0);
  ASSERT_EQ(getsockname(taken.get(), plain, &size), 0);
  const auto port = std::to_string(ntohs(address.sin_port));
  const auto result =
      run_process({kProgram, "watch", dir.path().string(), "--port", port});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("port " + port));
  EXPECT_THAT(result.err, HasSubstr("Pass another --port"));
}

} // namespace
} // namespace accelerate::testing
