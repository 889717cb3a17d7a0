// SPDX-License-Identifier: Apache-2.0
// Creates models that do not fit into the memory of one rank. Their weights are
// allocated only when each rank loads its shard.
#pragma once

#include <torch/nn/module.h>

#include <filesystem>
#include <memory>

#include "accelerate/export.h"

namespace accelerate {

/// During the lifetime of this object, the weights of modules that this thread
/// creates are not allocated, whatever the type of the module. Instead, the
/// object records how each tensor is created, and `prepare` allocates and fills
/// the tensors later. If every rank holds the whole model, `prepare` allocates
/// all of them. In stage 3 of sharding (`sharding.h`), `prepare` allocates one
/// unit at a time, and each rank keeps only its shard.
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
///   `load_weights`), or otherwise those of the constructor. Random values are
///   drawn from the generator as usual, but differ from those of a model that
///   was created with memory.
/// - Buffers get the values that their constructor computes, in `prepare`.
/// - A tensor that is neither a parameter nor a buffer stays empty. Register
///   it, or create it with a device (`torch::arange(8, torch::kCPU)`), which
///   allocates it normally. Calling `item()` on a tensor works.
/// - Before `prepare`, you may change weights in place, cast them
///   (`module->to(torch::kBFloat16)`) and tie them. Reading a weight throws.
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
  /// counterpart in the module. If false, such parameters keep their values and
  /// such tensors are not read.
  bool strict = true;
};

/// Loads the weights of a module by name from a safetensors file, an index or a
/// folder (see `safetensors::Checkpoint`). The weights are cast to the dtypes
/// of the module. Buffers that are missing in the files keep their values. If
/// the module was created under `EmptyWeights`, nothing is read before
/// `prepare`. Until then, the files must exist and be the same on all ranks.
///
/// Call it before `prepare`. If tensors do not match, throws a `UsageError`
/// that names all of them, and loads nothing. Also throws the same errors as
/// `safetensors::Checkpoint`.
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
