// SPDX-License-Identifier: Apache-2.0
// The meeting point: a store that rank 0 holds.
#include <c10/util/Logging.h>

#include <cstdlib>
#include <mutex>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "accelerate/error.h"
#include "base/str.h"
#include "base/variables.h"
#include "comm/connect.h"
#include "comm/failures.h"
#include "comm/roll_call.h"

namespace accelerate {
namespace {

using std::chrono::milliseconds;
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
  std::vector<StorePtr> stores;
};

void keep_listening(StorePtr store) {
  auto& servers = Servers::instance();
  const std::lock_guard<std::mutex> lock(servers.mutex);
  servers.stores.push_back(std::move(store));
}

// c10d logs each exception with a C++ stack before it throws it. What goes
// wrong here is said in one line, unless the user has asked torch for more.
class QuietLog {
 public:
  QuietLog() {
    const std::lock_guard<std::mutex> lock(mutex());
    if (depth()++ == 0) {
      level() = FLAGS_caffe2_log_level;
      FLAGS_caffe2_log_level =
          level() < c10::GLOG_WARNING ? level() : c10::GLOG_FATAL;
    }
  }
  ~QuietLog() {
    const std::lock_guard<std::mutex> lock(mutex());
    if (--depth() == 0) {
      FLAGS_caffe2_log_level = level();
    }
  }
  QuietLog(const QuietLog&) = delete;
  QuietLog& operator=(const QuietLog&) = delete;

 private:
  static std::mutex& mutex() {
    static std::mutex value;
    return value;
  }
  static int& depth() {
    static int value = 0;
    return value;
  }
  static int& level() {
    static int value = 0;
    return value;
  }
};

StorePtr open_store(
    const ProcessEnvironment& environment,
    milliseconds timeout) {
  const auto& topology = environment.topology;
  const auto& rendezvous = environment.rendezvous;
  if (rendezvous.address.empty() || rendezvous.port == 0) {
    throw ConfigError(str_cat(
        "[connect] ",
        environment.starter_name(),
        " started ",
        topology.world_size,
        " processes but ",
        rendezvous.address.empty() ? variables::kMasterAddress
                                   : variables::kMasterPort,
        " is not set; set it to the machine of rank 0 (and a free port), or "
        "start with `accelerate launch`"));
  }
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(rendezvous.port);
  options.isServer = topology.rank == 0 && !rendezvous.is_hosted;
  options.waitWorkers = false;
  options.timeout = timeout;
  // Later groups of this process find the server of the first.
  options.multiTenant = true;
  try {
    auto store =
        c10::make_intrusive<c10d::TCPStore>(rendezvous.address, options);
    if (options.isServer) {
      keep_listening(store);
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
          std::chrono::duration<double>(timeout).count(),
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

StorePtr meet(const ProcessEnvironment& environment, milliseconds timeout) {
  const QuietLog quiet;
  StorePtr store = c10::make_intrusive<c10d::PrefixStore>(
      next_group_name(environment.rendezvous),
      open_store(environment, timeout));
  const auto& topology = environment.topology;
  roll_call(*store, topology.rank, topology.world_size, timeout);
  store->setTimeout(timeout);
  return store;
}

} // namespace accelerate
