// SPDX-License-Identifier: Apache-2.0
#include "training/comm/rendezvous.h"

#include <future>
#include <memory>
#include <thread>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/base/variables.h"
#include "core/hardware/network.h"

namespace accelerate {
namespace {

using Addresses = std::vector<std::string>;

/// The addresses of a host; empty if the name is unknown or not resolved in
/// time.
Addresses ask_for(const std::string& host, const Deadline& deadline) {
  const auto promise = std::make_shared<std::promise<Addresses>>();
  auto answer = promise->get_future();
  // Name resolution has no time limit, so a thread does it. After a timeout,
  // the thread is abandoned.
  std::thread([host, promise] {
    try {
      promise->set_value(resolve_host(host));
    } catch (const std::exception&) {
      promise->set_value({});
    }
  }).detach();
  return answer.wait_for(deadline.left()) == std::future_status::ready
             ? answer.get()
             : Addresses();
}

} // namespace

Addresses resolve_rank_0(
    const ProcessEnvironment& environment,
    const Deadline& deadline) {
  const auto& host = environment.rendezvous.address;
  if (host.empty() || environment.rendezvous.port == 0) {
    throw ConfigError(str_cat(
        "[connect] ",
        environment.starter_name(),
        " started ",
        environment.topology.world_size,
        " processes, but ",
        host.empty() ? variables::kMasterAddress : variables::kMasterPort,
        " is not set; set it to the machine of rank 0 (and a free port), or "
        "start with `accelerate launch`"));
  }
  for (;;) {
    if (auto addresses = ask_for(host, deadline); !addresses.empty()) {
      return addresses;
    }
    if (deadline.left().count() == 0) {
      throw ConfigError(str_cat(
          "[connect] rank ",
          environment.topology.rank,
          " could not resolve ",
          variables::kMasterAddress,
          "='",
          host,
          "' within ",
          deadline.seconds(),
          " s; use a name or address that every machine can resolve"));
    }
    std::this_thread::sleep_for(std::min<std::chrono::milliseconds>(
        deadline.left(), std::chrono::seconds(1)));
  }
}

} // namespace accelerate
