// SPDX-License-Identifier: Apache-2.0
// Creates models from configurations.
#include <algorithm>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "models/architecture.h"
#include "models/model_loader.h"

namespace accelerate::models {
namespace {

const char* auto_class(Task task) {
  switch (task) {
    case Task::kBase:
      return "AutoModel";
    case Task::kSequenceClassification:
      return "AutoModelForSequenceClassification";
    case Task::kMaskedLM:
      return "AutoModelForMaskedLM";
    case Task::kCausalLM:
      break;
  }
  return "AutoModelForCausalLM";
}

const Architecture& find_architecture(const ModelConfig& config) {
  const std::string type = config.model_type();
  std::string known;
  for (const auto architecture_of : kArchitectures) {
    const Architecture& architecture = architecture_of();
    if (type == architecture.model_type) {
      return architecture;
    }
    known += str_cat(known.empty() ? "" : ", ", architecture.model_type);
  }
  config.refuse(str_cat(
      "The 'model_type' '",
      type,
      "' is not supported. Supported types: ",
      known,
      ". docs/adding.md shows how to add a model type"));
}

const Variant& find_variant(
    const ModelConfig& config,
    const Architecture& architecture,
    Task task) {
  std::string known;
  for (const auto& variant : architecture.variants) {
    if (variant.task == task) {
      return variant;
    }
    known += str_cat(known.empty() ? "" : ", ", auto_class(variant.task));
  }
  config.refuse(str_cat(
      architecture.model_type,
      " has no ",
      auto_class(task),
      ". It has ",
      known));
}

void check_problem_type(const ModelConfig& config) {
  const std::string type = config.text("problem_type", "");
  constexpr const char* kKnown[] = {
      "",
      "regression",
      "single_label_classification",
      "multi_label_classification"};
  if (std::find(std::begin(kKnown), std::end(kKnown), type) ==
      std::end(kKnown)) {
    config.refuse(str_cat(
        "'problem_type' is '",
        type,
        "', expected regression, single_label_classification or "
        "multi_label_classification"));
  }
}

ModelConfig with_options(ModelConfig config, const PretrainedOptions& options) {
  const auto num_names = static_cast<int64_t>(options.labels.size());
  if (options.num_labels && num_names > 0 && num_names != *options.num_labels) {
    throw UsageError(str_cat(
        "[from_pretrained] num_labels is ",
        *options.num_labels,
        ", but there are ",
        num_names,
        " labels. Set only one of them"));
  }
  if (options.num_labels && *options.num_labels < 1) {
    throw UsageError(str_cat(
        "[from_pretrained] num_labels is ",
        *options.num_labels,
        ", expected at least 1"));
  }
  if (num_names > 0) {
    config.set_labels(options.labels);
  } else if (options.num_labels && *options.num_labels != config.num_labels()) {
    std::vector<std::string> names;
    for (int64_t i = 0; i < *options.num_labels; ++i) {
      names.push_back(str_cat("LABEL_", i));
    }
    config.set_labels(names);
  }
  if (!options.problem_type.empty()) {
    config.set("problem_type", options.problem_type);
  }
  check_problem_type(config);
  return config;
}

struct CreatedModel {
  const Architecture& architecture;
  const Variant& variant;
  std::shared_ptr<PretrainedModel> model;
};

CreatedModel
make(Task task, const ModelConfig& given, const PretrainedOptions& options) {
  const auto config = with_options(given, options);
  const auto& architecture = find_architecture(config);
  const auto& variant = find_variant(config, architecture, task);
  return {architecture, variant, variant.make(config)};
}

std::shared_ptr<PretrainedModel> read_model(
    Task task,
    const std::filesystem::path& folder,
    const PretrainedOptions& options) {
  const auto made = make(task, ModelConfig::read(folder), options);
  ModelLoader{*made.model, made.architecture, made.variant, options}.load(
      folder);
  made.model->eval();
  return made.model;
}

std::shared_ptr<PretrainedModel> new_model(
    Task task,
    const ModelConfig& config,
    const PretrainedOptions& options) {
  const auto made = make(task, config, options);
  ModelLoader{*made.model, made.architecture, made.variant, options}.draw();
  return made.model;
}

} // namespace

std::shared_ptr<PretrainedModel> AutoModel::from_pretrained(
    const std::filesystem::path& folder,
    const PretrainedOptions& options) {
  return read_model(Task::kBase, folder, options);
}
std::shared_ptr<PretrainedModel> AutoModel::from_config(
    const ModelConfig& config,
    const PretrainedOptions& options) {
  return new_model(Task::kBase, config, options);
}

std::shared_ptr<PretrainedModel>
AutoModelForSequenceClassification::from_pretrained(
    const std::filesystem::path& folder,
    const PretrainedOptions& options) {
  return read_model(Task::kSequenceClassification, folder, options);
}
std::shared_ptr<PretrainedModel>
AutoModelForSequenceClassification::from_config(
    const ModelConfig& config,
    const PretrainedOptions& options) {
  return new_model(Task::kSequenceClassification, config, options);
}

std::shared_ptr<PretrainedModel> AutoModelForMaskedLM::from_pretrained(
    const std::filesystem::path& folder,
    const PretrainedOptions& options) {
  return read_model(Task::kMaskedLM, folder, options);
}
std::shared_ptr<PretrainedModel> AutoModelForMaskedLM::from_config(
    const ModelConfig& config,
    const PretrainedOptions& options) {
  return new_model(Task::kMaskedLM, config, options);
}

std::shared_ptr<CausalLanguageModel> AutoModelForCausalLM::from_pretrained(
    const std::filesystem::path& folder,
    const PretrainedOptions& options) {
  auto model = std::dynamic_pointer_cast<CausalLanguageModel>(
      read_model(Task::kCausalLM, folder, options));
  ModelLoader::read_generation_config(*model, folder);
  return model;
}
std::shared_ptr<CausalLanguageModel> AutoModelForCausalLM::from_config(
    const ModelConfig& config,
    const PretrainedOptions& options) {
  return std::dynamic_pointer_cast<CausalLanguageModel>(
      new_model(Task::kCausalLM, config, options));
}

} // namespace accelerate::models
