// SPDX-License-Identifier: Apache-2.0
#include "config/env_bridge.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>

#include "config/fields.h"
#include "hardware/gpu_kinds.h"

namespace accelerate {
namespace {

std::optional<std::string> non_empty(
    const EnvLookup& env,
    const std::string& name) {
  auto value = env(name);
  return value && !value->empty() ? value : std::nullopt;
}

std::filesystem::path expand_home(
    const std::string& path,
    const EnvLookup& env) {
  if (path == "~" || path.starts_with("~/")) {
    return home_folder(env) / path.substr(std::min<size_t>(2, path.size()));
  }
  return path;
}

std::filesystem::path hugging_face_home(const EnvLookup& env) {
  if (const auto folder = non_empty(env, "HF_HOME")) {
    return expand_home(*folder, env);
  }
  const auto cache = non_empty(env, "XDG_CACHE_HOME");
  return expand_home(cache.value_or("~/.cache"), env) / "huggingface";
}

} // namespace

std::filesystem::path home_folder(const EnvLookup& env) {
  if (const auto folder = non_empty(env, "HOME")) {
    return *folder;
  }
  const passwd* user = getpwuid(getuid());
  return user != nullptr ? user->pw_dir : "/";
}

ConfigLayer read_environment(const EnvLookup& env) {
  ConfigLayer layer;
  for (const Field& field : launch_fields()) {
    if (field.variable.empty()) {
      continue;
    }
    const std::string variable(field.variable);
    const auto value = non_empty(env, variable);
    // OpenMP's list of counts per nesting level is inherited as it is.
    const bool is_omp_list = value && variable == "OMP_NUM_THREADS" &&
                             value->find(',') != std::string::npos;
    if (value && !is_omp_list) {
      layer[std::string(field.name)] = {*value, variable};
    }
  }
  return layer;
}

std::map<std::string, std::string> worker_variables(
    const LaunchConfig& config) {
  std::map<std::string, std::string> variables = {
      {"ACCELERATE_MIXED_PRECISION", config.mixed_precision},
      {"ACCELERATE_USE_CPU", config.cpu ? "True" : "False"},
  };
  if (config.debug) {
    variables["ACCELERATE_DEBUG_MODE"] = "1";
  }
  if (config.enable_cpu_affinity) {
    variables["ACCELERATE_CPU_AFFINITY"] = "1";
  }
  if (config.gradient_accumulation_steps) {
    variables["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] =
        std::to_string(*config.gradient_accumulation_steps);
  }
  if (config.num_cpu_threads_per_process) {
    variables["OMP_NUM_THREADS"] =
        std::to_string(*config.num_cpu_threads_per_process);
  }
  if (!config.gpu_ids.empty()) {
    for (const auto& kind : gpu_kinds()) {
      variables[kind.visibility_variable] =
          format_field(config, *find_field("gpu_ids"));
    }
  }
  return variables;
}

std::filesystem::path default_config_path(const EnvLookup& env) {
  const auto folder = hugging_face_home(env) / "accelerate";
  const auto yaml = folder / "default_config.yaml";
  const auto json = folder / "default_config.json";
  std::error_code ignored;
  const bool only_json = !std::filesystem::exists(yaml, ignored) &&
                         std::filesystem::exists(json, ignored);
  return only_json ? json : yaml;
}

} // namespace accelerate
