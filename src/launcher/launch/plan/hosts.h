// SPDX-License-Identifier: Apache-2.0
// The machines of `--hosts` and `--hostfile`, and how their launchers are
// started.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/process.h"
#include "core/base/internal.h"
#include "core/config/launch_config.h"
#include "launcher/launch/plan/host_file.h"

namespace accelerate {

/// The entries of `--hosts` or of the file (`parse_host_file`). Empty if
/// neither was given.
ACCELERATE_INTERNAL std::vector<HostEntry> find_hosts(
    const LaunchConfig& config);

/// The address where launchers connect: `main_process_ip`, or the first host's
/// address; if that is a loopback address here, this machine's address as seen
/// by the second host. Throws `ConfigError` if the first host is not this
/// machine.
std::string rendezvous_address(
    const std::vector<HostEntry>& hosts,
    const std::string& main_process_ip);

/// Everything the launcher of another machine needs. It is sent as one line
/// over ssh's stdin, because every user can read command lines.
struct ACCELERATE_INTERNAL JoinOrder {
  std::string token = {};
  int machine_rank = 0;
  int num_machines = 1;
  Rendezvous rendezvous = {};
  std::chrono::seconds join_limit{60};
  std::optional<int> num_local = {};
  bool is_coloured = false;
  std::string folder = {};
  /// Values of options by name.
  std::map<std::string, std::string> options = {};
  std::vector<std::string> program = {};
  /// Variables of this machine that are passed to workers there.
  std::map<std::string, std::string> variables = {};

  bool operator==(const JoinOrder&) const = default;
};

ACCELERATE_INTERNAL std::string encode_join_order(const JoinOrder& order);
/// Throws `ConfigError` if the line is not a join order.
ACCELERATE_INTERNAL JoinOrder decode_join_order(const std::string& line);

/// The variables of `environment` ("NAME=value") that workers on other machines
/// need: search paths, configuration of libraries, and `exported`, but never
/// the job token. Throws `ConfigError` if one of `exported` is not set.
ACCELERATE_INTERNAL std::map<std::string, std::string> variables_to_pass_on(
    const char* const* environment,
    const std::vector<std::string>& exported = {});

/// The ssh command that starts the launcher on `host`, which then reads its
/// order. `ssh` is the user's own command ("ssh -p 2222") in shell syntax, or
/// empty.
ACCELERATE_INTERNAL std::vector<std::string> ssh_command(
    const HostEntry& host,
    const std::string& ssh,
    const std::string& launcher);

} // namespace accelerate
