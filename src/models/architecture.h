// SPDX-License-Identifier: Apache-2.0
// One architecture: its name in files and how its models are built.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "accelerate/models.h"

namespace accelerate::models {

enum class Task { kBase, kSequenceClassification, kMaskedLM, kCausalLM };

/// Tied weights: the name in files of a parameter that has another name here.
struct TiedName {
  std::string name;
  std::string parameter;
};

/// The model of an architecture for one task.
struct Variant {
  Task task;
  /// The class name in transformers, and in `architectures` of `config.json`.
  const char* class_name;
  std::shared_ptr<PretrainedModel> (*make)(const ModelConfig& config);
  /// The tied weights if the configuration ties weights
  /// (`tie_word_embeddings`).
  std::vector<TiedName> tied = {};
};

struct Architecture {
  const char* model_type;
  /// The prefix of the backbone in a model with a head.
  const char* base_prefix;
  /// The default of `tie_word_embeddings`.
  bool is_tied_by_default;
  std::vector<Variant> variants;
  /// Suffixes of names in old files that are no longer used.
  std::vector<std::string> ignored_endings = {};
};

/// The functions of the architectures, one per file.
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
