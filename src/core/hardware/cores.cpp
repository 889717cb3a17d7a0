// SPDX-License-Identifier: Apache-2.0
#include "core/hardware/cores.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "core/base/str.h"

namespace accelerate {
std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(static_cast<size_t>(core), &set)) {
        cores.push_back(core);
      }
    }
  }
  return cores.empty() ? std::vector<int>{0} : cores;
}

std::vector<int> parse_core_list(const std::string& text) {
  std::vector<int> cores;
  std::istringstream in(text);
  int first = 0;
  while (in >> first) {
    int last = first;
    if (in.peek() == '-') {
      in.ignore();
      in >> last;
    }
    for (int core = first; core <= std::min(last, CPU_SETSIZE - 1); ++core) {
      cores.push_back(core);
    }
    if (in.peek() != ',') {
      break;
    }
    in.ignore();
  }
  return cores;
}

std::vector<NumaNode> numa_nodes(const std::filesystem::path& system) {
  const auto allowed = allowed_cores();
  std::string online;
  std::getline(std::ifstream(system / "online"), online);
  std::vector<NumaNode> nodes;
  for (const int number : parse_core_list(online)) {
    std::string text;
    std::getline(
        std::ifstream(system / str_cat("node", number) / "cpulist"), text);
    std::vector<int> cores = parse_core_list(text);
    std::erase_if(cores, [&](int core) {
      return !std::binary_search(allowed.begin(), allowed.end(), core);
    });
    if (!cores.empty()) {
      nodes.push_back({number, std::move(cores)});
    }
  }
  return nodes.empty() ? std::vector<NumaNode>{{0, allowed}} : nodes;
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) {
      return line.substr(std::min(line.find(": ") + 2, line.size()));
    }
  }
  return {};
}

} // namespace accelerate
