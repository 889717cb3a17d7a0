// SPDX-License-Identifier: Apache-2.0
// The meeting point: a store that rank 0 holds.
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

StorePtr open_store(
    const ProcessEnvironment& environment,
    const Deadline& deadline) {
  const auto& topology = environment.topology;
  const auto& rendezvous = environment.rendezvous;
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(rendezvous.port);
  options.isServer = topology.rank == 0 && !rendezvous.is_hosted;
  options.waitWorkers = false;
  options.timeout = deadline.left();
  // Later groups of this process find the server of the first.
  options.multiTenant = true;
  try {
    auto store =
        c10::make_intrusive<c10d::TCPStore>(rendezvous.address, options);
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
  roll_call(*store, topology.rank, topology.world_size, deadline.left());
  return store;
}

} // namespace accelerate
