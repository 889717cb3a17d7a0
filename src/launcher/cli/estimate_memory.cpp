// SPDX-License-Identifier: Apache-2.0
// `accelerate estimate-memory`: the memory of a model, without loading it.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "accelerate/error.h"
#include "accelerate/process.h"
#include "core/base/str.h"
#include "core/config/env_bridge.h"
#include "core/sizing/model_sizes.h"
#include "launcher/cli/commands.h"
#include "launcher/cli/help.h"

namespace accelerate {
namespace {

struct EstimateOptions {
  std::string path = {};
  std::vector<std::string> dtypes = {"float32", "float16", "int8", "int4"};
  bool as_json = false;
  /// The number of processes of a sharded run; 0 if there is none.
  int num_processes = 0;
  /// Copies of the model; each is sharded over its share of the processes.
  int num_replicas = 1;
};

// "417.65 MB": powers of 1024, two digits, no trailing zeros, as in the
// original.
std::string format_bytes(double bytes) {
  static constexpr const char* kUnits[] = {
      "bytes", "KB", "MB", "GB", "TB", "PB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  char text[64];
  std::snprintf(text, sizeof(text), "%.2f", bytes);
  std::string number = text;
  if (number.ends_with('0')) {
    number.pop_back();
  }
  return number + ' ' + kUnits[unit];
}

using Row = std::vector<std::string>;

std::string repeat(const char* text, std::size_t count) {
  std::string out;
  for (std::size_t i = 0; i < count; ++i) {
    out += text;
  }
  return out;
}

// The width in characters rather than bytes, because names may be in any
// script.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) {
        return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
      }));
}

std::string centered(const std::string& text, std::size_t width) {
  const std::size_t space = width - std::min(width, width_of(text));
  return std::string(space / 2, ' ') + text +
         std::string(space - space / 2, ' ');
}

class Table {
 public:
  Table(std::string title, std::vector<Row> rows)
      : title_(std::move(title)), rows_(std::move(rows)) {
    for (std::size_t i = 0; i < rows_[0].size(); ++i) {
      std::size_t width = 0;
      for (const auto& row : rows_) {
        width = std::max(width, width_of(row[i]) + 2);
      }
      widths_.push_back(width);
      inner_ += width;
    }
    inner_ += widths_.size() - 1;
    if (width_of(title_) + 2 > inner_) {
      widths_.back() += width_of(title_) + 2 - inner_;
      inner_ = width_of(title_) + 2;
    }
  }

  std::string str() const {
    std::string out = line("┌", "─", "┐") + "│" + centered(title_, inner_) +
                      "│\n" + line("├", "┬", "┤") + cells(rows_[0]) +
                      line("├", "┼", "┤");
    for (std::size_t i = 1; i < rows_.size(); ++i) {
      out += cells(rows_[i]);
    }
    return out + line("└", "┴", "┘");
  }

 private:
  std::string line(const char* left, const char* middle, const char* right)
      const {
    std::string out = left;
    for (std::size_t i = 0; i < widths_.size(); ++i) {
      out += (i == 0 ? "" : middle) + repeat("─", widths_[i]);
    }
    return out + right + '\n';
  }

  std::string cells(const Row& row) const {
    std::string out = "│";
    for (std::size_t i = 0; i < row.size(); ++i) {
      out += centered(row[i], widths_[i]) + "│";
    }
    return out + '\n';
  }

  std::string title_;
  std::vector<Row> rows_;
  std::vector<std::size_t> widths_;
  std::size_t inner_ = 0;
};

std::string as_table(
    const std::string& path,
    const std::vector<MemoryEstimate>& estimates) {
  std::vector<Row> rows = {
      {"dtype", "Largest Layer", "Total Size", "Training using Adam"}};
  for (const auto& estimate : estimates) {
    rows.push_back(
        {estimate.dtype,
         format_bytes(estimate.largest_layer_bytes),
         format_bytes(estimate.total_bytes),
         estimate.training_bytes ? format_bytes(*estimate.training_bytes)
                                 : "N/A"});
  }
  return Table(
             str_cat("Memory Usage for loading `", path, "`"), std::move(rows))
      .str();
}

