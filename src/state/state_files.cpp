// SPDX-License-Identifier: Apache-2.0
#include "state/state_files.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "accelerate/error.h"
#include "accelerate/safetensors.h"
#include "base/atomic_file.h"
#include "base/checksum.h"
#include "base/str.h"
#include "safetensors/streamed_file.h"
#include "state/file_tensors.h"

namespace accelerate {
namespace {

using nlohmann::json;

constexpr const char* kTensorsEnd = ".safetensors";
// JSON has no word for these; a value that is an object says what it is.
constexpr const char* kOddNumber = "number";
constexpr const char* kSlice = "slice";

json json_of(double value) {
  if (std::isfinite(value)) {
    return value;
  }
  const char* name = std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  return {{kOddNumber, name}};
}

double odd_number(const std::string& name) {
  return name == "nan" ? std::nan("") : name == "inf" ? HUGE_VAL : -HUGE_VAL;
}

constexpr const char* kInstead =
    "Convert it first (in Python you can also pass safe_serialization=False)";

constexpr const char* kSaveModel = "[save_model]";

FileTensors tensors_of(const std::string& owner) {
  return {str_cat("[save_state] '", owner, "':"), kInstead};
}

FileRecord write(
    const FileTensors& tensors,
    const std::filesystem::path& path,
    const safetensors::Metadata& metadata) {
  ChunkedChecksum checksum;
  std::uint64_t num_bytes = 0;
  safetensors::write_file(
      path,
      tensors.views(),
      {.metadata = metadata,
       .sync = false,
       .written = [&](std::span<const std::byte> part) {
         checksum.add(part);
         num_bytes += part.size();
       }});
  return {num_bytes, checksum.text(), kChecksumChunk};
}

/// Sorts the values of one object into the manifest and a file.
void put(
    const StateDict& state,
    bool takes_slices,
    bool takes_others,
    json& values,
    FileTensors& tensors,
    const std::string& prefix) {
  for (const auto& [name, value] : state) {
    const auto* slice = std::get_if<TensorSlice>(&value);
    if (slice != nullptr ? !takes_slices : !takes_others) {
      continue;
    }
    std::visit(
        [&](const auto& held) {
          using Held = std::decay_t<decltype(held)>;
          if constexpr (std::is_same_v<Held, at::Tensor>) {
            tensors.add(prefix + name, held);
          } else if constexpr (std::is_same_v<Held, TensorSlice>) {
            values[name] = {
                {kSlice, {{"whole", held.whole}, {"begin", held.begin}}}};
            tensors.add(prefix + name, held.values);
          } else if constexpr (std::is_same_v<Held, double>) {
            values[name] = json_of(held);
          } else {
            values[name] = held;
          }
        },
        value);
  }
}

/// What is checked is what is used: the file may be replaced meanwhile.
safetensors::File open_verified(
    const CheckpointReader& checkpoint,
    const std::string& name,
    const FileRecord& record) {
  const auto path = checkpoint.find(name, record);
  try {
    safetensors::File file(path);
    checkpoint.check(name, record, file.bytes());
    return file;
  } catch (const safetensors::SafetensorsError& error) {
    throw DataError(str_cat(
        "[load_state] '",
        path.string(),
        "' is damaged (",
        error.what(),
        "). Load another checkpoint"));
  }
}

[[noreturn]] void refuse_value(
    const std::string& object,
    const std::string& name) {
  throw DataError(str_cat(
      "[load_state] The value '",
      name,
      "' of '",
      object,
      "' has an unknown type. Load another checkpoint"));
}

StateValue value_of(
    const json& value,
    const std::string& object,
    const std::string& name,
    StateDict& tensors) {
  if (value.is_boolean()) {
    return value.get<bool>();
  }
  if (value.is_number_integer()) {
    return value.get<int64_t>();
  }
  if (value.is_number()) {
    return value.get<double>();
  }
  if (value.is_string()) {
    return value.get<std::string>();
  }
  try {
    if (value.contains(kOddNumber)) {
      return odd_number(value.at(kOddNumber).get<std::string>());
    }
    const auto& slice = value.at(kSlice);
    return TensorSlice{
        tensors.get<at::Tensor>(name),
        slice.at("whole").get<std::vector<int64_t>>(),
        slice.at("begin").get<int64_t>()};
  } catch (const json::exception&) {
    refuse_value(object, name);
  }
}

} // namespace

void write_common(
    const std::filesystem::path& folder,
    const std::vector<SavedObject>& objects,
    Manifest& manifest) {
  for (const auto& object : objects) {
    if (object.is_per_rank) {
      continue;
    }
    json values = json::object();
    auto tensors = tensors_of(object.name);
    put(object.state, false, true, values, tensors, "");
    manifest.state[object.name] = std::move(values);
    // The names of tensors that ranks hold slices of are common to them.
    if (!tensors.views().empty() || !object.tied.empty()) {
      safetensors::Metadata metadata = object.tied;
      metadata["format"] = "pt";
      const auto name = object.name + kTensorsEnd;
      manifest.files[name] = write(tensors, folder / name, metadata);
    }
  }
}

void write_rank_part(
    const std::filesystem::path& folder,
    const std::vector<SavedObject>& objects,
    int rank,
    Manifest manifest) {
  manifest.files.clear(); // Those of the main part.
  auto tensors = tensors_of(str_cat("rank ", rank));
  for (const auto& object : objects) {
    json values = json::object();
    const auto prefix = object.name + '.';
    put(object.state, true, object.is_per_rank, values, tensors, prefix);
    if (object.is_per_rank || !values.empty()) {
      manifest.state[object.name] = std::move(values);
    }
  }
  const auto name = rank_part_name(rank, manifest.moment);
  if (!tensors.views().empty()) {
    const auto file = name + kTensorsEnd;
    manifest.files[file] = write(tensors, folder / file, {});
  }
  AtomicFile file(folder / (name + ".json"));
  file.write(format_manifest(manifest));
  file.commit(false);
}

ModelFiles::ModelFiles(
    const std::filesystem::path& folder,
    const SavedObject& model,
    safetensors::SaveOptions options,
    const std::vector<std::string>& order) {
  FileTensors wholes(kSaveModel, kInstead);
  FileTensors slices(kSaveModel, kInstead);
  std::vector<safetensors::TensorSpec> specs;
  for (const auto& [name, value] : model.state) {
    if (const auto* slice = std::get_if<TensorSlice>(&value)) {
      slices.add(name, slice->values.flatten().narrow(0, 0, 0));
      specs.push_back({name, slices.views().back().dtype, slice->whole});
      lacking_.insert(name);
    } else {
      wholes.add(name, std::get<at::Tensor>(value));
      const auto& view = wholes.views().back();
      specs.push_back({name, view.dtype, view.shape});
    }
  }
  std::map<std::string, size_t> place_of;
  for (const auto& name : order) {
    place_of.emplace(name, place_of.size());
  }
  std::stable_sort(
      specs.begin(), specs.end(), [&](const auto& one, const auto& other) {
        const auto found = place_of.find(one.name);
        const auto next = place_of.find(other.name);
        // Those that are not listed come last.
        return found != place_of.end() &&
               (next == place_of.end() || found->second < next->second);
      });
  options.metadata.insert(model.tied.begin(), model.tied.end());
  files_ = std::make_unique<safetensors::StreamedModel>(folder, specs, options);
  for (const auto& view : wholes.views()) {
    files_->write(view.name, 0, view.data);
  }
}

ModelFiles::~ModelFiles() = default;

void ModelFiles::write(const std::string& name, const at::Tensor& whole) {
  FileTensors tensors(kSaveModel, kInstead);
  tensors.add(name, whole);
  files_->write(name, 0, tensors.views().front().data);
  lacking_.erase(name);
}

void ModelFiles::commit() {
  if (!lacking_.empty()) {
    throw UsageError(str_cat(
        kSaveModel,
        " '",
        *lacking_.begin(),
        "' is sharded across ranks. Gather the model first, or use "
        "save_state()"));
  }
  files_->commit();
}

StatesByName read_states(
    const CheckpointReader& checkpoint,
    const Manifest& part) {
  const auto owner_of = [](const std::string& name) {
    return name.substr(0, name.rfind(kTensorsEnd));
  };
  const auto is_of_rank = [](const std::string& name) {
    return name.starts_with("rank_");
  };
  StatesByName tensors;
  for (const auto& [name, record] : part.files) {
    const bool is_rank_file = is_of_rank(name);
    const auto owner = owner_of(name);
    if (!is_rank_file && !part.state.contains(owner)) {
      continue; // A file that a language has written by itself.
    }
    const auto file = open_verified(checkpoint, name, record);
    for (const auto& view : file.tensors()) {
      // The objects of a rank share one file, each after its name.
      const auto dot = is_rank_file ? view.name.find('.') : std::string::npos;
      const auto object = is_rank_file ? view.name.substr(0, dot) : owner;
      const auto own = is_rank_file && dot != std::string::npos
                           ? view.name.substr(dot + 1)
                           : view.name;
      tensors[object].set(own, tensor_in(file, view));
    }
  }
  StatesByName states;
  for (const auto& [object, values] : part.state.items()) {
    StateDict state = tensors[object];
    for (const auto& [name, value] : values.items()) {
      state.set(name, value_of(value, object, name, state));
    }
    states[object] = std::move(state);
  }
  for (const auto& [object, state] : tensors) {
    if (!states.contains(object)) {
      throw DataError(str_cat(
          "[load_state] The checkpoint contains tensors of '",
          object,
          "', which its manifest does not list. Load another checkpoint"));
    }
  }
  return states;
}

void join_slices(const std::vector<StatesByName>& parts, StatesByName& states) {
  struct Whole {
    at::Tensor tensor;
    int64_t num_missing = 0;
    /// Where slices begin that are there; replicas have the same ones.
    std::map<int64_t, int64_t> sizes = {};
  };
  std::map<std::pair<std::string, std::string>, Whole> wholes;
  const auto add = [&](const std::string& object,
                       const std::string& name,
                       const TensorSlice& slice) {
    auto& whole = wholes[{object, name}];
    if (!whole.tensor.defined()) {
      whole.tensor = at::empty(slice.whole, slice.values.options());
      whole.num_missing = whole.tensor.numel();
    }
    if (whole.tensor.sizes().vec() != slice.whole) {
      throw DataError(str_cat(
          "[load_state] '",
          name,
          "' of '",
          object,
          "' has different shapes on different ranks. Load another "
          "checkpoint"));
    }
    const auto values = slice.values.flatten();
    if (whole.sizes[slice.begin] >= values.numel()) {
      return;
    }
    whole.sizes[slice.begin] = values.numel();
    whole.tensor.flatten().narrow(0, slice.begin, values.numel()).copy_(values);
    whole.num_missing -= values.numel();
  };
  for (const auto& part : parts) {
    for (const auto& [object, state] : part) {
      for (const auto& [name, value] : state) {
        if (const auto* slice = std::get_if<TensorSlice>(&value)) {
          add(object, name, *slice);
        }
      }
    }
  }
  for (const auto& [place, whole] : wholes) {
    const auto& [object, name] = place;
    if (whole.num_missing != 0) {
      throw DataError(str_cat(
          "[load_state] '",
          name,
          "' of '",
          object,
          "' is incomplete: ",
          whole.num_missing,
          " of ",
          whole.tensor.numel(),
          " elements belong to ranks that did not save. Load another "
          "checkpoint"));
    }
    states[object].set(name, whole.tensor);
  }
}

} // namespace accelerate
