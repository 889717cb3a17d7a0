// SPDX-License-Identifier: Apache-2.0
// Machines for tests: network namespaces on one bridge.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "support/subprocess.h"

namespace accelerate::testing {

/// Runs a shell command and returns its exit code; output is dropped.
int shell(const std::string& command);

/// `count` hosts with their own network, host name (node0, node1, ...) and
/// address (10.77.0.1, ...), which see each other by name and by address.
/// Everything is removed with the object. Needs root.
class Cluster {
 public:
  explicit Cluster(int count);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  /// Empty where hosts can be made here; else the reason, for GTEST_SKIP.
  static std::string why_not();

  std::string address(int host) const;
  /// The command line that runs `command` on a host.
  std::vector<std::string> on(int host, std::vector<std::string> command) const;
  std::unique_ptr<Subprocess> start(
      int host,
      std::vector<std::string> command,
      std::map<std::string, std::string> variables = {}) const;
  /// Pulls the host's cable.
  void cut(int host) const;
  /// Puts it in again.
  void mend(int host) const;

 private:
  std::string name(int host) const;
  std::string prefix_;
  int count_;
};

/// Living processes whose environment holds `NAME=value`.
std::vector<pid_t> processes_with(const std::string& variable);
/// Living workers among them: what a launcher gave a rank.
std::vector<pid_t> workers_with(const std::string& variable);

} // namespace accelerate::testing
