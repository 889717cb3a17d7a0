// SPDX-License-Identifier: Apache-2.0
// The meeting point: a store that rank 0 holds.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "accelerate/error.h"
#include "base/str.h"
#include "base/variables.h"
#include "comm/connect.h"
#include "comm/failures.h"
#include "comm/meeting_point.h"
#include "comm/quiet_log.h"
#include "comm/roll_call.h"

namespace accelerate {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

// Groups of one process are numbered, so that each has keys of its own in the
// store. All ranks make their groups in the same order.
std::string next_group_name(const Rendezvous& rendezvous) {
  static std::mutex mutex;
  static int num_groups = 0;
  const std::lock_guard<std::mutex> lock(mutex);
  return str_cat("accelerate/", rendezvous.attempt, "/", num_groups++);
}

// Never destroyed by itself: threads of the store must not outlive what they
// use, so the end of the process closes it before any static object goes.
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

// The stores of one port share what listens there: the first keeps it.
void keep_listening(int port, StorePtr store) {
  auto& servers = Servers::instance();
  const std::lock_guard<std::mutex> lock(servers.mutex);
  servers.stores.emplace(port, std::move(store));
}

/// c10d takes no time at all for any.
std::chrono::milliseconds time_left(const Deadline& deadline) {
  return std::max(deadline.left(), std::chrono::milliseconds(1));
}

// c10d looks at its timeout between attempts, each of which may take all of it,
// with pauses that grow: three times as long altogether.
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
      // What c10d does not try again itself is no matter of time.
      if (attempt.left().count() > 0 || deadline.left().count() == 0) {
        throw;
      }
    }
  }
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
  // Later groups of this process find the server of the first.
  options.multiTenant = true;
  try {
    auto store = reach_store(rendezvous.address, options, deadline);
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
          " listens, but did not reach itself there within ",
          deadline.seconds(),
          " s; see that ",
          variables::kMasterAddress,
          " is the machine of rank 0"));
    }
    if (options.isServer) {
      throw CommError(str_cat(
          where,
          " cannot listen: ",
          cause,
          "; choose another ",
          variables::kMasterPort));
    }
    if (is_timeout(cause)) {
      throw TimeoutError(str_cat(
          where,
          " did not find rank 0 within ",
          deadline.seconds(),
          " s; see that rank 0 runs and that the port is open"));
    }
    give_culprit_time();
    throw CommError(str_cat(
        where,
        " found no store: ",
        cause,
        "; see that rank 0, which holds it, still runs and that ",
        variables::kMasterAddress,
        " leads to it"));
  }
}

} // namespace

StorePtr meet(const ProcessEnvironment& environment, const Deadline& deadline) {
  const QuietLog quiet;
  // Before c10d, which would say the same of an unknown name and a taken port.
  find_meeting_point(environment, deadline);
  StorePtr store = c10::make_intrusive<c10d::PrefixStore>(
      next_group_name(environment.rendezvous),
      open_store(environment, deadline));
  const auto& topology = environment.topology;
  roll_call(*store, topology.rank, topology.world_size, time_left(deadline));
  return store;
}

} // namespace accelerate
