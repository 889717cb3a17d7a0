// SPDX-License-Identifier: Apache-2.0
// `accelerate merge-weights`: merges the files of a model into one.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "accelerate/files/safetensors_index.h"
#include "core/base/printable.h"
#include "core/base/str.h"
#include "core/checkpoint/saved_model.h"
#include "core/safetensors/distributed_checkpoint.h"
#include "launcher/cli/commands.h"
#include "launcher/cli/help.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;

struct MergeOptions {
  std::string source = {};
  std::string target = {};
};

constexpr const char* kFileEnd = ".safetensors";

fs::path folder_of(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : ".";
}

fs::path prepared_target(const MergeOptions& options) {
  fs::path target = options.target;
  if (target.extension() != kFileEnd) {
    std::error_code error;
    fs::create_directories(target, error);
    if (error) {
      throw SystemError(str_cat(
          "[merge-weights] cannot create the folder '",
          target.string(),
          "': ",
          error.message(),
          "; choose another one"));
    }
    target /= safetensors::kWeightsName;
  }
  return target;
}

void say(std::size_t num_files, std::size_t num_tensors, const fs::path& to) {
  std::cerr << "accelerate: " << num_files
            << (num_files == 1 ? " file" : " files") << " with " << num_tensors
            << " tensors merged into '" << to.string() << "'\n";
}

void merge_distributed(const MergeOptions& options) {
  const safetensors::DistributedCheckpoint checkpoint(options.source);
  const fs::path target = prepared_target(options);
  safetensors::write_file(
      target, checkpoint.tensors(), {.metadata = {{"format", "pt"}}});
  for (const std::string& name : checkpoint.left_out()) {
    std::cerr << "accelerate: '" << printable(name)
              << "' is not a tensor and was left out\n";
  }
  say(checkpoint.num_files(), checkpoint.tensors().size(), target);
}

void merge_saved_state(const MergeOptions& options) {
  const auto merge_all = [&](const CheckpointReader& checkpoint) {
    const auto names = SavedModel::names_in(checkpoint);
    if (names.empty()) {
      throw DataError(str_cat(
          "[merge-weights] the checkpoint '",
          options.source,
          "' contains no model; pass one that save_state wrote for a prepared "
          "model"));
    }
    const bool is_file = fs::path(options.target).extension() == kFileEnd;
    if (is_file && names.size() > 1) {
      throw UsageError(str_cat(
          "[merge-weights] the checkpoint '",
          options.source,
          "' has ",
          names.size(),
          " models, which cannot be merged into the single file '",
          options.target,
          "'; pass a folder"));
    }
    std::vector<SavedModel> models; // read all before writing a file
    for (const auto& name : names) {
      models.emplace_back(checkpoint, name);
    }
    const fs::path target = prepared_target(options);
    std::error_code ignored; // if there is no such folder
    if (fs::equivalent(folder_of(target), checkpoint.folder(), ignored)) {
      throw UsageError(str_cat(
          "[merge-weights] '",
          target.string(),
          "' would be inside the checkpoint itself; choose another folder"));
    }
    for (const auto& model : models) {
      const auto file =
          is_file ? target
                  : folder_of(target) / str_cat(model.name(), kFileEnd);
      model.write(file);
      say(model.num_files(), model.num_tensors(), file);
    }
  };
  read_checkpoint(options.source, merge_all);
}

void merge(const MergeOptions& options) {
  if (is_checkpoint(options.source) || has_rank_shards(options.source)) {
    merge_saved_state(options);
    return;
  }
  if (safetensors::is_distributed_checkpoint(options.source)) {
    merge_distributed(options);
    return;
  }
  const safetensors::Checkpoint checkpoint(options.source);
  const fs::path target = prepared_target(options);
  safetensors::merge(checkpoint, target);
  say(checkpoint.files().size(), checkpoint.tensors().size(), target);
}

} // namespace

void add_merge_weights_command(CLI::App& app, int& /*exit_code*/) {
  CLI::App* command = app.add_subcommand(
      "merge-weights",
      "Merge the files of a sharded model or checkpoint into one");
  command->group(kModelCommands);
  auto options = std::make_shared<MergeOptions>();
  command
      ->add_option(
          "checkpoint_dir",
          options->source,
          "Folder with model.safetensors.index.json, the index itself, or a "
          "checkpoint (from save_state, or with .metadata and .distcp files)")
      ->required();
  command
      ->add_option(
          "output_path",
          options->target,
          "Folder for model.safetensors, or a file whose name ends in "
          ".safetensors")
      ->required();
  command->callback([options] { merge(*options); });
}

} // namespace accelerate
