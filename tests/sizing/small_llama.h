// SPDX-License-Identifier: Apache-2.0
// A model folder whose sizes can be computed by hand.
#pragma once

#include "accelerate/files/safetensors_index.h"
#include "safetensors/reference.h"

namespace accelerate::testing {

/// Two Llama layers of 24 elements each, an embedding of 20, a norm of 2.
inline std::filesystem::path write_llama(
    const TempDir& folder,
    safetensors::Dtype dtype,
    std::size_t element) {
  PatternTensors tensors;
  const auto add = [&](const std::string& name, std::int64_t count) {
    tensors.add(
        name, dtype, {count}, element * static_cast<std::size_t>(count));
  };
  add("model.embed_tokens.weight", 20);
  for (const std::string layer : {"0", "1"}) {
    add("model.layers." + layer + ".self_attn.q_proj.weight", 16);
    add("model.layers." + layer + ".mlp.up_proj.weight", 8);
  }
  add("model.norm.weight", 2);
  safetensors::save_sharded(folder.path(), tensors.views());
  folder.write(
      "config.json",
      R"({"model_type":"llama","hidden_size":16,"num_attention_heads":2})");
  return folder.path();
}

} // namespace accelerate::testing
