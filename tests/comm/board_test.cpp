// SPDX-License-Identifier: Apache-2.0
#include "training/comm/board.h"

#include <gmock/gmock.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <thread>

#include "accelerate/accelerate.h"
#include "accelerate/distributed/c10d.h"
#include "core/base/str.h"
#include "support/rank_bodies.h"
#include "training/comm/agreement.h"
#include "training/comm/process_group_impl.h"

namespace accelerate::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Longer than a test may take: a lost rank is noticed before.
constexpr auto kLong = 10min;

/// One side of two processes, which exchange rows through a socket instead of a
/// backend.
class Side {
 public:
  Side(int rank, int socket, std::chrono::milliseconds timeout = kLong)
      : rank_(rank),
        socket_(socket),
        board_(std::make_shared<Board>(rank, 2, [=] { return timeout; })) {}

  void exchange_offers(bool spoils = false) {
    auto row = torch::zeros({Board::kRowWords}, torch::kLong);
    board_->add_offer(row);
    if (spoils) {
      row.data_ptr<int64_t>()[Board::kMessageWords] += 1;
    }
    auto rows = torch::zeros({2, Board::kRowWords}, torch::kLong);
    rows[rank_].copy_(row);
    const auto size = row.nbytes();
    if (write(socket_, row.data_ptr(), size) != static_cast<ssize_t>(size) ||
        recv(socket_, rows[1 - rank_].data_ptr(), size, MSG_WAITALL) !=
            static_cast<ssize_t>(size)) {
      throw std::runtime_error("the other side is gone");
    }
    board_->read_offers(rows);
  }
  void open() {
    exchange_offers();
    exchange_offers();
  }
  auto start(int64_t value) {
    rows_ = torch::zeros({2, Board::kRowWords}, torch::kLong);
    return board_->start(
        torch::full({Board::kRowWords}, value, torch::kLong), rows_);
  }
  /// The messages of both sides.
  std::pair<int64_t, int64_t> exchange(int64_t value) {
    start(value)->wait();
    return {rows_[0][0].item<int64_t>(), rows_[1][63].item<int64_t>()};
  }
  Board& board() { return *board_; }

 private:
  int rank_;
  int socket_;
  std::shared_ptr<Board> board_;
  at::Tensor rows_;
};

/// Runs `other` as rank 1 in a separate process.
class OtherProcess {
 public:
  explicit OtherProcess(const std::function<void(int socket)>& other) {
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) {
      throw std::runtime_error("no sockets");
    }
    socket_ = sockets[0];
    pid_ = fork();
    if (pid_ == 0) {
      close(sockets[0]);
      try {
        other(sockets[1]);
      } catch (const std::exception& error) {
        dprintf(STDERR_FILENO, "rank 1: %s\n", error.what());
        _exit(1);
      }
      _exit(0);
    }
    close(sockets[1]);
  }
  ~OtherProcess() {
    close(socket_);
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  int socket() const { return socket_; }
  int exit_status() {
    int status = -1;
    waitpid(std::exchange(pid_, 0), &status, 0);
    return status;
  }

 private:
  int socket_ = -1;
  pid_t pid_ = 0;
};

void expect(bool holds) {
  if (!holds) {
    throw std::runtime_error("an expectation of rank 1 does not hold");
  }
}

/// A forked process that stays until the other side closes its socket.
void leave_child_behind(int socket) {
  if (fork() == 0) {
    char byte = 0;
    while (read(socket, &byte, 1) > 0) {
    }
    _exit(0);
  }
}

size_t num_open_files() {
  namespace fs = std::filesystem;
  return static_cast<size_t>(std::distance(
      fs::directory_iterator("/proc/self/fd"), fs::directory_iterator()));
}

TEST(Board, CarriesMessagesBothWaysAndLeavesNothingOpen) {
  constexpr int64_t kMessages = 3000;
  OtherProcess other([](int socket) {
    Side side(1, socket);
    side.open();
    for (int64_t i = 0; i < kMessages; ++i) {
      if (i % 100 == 0) {
        std::this_thread::sleep_for(2ms); // the other side sleeps too
      }
      expect(side.exchange(-i) == std::pair(i, -i));
    }
  });
  const auto before = num_open_files();
  {
    Side side(0, other.socket());
    side.exchange_offers();
    EXPECT_FALSE(side.board().is_open());
    side.exchange_offers();
    ASSERT_TRUE(side.board().is_open());
    for (int64_t i = 0; i < kMessages; ++i) {
      if (i % 130 == 0) {
        std::this_thread::sleep_for(1ms);
      }
      ASSERT_EQ(side.exchange(i), std::pair(i, -i));
    }
  }
  EXPECT_EQ(other.exit_status(), 0);
  EXPECT_EQ(num_open_files(), before);
}

