// SPDX-License-Identifier: Apache-2.0
#include "support/cluster.h"

#include <dirent.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace accelerate::testing {

int shell(const std::string& command) {
  return run_process({"sh", "-c", command}).exit_code;
}

Cluster::Cluster(int count) : count_(count) {
  static std::atomic<int> serial = 0;
  // Names of interfaces have at most 15 characters.
  prefix_ = "a" + std::to_string(getpid() % 1000000) +
            static_cast<char>('a' + serial++ % 26);
  const std::string bridge = prefix_ + "sw";
  std::string script = "set -e; ip netns add " + bridge + "; ip -n " + bridge +
                       " link add br0 type bridge; ip -n " + bridge +
                       " link set br0 up; ";
  for (int host = 0; host < count; ++host) {
    const std::string own = name(host);
    const std::string port = "p" + std::to_string(host);
    script += "ip netns add " + own + "; ip -n " + bridge + " link add " +
              port + " type veth peer name eth0 netns " + own + "; ip -n " +
              bridge + " link set " + port + " master br0 up; ip -n " + own +
              " addr add " + address(host) + "/24 dev eth0; ip -n " + own +
              " link set eth0 up; ip -n " + own + " link set lo up; ";
  }
  std::string names = "127.0.0.1 localhost\n";
  for (int host = 0; host < count; ++host) {
    names += address(host) + " node" + std::to_string(host) + "\n";
  }
  for (int host = 0; host < count; ++host) {
    const std::string folder = "/etc/netns/" + name(host);
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/hosts") << names;
  }
  if (shell(script) != 0) {
    throw std::runtime_error("cannot make network namespaces");
  }
}

Cluster::~Cluster() {
  for (int host = 0; host < count_; ++host) {
    shell(
        "ip netns pids " + name(host) +
        " | while read pid; do kill -9 $pid; done; ip netns del " + name(host));
  }
  shell("ip netns del " + prefix_ + "sw");
}

std::string Cluster::why_not() {
  if (geteuid() != 0) {
    return "network namespaces need root";
  }
  const std::string probe = "accprobe" + std::to_string(getpid());
  if (shell(
          "ip netns add " + probe + " && ip netns exec " + probe +
          " unshare --uts true && ip netns del " + probe) != 0) {
    return "this machine makes no network namespaces (iproute2 missing, or a "
           "container without the right)";
  }
  return {};
}

std::string Cluster::name(int host) const {
  return prefix_ + "h" + std::to_string(host);
}

std::string Cluster::address(int host) const {
  return "10.77.0." + std::to_string(host + 1);
}

std::vector<std::string> Cluster::on(int host, std::vector<std::string> command)
    const {
  const std::string node = "node" + std::to_string(host);
  // Not `ip netns exec`: it would hide /sys/fs/cgroup, which slurmd needs.
  std::vector<std::string> full = {
      "nsenter",
      "--net=/run/netns/" + name(host),
      "unshare",
      "--uts",
      "--mount",
      "sh",
      "-c",
      "hostname " + node + "; mount --bind /etc/netns/" + name(host) +
          "/hosts /etc/hosts; exec \"$@\"",
      "sh"};
  full.insert(full.end(), command.begin(), command.end());
  return full;
}

std::unique_ptr<Subprocess> Cluster::start(
    int host,
    std::vector<std::string> command,
    std::map<std::string, std::string> variables) const {
  return std::make_unique<Subprocess>(
      on(host, std::move(command)), std::move(variables));
}

void Cluster::cut(int host) const {
  shell("ip -n " + name(host) + " link set eth0 down");
}

void Cluster::mend(int host) const {
  shell("ip -n " + name(host) + " link set eth0 up");
}

std::vector<pid_t> processes_with(const std::string& variable) {
  std::vector<pid_t> found;
  DIR* folder = opendir("/proc");
  while (const dirent* entry = readdir(folder)) {
    const std::string process = std::string("/proc/") + entry->d_name;
    if (read_file(process + "/environ").find(variable) != std::string::npos &&
        read_file(process + "/status").find("State:\tZ") == std::string::npos) {
      found.push_back(std::stoi(entry->d_name));
    }
  }
  closedir(folder);
  return found;
}

std::vector<pid_t> workers_with(const std::string& variable) {
  auto found = processes_with(variable);
  std::erase_if(found, [](pid_t pid) {
    return read_file("/proc/" + std::to_string(pid) + "/environ")
               .find('\0' + std::string("LOCAL_RANK=")) == std::string::npos;
  });
  return found;
}

} // namespace accelerate::testing
