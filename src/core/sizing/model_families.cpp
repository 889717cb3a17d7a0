// SPDX-License-Identifier: Apache-2.0
#include "core/sizing/model_families.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace accelerate {
namespace {

using Buffers = UnsavedBuffers;

// `blocks` are the paths of the classes in transformers' _no_split_modules.
const std::vector<ModelFamily>& families() {
  static const std::vector<ModelFamily> table = {
      {"bert", {"embeddings", "encoder.layer.*"}, Buffers::kPositionAndTypeIds},
      {"roberta",
       {"embeddings", "encoder.layer.*"},
       Buffers::kPositionAndTypeIds},
      {"xlm-roberta",
       {"embeddings", "encoder.layer.*"},
       Buffers::kPositionAndTypeIds},
      {"electra", {}, Buffers::kPositionAndTypeIds},
      {"albert", {}, Buffers::kPositionAndTypeIds},
      {"distilbert", {}, Buffers::kPositionIds},
      {"mpnet", {}, Buffers::kPositionIds},
      {"deberta-v2", {}, Buffers::kPositionIds},
      {"vit", {"embeddings", "layers.*", "encoder.layer.*"}, Buffers::kNone},
      {"gpt2", {"h.*"}, Buffers::kNone},
      {"opt", {"decoder.layers.*"}, Buffers::kNone},
      {"gpt_neox", {"layers.*"}, Buffers::kRotary},
      {"llama", {"layers.*"}, Buffers::kRotary},
      {"mistral", {"layers.*"}, Buffers::kRotary},
      {"mixtral", {"layers.*"}, Buffers::kRotary},
      {"phi", {"layers.*"}, Buffers::kRotary},
      {"qwen2", {"layers.*"}, Buffers::kRotary},
      {"qwen3", {"layers.*"}, Buffers::kRotary},
      {"gemma2", {"layers.*"}, Buffers::kRotaryAndEmbedScale},
  };
  return table;
}

// The part before `ending` in the first tensor name with that suffix.
std::string path_before(
    const std::vector<safetensors::TensorView>& tensors,
    std::string_view ending) {
  for (const auto& tensor : tensors) {
    const std::string name = "." + tensor.name;
    if (name.ends_with("." + std::string(ending))) {
      return tensor.name.substr(0, tensor.name.size() - ending.size());
    }
  }
  return "";
}

double number_or(const nlohmann::json& config, const char* key, double other) {
  const auto found = config.find(key);
  return found != config.end() && found->is_number() ? found->get<double>()
                                                     : other;
}

// The bytes of rotary frequencies: one float32 per two rotated channels of a
// head. Models store them twice.
std::int64_t rotary_bytes(const nlohmann::json& config) {
  const double hidden = number_or(config, "hidden_size", 0);
  const double heads = number_or(config, "num_attention_heads", 1);
  const double head = number_or(config, "head_dim", hidden / heads);
  double fraction = number_or(
      config, "partial_rotary_factor", number_or(config, "rotary_pct", 1.0));
  if (const auto rope = config.find("rope_parameters");
      rope != config.end() && rope->is_object()) {
    fraction = number_or(*rope, "partial_rotary_factor", fraction);
  }
  const auto rotated = static_cast<std::int64_t>(head * fraction);
  return (rotated + 1) / 2 * 4;
}

void add_id_buffers(
    const std::vector<safetensors::TensorView>& tensors,
    const nlohmann::json& config,
    bool with_types,
    std::vector<UnsavedBuffer>& out) {
  const std::string path =
      path_before(tensors, "embeddings.word_embeddings.weight");
  const auto positions = static_cast<std::int64_t>(
      number_or(config, "max_position_embeddings", 512));
  out.push_back({path + "embeddings.position_ids", positions * 8});
  if (with_types) {
    out.push_back({path + "embeddings.token_type_ids", positions * 8});
  }
}

} // namespace

const ModelFamily* find_family(const std::string& model_type) {
  const auto& table = families();
  const auto found =
      std::find_if(table.begin(), table.end(), [&](const auto& family) {
        return family.model_type == model_type;
      });
  return found == table.end() ? nullptr : &*found;
}

std::vector<UnsavedBuffer> unsaved_buffers(
    const ModelFamily& family,
    const std::vector<safetensors::TensorView>& tensors,
    const nlohmann::json& config) {
  std::vector<UnsavedBuffer> out;
  const bool has_types = family.buffers == Buffers::kPositionAndTypeIds;
  if (has_types || family.buffers == Buffers::kPositionIds) {
    add_id_buffers(tensors, config, has_types, out);
  }
  const bool has_scale = family.buffers == Buffers::kRotaryAndEmbedScale;
  if (has_scale || family.buffers == Buffers::kRotary) {
    const bool is_neox = family.model_type == "gpt_neox";
    const std::string embedding = is_neox ? "embed_in" : "embed_tokens";
    const std::string path = path_before(tensors, embedding + ".weight");
    out.push_back({path + "rotary_emb.inv_freq", rotary_bytes(config)});
    out.push_back(
        {path + "rotary_emb.original_inv_freq", rotary_bytes(config)});
    if (has_scale) {
      out.push_back({path + "embed_tokens.embed_scale", 4});
    }
  }
  return out;
}

} // namespace accelerate
