// SPDX-License-Identifier: Apache-2.0
#include "core/sizing/model_sizes.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "accelerate/detail/shard_unit_size.h"
#include "accelerate/files/safetensors_index.h"
#include "core/base/str.h"
#include "core/sizing/model_families.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;
using safetensors::Dtype;
using safetensors::TensorView;

nlohmann::json read_config(const fs::path& path) {
  std::error_code ignored;
  const fs::path folder =
      fs::is_directory(path, ignored) ? path : path.parent_path();
  const fs::path file = folder / "config.json";
  std::ifstream in(file);
  if (!in) {
    return nlohmann::json::object();
  }
  auto config = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) {
    throw ConfigError(str_cat(
        "[estimate-memory] '",
        file.string(),
        "' is not a JSON object; correct the file, or remove it to estimate "
        "without it"));
  }
  return config;
}

// The original counts a boolean as one bit and does not convert integers.
double float32_bytes(const TensorView& tensor) {
  const auto count = static_cast<double>(tensor.num_elements());
  switch (tensor.dtype) {
    case Dtype::kBool:
      return count / 8;
    case Dtype::kU8:
    case Dtype::kI8:
    case Dtype::kI16:
    case Dtype::kU16:
    case Dtype::kI32:
    case Dtype::kU32:
    case Dtype::kI64:
    case Dtype::kU64:
    case Dtype::kC64:
      return count * safetensors::dtype_bits(tensor.dtype) / 8;
    default:
      return count * 4;
  }
}

// Masks and frequencies that old versions of transformers saved; current models
// do not contain them.
bool is_obsolete(const TensorView& tensor) {
  const std::string& name = tensor.name;
  return (name.ends_with(".attn.bias") && tensor.shape.size() == 4) ||
         name.ends_with(".attn.masked_bias") ||
         name.ends_with(".self_attn.rotary_emb.inv_freq");
}

bool is_number(std::string_view component) {
  return !component.empty() &&
         std::all_of(component.begin(), component.end(), [](char c) {
           return std::isdigit(static_cast<unsigned char>(c)) != 0;
         });
}

std::vector<std::string_view> split(std::string_view path) {
  std::vector<std::string_view> components;
  for (std::size_t begin = 0; begin <= path.size();) {
    const auto dot = std::min(path.find('.', begin), path.size());
    components.push_back(path.substr(begin, dot - begin));
    begin = dot + 1;
  }
  return components;
}

bool ends_like(
    const std::vector<std::string_view>& components,
    std::size_t count,
    std::string_view pattern) {
  const auto wanted = split(pattern);
  if (wanted.size() > count) {
    return false;
  }
  return std::equal(
      wanted.begin(),
      wanted.end(),
      components.begin() + static_cast<std::ptrdiff_t>(count - wanted.size()),
      [](std::string_view a, std::string_view b) {
        return a == "*" ? is_number(b) : a == b;
      });
}

// In fp32.
constexpr double kMinUnitBytes = detail::kMinUnitElements * 4;

// The default shard unit of a tensor: its name up to the first numeric
// component ("layers.0").
std::string unit_of(const std::string& name) {
  std::size_t end = 0;
  for (const std::string_view component : split(name)) {
    end += component.size();
    if (is_number(component) && end < name.size()) {
      return name.substr(0, end);
    }
    ++end; // the dot
  }
  return {};
}

// Adds up the bytes of tensors by layer.
class Layers {
 public:
  explicit Layers(const ModelFamily* family) : family_(family) {}

  void add(const std::string& name, double bytes) {
    total_ += bytes;
    units_[unit_of(name)] += bytes;
    if (const auto block = block_of(name); !block.empty()) {
      layers_[block] += bytes;
      return;
    }
    // A tensor directly in the model is its own layer.
    const auto dot = name.rfind('.');
    const std::string module = name.substr(0, dot);
    (dot == name.npos ? layers_ : modules_)[module] += bytes;
  }

  void finish(ModelSizes& sizes) {
    for (const auto& [module, bytes] : modules_) {
      if (!has_children(module)) {
        layers_[module] += bytes;
      }
    }
    sizes.total_bytes = total_;
    double rest = 0;
    for (const auto& [unit, bytes] : units_) {
      if (unit.empty() || bytes < kMinUnitBytes) {
        rest += bytes;
      } else {
        sizes.largest_unit_bytes = std::max(sizes.largest_unit_bytes, bytes);
      }
    }
    sizes.largest_unit_bytes = std::max(sizes.largest_unit_bytes, rest);
    for (const auto& [layer, bytes] : layers_) {
      if (bytes > sizes.largest_layer_bytes) {
        sizes.largest_layer_bytes = bytes;
        sizes.largest_layers.clear();
      }
      if (bytes == sizes.largest_layer_bytes) {
        sizes.largest_layers.push_back(layer);
      }
    }
  }

