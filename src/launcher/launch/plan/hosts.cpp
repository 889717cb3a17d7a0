// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/plan/hosts.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "accelerate/error.h"
#include "core/base/small_file.h"
#include "core/base/str.h"
#include "core/base/variables.h"
#include "core/hardware/network.h"
#include "launcher/launch/plan/shell_quote.h"

namespace accelerate {
namespace {

using nlohmann::json;

constexpr const char* kPassedNames[] =
    {variables::kPath, "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "LANG"};
constexpr const char* kPassedPrefixes[] =
    {"ACCELERATE_", "HF_", "NCCL_", "GLOO_", "TORCH_", "CUDA_", "OMP_"};

} // namespace

std::vector<HostEntry> find_hosts(const LaunchConfig& config) {
  std::vector<HostEntry> hosts;
  for (const auto& name : config.hosts) {
    hosts.push_back({name});
  }
  if (!config.hostfile.empty()) {
    hosts = parse_host_file(
        read_small_file(config.hostfile, "the host file"), config.hostfile);
  }
  return hosts;
}

std::string rendezvous_address(
    const std::vector<HostEntry>& hosts,
    const std::string& main_process_ip) {
  const std::string first = hosts.at(0).address();
  if (!is_this_machine(first)) {
    throw ConfigError(str_cat(
        "[launch] the first host, '",
        first,
        "' (",
        resolve_host(first)[0],
        "), is not this machine; start `accelerate launch` on the first host "
        "of the list"));
  }
  if (!main_process_ip.empty()) {
    return main_process_ip;
  }
  const std::string own = resolve_host(first)[0];
  if (hosts.size() == 1 || !is_loopback(own)) {
    return own;
  }
  const std::string other = resolve_host(hosts[1].address())[0];
  if (is_loopback(other)) {
    return own;
  }
  const std::string towards = own_address_towards(other);
  if (towards.empty()) {
    throw ConfigError(str_cat(
        "[launch] this machine has no route to '",
        hosts[1].address(),
        "'. Check its name and the network"));
  }
  return towards;
}

std::string encode_join_order(const JoinOrder& order) {
  const json object = {
      {"token", order.token},
      {"machine_rank", order.machine_rank},
      {"num_machines", order.num_machines},
      {"address", order.rendezvous.address},
      {"port", order.rendezvous.port},
      {"join_limit", order.join_limit.count()},
      {"num_local", order.num_local.value_or(0)},
      {"is_coloured", order.is_coloured},
      {"folder", order.folder},
      {"options", order.options},
      {"program", order.program},
      {"variables", order.variables}};
  return object.dump(-1, ' ', true, json::error_handler_t::replace) + "\n";
}

JoinOrder decode_join_order(const std::string& line) {
  try {
    const json object = json::parse(line);
    JoinOrder order;
    order.token = object.at("token").get<std::string>();
    order.machine_rank = object.at("machine_rank").get<int>();
    order.num_machines = object.at("num_machines").get<int>();
    order.rendezvous.address = object.at("address").get<std::string>();
    order.rendezvous.port = object.at("port").get<int>();
    order.join_limit = std::chrono::seconds(object.at("join_limit").get<int>());
    if (const int num_local = object.at("num_local").get<int>()) {
      order.num_local = num_local;
    }
    order.is_coloured = object.at("is_coloured").get<bool>();
    order.folder = object.at("folder").get<std::string>();
    object.at("options").get_to(order.options);
    object.at("program").get_to(order.program);
    object.at("variables").get_to(order.variables);
    return order;
  } catch (const json::exception& error) {
    throw ConfigError(str_cat(
        "[launch] the data received over ssh is not a launch command (",
        error.what(),
        "); install the same version of accelerate on every host"));
  }
}

std::map<std::string, std::string> variables_to_pass_on(
    const char* const* environment,
    const std::vector<std::string>& exported) {
  std::map<std::string, std::string> passed;
  std::set<std::string> missing(exported.begin(), exported.end());
  for (; *environment != nullptr; ++environment) {
    const std::string text = *environment;
    const std::string name = text.substr(0, text.find('='));
    const bool is_wanted =
        missing.erase(name) > 0 ||
        std::count(std::begin(kPassedNames), std::end(kPassedNames), name) >
            0 ||
        std::any_of(
            std::begin(kPassedPrefixes),
            std::end(kPassedPrefixes),
            [&](const char* prefix) { return name.starts_with(prefix); });
    if (is_wanted && !name.starts_with(variables::kJobToken) &&
        name.size() < text.size()) {
      passed[name] = text.substr(name.size() + 1);
    }
  }
  if (!missing.empty()) {
    throw ConfigError(str_cat(
        "[launch] --export names ",
        *missing.begin(),
        ", which is not set on this machine; set the variable, or remove it "
        "from --export"));
  }
  return passed;
}

std::vector<std::string> ssh_command(
    const HostEntry& host,
    const std::string& ssh,
    const std::string& launcher) {
  auto command = shell_words(ssh.empty() ? "ssh" : ssh);
  // No prompts, because no user could answer them. No terminal, because stdin
  // carries the order.
  command.insert(
      command.end(),
      {"-o",
       "BatchMode=yes",
       "-o",
       "ConnectTimeout=10",
       "-T",
       host.name,
       "exec " + shell_quoted(launcher) + " launch --join_from_stdin"});
  return command;
}

} // namespace accelerate