TEST(Board, NoticesARankThatIsKilledAndLeavesAChildBehind) {
  OtherProcess other([](int socket) {
    Side side(1, socket);
    side.open();
    side.exchange(1);
    leave_child_behind(socket);
    kill(getpid(), SIGKILL);
  });
  Side side(0, other.socket());
  side.open();
  side.exchange(1);
  EXPECT_THAT(
      [&] { side.exchange(2); },
      ThrowsMessage<std::runtime_error>(HasSubstr("rank 1 has left")));
  EXPECT_THAT(
      [&] { side.exchange(3); },
      ThrowsMessage<std::runtime_error>(HasSubstr("earlier exchange failed")));
}

TEST(Board, ReadsWhatARankSentBeforeItWasKilled) {
  OtherProcess other([](int socket) {
    Side side(1, socket);
    side.open();
    side.start(7);
    kill(getpid(), SIGKILL);
  });
  Side side(0, other.socket());
  side.open();
  other.exit_status();
  EXPECT_EQ(side.exchange(6), std::pair(int64_t(6), int64_t(7)));
}

TEST(Board, NoticesARankThatExecutesAnotherProgram) {
  OtherProcess other([](int socket) {
    Side side(1, socket);
    side.open();
    execl("/bin/sleep", "sleep", "20", nullptr);
  });
  Side side(0, other.socket());
  side.open();
  EXPECT_THAT(
      [&] { side.exchange(1); },
      ThrowsMessage<std::runtime_error>(HasSubstr("rank 1 has left")));
}

TEST(Board, StaysOpenWhenAForkedChildClosesItsCopy) {
  OtherProcess other([](int socket) {
    Side side(1, socket);
    side.open();
    for (int64_t i = 0; i < 50; ++i) {
      expect(side.exchange(i) == std::pair(i, i));
      std::this_thread::sleep_for(1ms);
    }
  });
  {
    Side side(0, other.socket());
    side.open();
    for (int64_t i = 0; i < 50; ++i) {
      if (i % 10 == 0) {
        if (const pid_t child = fork(); child == 0) {
          side.board().close();
          _exit(0);
        } else {
          waitpid(child, nullptr, 0);
        }
      }
      ASSERT_EQ(side.exchange(i), std::pair(i, i));
    }
  }
  EXPECT_EQ(other.exit_status(), 0);
}

TEST(Board, TimesOutAndFailsForBothFromThenOn) {
  OtherProcess other([](int socket) {
    Side side(1, socket);
    side.open();
    char byte = 0;
    expect(read(socket, &byte, 1) == 1);
    side.exchange(1); // the other side has sent this
    try {
      side.exchange(2);
    } catch (const std::runtime_error& error) {
      expect(std::string(error.what()) == "rank 0 has left");
      _exit(0);
    }
    expect(false);
  });
  Side side(0, other.socket(), 50ms);
  side.open();
  EXPECT_THAT(
      [&] { side.exchange(1); },
      ThrowsMessage<std::runtime_error>("timed out waiting for rank 1"));
  ASSERT_EQ(write(other.socket(), "x", 1), 1);
  EXPECT_EQ(other.exit_status(), 0);
}

TEST(Board, EndsAWaitOfAnotherThreadWhenItIsClosed) {
  OtherProcess other([](int socket) {
    Side side(1, socket);
    side.open();
    char byte = 0;
    expect(read(socket, &byte, 1) == 1);
  });
  Side side(0, other.socket());
  side.open();
  const auto exchange = side.start(1);
  std::thread closer([&] { side.board().close(); });
  EXPECT_THROW(exchange->wait(), std::runtime_error);
  closer.join();
  ASSERT_EQ(write(other.socket(), "x", 1), 1);
  EXPECT_EQ(other.exit_status(), 0);
}

