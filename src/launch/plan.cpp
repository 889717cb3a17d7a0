// SPDX-License-Identifier: Apache-2.0
#include "launch/plan.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "accelerate/error.h"
#include "base/str.h"

namespace accelerate {

int find_free_port() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const bool found = listener >= 0 && bind(listener, generic, size) == 0 &&
                     getsockname(listener, generic, &size) == 0;
  const int cause = errno;
  if (listener >= 0) {
    close(listener);
  }
  if (!found) {
    throw SystemError(str_cat(
        "[launch] no free TCP port on 127.0.0.1 (",
        std::strerror(cause),
        "); is the loopback interface up?"));
  }
  return ntohs(address.sin_port);
}

std::vector<WorkerSpec> plan_workers(
    const LaunchOptions& options,
    const EnvLookup& env) {
  std::vector<std::string> command = options.command;
  if (command.at(0).ends_with(".py")) {
    command.insert(command.begin(), "python3");
  }
  const std::string size = std::to_string(options.num_processes);
  std::map<std::string, std::string> shared = {
      {"WORLD_SIZE", size},
      {"LOCAL_WORLD_SIZE", size},
      {"GROUP_RANK", "0"},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", std::to_string(find_free_port())},
  };
  if (!env("OMP_NUM_THREADS")) {
    const unsigned cores = std::thread::hardware_concurrency();
    const auto processes = static_cast<unsigned>(options.num_processes);
    shared["OMP_NUM_THREADS"] = std::to_string(std::max(1U, cores / processes));
  }
  std::vector<WorkerSpec> workers;
  for (int rank = 0; rank < options.num_processes; ++rank) {
    WorkerSpec worker{rank, command, shared};
    worker.variables["RANK"] = std::to_string(rank);
    worker.variables["LOCAL_RANK"] = std::to_string(rank);
    workers.push_back(std::move(worker));
  }
  return workers;
}

} // namespace accelerate
