// SPDX-License-Identifier: Apache-2.0
#include "training/state/state_files.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>

#include "accelerate/error.h"
#include "accelerate/safetensors.h"
#include "core/base/atomic_file.h"
#include "core/base/checksum.h"
#include "core/base/parallel_for.h"
#include "core/base/str.h"
#include "core/checkpoint/slice_record.h"
#include "core/layout/piece_assembly.h"
#include "core/safetensors/streamed_file.h"
#include "training/state/file_tensors.h"
#include "training/state/sliced_state.h"

namespace accelerate {
namespace {

using nlohmann::json;

constexpr const char* kTensorsEnd = ".safetensors";
// JSON cannot represent NaN and infinity. They are stored as objects with this
// key.
constexpr const char* kOddNumber = "number";

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
    "Convert it first (in Python, you can also pass safe_serialization=False)";

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
       .written = [&](std::span<const std::byte> bytes) {
         checksum.add(bytes);
         num_bytes += bytes.size();
       }});
  return {num_bytes, checksum.text(), kChecksumChunk};
}

/// Distributes the values of one object over the manifest and a file.
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
            values[name] = SliceRecord{held.whole, held.pieces}.to_json();
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
    const auto values = tensors.get<at::Tensor>(name);
    auto slice = SliceRecord::parse(value, values.numel());
    return TensorSlice{values, std::move(slice.shape), std::move(slice.pieces)};
  } catch (const json::exception&) {
    refuse_value(object, name);
  } catch (const UsageError& error) {
    throw DataError(str_cat(
        "[load_state] The slice of '",
        name,
        "' in '",
        object,
        "' is damaged: ",
        error.what(),
        ". Load another checkpoint"));
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
    // Names of sliced tensors are the same on all ranks.
    if (!tensors.views().empty() || !object.tied.empty()) {
      safetensors::Metadata metadata = object.tied;
      metadata["format"] = "pt";
      const auto name = object.name + kTensorsEnd;
      manifest.files[name] = write(tensors, folder / name, metadata);
    }
  }
}

