// SPDX-License-Identifier: Apache-2.0
#include "hardware/cores.h"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/str.h"

namespace accelerate {
namespace {

constexpr int kMaxNodes = 1024;

} // namespace

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

std::vector<std::vector<int>> numa_nodes() {
  const auto allowed = allowed_cores();
  std::vector<std::vector<int>> nodes;
  for (int node = 0; node < kMaxNodes; ++node) {
    const auto file =
        str_cat("/sys/devices/system/node/node", node, "/cpulist");
    std::error_code ignored;
    if (!std::filesystem::exists(file, ignored)) {
      break;
    }
    std::string text;
    std::getline(std::ifstream(file) >> std::ws, text);
    std::vector<int> cores = parse_core_list(text);
    std::erase_if(cores, [&](int core) {
      return !std::binary_search(allowed.begin(), allowed.end(), core);
    });
    nodes.push_back(std::move(cores));
  }
  return nodes.empty() ? std::vector<std::vector<int>>{allowed} : nodes;
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
