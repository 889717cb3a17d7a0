// SPDX-License-Identifier: Apache-2.0
// Needs no torch, so that it can run under ThreadSanitizer.
#include "core/base/ordered_workers.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <string_view>

#include "accelerate/error.h"

namespace accelerate {
namespace {

int64_t number(const OrderedWorkers::Value& value) {
  return *static_cast<int64_t*>(value.get());
}

OrderedWorkers::Value boxed(int64_t value) {
  return std::make_shared<int64_t>(value);
}

TEST(OrderedWorkers, KeepsTheOrderWithAnyNumberOfThreadsAndAnyCapacity) {
  for (const int num_threads : {1, 2, 5}) {
    OrderedWorkers workers(num_threads);
    for (const int64_t capacity : {1, 2, 7}) {
      workers.start({.num_tasks = 500, .capacity = capacity}, [](int64_t i) {
        return boxed(i * i);
      });
      for (int64_t i = 0; i < 500; ++i) {
        ASSERT_EQ(number(workers.next()), i * i);
      }
    }
  }
}

TEST(OrderedWorkers, NeverWorksFurtherAheadThanItsCapacity) {
  std::atomic<int64_t> taken = 0;
  std::atomic<int64_t> furthest = 0;
  OrderedWorkers workers(3);
  workers.start({.num_tasks = 2000, .capacity = 4}, [&](int64_t i) {
    const int64_t ahead = i - taken.load();
    int64_t seen = furthest.load();
    while (ahead > seen && !furthest.compare_exchange_weak(seen, ahead)) {
    }
    return boxed(i);
  });
  for (int64_t i = 0; i < 2000; ++i) {
    workers.next();
    ++taken;
  }
  // `taken` is counted after the worker was released: one more may be seen.
  EXPECT_LE(furthest.load(), 4);
}

TEST(OrderedWorkers, ThrowsInPlaceOfTheValue) {
  OrderedWorkers workers(2);
  workers.start({.num_tasks = 6, .capacity = 3}, [](int64_t i) {
    if (i % 2 == 1) {
      throw std::runtime_error("task " + std::to_string(i));
    }
    return boxed(i);
  });
  for (int64_t i = 0; i < 6; ++i) {
    if (i % 2 == 0) {
      EXPECT_EQ(number(workers.next()), i);
    } else {
      EXPECT_THAT(
          [&] { workers.next(); },
          ::testing::ThrowsMessage<std::runtime_error>(
              "task " + std::to_string(i)));
    }
  }
}

TEST(OrderedWorkers, StopsHalfWayAndDiscardsValues) {
  std::atomic<int> num_alive = 0;
  struct Counted {
    explicit Counted(std::atomic<int>& count) : count(count) { ++count; }
    ~Counted() { --count; }
    std::atomic<int>& count;
  };
  OrderedWorkers workers(2);
  for (int run = 0; run < 300; ++run) {
    std::atomic<bool> is_over = false;
    workers.start({.num_tasks = 1000, .capacity = 5}, [&](int64_t) {
      EXPECT_FALSE(is_over.load());
      return std::make_shared<Counted>(num_alive);
    });
    for (int i = 0; i < run % 7; ++i) {
      workers.next();
    }
    workers.stop();
    is_over = true;
    EXPECT_EQ(num_alive.load(), 0);
  }
}

TEST(OrderedWorkers, PreparesEachThreadOnceBeforeItsFirstTask) {
  thread_local bool is_prepared = false;
  std::atomic<int> num_prepared = 0;
  {
    OrderedWorkers workers(3, [&] {
      is_prepared = true;
      ++num_prepared;
    });
    for (int run = 0; run < 2; ++run) {
      workers.start({.num_tasks = 50, .capacity = 6}, [&](int64_t i) {
        EXPECT_TRUE(is_prepared);
        return boxed(i);
      });
      for (int i = 0; i < 50; ++i) {
        workers.next();
      }
    }
  }
  EXPECT_EQ(num_prepared.load(), 3);
}

TEST(OrderedWorkers, IsDestroyedWithoutARun) {
  const OrderedWorkers unused(2);
  EXPECT_EQ(unused.num_threads(), 2);
}

TEST(OrderedWorkers, ThrowIfThreadsCannotBeCreated) {
  const pid_t child = fork();
  if (child == 0) {
    // The limit counts processes of users other than root.
    const rlimit few{4, 4};
    if ((geteuid() == 0 && setuid(65534) != 0) ||
        setrlimit(RLIMIT_NPROC, &few) != 0) {
      _exit(2);
    }
    try {
      OrderedWorkers workers(50);
      _exit(1);
    } catch (const SystemError& error) {
      const std::string_view text = error.what();
      _exit(text.find("of 50 threads") == std::string_view::npos ? 3 : 0);
    }
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

} // namespace
} // namespace accelerate
