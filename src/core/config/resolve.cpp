// SPDX-License-Identifier: Apache-2.0
#include "core/config/resolve.h"

#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/base/variables.h"
#include "core/config/config_file.h"
#include "core/config/fields.h"
#include "core/config/foreign.h"

namespace accelerate {
namespace {

std::optional<ConfigFile> find_file(
    const ConfigLayer& flags,
    const EnvLookup& env) {
  if (const auto flag = flags.find("config_file"); flag != flags.end()) {
    return read_config_file(flag->second.text);
  }
  if (const auto path = env(variables::kConfigFile); path && !path->empty()) {
    return read_config_file(*path);
  }
  const auto path = default_config_path(env);
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) {
    return read_config_file(path);
  }
  return std::nullopt;
}

// If both `--cpu` and GPUs are requested, the source with the higher precedence
// decides. It is only an error if both have the same source.
void resolve_device(ResolvedConfig& config) {
  LaunchConfig& values = config.values;
  if (!values.cpu || !values.multi_gpu) {
    return;
  }
  const SourceKind cpu = config.kind_of("cpu");
  const SourceKind gpu = config.kind_of("multi_gpu");
  if (cpu > gpu) {
    values.multi_gpu = false;
    config.sources["multi_gpu"] = config.sources["cpu"];
  } else if (gpu > cpu) {
    values.cpu = false;
    config.sources["cpu"] = config.sources["multi_gpu"];
  }
}

constexpr const char* kParallelismSizes[] = {
    "parallelism_config_dp_replicate_size",
    "parallelism_config_dp_shard_size",
    "parallelism_config_tp_size"};

int parallel_processes(const LaunchConfig& values) {
  return values.parallelism_config_dp_replicate_size.value_or(1) *
         values.parallelism_config_dp_shard_size.value_or(1) *
         values.parallelism_config_tp_size.value_or(1);
}

// A parallelism size on the command line also enables parallelism. The sizes
// determine the number of processes.
void resolve_parallelism(ResolvedConfig& config) {
  LaunchConfig& values = config.values;
  for (const char* size : kParallelismSizes) {
    if (config.kind_of(size) == SourceKind::kFlag) {
      values.use_parallelism_config = true;
      config.sources["use_parallelism_config"] = config.sources[size];
    }
  }
  if (!values.use_parallelism_config || values.num_processes ||
      parallel_processes(values) == 1) {
    return;
  }
  Source& source = config.sources["num_processes"];
  for (const char* size : kParallelismSizes) {
    if (config.kind_of(size) >= source.kind) {
      source = config.sources[size];
    }
  }
  assign_field(
      values,
      *find_field("num_processes"),
      {std::to_string(parallel_processes(values)),
       "the product of the parallelism sizes"});
}

// A flag or a variable overrides what the file requests. Example: `--multi_gpu`
// with a file for another engine.
void drop_overridden(ResolvedConfig& config) {
  const auto is_overridden = [&](const char* field) {
    return config.kind_of(field) > SourceKind::kFile;
  };
  const bool has_device =
      (config.values.cpu && is_overridden("cpu")) ||
      (config.values.multi_gpu && is_overridden("multi_gpu"));
  const bool has_precision = is_overridden("mixed_precision");
  std::erase_if(config.foreign, [&](const ForeignSetting& setting) {
    return (has_device && setting.key == "distributed_type") ||
           (has_precision && setting.key == "mixed_precision");
  });
}

// The name of a field in files. Some fields are values of `distributed_type`.
std::string file_key(std::string_view name) {
  if (name == "multi_gpu") {
    return "distributed_type MULTI_GPU";
  }
  if (name == "use_fsdp") {
    return "distributed_type FSDP";
  }
  if (name == "use_deepspeed") {
    return "distributed_type DEEPSPEED";
  }
  const std::string_view key = find_field(name)->yaml_key;
  return std::string(key.substr(key.rfind('.') + 1));
}

// Adds notes about sharding options that have no effect.
void note_unused_sharding(
    ResolvedConfig& config,
    std::string_view use,
    std::string_view type) {
  const Field& asking = *find_field(use);
  if (format_field(config.values, asking) == "true") {
    return;
  }
  for (const Field& field : launch_fields()) {
    const auto& source = config.sources.at(std::string(field.name));
    if (field.group == asking.group && field.name != use &&
        (source.kind == SourceKind::kFile ||
         source.kind == SourceKind::kFlag)) {
      config.notes.push_back(str_cat(
          field.name,
          " (",
          source.location,
          ") is ignored without --",
          use,
          " (distributed_type ",
          type,
          " in the file)"));
      return;
    }
  }
}

Source source_of(const ResolvedConfig& config, const char* field) {
  const auto found = config.sources.find(field);
  return found == config.sources.end() ? Source{} : found->second;
}

/// "--cpu", the name of a variable, "num_processes (FILE:3)".
std::string name_in_pair(const ResolvedConfig& config, const char* field) {
  const Source source = source_of(config, field);
  switch (source.kind) {
    case SourceKind::kFile:
      return str_cat(file_key(field), " (", source.location, ")");
    case SourceKind::kEnvironment:
      return source.location;
    default:
      return str_cat("--", field);
  }
}

[[noreturn]] void contradiction(
    const ResolvedConfig& config,
    const char* one,
    const char* other,
    const char* advice) {
  throw ConfigError(str_cat(
      "[config] ",
      name_in_pair(config, one),
      " and ",
      name_in_pair(config, other),
      " contradict each other: ",
      advice));
}

void check_pairs(const ResolvedConfig& config) {
  const LaunchConfig& values = config.values;
  if (values.cpu && values.multi_gpu) {
    contradiction(config, "cpu", "multi_gpu", "use only one of them");
  }
  if (values.module && values.no_python) {
    contradiction(config, "module", "no_python", "use only one of them");
  }
  if (!values.hosts.empty() && !values.hostfile.empty()) {
    contradiction(config, "hosts", "hostfile", "use only one of them");
  }
  if (values.multi_gpu && values.num_processes == 1 &&
      config.kind_of("multi_gpu") == config.kind_of("num_processes")) {
    contradiction(
        config,
        "multi_gpu",
        "num_processes",
        "use at least 2 processes, or remove multi_gpu");
  }
}

void check_sharding(const ResolvedConfig& config) {
  const LaunchConfig& values = config.values;
  if (values.use_fsdp && values.use_deepspeed) {
    contradiction(config, "use_fsdp", "use_deepspeed", "use only one of them");
  }
  if (!values.use_deepspeed || values.deepspeed_config_file.empty()) {
    return;
  }
  for (const char* field :
       {"zero_stage",
        "gradient_clipping",
        "offload_optimizer_device",
        "offload_param_device",
        "zero3_save_16bit_model"}) {
    if (config.kind_of(field) != SourceKind::kDefault) {
      contradiction(
          config, "deepspeed_config_file", field, "set it in the JSON file");
    }
  }
}

void check_parallelism(const ResolvedConfig& config) {
  const LaunchConfig& values = config.values;
  const int product = parallel_processes(values);
  if (values.use_parallelism_config && product > 1 &&
      values.num_processes != product) {
    throw ConfigError(str_cat(
        "[config] parallelism_config_dp_replicate_size times "
        "parallelism_config_dp_shard_size",
        values.parallelism_config_tp_size.value_or(1) > 1
            ? " times parallelism_config_tp_size"
            : "",
        " is ",
        product,
        ", but ",
        name_in_pair(config, "num_processes"),
        " is ",
        values.num_processes.value_or(1),
        ". Use the same number for both"));
  }
  // Ranks of one layer communicate in every layer, and consecutive ranks are
  // on one machine.
  const int tensor = values.parallelism_config_tp_size.value_or(1);
  const int machines = values.num_machines.most;
  if (values.use_parallelism_config && machines > 1 &&
      values.num_processes.value_or(1) / machines % tensor != 0) {
    throw ConfigError(str_cat(
        "[config] ",
        name_in_pair(config, "parallelism_config_tp_size"),
        " is ",
        tensor,
        ", but each machine has ",
        values.num_processes.value_or(1) / machines,
        " processes. Use a number of processes per machine that is a multiple "
        "of it"));
  }
}

void check_machines(const ResolvedConfig& config) {
  const LaunchConfig& values = config.values;
  const auto hosts = static_cast<int>(values.hosts.size());
  const char* const starter = hosts > 0                  ? "hosts"
                              : !values.hostfile.empty() ? "hostfile"
                              : !values.mpirun_hostfile.empty()
                                  ? "mpirun_hostfile"
                                  : nullptr;
  if (values.num_machines.is_elastic() && starter != nullptr) {
    contradiction(
        config,
        starter,
        "num_machines",
        "with a range of machines, each machine runs its own `accelerate "
        "launch`; use one number, or remove the hosts");
  }
  if (hosts > 0 && config.kind_of("num_machines") != SourceKind::kDefault &&
      values.num_machines != hosts) {
    contradiction(
        config,
        "hosts",
        "num_machines",
        "remove num_machines, because it is always the number of hosts");
  }
  if (hosts == 0 && values.hostfile.empty() &&
      values.machine_rank >= values.num_machines.most) {
    contradiction(
        config,
        "machine_rank",
        "num_machines",
        "machine ranks go from 0 to num_machines - 1");
  }
}

} // namespace

