// SPDX-License-Identifier: Apache-2.0
// First contact of many ranks on one store: our roll call beside one in which
// every rank waits for the key of every other.
//
// Ranks are threads with a connection each to a real TCPStore. Prints one JSON
// line per case: seconds from the first sign-in until all ranks know that all
// are there, and how many keys the ranks named to the store.
#include <sys/resource.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "core/hardware/ports.h"
#include "training/comm/roll_call.h"

namespace {

using Bytes = std::vector<uint8_t>;
using Keys = std::vector<std::string>;
using Clock = std::chrono::steady_clock;
constexpr std::chrono::minutes kTimeout{10};

std::atomic<size_t> num_keys_named = 0;

/// A rank's connection, which counts.
class Connection : public c10d::TCPStore {
 public:
  using c10d::TCPStore::TCPStore;
  void set(const std::string& key, const Bytes& value) override {
    ++num_keys_named;
    c10d::TCPStore::set(key, value);
  }
  int64_t add(const std::string& key, int64_t value) override {
    ++num_keys_named;
    return c10d::TCPStore::add(key, value);
  }
  void append(const std::string& key, const Bytes& value) override {
    ++num_keys_named;
    c10d::TCPStore::append(key, value);
  }
  using c10d::TCPStore::wait;
  void wait(const Keys& keys, const std::chrono::milliseconds& timeout)
      override {
    num_keys_named += keys.size();
    c10d::TCPStore::wait(keys, timeout);
  }
};

void wait_for_every_key(c10d::Store& store, int rank, int world_size) {
  const auto key = [](int r) { return "arrived/" + std::to_string(r); };
  store.add(key(rank), 1);
  Keys keys;
  for (int r = 0; r < world_size; ++r) {
    keys.push_back(key(r));
  }
  store.wait(keys, kTimeout);
}

struct Result {
  double seconds;
  size_t keys;
};

Result measure(
    int world_size,
    const std::function<void(c10d::Store&, int)>& meet) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(accelerate::find_free_port());
  options.waitWorkers = false;
  options.timeout = kTimeout;
  options.isServer = true;
  const c10d::TCPStore server("127.0.0.1", options);
  options.isServer = false;
  Clock::time_point begin;
  std::barrier connected(world_size, [&]() noexcept { begin = Clock::now(); });
  num_keys_named = 0;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.emplace_back([&, rank] {
      Connection store("127.0.0.1", options);
      connected.arrive_and_wait();
      meet(store, rank);
    });
  }
  for (auto& rank : ranks) {
    rank.join();
  }
  const std::chrono::duration<double> taken = Clock::now() - begin;
  return {taken.count(), num_keys_named};
}

void compare(int world_size) {
  const auto ours = measure(world_size, [&](c10d::Store& store, int rank) {
    accelerate::roll_call(store, rank, world_size, kTimeout);
  });
  const auto peer = measure(world_size, [&](c10d::Store& store, int rank) {
    wait_for_every_key(store, rank, world_size);
  });
  std::printf(
      "{\"bench\": \"roll_call\", \"case\": \"%d_ranks\", \"ours\": %.4f, "
      "\"peer\": %.4f, \"unit\": \"s\", \"ratio\": %.3f, \"keys\": %zu, "
      "\"peer_keys\": %zu}\n",
      world_size,
      ours.seconds,
      peer.seconds,
      peer.seconds / ours.seconds,
      ours.keys,
      peer.keys);
  std::fflush(stdout);
}

} // namespace

int main() {
  // Two ends of each connection are files of this process.
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  for (const int world_size : {64, 512, 4096}) {
    compare(world_size);
  }
}
