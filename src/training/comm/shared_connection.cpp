// SPDX-License-Identifier: Apache-2.0
// The connections that a process keeps for its Accelerators.
#include <cstdlib>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "accelerate/distributed/c10d.h"
#include "training/comm/backends/backends.h"
#include "training/comm/connect.h"

namespace accelerate {
namespace {

/// The settings that must be equal for Accelerators to share a connection.
struct Key {
  Rendezvous rendezvous;
  int rank;
  int world_size;
  std::string backend;
  std::chrono::milliseconds timeout;
  bool operator==(const Key&) const = default;
};

struct Connections {
  // Never destroyed, because `leave_all` closes the connections in time.
  static Connections& instance() {
    static auto* connections = new Connections;
    return *connections;
  }

  std::optional<ProcessGroup> find(const Key& key) {
    const std::lock_guard<std::mutex> lock(mutex);
    std::erase_if(
        open, [](const auto& entry) { return entry.second.is_shut_down(); });
    for (const auto& [known, group] : open) {
      if (known == key) {
        return group;
      }
    }
    return std::nullopt;
  }

  void add(Key key, ProcessGroup group) {
    const std::lock_guard<std::mutex> lock(mutex);
    open.emplace_back(std::move(key), std::move(group));
  }

  std::mutex mutex;
  std::vector<std::pair<Key, ProcessGroup>> open;
};

// NCCL warns about groups that were not left, and must be left before static
// objects are destroyed. Gloo's object is kept, because its destructor would
// wait for pending operations, which a lost peer never answers.
void leave_all() {
  for (auto& [key, group] : Connections::instance().open) {
    to_c10d(group).release();
    group.shutdown();
  }
}

} // namespace

ProcessGroup shared_connection(
    const ProcessEnvironment& environment,
    const ProcessGroupOptions& options,
    bool cpu) {
  const auto& topology = environment.topology;
  ProcessGroupOptions chosen = options;
  chosen.backend = choose_backend(options.backend, topology, cpu);
  if (topology.world_size == 1 &&
      (options.backend == Backend::kAuto ||
       carries(*find_backend(chosen.backend), c10::kCPU))) {
    return {};
  }
  const Key key{
      environment.rendezvous,
      topology.rank,
      topology.world_size,
      chosen.backend,
      chosen.timeout};
  auto& connections = Connections::instance();
  if (auto known = connections.find(key)) {
    return *known;
  }
  // Connect without the lock, because ranks of several runs may be threads.
  auto group = ProcessGroup::connect(environment, chosen);
  // Register after the first connection, so that the store is closed after its
  // users.
  [[maybe_unused]] static const int registered = std::atexit(leave_all);
  connections.add(key, group);
  return group;
}

} // namespace accelerate
