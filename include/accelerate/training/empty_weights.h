// SPDX-License-Identifier: Apache-2.0
// Models larger than the memory of one rank: built without memory, then loaded
// shard by shard.
#pragma once

#include <torch/nn/module.h>

#include <filesystem>
#include <memory>

#include "accelerate/export.h"

namespace accelerate {

/// During its lifetime, modules of any type that this thread creates get no
/// memory. The creation of each tensor is recorded, and `prepare` materialises
/// it: as a whole if every rank holds the whole model; in stage 3 of sharding
/// (`sharding.h`) unit by unit, and each rank keeps its shard.
///
///     std::shared_ptr<accelerate::models::PretrainedModel> llama;
///     {
///       const accelerate::EmptyWeights empty;
///       llama = accelerate::models::AutoModelForCausalLM::from_pretrained(
///           folder); // Reads no weights.
///     }
///     auto prepared = accelerator.prepare(llama); // Reads one shard.
///
/// - Parameters get the values in the files (`from_pretrained`,
///   `load_weights`), otherwise those of the constructor. Random values are
///   drawn from the generator as usual, but differ from those of a model that
///   was created with memory.
/// - Buffers get the values that their constructor computes, in `prepare`.
/// - A tensor that is neither a parameter nor a buffer stays empty: register
///   it, or create it with a device (`torch::arange(8, torch::kCPU)`),
///   which allocates it normally. `item()` of a tensor works.
/// - Before `prepare`, you may change weights in place, cast them
///   (`module->to(torch::kBFloat16)`) and tie them; reading one throws.
/// - Code that writes to memory directly (`data_ptr()`) needs a tensor with an
///   explicit device.
class ACCELERATE_API EmptyWeights {
 public:
  EmptyWeights();
  ~EmptyWeights();
  EmptyWeights(const EmptyWeights&) = delete;
  EmptyWeights& operator=(const EmptyWeights&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct LoadWeightsOptions {
  /// Reject files that lack a parameter, or contain tensors without a
  /// counterpart in the module. Otherwise such parameters keep their values and
  /// such tensors are not read.
  bool strict = true;
};

/// Loads the weights of a module from a safetensors file, an index or a folder
/// (`safetensors::Checkpoint`), by name, cast to the module's dtypes. Buffers
/// that are missing in the files keep their values. If the module was created
/// without memory, nothing is read before `prepare`; until then the files must
/// exist and be the same on all ranks.
///
/// Call it before `prepare`. Throws `UsageError` naming all tensors that do not
/// match, before loading any, and whatever `safetensors::Checkpoint` throws.
///
///     {
///       const accelerate::EmptyWeights empty;
///       model = torch::nn::Linear(30'000, 30'000);
///     }
///     accelerate::load_weights(*model, "pretrained");
ACCELERATE_API void load_weights(
    torch::nn::Module& module,
    const std::filesystem::path& path,
    const LoadWeightsOptions& options = {});

} // namespace accelerate
