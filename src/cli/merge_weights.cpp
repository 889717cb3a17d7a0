// SPDX-License-Identifier: Apache-2.0
// `accelerate merge-weights`: joins the files of a model into one.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "accelerate/safetensors_index.h"
#include "base/str.h"
#include "cli/commands.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;

struct MergeOptions {
  std::string source = {};
  std::string target = {};
};

void check_format(const fs::path& source) {
  std::error_code ignored;
  if (fs::exists(source / ".metadata", ignored)) {
    throw ConfigError(str_cat(
        "[merge-weights] '",
        source.string(),
        "' is a checkpoint of torch.distributed, which is not read without "
        "torch; give a folder with safetensors files"));
  }
}

void merge(const MergeOptions& options) {
  check_format(options.source);
  const safetensors::Checkpoint checkpoint(options.source);
  fs::path target = options.target;
  if (target.extension() != ".safetensors") {
    std::error_code error;
    fs::create_directories(target, error);
    if (error) {
      throw SystemError(str_cat(
          "[merge-weights] the folder '",
          target.string(),
          "' cannot be made: ",
          error.message(),
          "; give another one"));
    }
    target /= safetensors::kWeightsName;
  }
  safetensors::merge(checkpoint, target);
  std::cerr << "accelerate: " << checkpoint.files().size()
            << (checkpoint.files().size() == 1 ? " file" : " files") << " with "
            << checkpoint.tensors().size() << " tensors merged into '"
            << target.string() << "'\n";
}

} // namespace

void add_merge_weights_command(CLI::App& app, int& /*exit_code*/) {
  CLI::App* command = app.add_subcommand(
      "merge-weights", "Joins sharded safetensors files into one");
  auto options = std::make_shared<MergeOptions>();
  command
      ->add_option(
          "checkpoint_dir",
          options->source,
          "Folder with model.safetensors.index.json, or the index itself")
      ->required();
  command
      ->add_option(
          "output_path",
          options->target,
          "Folder for model.safetensors, or a file that ends in .safetensors")
      ->required();
  command->callback([options] { merge(*options); });
}

} // namespace accelerate
