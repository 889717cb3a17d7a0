// SPDX-License-Identifier: Apache-2.0
// Models that are larger than the memory of one rank: made without memory,
// their weights read in parts.
#pragma once

#include <torch/nn/module.h>

#include <filesystem>
#include <memory>

#include "accelerate/export.h"

namespace accelerate {

/// While it lives, modules that this thread makes have no memory, whatever
/// their type. How each tensor is made is noted, and `prepare` makes it: whole
/// where every rank holds the whole model, and in stage 3 of sharding
/// (`sharding.h`) unit by unit, of which each rank keeps its part.
///
///     std::shared_ptr<accelerate::models::PretrainedModel> llama;
///     {
///       const accelerate::EmptyWeights empty;
///       llama = accelerate::models::AutoModelForCausalLM::from_pretrained(
///           folder); // Reads no weights.
///     }
///     auto prepared = accelerator.prepare(llama); // Each rank reads its part.
///
/// - Parameters are what the files say (`from_pretrained`, `load_weights`),
///   else what the constructor says. Random ones depend on the generator as
///   ever, but are other numbers than those of a model made with memory.
/// - Buffers are what their constructor computes; they are made in `prepare`.
/// - A tensor that is neither a parameter nor a buffer stays empty: register
///   it, or make it with a device (`torch::arange(8, torch::kCPU)`), which is
///   left as it is. `item()` of a tensor works.
/// - Between here and `prepare` weights may be changed in place, cast
///   (`module->to(torch::kBFloat16)`) and tied; reading one is an exception.
/// - Memory that is written to by hand (`data_ptr()`) must have a device.
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
  /// Refuse files that lack a parameter, or have tensors that the module has no
  /// place for. Else parameters stay as they are, and the tensors unread.
  bool strict = true;
};

/// Gives a module the weights of a safetensors file, an index or a folder
/// (`safetensors::Checkpoint`), by name, cast to the module's dtypes. Buffers
/// that the files lack stay as they are. Where the module was made without
/// memory, nothing is read before `prepare`, and the files must stay until
/// then, the same ones on all ranks.
///
/// Before `prepare`. Throws `UsageError` naming all tensors that do not fit,
/// before the first is loaded, and what `safetensors::Checkpoint` throws.
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