 private:
  // The outermost block that contains the tensor.
  std::string block_of(const std::string& name) const {
    const auto components = split(name);
    for (std::size_t count = 1; count < components.size(); ++count) {
      if (is_block(components, count)) {
        const auto& last = components[count - 1];
        return name.substr(
            0,
            static_cast<std::size_t>(last.data() + last.size() - name.data()));
      }
    }
    return "";
  }

  bool is_block(
      const std::vector<std::string_view>& components,
      std::size_t count) const {
    if (family_ == nullptr) {
      return is_number(components[count - 1]);
    }
    return std::any_of(
        family_->blocks.begin(), family_->blocks.end(), [&](auto pattern) {
          return ends_like(components, count, pattern);
        });
  }

  bool has_children(const std::string& module) const {
    const std::string prefix = module + '.';
    const auto is_below = [&](const auto& map) {
      const auto next = map.lower_bound(prefix);
      return next != map.end() && next->first.starts_with(prefix);
    };
    return is_below(modules_) || is_below(layers_);
  }

  const ModelFamily* family_;
  std::map<std::string, double> modules_;
  std::map<std::string, double> layers_;
  std::map<std::string, double> units_;
  double total_ = 0;
};

} // namespace

ModelSizes measure_model(const fs::path& path) {
  const safetensors::Checkpoint checkpoint(path);
  const auto tensors = checkpoint.tensors();
  const nlohmann::json config = read_config(path);
  ModelSizes sizes;
  if (const auto type = config.find("model_type");
      type != config.end() && type->is_string()) {
    sizes.model_type = *type;
  }
  const ModelFamily* family = find_family(sizes.model_type);
  sizes.is_known = family != nullptr;

  Layers layers(family);
  for (const auto& tensor : tensors) {
    if (!is_obsolete(tensor)) {
      layers.add(tensor.name, float32_bytes(tensor));
    }
  }
  if (family != nullptr) {
    for (const auto& buffer : unsaved_buffers(*family, tensors, config)) {
      if (!checkpoint.contains(buffer.name)) {
        layers.add(buffer.name, static_cast<double>(buffer.num_bytes));
      }
    }
  }
  layers.finish(sizes);
  return sizes;
}

MemoryEstimate estimate_memory(
    const ModelSizes& sizes,
    const std::string& dtype) {
  MemoryEstimate estimate{.dtype = dtype};
  double shrink = 1;
  if (dtype == "float32") {
    // Weights, gradients and the two moments.
    estimate.training_bytes = sizes.total_bytes * 4;
  } else if (dtype == "float16") {
    shrink = 2;
    // The maximum of two sums: the weights in both dtypes, and the fp32
    // moments. The moments are larger.
    estimate.training_bytes = sizes.total_bytes * 2;
  } else if (dtype == "int8") {
    shrink = 4;
  } else if (dtype == "int4") {
    shrink = 8;
  } else {
    throw UsageError(str_cat(
        "[estimate-memory] unknown dtype '",
        dtype,
        "'; use float32, float16, int8 or int4"));
  }
  estimate.largest_layer_bytes = sizes.largest_layer_bytes / shrink;
  estimate.total_bytes = sizes.total_bytes / shrink;
  return estimate;
}

std::vector<ShardedEstimate> estimate_sharding(
    const ModelSizes& sizes,
    const MeshShape& mesh) {
  const double whole = sizes.total_bytes;
  const double share = whole / mesh.size(MeshDimension::kShard);
  const double unit = sizes.largest_unit_bytes;
  // This rank's share, a unit with its gradients, one being reduced, and the
  // receive buffer.
  const double gradients = share + 3 * unit;
  return {
      {"DDP", whole, whole, 2 * whole},
      {"1", whole, whole + share, 2 * share},
      {"2", whole, gradients, 2 * share},
      // Stage 3 also holds the current unit and the next one; with master
      // weights, both in bf16.
      {"3", share + 2 * unit, gradients, 2 * share},
      {"3, master_weights", share + unit, gradients, 2 * share},
  };
}

} // namespace accelerate