std::string as_table(
    const EstimateOptions& options,
    const std::vector<ShardedEstimate>& estimates) {
  std::vector<Row> rows = {
      {"stage", "Parameters", "Gradients", "AdamW", "Together"}};
  for (const auto& estimate : estimates) {
    rows.push_back(
        {estimate.stage,
         format_bytes(estimate.parameter_bytes),
         format_bytes(estimate.gradient_bytes),
         format_bytes(estimate.optimizer_bytes),
         format_bytes(estimate.total_bytes())});
  }
  return Table(
             str_cat(
                 "Training in float32 on each of ",
                 options.num_processes,
                 " processes",
                 options.num_replicas > 1
                     ? str_cat(" (", options.num_replicas, " replicas)")
                     : std::string(),
                 ", without activations"),
             std::move(rows))
      .str();
}

// Writes whole numbers as integers. Only int4 can have fractions of bytes.
nlohmann::ordered_json json_bytes(double bytes) {
  const auto whole = static_cast<std::int64_t>(bytes);
  if (static_cast<double>(whole) == bytes) {
    return whole;
  }
  return bytes;
}

nlohmann::ordered_json as_json(const std::vector<ShardedEstimate>& estimates) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const auto& estimate : estimates) {
    rows.push_back(
        {{"stage", estimate.stage},
         {"parameter_bytes", json_bytes(estimate.parameter_bytes)},
         {"gradient_bytes", json_bytes(estimate.gradient_bytes)},
         {"optimizer_bytes", json_bytes(estimate.optimizer_bytes)},
         {"total_bytes", json_bytes(estimate.total_bytes())}});
  }
  return rows;
}

std::string as_json(
    const ModelSizes& sizes,
    const std::vector<MemoryEstimate>& estimates,
    const EstimateOptions& options,
    const std::vector<ShardedEstimate>& sharding) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const auto& estimate : estimates) {
    nlohmann::ordered_json row = {
        {"dtype", estimate.dtype},
        {"largest_layer_bytes", json_bytes(estimate.largest_layer_bytes)},
        {"total_bytes", json_bytes(estimate.total_bytes)},
        {"training_bytes", nullptr}};
    if (estimate.training_bytes) {
      row["training_bytes"] = json_bytes(*estimate.training_bytes);
    }
    rows.push_back(std::move(row));
  }
  nlohmann::ordered_json out = {
      {"model_type", sizes.model_type},
      {"is_known", sizes.is_known},
      {"largest_layers", sizes.largest_layers},
      {"estimates", std::move(rows)}};
  if (!sharding.empty()) {
    out["num_processes"] = options.num_processes;
    out["num_replicas"] = options.num_replicas;
    out["sharding"] = as_json(sharding);
  }
  return out.dump(2) + '\n';
}

namespace fs = std::filesystem;

/// The folder of a model "org/name" in the local Hub cache: the snapshot of its
/// main branch, or any other; empty if the model is not there.
fs::path find_in_hub_cache(const std::string& name, const fs::path& cache) {
  std::string entry = "models--";
  for (const char c : name) {
    entry += c == '/' ? "--" : std::string(1, c);
  }
  const fs::path folder = cache / entry / "snapshots";
  std::string revision;
  std::ifstream(cache / entry / "refs" / "main") >> revision;
  std::error_code ignored;
  if (!revision.empty() && fs::is_directory(folder / revision, ignored)) {
    return folder / revision;
  }
  const fs::directory_iterator first(folder, ignored);
  return first == fs::directory_iterator() ? fs::path() : first->path();
}

