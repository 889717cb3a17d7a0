// SPDX-License-Identifier: Apache-2.0
// First contact: from a topology and a meeting point to a process group.
#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <torch/cuda.h>
#include <csignal>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "accelerate/error.h"
#include "accelerate/process_group.h"
#include "base/str.h"
#include "comm/backends/backends.h"
#include "comm/connect.h"
#include "comm/process_group_impl.h"

namespace accelerate {
namespace {

using std::chrono::milliseconds;

double seconds(milliseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

// The address of this machine on the way to `host`: the one that its peers can
// reach too. Connecting a datagram socket sends nothing.
std::string own_address_towards(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    throw ConfigError(str_cat(
        "[connect] MASTER_ADDR='",
        host,
        "' cannot be resolved (",
        gai_strerror(error),
        "); use a name or address that every machine "
        "knows"));
  }
  std::string result;
  for (auto* entry = found; entry != nullptr && result.empty();
       entry = entry->ai_next) {
    const int probe = socket(entry->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_storage own{};
    socklen_t size = sizeof(own);
    char text[NI_MAXHOST];
    if (probe >= 0 &&
        ::connect(probe, entry->ai_addr, entry->ai_addrlen) == 0 &&
        getsockname(probe, reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
        getnameinfo(
            reinterpret_cast<sockaddr*>(&own),
            size,
            text,
            sizeof(text),
            nullptr,
            0,
            NI_NUMERICHOST) == 0) {
      result = text;
    }
    if (probe >= 0) {
      close(probe);
    }
  }
  freeaddrinfo(found);
  if (result.empty()) {
    throw ConfigError(str_cat(
        "[connect] no network route to MASTER_ADDR='",
        host,
        "'; is the interface up?"));
  }
  return result;
}

// Groups of one process are numbered, so that two Accelerators of a run meet
// under different names. All ranks make their groups in the same order.
std::string next_group_name(const Rendezvous& rendezvous) {
  static std::mutex mutex;
  static int num_groups = 0;
  const std::lock_guard<std::mutex> lock(mutex);
  return str_cat("accelerate/", rendezvous.attempt, "/", num_groups++);
}

c10::intrusive_ptr<c10d::Store> open_store(
    const ProcessEnvironment& environment,
    milliseconds timeout) {
  const auto& [topology, rendezvous, source, job] = environment;
  if (rendezvous.address.empty() || rendezvous.port == 0) {
    throw ConfigError(str_cat(
        "[connect] ",
        source,
        " started ",
        topology.world_size,
        " processes but ",
        rendezvous.address.empty() ? "MASTER_ADDR" : "MASTER_PORT",
        " is not set; set it to the machine of rank 0 (and a free port), or "
        "start with `accelerate launch`"));
  }
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(rendezvous.port);
  options.isServer = topology.rank == 0 && !rendezvous.is_hosted;
  options.waitWorkers = false;
  options.timeout = timeout;
  // A second Accelerator of this process finds the first one's server.
  options.multiTenant = true;
  try {
    return c10::make_intrusive<c10d::PrefixStore>(
        next_group_name(rendezvous),
        c10::make_intrusive<c10d::TCPStore>(rendezvous.address, options));
  } catch (const std::exception& error) {
    const std::string cause = error.what();
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
          cause.substr(0, cause.find('\n')),
          "; choose another MASTER_PORT"));
    }
    throw TimeoutError(str_cat(
        where,
        " did not find rank 0 within ",
        seconds(timeout),
        " s; see that rank 0 runs and that the port is open"));
  }
}

std::string missing_ranks(
    c10d::Store& store,
    const std::vector<std::string>& keys) {
  std::string missing;
  try {
    for (size_t rank = 0; rank < keys.size(); ++rank) {
      if (!store.check({keys[rank]})) {
        missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
      }
    }
  } catch (const std::exception&) {
    return "0"; // The store went with the rank that holds it.
  }
  return missing;
}

// Every rank signs in and waits for the others, so that a missing one is named
// before any backend blocks.
void roll_call(
    c10d::Store& store,
    int rank,
    int world_size,
    milliseconds timeout) {
  const auto key = [](int r) { return "arrived/" + std::to_string(r); };
  if (store.add(key(rank), 1) > 1) {
    throw ConfigError(str_cat(
        "[connect] rank ",
        rank,
        " arrived twice; give every process its own RANK"));
  }
  std::vector<std::string> keys;
  for (int r = 0; r < world_size; ++r) {
    keys.push_back(key(r));
  }
  try {
    store.wait(keys, timeout);
  } catch (const std::exception&) {
    throw TimeoutError(str_cat(
        "[connect] rank ",
        rank,
        " waited ",
        seconds(timeout),
        " s, but rank(s) ",
        missing_ranks(store, keys),
        " of ",
        world_size,
        " did not arrive; see whether they were started"));
  }
}

bool choose_nccl(Backend backend, const ProcessTopology& topology) {
  if (backend == Backend::kAuto) {
    return nccl_is_available() && has_gpu_for_each_rank(topology);
  }
  return backend == Backend::kNccl;
}

ProcessGroup make_group(
    const BackendArguments& arguments,
    bool with_nccl,
    bool ranks_are_threads) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(
      arguments.store, arguments.rank, arguments.world_size);
  using Type = c10d::ProcessGroup::BackendType;
  const auto add =
      [&](c10::DeviceType device, Type type, const char* name, auto make) {
        BackendArguments own = arguments;
        own.store =
            c10::make_intrusive<c10d::PrefixStore>(name, arguments.store);
        group->setBackend(device, type, make(own));
      };
  try {
    add(c10::kCPU, Type::GLOO, "gloo", make_gloo);
    if (with_nccl) {
      add(c10::kCUDA, Type::NCCL, "nccl", make_nccl);
    } else {
      group->setBackend(c10::kCUDA, Type::GLOO, group->getBackend(c10::kCPU));
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::string cause = error.what();
    throw CommError(str_cat(
        "[connect] rank ",
        arguments.rank,
        " of ",
        arguments.world_size,
        " cannot connect to its peers: ",
        cause.substr(0, cause.find('\n'))));
  }
  group->setDefaultBackend(with_nccl ? Type::NCCL : Type::GLOO);
  return ProcessGroup(std::make_shared<ProcessGroup::Impl>(
      std::move(group),
      with_nccl ? "nccl" : "gloo",
      /*owns=*/true,
      ranks_are_threads));
}

/// Calls `work(rank)`, then `after(rank)` whatever happened, on a thread for
/// each rank; throws the first exception when all have ended.
void on_threads(
    int num_ranks,
    const std::function<void(int)>& work,
    const std::function<void(int)>& after) {
  std::mutex mutex;
  std::exception_ptr first_error;
  const auto run_one = [&](int rank) {
    try {
      work(rank);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex);
      if (!first_error) {
        first_error = std::current_exception();
      }
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
  if (first_error) {
    std::rethrow_exception(first_error);
  }
}

// c10d's flight recorder lists a group at its first collective without a lock:
// one thread starts the first collective of all groups.
void enlist(const std::vector<ProcessGroup>& groups) {
  std::vector<c10::intrusive_ptr<c10d::Work>> barriers;
  for (const auto& group : groups) {
    barriers.push_back(group.impl()->group()->getBackend(c10::kCPU)->barrier());
  }
  for (const auto& barrier : barriers) {
    barrier->wait();
  }
}

} // namespace

bool has_gpu_for_each_rank(const ProcessTopology& topology) {
  const auto gpus = static_cast<int>(torch::cuda::device_count());
  return gpus > 0 && topology.local_world_size <= gpus;
}

// c10d writes to sockets without asking for an error instead of the signal, as
// Python ignores it.
void ignore_broken_pipes() {
  struct sigaction action = {};
  if (sigaction(SIGPIPE, nullptr, &action) == 0 &&
      action.sa_handler == SIG_DFL) {
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, nullptr);
  }
}

