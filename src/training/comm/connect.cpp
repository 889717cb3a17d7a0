// SPDX-License-Identifier: Apache-2.0
// Creates a process group from a topology and the address of rank 0.
#include "training/comm/connect.h"

#include <atomic>
#include <csignal>
#include <map>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "accelerate/distributed/process_group.h"
#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/base/variables.h"
#include "core/hardware/network.h"
#include "training/comm/backends/backends.h"
#include "training/comm/failures.h"
#include "training/comm/process_group_impl.h"
#include "training/comm/quiet_log.h"

namespace accelerate {
namespace {

// The address of this machine on the route to rank 0. Its peers can also reach
// this address.
std::string address_for_peers(
    const ProcessEnvironment& environment,
    const Deadline& deadline) {
  for (const auto& address : resolve_rank_0(environment, deadline)) {
    if (auto own = own_address_towards(address); !own.empty()) {
      return own;
    }
  }
  throw ConfigError(str_cat(
      "[connect] no network route to ",
      variables::kMasterAddress,
      "='",
      environment.rendezvous.address,
      "'; check that the network interface is up"));
}

/// The backend for tensors of each device, if `name` is the run's backend.
std::map<c10::DeviceType, BackendEntry> carriers_of(const std::string& name) {
  const auto entry = find_backend(name);
  std::map<c10::DeviceType, BackendEntry> carriers;
  // CPU tensors are always sent, e.g. for gathered objects and flags.
  carriers[c10::kCPU] = carries(*entry, c10::kCPU)
                            ? *entry
                            : *find_backend(default_backend_for(c10::kCPU));
  for (const auto device : entry->devices) {
    carriers[device] = *entry;
  }
  return carriers;
}

ProcessGroup make_group(
    const BackendArguments& arguments,
    const std::string& backend,
    bool ranks_are_threads) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(
      arguments.store, arguments.rank, arguments.world_size);
  std::map<std::string, c10::intrusive_ptr<c10d::Backend>> made;
  try {
    for (const auto& [device, entry] : carriers_of(backend)) {
      auto& engine = made[entry.name];
      if (!engine) {
        BackendArguments own = arguments;
        own.store =
            c10::make_intrusive<c10d::PrefixStore>(entry.name, arguments.store);
        engine = make_backend(entry, own);
      }
      group->setBackend(
          device, c10d::ProcessGroup::strToBackendType(entry.name), engine);
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    if (!ranks_are_threads) {
      wait_for_first_failure();
    }
    throw CommError(str_cat(
        "[connect] Another rank exited while rank ",
        arguments.rank,
        " was connecting to it; the original error is above (",
        first_line(error.what()),
        ')'));
  }
  group->setDefaultBackend(backend);
  return ProcessGroup(std::make_shared<ProcessGroup::Impl>(
      std::move(group), backend, /*owns=*/true, ranks_are_threads));
}

/// Calls `work(rank)` on one thread per rank, and `after(rank)` even if it
/// throws. When all threads have ended, rethrows the first exception. Prefers
/// other exceptions to `CommError`, which is mostly a consequence of another
/// rank's failure.
void on_threads(
    int num_ranks,
    const std::function<void(int)>& work,
    const std::function<void(int)>& after) {
  std::mutex mutex;
  std::exception_ptr first_error;
  std::exception_ptr first_comm_error;
  const auto note = [&](std::exception_ptr& first) {
    const std::lock_guard<std::mutex> lock(mutex);
    first = first ? first : std::current_exception();
  };
  const auto run_one = [&](int rank) {
    try {
      work(rank);
    } catch (const CommError&) {
      note(first_comm_error);
    } catch (...) {
      note(first_error);
    }
    after(rank);
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back(run_one, rank);
  }
  for (auto& thread : threads) {
    thread.join();
  }
  if (first_error || first_comm_error) {
    std::rethrow_exception(first_error ? first_error : first_comm_error);
  }
}

// c10d's flight recorder adds a group at its first collective, without a lock.
// So a single thread starts the first collective of all groups.
void enlist(const std::vector<ProcessGroup>& groups) {
  std::vector<c10::intrusive_ptr<c10d::Work>> barriers;
  for (const auto& group : groups) {
    barriers.push_back(group.impl()->group()->getBackend(c10::kCPU)->barrier());
  }
  for (const auto& barrier : barriers) {
    barrier->wait();
  }
}

void watch_threads(
    const std::vector<ProcessGroup>& groups,
    std::chrono::milliseconds threshold) {
  static std::atomic<int> num_runs = 0;
  const std::string run = str_cat("threads ", ++num_runs);
  for (const auto& group : groups) {
    auto membership = std::make_unique<Membership>();
    membership->rank = group.rank();
    membership->world_size = group.world_size();
    membership->threads_of = run;
    membership->threshold = threshold;
    membership->num_collectives = collective_counter(group.impl()->group());
    group.impl()->watch_as(Watchdog::instance().join(std::move(membership)));
  }
}

} // namespace

// c10d does not suppress the signal when it writes to sockets. Python ignores
// the signal.
void ignore_broken_pipes() {
  struct sigaction action = {};
  if (sigaction(SIGPIPE, nullptr, &action) == 0 &&
      action.sa_handler == SIG_DFL) {
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, nullptr);
  }
}