/// What rank 1 does instead of opening a board.
struct Obstacle {
  const char* name;
  /// Ends the process, with 77 if this host does not allow it.
  std::function<void(int socket)> run;
};
void PrintTo(const Obstacle& obstacle, std::ostream* out) {
  *out << obstacle.name;
}

void find_closed(int socket, bool spoils) {
  Side side(1, socket);
  for (int i = 0; i < 4; ++i) {
    side.exchange_offers(spoils);
    expect(!side.board().is_open());
  }
}

const Obstacle kObstacles[] = {
    {"AnotherToken", [](int socket) { find_closed(socket, true); }},
    {"NoFreeFiles",
     [](int socket) {
       rlimit limit{};
       expect(getrlimit(RLIMIT_NOFILE, &limit) == 0);
       limit.rlim_cur = 0;
       expect(setrlimit(RLIMIT_NOFILE, &limit) == 0);
       find_closed(socket, false);
     }},
    {"AnotherPidNamespace",
     [](int socket) {
       if (unshare(CLONE_NEWPID) != 0 &&
           unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) {
         _exit(77);
       }
       const pid_t child = fork();
       if (child == 0) {
         find_closed(socket, false);
         _exit(0);
       }
       int status = -1;
       waitpid(child, &status, 0);
       _exit(status == 0 ? 0 : 1);
     }},
};

class BoardWith : public ::testing::TestWithParam<Obstacle> {};

TEST_P(BoardWith, StaysClosedOnBothRanks) {
  OtherProcess other(GetParam().run);
  Side side(0, other.socket());
  try {
    for (int i = 0; i < 4; ++i) {
      side.exchange_offers();
      EXPECT_FALSE(side.board().is_open());
    }
  } catch (const std::runtime_error&) {
    const int status = other.exit_status();
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
      GTEST_SKIP() << "no namespaces for this user";
    }
    throw;
  }
  EXPECT_EQ(other.exit_status(), 0);
}
INSTANTIATE_TEST_SUITE_P(
    Obstacles,
    BoardWith,
    ::testing::ValuesIn(kObstacles),
    [](const auto& info) { return std::string(info.param.name); });

// Agreements of ranks as in a run.
const RankBodyRegistration kAgree(
    "agree over a board",
    [](const AcceleratorOptions& options) -> std::string {
      Accelerator accelerator(options);
      const auto group = accelerator.process_group();
      const auto& board = group.impl()->board();
      agree_on_text(group, "first", "");
      agree_on_text(group, "second", "");
      if (!board || !board->is_open()) {
        return "shut";
      }
      const auto number = group.impl()->last_number();
      const int size = group.world_size();
      for (int i = 0; i < 100; ++i) {
        if (i % 20 == group.rank()) {
          std::this_thread::sleep_for(1ms);
        }
        const auto sum =
            reduce(group, torch::full({2}, i + group.rank()), ReduceOp::kSum);
        if (sum[1].item<int64_t>() != size * i + size * (size - 1) / 2) {
          return str_cat("wrong sum ", sum);
        }
      }
      if (group.impl()->last_number() != number + 100) {
        return "not counted";
      }
      // Two handles of one group, one with a pending exchange.
      const auto second = from_c10d(to_c10d(group));
      announce(group, "announced");
      agree_on_text(second, "between", "");
      agree_on_text(second, "between again", "");
      finish_comparison(group);
      try {
        agree_on_text(
            group, group.rank() == size - 1 ? "save_state" : "gather", "");
        return "no mismatch";
      } catch (const MismatchError& error) {
        return reduce(group, torch::ones(1), ReduceOp::kSum).item<float>() ==
                       static_cast<float>(size)
                   ? error.what()
                   : "no sum after a mismatch";
      }
    });

TEST(Agreement, UsesABoardBetweenProcesses) {
  const auto texts = run_body(RankKind::kProcesses, 4, "agree over a board");
  EXPECT_THAT(
      texts,
      Each(AllOf(
          HasSubstr("save_state() was called on rank 3"),
          HasSubstr("but gather() on ranks 0-2"))));
}

TEST(Agreement, UsesNoBoardBetweenThreads) {
  EXPECT_THAT(
      run_body(RankKind::kThreads, 2, "agree over a board"), Each("shut"));
}

} // namespace
} // namespace accelerate::testing
