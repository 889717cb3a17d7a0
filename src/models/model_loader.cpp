// SPDX-License-Identifier: Apache-2.0
#include "models/model_loader.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <set>

#include "accelerate/error.h"
#include "core/base/atomic_file.h"
#include "core/base/str.h"
#include "training/parallel/shared_reads.h"
#include "training/parallel/tensor_ranks.h"

namespace accelerate::models {
namespace {

struct DtypeRow {
  at::ScalarType torch;
  safetensors::Dtype file;
  const char* name;
};
constexpr DtypeRow kDtypes[] = {
    {at::kFloat, safetensors::Dtype::kF32, "float32"},
    {at::kBFloat16, safetensors::Dtype::kBF16, "bfloat16"},
    {at::kHalf, safetensors::Dtype::kF16, "float16"},
    {at::kDouble, safetensors::Dtype::kF64, "float64"},
};

const DtypeRow& row_of(at::ScalarType dtype) {
  for (const auto& row : kDtypes) {
    if (row.torch == dtype) {
      return row;
    }
  }
  throw UsageError(str_cat(
      "[from_pretrained] dtype is ",
      dtype,
      ", expected float32, bfloat16, float16 or float64"));
}

const DtypeRow* try_row_of(safetensors::Dtype dtype) {
  for (const auto& row : kDtypes) {
    if (row.file == dtype) {
      return &row;
    }
  }
  return nullptr;
}

/// The file that contains the tensor.
const safetensors::File& file_of(
    const safetensors::Checkpoint& files,
    const std::string& name) {
  const auto& all = files.files();
  return *std::find_if(all.begin(), all.end(), [&](const auto& file) {
    return file.contains(name) && &file.tensor(name) == &files.tensor(name);
  });
}

safetensors::Checkpoint open_files(const std::filesystem::path& folder) {
  if (std::filesystem::exists(folder / "pytorch_model.bin") &&
      !std::filesystem::exists(folder / safetensors::kWeightsName) &&
      !std::filesystem::exists(folder / safetensors::kIndexName)) {
    throw ConfigError(str_cat(
        "[from_pretrained] ",
        folder.string(),
        " has pytorch_model.bin but no model.safetensors. Load the model with "
        "transformers and save it again as safetensors"));
  }
  return safetensors::Checkpoint(folder);
}

// Renames LayerNorm parameters of files from before 2019, as transformers does.
std::string modern_name(std::string name) {
  for (const auto& [old_end, new_end] :
       {std::pair("LayerNorm.gamma", "LayerNorm.weight"),
        std::pair("LayerNorm.beta", "LayerNorm.bias")}) {
    if (name.ends_with(old_end)) {
      name.replace(
          name.size() - std::strlen(old_end), std::string::npos, new_end);
    }
  }
  return name;
}

// Shows the first names, and the number of others.
std::string shown(const std::vector<std::string>& names) {
  constexpr size_t kMax = 6;
  std::string text;
  for (size_t i = 0; i < names.size() && i < kMax; ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  return names.size() > kMax
             ? str_cat(text, " and ", names.size() - kMax, " more")
             : text;
}

std::string shown(const LoadReport::Mismatch& mismatch) {
  return str_cat(
      mismatch.name,
      " has shape ",
      at::IntArrayRef(mismatch.in_file),
      " in the file but ",
      at::IntArrayRef(mismatch.in_model),
      " in the model");
}

} // namespace

std::optional<at::ScalarType> try_parse_dtype(const std::string& name) {
  for (const auto& row : kDtypes) {
    if (name == row.name || name == str_cat("torch.", row.name)) {
      return row.torch;
    }
  }
  return std::nullopt;
}

std::string dtype_name(at::ScalarType dtype) {
  return row_of(dtype).name;
}

std::string LoadReport::summary() const {
  std::vector<std::string> problems;
  if (!missing.empty()) {
    problems.push_back(str_cat(
        "newly initialized, because the files do not contain them (train them "
        "before use): ",
        shown(missing)));
  }
  if (!mismatched.empty()) {
    std::vector<std::string> names;
    for (const auto& mismatch : mismatched) {
      names.push_back(shown(mismatch));
    }
    problems.push_back(
        "newly initialized, because their shapes differ: " + shown(names));
  }
  if (!unexpected.empty()) {
    problems.push_back(
        "in the files but not in the model: " + shown(unexpected));
  }
  std::string text;
  for (const auto& problem : problems) {
    text += (text.empty() ? "" : "; ") + problem;
  }
  return text;
}

ModelLoader::Parameters ModelLoader::parameters() const {
  Parameters parameters;
  for (const auto& item : model.named_parameters()) {
    parameters.emplace(item.key(), item.value());
  }
  return parameters;
}

void ModelLoader::set_dtype(const safetensors::Checkpoint* files) const {
  at::ScalarType dtype = at::kFloat;
  const char* key = model.config().has("dtype") ? "dtype" : "torch_dtype";
  if (options.dtype) {
    dtype = *options.dtype;
  } else if (model.config().has(key)) {
    const std::string name = model.config().text(key, "");
    const auto known = try_parse_dtype(name);
    if (!known) {
      model.config().refuse(str_cat(
          "'",
          key,
          "' is '",
          name,
          "', which is not supported. Pass a dtype to from_pretrained"));
    }
    dtype = *known;
  } else if (files != nullptr) {
    for (const auto& tensor : files->tensors()) {
      if (const auto* row = try_row_of(tensor.dtype)) {
        dtype = row->torch;
        break;
      }
    }
  }
  model.config_.set("dtype", dtype_name(dtype));
  if (dtype != at::kFloat) {
    // Replacing the parameters loses no values, because none have been written
    // yet.
    for (auto& parameter : model.parameters()) {
      parameter.set_data(
          at::empty(parameter.sizes(), parameter.options().dtype(dtype)));
    }
  }
}

bool ModelLoader::is_ignored(const std::string& name) const {
  for (const auto& ending : architecture.ignored_endings) {
    if (name.ends_with(ending)) {
      return true;
    }
  }
  return false;
}

std::map<std::string, std::string> ModelLoader::match(
    const safetensors::Checkpoint& files,
    const Parameters& parameters) const {
  std::map<std::string, std::string> tied;
  if (model.config().boolean(
          "tie_word_embeddings", architecture.is_tied_by_default)) {
    for (const auto& [name, parameter] : variant.tied) {
      tied.emplace(name, parameter);
    }
  }
  const auto is_known = [&](const std::string& name) {
    return parameters.contains(name) || tied.contains(name);
  };
  const std::string prefix = str_cat(architecture.base_prefix, ".");
  std::map<std::string, std::string> matches;
  std::map<std::string, std::string> tied_matches;
  for (const auto& tensor : files.tensors()) {
    std::string name = modern_name(tensor.name);
    if (name.starts_with(prefix) && is_known(name.substr(prefix.size()))) {
      name = name.substr(prefix.size());
    } else if (is_known(prefix + name)) {
      name = prefix + name;
    }
    if (parameters.contains(name)) {
      matches.emplace(name, tensor.name);
    } else if (const auto other = tied.find(name); other != tied.end()) {
      tied_matches.emplace(other->second, tensor.name);
    } else if (!is_ignored(name)) {
      model.report_.unexpected.push_back(tensor.name);
    }
  }
  // A file may contain a tied weight only under its other name.
  matches.merge(tied_matches);
  return matches;
}

FreshTensors ModelLoader::copy(
    const safetensors::Checkpoint& files,
    const Parameters& parameters,
    const std::map<std::string, std::string>& matches) const {
  FreshTensors fresh;
  for (const auto& [name, parameter] : parameters) {
    const auto match = matches.find(name);
    if (match == matches.end()) {
      model.report_.missing.push_back(name);
      fresh.insert(parameter.unsafeGetTensorImpl());
      continue;
    }
    const auto& tensor = files.tensor(match->second);
    if (at::IntArrayRef(tensor.shape) != parameter.sizes()) {
      model.report_.mismatched.push_back(
          {name, tensor.shape, parameter.sizes().vec()});
      fresh.insert(parameter.unsafeGetTensorImpl());
      if (!options.ignore_mismatched_sizes) {
        throw ConfigError(str_cat(
            "[from_pretrained] ",
            file_of(files, match->second).path().string(),
            ": ",
            shown(model.report_.mismatched.back()),
            ". Set ignore_mismatched_sizes to initialize a new tensor (for a "
            "head with different classes), or check that config.json matches "
            "the weights"));
      }
      continue;
    }
    const auto* row = try_row_of(tensor.dtype);
    if (row == nullptr) {
      throw ConfigError(str_cat(
          "[from_pretrained] ",
          file_of(files, match->second).path().string(),
          ": ",
          match->second,
          " is ",
          safetensors::dtype_name(tensor.dtype),
          ", expected floating point. Quantized weights are not supported"));
    }
    // The mapping is read-only, which from_blob cannot express. For parameters
    // without memory (`EmptyWeights`), it stays alive.
    auto* bytes = const_cast<std::byte*>(tensor.data.data());
    parameter.detach().copy_(at::from_blob(
        bytes,
        parameter.sizes(),
        [file = file_of(files, match->second)](void*) {},
        at::TensorOptions(row->torch)));
  }
  return fresh;
}

void ModelLoader::draw(const FreshTensors& fresh) const {
  const at::NoGradGuard no_grad;
  const double stddev = model.config().number("initializer_range", 0.02);
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (auto* layer = dynamic_cast<Layer*>(module.get())) {
      layer->draw(stddev, fresh);
    }
  }
}

void ModelLoader::draw() const {
  model.class_name_ = variant.class_name;
  set_dtype(nullptr);
  FreshTensors fresh;
  for (const auto& parameter : model.parameters()) {
    fresh.insert(parameter.unsafeGetTensorImpl());
  }
  draw(fresh);
}

void ModelLoader::load(const std::filesystem::path& folder) const {
  model.class_name_ = variant.class_name;
  const auto files = open_files(folder);
  set_dtype(&files);
  const auto all = parameters();
  const at::NoGradGuard no_grad;
  draw(copy(files, all, match(files, all)));
  const std::string summary = model.report_.summary();
  if (options.warn && !summary.empty()) {
    std::cerr << str_cat(
        "[from_pretrained] ",
        variant.class_name,
        " from ",
        folder.string(),
        ": ",
        summary,
        '\n');
  }
}

void ModelLoader::read_generation_config(
    CausalLanguageModel& model,
    const std::filesystem::path& folder) {
  const auto path = folder / "generation_config.json";
  std::ifstream file(path, std::ios::binary);
  if (file) {
    model.generation_config_.assign(std::istreambuf_iterator<char>(file), {});
    // Parse it here to reject an invalid file before the first call of
    // `generate`.
    ModelConfig::parse(model.generation_config_, path.string());
  }
}

void PretrainedModel::save_pretrained(
    const std::filesystem::path& folder,
    const SavePretrainedOptions& options) const {
  const SharedReads reads("save_pretrained", parameters());
  bool is_main = reads.is_main();
  // Keeps the bytes of the tensors alive.
  std::vector<std::pair<std::string, at::Tensor>> values;
  reads.run([&] {
    for (const auto& item : named_parameters()) {
      // A gathered value is temporary, so it must be copied.
      const auto info = divided(item.value());
      auto value = info ? whole_of_divided(*info, item.value())
                        : item.value().detach().to(
                              at::kCPU,
                              /*non_blocking=*/false,
                              /*copy=*/reads.are_spread());
      is_main = is_main && (!info || info->is_main);
      if (is_main) {
        values.emplace_back(item.key(), value.contiguous());
      }
    }
  });
  if (!is_main) {
    return;
  }
  std::vector<safetensors::TensorView> views;
  for (const auto& [name, value] : values) {
    views.push_back(
        {.name = name,
         .dtype = row_of(value.scalar_type()).file,
         .shape = value.sizes().vec(),
         .data = {
             static_cast<const std::byte*>(value.const_data_ptr()),
             value.nbytes()}});
  }
  safetensors::save_sharded(
      folder, views, {.max_shard_bytes = options.max_shard_bytes});
  const auto dtype = values.empty()
                         ? std::nullopt
                         : std::optional(values.front().second.scalar_type());
  AtomicFile file(folder / "config.json");
  file.write(std::string_view(saved_config(dtype)));
  file.commit();
}

std::string PretrainedModel::saved_config(
    std::optional<at::ScalarType> dtype) const {
  ModelConfig config = config_;
  config.set("architectures", std::vector<std::string>{class_name_});
  if (dtype) {
    config.set("dtype", dtype_name(*dtype));
  }
  return config.json();
}

} // namespace accelerate::models