ProcessGroup ProcessGroup::connect(
    const ProcessEnvironment& environment,
    const ProcessGroupOptions& options) {
  const auto& topology = environment.topology;
  if (topology.world_size == 1 && options.backend == Backend::kAuto) {
    return {};
  }
  const QuietLog quiet;
  const Deadline deadline(options.connect_timeout);
  const auto& interface = environment.rendezvous.interface;
  const auto backend = choose_backend(options.backend, topology, false);
  const auto address =
      interface.empty() ? address_for_peers(environment, deadline) : "";
  const BackendArguments arguments{
      connect_store(environment, deadline),
      topology.rank,
      topology.world_size,
      options.timeout,
      interface,
      address};
  // After connecting, waits use the timeout of collectives.
  arguments.store->setTimeout(options.timeout);
  ignore_broken_pipes();
  auto group = make_group(arguments, backend, /*ranks_are_threads=*/false);
  // Rank 0 hosts the store, so it must not exit before the others are
  // connected.
  group.guard("connect", [&] { enlist({group}); });
  forget_gloo_address(arguments.store, topology.rank);
  group.impl()->watch(hang_threshold(options.hang_message_after));
  return group;
}

void run_ranks(
    int num_ranks,
    const std::function<void(ProcessGroup)>& function,
    const ProcessGroupOptions& options) {
  if (num_ranks < 1) {
    throw UsageError(str_cat(
        "[run_ranks] num_ranks is ", num_ranks, ", expected at least 1"));
  }
  const auto store = c10::make_intrusive<c10d::HashStore>();
  store->setTimeout(options.connect_timeout);
  const auto backend =
      choose_backend(options.backend, {0, num_ranks, 0, num_ranks, 0}, false);
  std::vector<ProcessGroup> groups(static_cast<size_t>(num_ranks));
  const auto group_of = [&](int rank) -> ProcessGroup& {
    return groups[static_cast<size_t>(rank)];
  };
  const auto connect = [&](int rank) {
    group_of(rank) = make_group(
        {store, rank, num_ranks, options.timeout, "", "127.0.0.1"},
        backend,
        /*ranks_are_threads=*/true);
  };
  on_threads(num_ranks, connect, [](int) {});
  enlist(groups);
  watch_threads(groups, hang_threshold(options.hang_message_after));
  // A rank that ends shuts its group down, so that the others do not wait for
  // it.
  on_threads(
      num_ranks,
      [&](int rank) {
        group_of(rank).impl()->join_record();
        function(group_of(rank));
      },
      [&](int rank) { group_of(rank).shutdown(); });
}

} // namespace accelerate
