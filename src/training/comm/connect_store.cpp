// SPDX-License-Identifier: Apache-2.0
// Connects to the store, which rank 0 hosts.
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/base/variables.h"
#include "core/hardware/network.h"
#include "training/comm/connect.h"
#include "training/comm/failures.h"
#include "training/comm/quiet_log.h"
#include "training/comm/rendezvous.h"
#include "training/comm/roll_call.h"

namespace accelerate {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

// Groups of a process are numbered, so that each has its own keys in the store.
// All ranks create their groups in the same order.
std::string next_group_name(const Rendezvous& rendezvous) {
  static std::mutex mutex;
  static int num_groups = 0;
  const std::lock_guard<std::mutex> lock(mutex);
  return str_cat("accelerate/", rendezvous.attempt, "/", num_groups++);
}

// Closed at process exit before static objects are destroyed, because the
// store's threads must not outlive the objects that they use.
struct Servers {
  static Servers& instance() {
    static auto* servers = [] {
      std::atexit([] { instance().stores.clear(); });
      return new Servers;
    }();
    return *servers;
  }
  std::mutex mutex;
  std::map<int, StorePtr> stores;
};

// Stores of one port share the server. Keeping the first store keeps it open.
void keep_listening(int port, StorePtr store) {
  auto& servers = Servers::instance();
  const std::lock_guard<std::mutex> lock(servers.mutex);
  servers.stores.emplace(port, std::move(store));
}

/// At least 1 ms, because c10d treats zero as unlimited.
std::chrono::milliseconds time_left(const Deadline& deadline) {
  return std::max(deadline.left(), std::chrono::milliseconds(1));
}

// c10d checks its timeout only between attempts. Each attempt may use all of
// it, and pauses between attempts grow, so up to three times the timeout may
// pass.
StorePtr reach_store(
    const std::string& address,
    c10d::TCPStoreOptions options,
    const Deadline& deadline) {
  constexpr std::chrono::milliseconds kShortest(100);
  while (true) {
    options.timeout = std::max(deadline.left() / 4, kShortest);
    const Deadline attempt(options.timeout);
    try {
      return c10::make_intrusive<c10d::TCPStore>(address, options);
    } catch (const std::exception&) {
      // Waiting longer does not help if c10d does not retry.
      if (attempt.left().count() > 0 || deadline.left().count() == 0) {
        throw;
      }
    }
  }
}

/// Like `reach_store`, but for a store that another program hosts. c10d waits
/// without limit for the first answer of a listening program. In this case, the
/// thread is abandoned.
StorePtr reach_foreign_store(
    const std::string& address,
    const c10d::TCPStoreOptions& options,
    const Deadline& deadline) {
  // How long `reach_store` may exceed the deadline.
  constexpr std::chrono::seconds kMargin(1);
  const auto promise = std::make_shared<std::promise<StorePtr>>();
  auto answer = promise->get_future();
  std::thread([=] {
    try {
      promise->set_value(reach_store(address, options, deadline));
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
  }).detach();
  if (answer.wait_for(deadline.left() + kMargin) != std::future_status::ready) {
    throw std::runtime_error(
        "timed out: the program listening on this port does not answer");
  }
  return answer.get();
}

StorePtr open_store(
    const ProcessEnvironment& environment,
    const Deadline& deadline) {
  const auto& topology = environment.topology;
  const auto& rendezvous = environment.rendezvous;
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(rendezvous.port);
  options.isServer = topology.rank == 0 && !rendezvous.is_hosted;
  options.waitWorkers = false;
  // Later groups of this process use the server of the first group.
  options.multiTenant = true;
  try {
    auto store =
        options.isServer
            ? reach_store(rendezvous.address, options, deadline)
            : reach_foreign_store(rendezvous.address, options, deadline);
    store->setTimeout(time_left(deadline));
    if (options.isServer) {
      keep_listening(rendezvous.port, store);
    }
    return store;
  } catch (const std::exception& error) {
    const std::string cause = first_line(error.what());
    const std::string where = str_cat(
        "[connect] rank ",
        topology.rank,
        " at ",
        rendezvous.address,
        ":",
        rendezvous.port);
    if (options.isServer && is_timeout(cause)) {
      throw TimeoutError(str_cat(
          where,
          " could not reach its own port within ",
          deadline.seconds(),
          " s. Set ",
          variables::kMasterAddress,
          " to an address of rank 0's machine"));
    }
    if (options.isServer) {
      throw CommError(str_cat(
          where,
          " cannot listen: ",
          cause,
          ". Choose another ",
          variables::kMasterPort));
    }
    if (is_timeout(cause)) {
      throw TimeoutError(str_cat(
          where,
          " did not find rank 0 within ",
          deadline.seconds(),
          " s. Check that rank 0 is running, that the port is open and that no "
          "other program uses it"));
    }
    wait_for_first_failure();
    throw CommError(str_cat(
        where,
        " cannot connect to rank 0: ",
        cause,
        ". Check that rank 0 is still running and that ",
        variables::kMasterAddress,
        " is an address of its machine"));
  }
}

// False only if the process is certainly gone. A worker may be in another PID
// namespace.
bool is_running(int pid) {
  return kill(pid, 0) == 0 || errno != ESRCH;
}

/// Waits while rank 0 is alive but not listening. It may have to download a
/// model first. Does not wait for a listener that does not answer. Returns the
/// deadline for the following steps.
Deadline await_rank_0(
    const ProcessEnvironment& environment,
    const std::vector<std::string>& addresses,
    const Deadline& deadline) {
  // Torch's default.
  constexpr std::chrono::minutes kLongestWait(30);
  constexpr std::chrono::milliseconds kPause(100);
  const auto& rendezvous = environment.rendezvous;
  const auto main_pid = rendezvous.main_pid;
  const int rank = environment.topology.rank;
  const auto is_silent = [&] {
    return std::all_of(
        addresses.begin(), addresses.end(), [&](const auto& one) {
          return is_refused_at(one, rendezvous.port);
        });
  };
  if (!main_pid || rank == 0 || rendezvous.is_hosted ||
      (*main_pid != 0 && !is_running(*main_pid)) || !is_silent()) {
    return deadline;
  }
  const Deadline longest(kLongestWait);
  bool is_said = false;
  do {
    if (*main_pid != 0 && !is_running(*main_pid)) {
      wait_for_first_failure();
      throw CommError(str_cat(
          "[connect] rank ",
          rank,
          " waited for rank 0, which exited without creating an Accelerator. "
          "Create one on every rank"));
    }
    if (*main_pid == 0 && longest.left().count() == 0) {
      throw TimeoutError(str_cat(
          "[connect] rank ",
          rank,
          " waited ",
          longest.seconds(),
          " s for rank 0 to create its Accelerator at ",
          rendezvous.address,
          ":",
          rendezvous.port,
          ". Check what rank 0 is doing"));
    }
    if (!is_said && deadline.left().count() == 0) {
      is_said = true;
      std::cerr
          << str_cat(
                 "[connect] rank ",
                 rank,
                 " has waited ",
                 deadline.seconds(),
                 " s for rank 0, which has not created its Accelerator yet; "
                 "rank 0 is still running, so this rank keeps waiting\n")
          << std::flush;
    }
    std::this_thread::sleep_for(kPause);
  } while (is_silent());
  return deadline.anew();
}

} // namespace

StorePtr connect_store(
    const ProcessEnvironment& environment,
    const Deadline& given) {
  const QuietLog quiet;
  // Resolve the name before c10d does, whose error is the same for an unknown
  // name and a taken port.
  const auto addresses = resolve_rank_0(environment, given);
  const Deadline deadline = await_rank_0(environment, addresses, given);
  StorePtr store = c10::make_intrusive<c10d::PrefixStore>(
      next_group_name(environment.rendezvous),
      open_store(environment, deadline));
  const auto& topology = environment.topology;
  roll_call(*store, topology.rank, topology.world_size, time_left(deadline));
  return store;
}

} // namespace accelerate