c10::intrusive_ptr<c10d::Store> meet(
    const ProcessEnvironment& environment,
    milliseconds timeout) {
  auto store = open_store(environment, timeout);
  const auto& topology = environment.topology;
  roll_call(*store, topology.rank, topology.world_size, timeout);
  store->setTimeout(timeout);
  return store;
}

ProcessGroup ProcessGroup::connect(
    const ProcessEnvironment& environment,
    const ProcessGroupOptions& options) {
  const auto& topology = environment.topology;
  if (topology.world_size == 1 && options.backend == Backend::kAuto) {
    return {};
  }
  const auto& rendezvous = environment.rendezvous;
  const BackendArguments arguments{
      meet(environment, options.connect_timeout),
      topology.rank,
      topology.world_size,
      options.timeout,
      rendezvous.interface,
      rendezvous.interface.empty()
          ? own_address_towards(rendezvous.address, rendezvous.port)
          : ""};
  // From here on it is waited on for as long as for any collective.
  arguments.store->setTimeout(options.timeout);
  ignore_broken_pipes();
  auto group = make_group(
      arguments,
      choose_nccl(options.backend, topology),
      /*ranks_are_threads=*/false);
  // Rank 0 holds the store: it must not end before the others are connected.
  group.guard("connect", [&] { enlist({group}); });
  return group;
}

void run_ranks(
    int num_ranks,
    const std::function<void(ProcessGroup)>& function,
    const ProcessGroupOptions& options) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  store->setTimeout(options.connect_timeout);
  const ProcessTopology everybody{0, num_ranks, 0, num_ranks, 0};
  std::vector<ProcessGroup> groups(static_cast<size_t>(num_ranks));
  const auto group_of = [&](int rank) -> ProcessGroup& {
    return groups[static_cast<size_t>(rank)];
  };
  const auto connect = [&](int rank) {
    group_of(rank) = make_group(
        {store, rank, num_ranks, options.timeout, "", "127.0.0.1"},
        choose_nccl(options.backend, everybody),
        /*ranks_are_threads=*/true);
  };
  on_threads(num_ranks, connect, [](int) {});
  enlist(groups);
  // A rank that ends shuts its group down, so that the others do not wait.
  on_threads(
      num_ranks,
      [&](int rank) { function(group_of(rank)); },
      [&](int rank) { group_of(rank).shutdown(); });
}

} // namespace accelerate
