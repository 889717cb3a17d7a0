// SPDX-License-Identifier: Apache-2.0
// Tasks started by Slurm's srun.
#include <cctype>

#include "accelerate/error.h"
#include "core/base/host_name.h"
#include "core/base/printable.h"
#include "core/base/str.h"
#include "core/base/variables.h"
#include "core/process/cluster_environment.h"

namespace accelerate {
namespace {

constexpr int kMaxTasksPerNode = 1 << 20;

// The script of a batch job has SLURM_PROCID=0 and the job's task count but is
// not one of its tasks: it would wait for ranks that are never started.
bool is_batch_script(const EnvReader& env) {
  return env.text(variables::kBatchEnvironment) == "BATCH" &&
         !env.text(variables::kSlurmStep);
}

[[noreturn]] void refuse(
    const std::string& variable,
    const std::string& value,
    const char* what) {
  throw ConfigError(str_cat(
      "[detect_environment] ",
      variable,
      "='",
      printable(value),
      "' is not ",
      what,
      "; correct or unset it"));
}

// SLURM_STEP_TASKS_PER_NODE looks like `2(x3),1`: two tasks on each of the
// first three nodes, one on the fourth.
std::optional<int>
tasks_on_node(const EnvReader& env, int node, int local_rank) {
  for (const char* name :
       {variables::kSlurmStepTasksPerNode, variables::kSlurmTasksPerNode}) {
    const auto value = env.text(name);
    if (!value) {
      continue;
    }
    size_t at = 0;
    const auto digits = [&]() {
      int number = 0;
      const size_t first = at;
      while (at < value->size() &&
             std::isdigit(static_cast<unsigned char>((*value)[at])) != 0) {
        number = number * 10 + ((*value)[at++] - '0');
        if (number > kMaxTasksPerNode) {
          refuse(name, *value, "a list of task counts");
        }
      }
      if (at == first) {
        refuse(name, *value, "a list of task counts");
      }
      return number;
    };
    for (int first = 0; at < value->size();) {
      const int tasks = digits();
      int nodes = 1;
      if (value->compare(at, 2, "(x") == 0) {
        at += 2;
        nodes = digits();
        if (at >= value->size() || (*value)[at++] != ')') {
          refuse(name, *value, "a list of task counts");
        }
      }
      if (node < first + nodes) {
        if (tasks <= local_rank) {
          refuse(name, *value, "a list with an entry for this local rank");
        }
        return tasks;
      }
      first += nodes;
      if (at < value->size() && (*value)[at++] != ',') {
        refuse(name, *value, "a list of task counts");
      }
    }
  }
  return std::nullopt;
}

Rendezvous rendezvous_of(const EnvReader& env) {
  Rendezvous point;
  for (const char* name :
       {variables::kSlurmStepNodes,
        variables::kSlurmJobNodes,
        variables::kSlurmNodes}) {
    if (const auto nodes = env.text(name)) {
      point.address = first_slurm_host(*nodes, name);
      break;
    }
  }
  const auto job = env.number(variables::kSlurmJob).value_or(0);
  const auto step = env.number(variables::kSlurmStep).value_or(0);
  point.port = port_of_job(
      static_cast<uint64_t>(job) * 4096 + static_cast<uint64_t>(step));
  return point;
}

// A requeued job keeps its id, so the name also contains the restart count.
std::string name_of_job(const EnvReader& env) {
  const auto job = env.number(variables::kSlurmJob);
  return job ? str_cat(
                   "slurm-",
                   *job,
                   '.',
                   env.number(variables::kSlurmStep).value_or(0),
                   '.',
                   env.number(variables::kSlurmRestarts).value_or(0))
             : "";
}

} // namespace

std::string first_slurm_host(
    const std::string& node_list,
    const std::string& variable) {
  // Only the first name matters: the text up to the first comma outside of
  // brackets, with each bracket replaced by the start of its first range.
  std::string host;
  for (size_t at = 0; at < node_list.size() && node_list[at] != ',';) {
    if (node_list[at] != '[') {
      host += node_list[at++];
      continue;
    }
    const size_t close = node_list.find(']', at);
    const size_t end = node_list.find_first_of("-,]", at);
    if (close == std::string::npos || end == at + 1) {
      refuse(variable, node_list, "a Slurm node list");
    }
    host += node_list.substr(at + 1, end - at - 1);
    at = close + 1;
  }
  if (!is_host_name(host)) {
    refuse(variable, node_list, "a Slurm node list");
  }
  return host;
}

std::optional<ProcessEnvironment> detect_slurm(
    const EnvReader& env,
    const StarterRow& row) {
  if (is_batch_script(env)) {
    return std::nullopt;
  }
  // A job step may have fewer tasks than its job, so its variables are used.
  StarterRow step = row;
  if (env.text(variables::kSlurmStepTasks)) {
    step.names.world_size = variables::kSlurmStepTasks;
  }
  auto found = read_ranks(env, step);
  if (!found) {
    return std::nullopt;
  }
  found->starter = &row.starter;
  ProcessTopology& topology = found->topology;
  if (const auto node = env.number(variables::kSlurmNode)) {
    topology.node_rank = *node;
  }
  if (const auto here =
          tasks_on_node(env, topology.node_rank, topology.local_rank)) {
    topology.local_world_size = *here;
  }
  found->rendezvous = read_rendezvous(env, rendezvous_of(env));
  found->job = name_of_job(env);
  return found;
}

} // namespace accelerate