std::string name_setting(const ResolvedConfig& config, const char* field) {
  const Source source = source_of(config, field);
  if (source.kind == SourceKind::kFile) {
    return str_cat("[", source.location, "] ", file_key(field));
  }
  return str_cat(
      "[launch] ", source.location.empty() ? field : source.location);
}

ResolvedConfig resolve_launch_config(
    const ConfigLayer& flags,
    const EnvLookup& env) {
  ResolvedConfig config;
  ConfigLayer from_file;
  if (auto file = find_file(flags, env)) {
    config.file = file->path;
    config.foreign = std::move(file->foreign);
    config.notes = std::move(file->notes);
    from_file = std::move(file->values);
  }
  const ConfigLayer from_env = read_environment(env);
  const std::pair<SourceKind, const ConfigLayer*> layers[] = {
      {SourceKind::kFlag, &flags},
      {SourceKind::kEnvironment, &from_env},
      {SourceKind::kFile, &from_file},
  };
  for (const Field& field : launch_fields()) {
    const std::string name(field.name);
    Source& source = config.sources[name];
    for (const auto& [kind, layer] : layers) {
      if (const auto found = layer->find(name); found != layer->end()) {
        assign_field(config.values, field, found->second);
        source = {kind, found->second.location};
        break;
      }
    }
  }
  if (!config.values.num_processes &&
      config.kind_of("num_processes") == SourceKind::kFile) {
    config.notes.push_back(str_cat(
        "num_processes: -1 (",
        config.sources["num_processes"].location,
        ") means one process per GPU, or one on the CPU"));
  }
  resolve_device(config);
  resolve_parallelism(config);
  drop_overridden(config);
  note_unused_sharding(config, "use_fsdp", "FSDP");
  note_unused_sharding(config, "use_deepspeed", "DEEPSPEED");
  for (const IgnoredFlag& flag : ignored_flags()) {
    const auto found = flags.find(std::string(flag.name));
    if (found != flags.end() && found->second.text != flag.usual) {
      config.notes.push_back(
          str_cat("--", flag.name, " has no effect: ", flag.reason));
    }
  }
  return config;
}

void check_launchable(const ResolvedConfig& config) {
  if (!config.foreign.empty()) {
    const ForeignSetting& first = config.foreign.front();
    throw ConfigError(str_cat(
        "[",
        first.location,
        "] ",
        first.key,
        first.text.empty() ? "" : ": " + first.text,
        ": ",
        first.advice));
  }
  check_pairs(config);
  check_sharding(config);
  check_parallelism(config);
  check_machines(config);
}

} // namespace accelerate