/// The path itself, or the folder of a downloaded model of the Hub.
fs::path find_model(const std::string& model) {
  std::error_code ignored;
  if (fs::exists(model, ignored)) {
    return model;
  }
  const fs::path cache = hub_cache(system_env);
  const fs::path found = find_in_hub_cache(model, cache);
  if (found.empty()) {
    throw ConfigError(str_cat(
        "[estimate-memory] '",
        model,
        "' is not a file, a folder or a model in the Hub cache (",
        cache.string(),
        "). Download the model first (`hf download ORG/NAME`), or pass the "
        "folder of its safetensors files"));
  }
  return found;
}

/// Explains why shards take more memory than whole parameters; empty if they do
/// not.
std::string explain_sharding(
    const ModelSizes& sizes,
    const std::vector<ShardedEstimate>& estimates) {
  const auto total = [&](std::string_view stage) {
    return std::find_if(
               estimates.begin(),
               estimates.end(),
               [&](const auto& one) { return one.stage == stage; })
        ->total_bytes();
  };
  if (total("3") <= total("DDP")) {
    return {};
  }
  return str_cat(
      "Stage 3 needs more memory than DDP because this model is small: in "
      "addition to its\nshard, each process holds several full copies of the "
      "largest shard unit (",
      format_bytes(sizes.largest_unit_bytes),
      ") while it computes.\n");
}

void check_replicas(const EstimateOptions& options) {
  if (options.num_replicas > 1 &&
      options.num_processes % options.num_replicas != 0) {
    throw ConfigError(str_cat(
        "[estimate-memory] ",
        options.num_processes,
        " processes cannot hold ",
        options.num_replicas,
        " replicas of the same size. Use a multiple of ",
        options.num_replicas,
        " for --num_processes"));
  }
}

void estimate(const EstimateOptions& options) {
  check_replicas(options);
  const ModelSizes sizes = measure_model(find_model(options.path));
  std::vector<MemoryEstimate> estimates;
  for (const auto& dtype : options.dtypes) {
    estimates.push_back(estimate_memory(sizes, dtype));
  }
  if (!sizes.is_known) {
    std::cerr << "accelerate: "
              << (sizes.model_type.empty()
                      ? "found no config.json with a model_type"
                      : "the model_type '" + sizes.model_type + "' is unknown")
              << ". Each numbered module is counted as a layer, and unsaved "
                 "buffers are left out\n";
  }
  std::vector<ShardedEstimate> sharding;
  if (options.num_processes > 0) {
    sharding = estimate_sharding(
        sizes,
        MeshShape({.replicate = options.num_replicas}, options.num_processes));
  }
  if (options.as_json) {
    std::cout << as_json(sizes, estimates, options, sharding);
    return;
  }
  std::cout << as_table(options.path, estimates);
  if (!sharding.empty()) {
    std::cout << as_table(options, sharding)
              << explain_sharding(sizes, sharding);
  }
}

} // namespace

void add_estimate_memory_command(CLI::App& app, int& /*exit_code*/) {
  CLI::App* command = app.add_subcommand(
      "estimate-memory", "Show how much memory a model needs");
  command->group(kModelCommands);
  auto options = std::make_shared<EstimateOptions>();
  command
      ->add_option(
          "path",
          options->path,
          "Folder with safetensors files and config.json, a single safetensors "
          "file, or the Hub name of a downloaded model (org/name)")
      ->required();
  command->add_option("--dtypes", options->dtypes, "Data types to show")
      ->type_name("NAME")
      ->check(one_of({"float32", "float16", "int8", "int4"}))
      ->capture_default_str();
  command
      ->add_option(
          "--num_processes,--num-processes",
          options->num_processes,
          "Also show per-process memory for each ZeRO stage with N processes")
      ->type_name("N")
      ->check(whole_number_from(2, 1'000'000));
  command
      ->add_option(
          "--num_replicas,--num-replicas",
          options->num_replicas,
          "With --num_processes: number of copies of the model, each sharded "
          "across its share of the processes (HSDP)")
      ->type_name("N")
      ->check(whole_number_from(1, 1'000'000))
      ->needs("--num_processes");
  command->add_flag(
      "--json", options->as_json, "Print JSON, with sizes in bytes");
  command->callback([options] { estimate(*options); });
}

} // namespace accelerate
