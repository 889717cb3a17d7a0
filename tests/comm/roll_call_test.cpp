// SPDX-License-Identifier: Apache-2.0
// The roll call, on real stores.
#include "training/comm/roll_call.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <atomic>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "accelerate/error.h"
#include "core/hardware/ports.h"
#include "support/subprocess.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;
using namespace std::chrono_literals;
using Bytes = std::vector<uint8_t>;
using Keys = std::vector<std::string>;

/// Counts one rank's operations on a store.
class CountingStore : public c10d::Store {
 public:
  explicit CountingStore(c10::intrusive_ptr<c10d::Store> store)
      : store_(std::move(store)) {}

  int num_operations = 0;
  size_t num_keys = 0;

  c10::intrusive_ptr<c10d::Store> clone() override { return store_->clone(); }
  void set(const std::string& key, const Bytes& value) override {
    count(1);
    store_->set(key, value);
  }
  Bytes get(const std::string& key) override {
    count(1);
    return store_->get(key);
  }
  int64_t add(const std::string& key, int64_t value) override {
    count(1);
    return store_->add(key, value);
  }
  void append(const std::string& key, const Bytes& value) override {
    count(1);
    store_->append(key, value);
  }
  bool check(const Keys& keys) override {
    count(keys.size());
    return store_->check(keys);
  }
  void wait(const Keys& keys) override {
    count(keys.size());
    store_->wait(keys);
  }
  void wait(const Keys& keys, const std::chrono::milliseconds& timeout)
      override {
    count(keys.size());
    store_->wait(keys, timeout);
  }
  bool deleteKey(const std::string& key) override {
    count(1);
    return store_->deleteKey(key);
  }
  int64_t getNumKeys() override { return store_->getNumKeys(); }

 private:
  void count(size_t keys) {
    ++num_operations;
    num_keys += keys;
  }

  c10::intrusive_ptr<c10d::Store> store_;
};

struct Cost {
  int operations = 0;
  size_t keys = 0;
  bool operator==(const Cost&) const = default;
};

void PrintTo(const Cost& cost, std::ostream* out) {
  *out << cost.operations << " operations on " << cost.keys << " keys";
}

/// The largest cost of any rank that signs in; `missing` of `world_size` do
/// not.
Cost largest_cost(int world_size, int missing) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<Cost> costs(static_cast<size_t>(world_size));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world_size - missing; ++rank) {
    ranks.emplace_back([&, rank] {
      CountingStore counting(store);
      const auto call = [&] {
        roll_call(counting, rank, world_size, missing > 0 ? 300ms : 30s);
      };
      if (missing > 0) {
        EXPECT_THROW(call(), TimeoutError);
      } else {
        call();
      }
      costs[static_cast<size_t>(rank)] = {
          counting.num_operations, counting.num_keys};
    });
  }
  Cost largest;
  for (auto& rank : ranks) {
    rank.join();
  }
  for (const auto& cost : costs) {
    largest.operations = std::max(largest.operations, cost.operations);
    largest.keys = std::max(largest.keys, cost.keys);
  }
  return largest;
}

TEST(RollCall, CostsEachRankTheSameForAnyNumberOfThem) {
  EXPECT_EQ(largest_cost(64, 0), largest_cost(2, 0));
  EXPECT_LE(largest_cost(64, 0).operations, 5);
}

TEST(RollCall, CostsEachRankTheSameIfOneIsMissing) {
  EXPECT_EQ(largest_cost(64, 1), largest_cost(2, 1));
}

TEST(RollCall, NamesTheRanksThatAreMissing) {
  c10d::HashStore store;
  std::thread other(
      [&] { EXPECT_THROW(roll_call(store, 3, 5, 300ms), Error); });
  EXPECT_THAT(
      [&] { roll_call(store, 1, 5, 500ms); },
      ThrowsMessage<TimeoutError>(AllOf(
          HasSubstr("rank 1 waited 0.5 s"),
          HasSubstr("rank(s) 0, 2, 4 of 5"))));
  other.join();
}

TEST(RollCall, RejectsADuplicateRank) {
  c10d::HashStore store;
  std::thread first([&] { roll_call(store, 0, 2, 30s); });
  roll_call(store, 1, 2, 30s);
  first.join();
  EXPECT_THAT(
      [&] { roll_call(store, 1, 2, 30s); },
      ThrowsMessage<ConfigError>(HasSubstr("rank 1 connected twice")));
}

TEST(RollCall, ReportsAClosedStoreInOneLine) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(find_free_port());
  options.isServer = true;
  options.waitWorkers = false;
  auto server = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  options.isServer = false;
  c10d::TCPStore client("127.0.0.1", options);
  std::thread rank_0([&] {
    // Only after the other rank has signed in and waits.
    EXPECT_TRUE(testing::eventually([&] { return server->check({"count"}); }));
    server.reset();
  });
  EXPECT_THAT(
      [&] { roll_call(client, 1, 2, 60s); },
      ThrowsMessage<CommError>(AllOf(
          HasSubstr("[connect] rank 1 of 2 lost its connection to rank 0"),
          Not(HasSubstr("waited")),
          Not(HasSubstr("\n")))));
  rank_0.join();
}

} // namespace
} // namespace accelerate