void write_rank_shard(
    const std::filesystem::path& folder,
    const std::vector<SavedObject>& objects,
    int rank,
    Manifest manifest) {
  manifest.files.clear(); // these belong to the common state
  auto tensors = tensors_of(str_cat("rank ", rank));
  for (const auto& object : objects) {
    json values = json::object();
    const auto prefix = object.name + '.';
    put(object.state, true, object.is_per_rank, values, tensors, prefix);
    if (object.is_per_rank || !values.empty()) {
      manifest.state[object.name] = std::move(values);
    }
  }
  const auto name = rank_shard_name(rank, manifest.moment);
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
  std::map<std::string, size_t> index_of;
  for (const auto& name : order) {
    index_of.emplace(name, index_of.size());
  }
  std::stable_sort(
      specs.begin(), specs.end(), [&](const auto& one, const auto& other) {
        const auto found = index_of.find(one.name);
        const auto next = index_of.find(other.name);
        // Unlisted tensors are last.
        return found != index_of.end() &&
               (next == index_of.end() || found->second < next->second);
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

struct StateReader::OpenFile {
  enum class Chunk : char { kUnused, kUsed, kVerified };

  std::string name;
  FileRecord record;
  safetensors::File file;
  std::vector<Chunk> chunks;
};

StateReader::StateReader(const CheckpointReader& checkpoint)
    : checkpoint_(checkpoint) {}
StateReader::~StateReader() = default;

StatesByName StateReader::read(const Manifest& shard) {
  const auto owner_of = [](const std::string& name) {
    return name.substr(0, name.rfind(kTensorsEnd));
  };
  StatesByName tensors;
  for (const auto& [name, record] : shard.files) {
    const bool is_rank_file = name.starts_with("rank_");
    const auto owner = owner_of(name);
    if (!is_rank_file && !shard.state.contains(owner)) {
      continue; // a file that a language has written itself
    }
    const auto path = checkpoint_.find(name, record);
    try {
      files_.push_back(
          {name,
           record,
           safetensors::File(path),
           std::vector(record.num_chunks(), OpenFile::Chunk::kUnused)});
    } catch (const safetensors::SafetensorsError& error) {
      throw DataError(str_cat(
          "[load_state] '",
          path.string(),
          "' is damaged (",
          error.what(),
          "). Load another checkpoint"));
    }
    const auto& file = files_.back().file;
    const auto offset_of = [&](const safetensors::TensorView& view) {
      return static_cast<size_t>(view.data.data() - file.bytes().data());
    };
    const size_t at = files_.size() - 1;
    const auto& views = file.tensors();
    // The header determines the layout of the rest.
    mark({at, 0, views.empty() ? record.num_bytes : offset_of(views.front())});
    for (const auto& view : views) {
      // The objects of a rank share one file. The names of the objects are
      // prefixes.
      const auto dot = is_rank_file ? view.name.find('.') : std::string::npos;
      const auto object = is_rank_file ? view.name.substr(0, dot) : owner;
      const auto own = is_rank_file && dot != std::string::npos
                           ? view.name.substr(dot + 1)
                           : view.name;
      const auto tensor = tensor_in(file, view);
      if (!view.data.empty()) {
        origin_of_[tensor.const_data_ptr()] = {
            at, offset_of(view), view.data.size()};
      }
      tensors[object].set(own, tensor);
    }
  }
  StatesByName states;
  for (const auto& [object, values] : shard.state.items()) {
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

bool StateReader::fits(const StatesByName& states, const Needs& needs) {
  for (const auto& [object, state] : states) {
    const auto needed = needs(object, state);
    if (!needed) {
      continue;
    }
    for (const auto& [name, value] : state) {
      const auto* slice = std::get_if<TensorSlice>(&value);
      const auto found = needed->find(name);
      if (slice != nullptr &&
          (found == needed->end() || found->second != slice->pieces)) {
        return false;
      }
    }
  }
  return true;
}

void StateReader::fit(
    const std::vector<StatesByName>& shards,
    const Needs& needs,
    StatesByName& states) {
  std::map<std::string, std::map<std::string, std::vector<TensorSlice>>> slices;
  for (const auto& shard : shards) {
    for (const auto& [object, state] : shard) {
      for (const auto& [name, value] : state) {
        if (const auto* slice = std::get_if<TensorSlice>(&value)) {
          slices[object][name].push_back(*slice);
          states[object].set(name, *slice);
        }
      }
    }
  }
  for (auto& [object, state] : states) {
    const auto needed = needs(object, state);
    const auto& cut = slices[object];
    const StateDict saved = state;
    for (const auto& [name, value] : saved) {
      const TensorPieces* target = nullptr;
      if (needed && needed->contains(name)) {
        target = &needed->at(name);
      }
      const auto found = cut.find(name);
      const auto* whole = std::get_if<at::Tensor>(&value);
      if (found == cut.end() && (whole == nullptr || target == nullptr)) {
        continue;
      }
      const auto shape = whole_shape(value);
      const auto all = [&] {
        return flat_range(shape, 0, c10::multiply_integers(shape));
      };
      const auto values = assemble(
          object,
          name,
          shape,
          target != nullptr ? *target : all(),
          found != cut.end()
              ? found->second
              : std::vector<TensorSlice>{{*whole, shape, all()}});
      if (target != nullptr) {
        state.set(name, TensorSlice{values, shape, *target});
      } else {
        state.set(name, values.view(shape));
      }
    }
  }
}

at::Tensor StateReader::assemble(
    const std::string& object,
    const std::string& name,
    const std::vector<int64_t>& shape,
    const TensorPieces& target,
    const std::vector<TensorSlice>& sources) {
  struct Run {
    const TensorSlice* source;
    int64_t to;
    int64_t from;
    int64_t count;
  };
  std::vector<Run> runs;
  PieceAssembly assembly(shape, target);
  const auto& options = sources.front().values.options();
  for (const auto& source : sources) {
    if (source.whole != shape || source.values.dtype() != options.dtype()) {
      throw DataError(str_cat(
          "[load_state] '",
          name,
          "' of '",
          object,
          "' has different shapes or dtypes on different ranks. Load another "
          "checkpoint"));
    }
    assembly.add(source.pieces, [&](int64_t to, int64_t from, int64_t count) {
      runs.push_back({&source, to, from, count});
    });
  }
  const auto num_all = num_elements(target);
  if (assembly.num_missing() != 0) {
    throw DataError(str_cat(
        "[load_state] '",
        name,
        "' of '",
        object,
        "' is incomplete: ",
        assembly.num_missing(),
        " of ",
        num_all,
        " elements belong to ranks that did not save. Load another "
        "checkpoint"));
  }
  const auto item = options.dtype().itemsize();
  const auto bytes = [&](int64_t number) {
    return static_cast<size_t>(number) * item;
  };
  for (const auto& [source, to, from, count] : runs) {
    mark(source->values, bytes(from), bytes(count));
  }
  if (runs.size() == 1) {
    return runs.front().source->values.flatten().narrow(
        0, runs.front().from, runs.front().count);
  }
  auto values = at::empty({num_all}, options);
  for (const auto& [source, to, from, count] : runs) {
    copies_.push_back(
        {values, source->values, bytes(to), bytes(from), bytes(count)});
  }
  return values;
}

void StateReader::mark(const Origin& origin) {
  auto& [name, record, file, chunks] = files_[origin.file];
  if (origin.size == 0) {
    return;
  }
  const auto chunk_at = [&record = record](size_t byte) {
    return record.chunk == 0 ? 0 : byte / record.chunk;
  };
  const auto last = chunk_at(origin.begin + origin.size - 1);
  for (auto chunk = chunk_at(origin.begin); chunk <= last; ++chunk) {
    if (chunks[chunk] == OpenFile::Chunk::kUnused) {
      chunks[chunk] = OpenFile::Chunk::kUsed;
    }
  }
}

void StateReader::mark(const at::Tensor& tensor, size_t begin, size_t size) {
  const auto found = origin_of_.find(tensor.const_data_ptr());
  if (found != origin_of_.end()) {
    const auto& origin = found->second;
    const auto rest = origin.size - std::min(origin.size, begin);
    mark({origin.file, origin.begin + begin, std::min(size, rest)});
  }
}

void StateReader::finish(const StatesByName& states) {
  for (const auto& [object, state] : states) {
    for (const auto& [name, value] : state) {
      const auto* slice = std::get_if<TensorSlice>(&value);
      const auto* tensor =
          slice != nullptr ? &slice->values : std::get_if<at::Tensor>(&value);
      if (tensor != nullptr) {
        mark(*tensor, 0, tensor->nbytes());
      }
    }
  }
  std::vector<std::pair<const OpenFile*, size_t>> chunks;
  for (auto& file : files_) {
    for (size_t i = 0; i < file.chunks.size(); ++i) {
      if (file.chunks[i] == OpenFile::Chunk::kUsed) {
        file.chunks[i] = OpenFile::Chunk::kVerified;
        chunks.emplace_back(&file, i);
      }
    }
  }
  const auto num_cores = std::thread::hardware_concurrency();
  parallel_for(chunks.size(), num_cores, [&](size_t i) {
    const auto& [file, chunk] = chunks[i];
    checkpoint_.check_chunk(
        file->name, file->record, file->file.bytes(), chunk);
  });
  parallel_for(copies_.size(), num_cores, [&](size_t i) {
    const auto& copy = copies_[i];
    const auto* from = static_cast<const char*>(copy.source.const_data_ptr());
    auto* to = static_cast<char*>(copy.target.mutable_data_ptr());
    std::memcpy(to + copy.to, from + copy.from, copy.size);
  });
  copies_.clear();
}

} // namespace accelerate
