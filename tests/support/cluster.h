// SPDX-License-Identifier: Apache-2.0
// Simulated machines: network namespaces on one bridge.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "support/subprocess.h"

namespace accelerate::testing {

/// Runs a shell command and returns its exit code; discards the output.
int shell(const std::string& command);

/// `count` hosts with their own network, host name (node0, node1, ...) and
/// address (10.77.0.1, ...), which can reach each other by name and by address.
/// Everything is removed by the destructor. Needs root.
class Cluster {
 public:
  explicit Cluster(int count);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  /// Empty if hosts can be created here; else the reason, for GTEST_SKIP.
  static std::string why_not();

  std::string address(int host) const;
  /// The command line that runs `command` on a host.
  std::vector<std::string> on(int host, std::vector<std::string> command) const;
  std::unique_ptr<Subprocess> start(
      int host,
      std::vector<std::string> command,
      std::map<std::string, std::string> variables = {}) const;
  /// Disconnects the host.
  void cut(int host) const;
  /// Reconnects it.
  void mend(int host) const;

 private:
  std::string name(int host) const;
  std::string prefix_;
  int count_;
};

/// Living processes whose environment contains `NAME=value`.
std::vector<pid_t> processes_with(const std::string& variable);
/// Living workers among them, to which a launcher has given a rank.
std::vector<pid_t> workers_with(const std::string& variable);

} // namespace accelerate::testing
