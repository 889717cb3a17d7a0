// SPDX-License-Identifier: Apache-2.0
// One architecture: what it is called in files and how its models are made.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "accelerate/models.h"

namespace accelerate::models {

enum class Task { kBase, kSequenceClassification, kMaskedLM, kCausalLM };

/// A name in files for a parameter that has another name here: weights that
/// are used twice.
struct TiedName {
  std::string name;
  std::string parameter;
};

/// The model of an architecture for one task.
struct Variant {
  Task task;
  /// As in transformers, and in `architectures` of `config.json`.
  const char* class_name;
  std::shared_ptr<PretrainedModel> (*make)(const ModelConfig& config);
  /// Only where the configuration ties weights (`tie_word_embeddings`).
  std::vector<TiedName> tied = {};
};

struct Architecture {
  const char* model_type;
  /// Under which a model with a head has the backbone.
  const char* base_prefix;
  /// `tie_word_embeddings` where the configuration does not say.
  bool is_tied_by_default;
  std::vector<Variant> variants;
  /// Endings of names in old files that stand for nothing today.
  std::vector<std::string> ignored_endings = {};
};

/// One function per file of an architecture.
const Architecture& bert_architecture();
const Architecture& distilbert_architecture();
const Architecture& gpt2_architecture();
const Architecture& llama_architecture();
const Architecture& roberta_architecture();

using ArchitectureFunction = const Architecture& (*)();
inline constexpr ArchitectureFunction kArchitectures[] = {
    bert_architecture,
    distilbert_architecture,
    gpt2_architecture,
    llama_architecture,
    roberta_architecture,
};

} // namespace accelerate::models
