// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/machines/diagnosis.h"

#include <poll.h>
#include <sys/timex.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "accelerate/error.h"
#include "core/base/printable.h"
#include "core/base/programs.h"
#include "core/base/str.h"
#include "core/base/variables.h"
#include "core/hardware/gpu_kinds.h"
#include "core/hardware/network.h"
#include "core/hardware/ports.h"
#include "launcher/launch/machines/sockets.h"
#include "launcher/launch/plan/hosts.h"
#include "launcher/launch/plan/plan.h"
#include "launcher/launch/plan/shell_quote.h"

namespace accelerate {
namespace {

constexpr int kSshPort = 22;
constexpr int kConnectLimitMs = 3000;
constexpr int64_t kMebibyte = 1 << 20;

Finding look_at_name(const std::string& host) {
  try {
    const auto addresses = resolve_host(host);
    if (is_loopback(addresses[0]) && !is_loopback_name(host)) {
      return {
          CheckResult::kWarning,
          str_cat("name ", host, " resolves to ", addresses[0]),
          "other machines cannot reach a loopback address; set "
          "--main_process_ip to the machine's network address"};
    }
    return {
        CheckResult::kPassed,
        str_cat("name ", host, " resolves to ", addresses[0])};
  } catch (const CommError&) {
    return {
        CheckResult::kFailed,
        str_cat("name ", host, " has no address"),
        "correct it, or add it to DNS or /etc/hosts"};
  }
}

Finding look_at_connection(const std::string& host, int port) {
  try {
    const UniqueFile probe = begin_connect(host, port);
    pollfd waited{probe.get(), POLLOUT, 0};
    const bool has_answer = poll(&waited, 1, kConnectLimitMs) > 0;
    return check_connection(
        host, port, has_answer ? connect_error(probe.get()) : ETIMEDOUT);
  } catch (const CommError&) {
    return check_connection(host, port, EHOSTUNREACH);
  }
}

Finding look_at_interface(const std::string& address, const EnvLookup& env) {
  const std::string chosen = interface_towards(address);
  for (const char* name :
       {variables::kGlooInterface, variables::kNcclInterface}) {
    const auto wanted = env(name);
    const auto all = list_interfaces();
    if (wanted && !wanted->empty() && wanted->front() != '^' &&
        std::none_of(all.begin(), all.end(), [&](const auto& entry) {
          return entry.name.starts_with(
              wanted->substr(wanted->front() == '=' ? 1 : 0));
        })) {
      return {
          CheckResult::kFailed,
          str_cat(
              name,
              "=",
              *wanted,
              " is not a network interface of this machine"),
          str_cat("unset it, or set it to ", chosen)};
    }
  }
  if (chosen.empty()) {
    return {
        CheckResult::kFailed,
        str_cat("no network interface has a route to ", address),
        "bring the network interface up, or correct the route"};
  }
  return {
      CheckResult::kPassed,
      str_cat("network interface ", chosen, " has a route to ", address)};
}

std::string visibility_variables() {
  std::string names;
  for (const auto& kind : gpu_kinds()) {
    names += (names.empty() ? "" : ", ") + kind.visibility_variable;
  }
  return names;
}

Finding look_at_gpus(const LaunchConfig& config, const MachineFacts& facts) {
  if (!facts.gpus.empty()) {
    return {CheckResult::kPassed, "GPUs: " + describe_gpus(facts.gpus)};
  }
  if (config.multi_gpu) {
    return {
        CheckResult::kFailed,
        "no usable GPU: " + facts.gpu_problem,
        str_cat(
            "install the driver, correct --gpu_ids and ",
            visibility_variables(),
            ", or pass --cpu to train on the CPU")};
  }
  return {CheckResult::kPassed, "training on the CPU: " + facts.gpu_problem};
}

Finding look_at_program(const std::string& program) {
  if (!find_program(program).empty()) {
    return {
        CheckResult::kPassed,
        "the program " + printable(program) + " can be executed"};
  }
  return {
      CheckResult::kFailed,
      "the program " + printable(program) + " cannot be executed",
      "install it on this machine under the same path, or run `chmod +x` on "
      "it"};
}

Finding look_at_own_clock() {
  timex state{};
  if (adjtimex(&state) == TIME_ERROR) {
    return {
        CheckResult::kWarning,
        "system clock is not synchronised (no chrony or systemd-timesyncd)",
        "start one of them; otherwise, timestamps from different machines do "
        "not match"};
  }
  return {CheckResult::kPassed, "system clock is synchronised"};
}

Finding look_at_clock_of(const HostEntry& host, const std::string& ssh) {
  std::string command;
  for (const auto& word : ssh_command(host, ssh, "")) {
    // The last word of the command would start a launcher. Only the connection
    // is checked here.
    command +=
        word.starts_with("exec ") ? "date +%s.%N" : shell_quoted(word) + " ";
  }
  const auto start = std::chrono::system_clock::now();
  const std::string answer = output_of(command + " 2>/dev/null");
  if (answer.empty()) {
    return {
        CheckResult::kFailed,
        str_cat("cannot open a shell on ", host.name, " over ssh"),
        str_cat(
            "set up ssh so that `ssh ",
            host.name,
            " true` works without a password")};
  }
  // Assume that the answer was given half-way between question and arrival.
  const auto middle = start + (std::chrono::system_clock::now() - start) / 2;
  const double ours =
      std::chrono::duration<double>(middle.time_since_epoch()).count();
  return check_clock(host.name, std::atof(answer.c_str()) - ours);
}

Finding look_at_port(int port) {
  const std::string problem = port_problem(port);
  if (problem.empty()) {
    return {
        CheckResult::kPassed,
        str_cat("port ", port, " of this machine is free")};
  }
  return {
      CheckResult::kFailed,
      str_cat("port ", port, ' ', problem),
      "stop that program, or choose another --main_process_port"};
}

} // namespace

Finding check_shared_memory(const MemoryFigures& memory) {
  if (!memory.shared_free_bytes) {
    return {
        CheckResult::kFailed,
        "/dev/shm is not mounted",
        "mount a tmpfs there, because data loader workers share tensors "
        "through it"};
  }
  const int64_t mebibytes = *memory.shared_free_bytes / kMebibyte;
  constexpr int64_t kEnough = 1024;
  if (mebibytes < kEnough) {
    return {
        CheckResult::kWarning,
        str_cat("/dev/shm has ", mebibytes, " MiB free"),
        "start the container with --shm-size=8g or --ipc=host"};
  }
  return {
      CheckResult::kPassed, str_cat("/dev/shm has ", mebibytes, " MiB free")};
}

Finding check_file_limits(const FileLimits& limits) {
  constexpr int64_t kEnough = 4096;
  const std::string shown =
      limits.soft < 0 ? "without limit" : str_cat(limits.soft);
  if (limits.soft >= 0 && limits.soft < kEnough) {
    return {
        CheckResult::kWarning,
        "open files: " + shown,
        str_cat(
            "run `ulimit -n ",
            limits.hard < 0 ? 65536 : limits.hard,
            "` before launching")};
  }
  return {CheckResult::kPassed, "open files: " + shown};
}

Finding check_peer_access(const std::vector<Gpu>& gpus, const GpuKind& kind) {
  for (const auto& gpu : gpus) {
    for (const auto& other : gpus) {
      const auto& peers = gpu.peers;
      if (gpu.index != other.index &&
          std::find(peers.begin(), peers.end(), other.index) == peers.end()) {
        return {
            CheckResult::kWarning,
            str_cat(
                "GPU ",
                gpu.index,
                " cannot read the memory of GPU ",
                other.index,
                ", so their traffic goes through the CPU"),
            kind.peer_access_help};
      }
    }
  }
  return {
      CheckResult::kPassed, "every GPU can read the memory of every other GPU"};
}

Finding check_clock(const std::string& host, double seconds) {
  constexpr double kTolerable = 1.0;
  const auto rounded = std::round(seconds * 10) / 10;
  const std::string what = str_cat(
      "the clock of ",
      host,
      " is ",
      std::abs(rounded),
      rounded < 0 ? " s behind this machine's" : " s ahead of this machine's");
  if (std::abs(seconds) > kTolerable) {
    return {
        CheckResult::kWarning,
        what,
        "synchronise both clocks with chrony or systemd-timesyncd"};
  }
  return {CheckResult::kPassed, what};
}

Finding check_connection(const std::string& host, int port, int error) {
  const std::string pair = str_cat(host, " port ", port);
  if (error == 0) {
    return {CheckResult::kPassed, str_cat(pair, " answers")};
  }
  if (error == ECONNREFUSED && port != kSshPort) {
    return {
        CheckResult::kPassed,
        str_cat(pair, " can be reached; no program listens there yet")};
  }
  return {
      CheckResult::kFailed,
      str_cat(pair, " cannot be reached (", std::strerror(error), ")"),
      port == kSshPort
          ? "start sshd on that host and open its port in the firewall"
          : "check that the machine is running and that its firewall allows "
            "this port"};
}

std::vector<Finding> diagnose(
    const ResolvedConfig& config,
    const EnvLookup& env) {
  const LaunchConfig& values = config.values;
  std::vector<Finding> findings;
  const int port = values.main_process_port.value_or(kDefaultMainProcessPort);
  const auto hosts = find_hosts(values);
  const bool is_first = machine_rank_of(config) == 0;
  if (!hosts.empty() || values.num_machines.most > 1) {
    findings.push_back(look_at_name(host_name()));
  }
  if (hosts.empty() && values.num_machines.most > 1 &&
      !values.main_process_ip.empty()) {
    const std::string& first = values.main_process_ip;
    findings.push_back(look_at_name(first));
    if (!is_first && findings.back().result != CheckResult::kFailed) {
      findings.push_back(look_at_connection(first, port));
      findings.push_back(look_at_interface(resolve_host(first)[0], env));
    }
  }
  if (is_first && (values.num_machines.most > 1 || !hosts.empty())) {
    findings.push_back(look_at_port(port));
  }
  const std::string ssh = env(variables::kSshCommand).value_or("");
  for (size_t i = 1; i < hosts.size(); ++i) {
    findings.push_back(look_at_name(hosts[i].address()));
    if (findings.back().result == CheckResult::kFailed) {
      continue;
    }
    if (ssh.empty()) {
      findings.push_back(look_at_connection(hosts[i].address(), kSshPort));
    }
    findings.push_back(look_at_connection(hosts[i].address(), port));
    findings.push_back(
        look_at_interface(resolve_host(hosts[i].address())[0], env));
    findings.push_back(look_at_clock_of(hosts[i], ssh));
  }
  for (auto& finding :
       diagnose_machine(values, read_machine_facts(values, env), "")) {
    findings.push_back(std::move(finding));
  }
  return findings;
}

std::vector<Finding> diagnose_machine(
    const LaunchConfig& config,
    const MachineFacts& facts,
    const std::string& program) {
  std::vector<Finding> findings;
  if (!program.empty()) {
    findings.push_back(look_at_program(program));
  }
  findings.push_back(look_at_gpus(config, facts));
  if (facts.gpus.size() > 1) {
    findings.push_back(check_peer_access(facts.gpus, *facts.gpu_kind));
  }
  findings.push_back(check_shared_memory(read_memory()));
  findings.push_back(check_file_limits(read_file_limits()));
  findings.push_back(look_at_own_clock());
  return findings;
}

Finding check_libraries(const std::string& program) {
  // The dynamic linker lists what it loads without starting the program.
  const std::string command =
      "LD_TRACE_LOADED_OBJECTS=1 " + shell_quoted(program) + " 2>&1";
  std::string missing;
  std::istringstream lines(output_of(command));
  for (std::string line; std::getline(lines, line);) {
    if (const size_t end = line.find(" => not found");
        end != std::string::npos) {
      const size_t begin = line.find_first_not_of(" \t");
      missing +=
          (missing.empty() ? "" : ", ") + line.substr(begin, end - begin);
    }
  }
  if (missing.empty()) {
    return {CheckResult::kPassed, "the training library finds torch"};
  }
  return {
      CheckResult::kFailed,
      str_cat(program, " cannot find ", missing),
      "reinstall the version of torch that accelerate was built with, or add "
      "its lib folder to LD_LIBRARY_PATH"};
}

std::vector<std::string> problems_of(const std::vector<Finding>& findings) {
  std::vector<std::string> problems;
  for (const auto& finding : findings) {
    if (finding.result == CheckResult::kFailed) {
      problems.push_back(finding.what + ": " + finding.remedy);
    }
  }
  return problems;
}

} // namespace accelerate
