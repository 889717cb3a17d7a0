// SPDX-License-Identifier: Apache-2.0
#include "core/checkpoint/saved_model.h"

#include <set>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/checkpoint/slice_record.h"
#include "core/layout/piece_assembly.h"
#include "core/layout/tensor_shape.h"
#include "core/safetensors/streamed_file.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kModel = "model";
constexpr std::string_view kModelFileEnd = ".safetensors";

/// "model", or "model_" and a number.
bool is_model_name(std::string_view name) {
  if (!name.starts_with(kModel)) {
    return false;
  }
  const auto rest = name.substr(kModel.size());
  return rest.empty() || (rest.size() > 1 && rest.front() == '_' &&
                          rest.find_first_not_of("0123456789", 1) == rest.npos);
}

[[noreturn]] void refuse(
    const CheckpointReader& checkpoint,
    const std::string& tensor,
    const std::string& what) {
  throw DataError(str_cat(
      "[checkpoint] '",
      checkpoint.folder().string(),
      "': '",
      tensor,
      "' ",
      what,
      ". Use another checkpoint"));
}

} // namespace

std::vector<std::string> SavedModel::names_in(
    const CheckpointReader& checkpoint) {
  const auto& manifest = checkpoint.manifest();
  std::set<std::pair<std::size_t, std::string>> names; // sorts "_2" before
                                                       // "_10"
  const auto add = [&](const std::string& name) {
    if (is_model_name(name)) {
      names.emplace(name.size(), name);
    }
  };
  for (const auto& [name, values] : manifest.state.items()) {
    add(name);
  }
  for (const auto& [file, record] : manifest.files) {
    if (file.ends_with(kModelFileEnd)) {
      add(file.substr(0, file.size() - kModelFileEnd.size()));
    }
  }
  std::vector<std::string> ordered;
  for (const auto& [size, name] : names) {
    ordered.push_back(name);
  }
  return ordered;
}

SavedModel::SavedModel(
    const CheckpointReader& checkpoint,
    const std::string& name)
    : name_(name), metadata_{{"format", "pt"}} {
  const auto& manifest = checkpoint.manifest();
  const auto common = manifest.files.find(str_cat(name_, kModelFileEnd));
  if (common != manifest.files.end()) {
    const auto& file = open(checkpoint, common->first, common->second);
    metadata_ = file.metadata();
    for (const auto& view : file.tensors()) {
      tensors_[view.name] = {
          view.dtype,
          view.shape,
          {{flat_range(view.shape, 0, view.num_elements()), view}}};
    }
  }
  std::string missing_ranks;
  for (int rank = 0; rank < manifest.world_size; ++rank) {
    if (const auto shard = checkpoint.rank_shard(rank)) {
      add_slices(checkpoint, *shard);
    } else {
      missing_ranks += str_cat(missing_ranks.empty() ? "" : ", ", rank);
    }
  }
  check_whole(checkpoint, missing_ranks);
  if (tensors_.empty()) {
    throw DataError(str_cat(
        "[checkpoint] '",
        checkpoint.folder().string(),
        "' contains no tensors of '",
        name_,
        "'",
        missing_ranks.empty()
            ? ""
            : str_cat(
                  ", and the data of these ranks is missing: ", missing_ranks),
        ". Use another checkpoint"));
  }
}

const safetensors::File& SavedModel::open(
    const CheckpointReader& checkpoint,
    const std::string& name,
    const FileRecord& record) {
  files_.emplace_back(checkpoint.find(name, record));
  checkpoint.check(name, record, files_.back().bytes());
  return files_.back();
}

void SavedModel::add_slices(
    const CheckpointReader& checkpoint,
    const Manifest& shard) {
  const auto values = shard.state.find(name_);
  if (values == shard.state.end() || values->empty()) {
    return;
  }
  const auto prefix = str_cat(name_, '.');
  for (const auto& [file_name, record] : shard.files) {
    const auto& file = open(checkpoint, file_name, record);
    for (const auto& view : file.tensors()) {
      if (!view.name.starts_with(prefix)) {
        continue;
      }
      const auto tensor = view.name.substr(prefix.size());
      SliceRecord slice;
      try {
        slice = SliceRecord::parse(values->at(tensor), view.num_elements());
      } catch (const nlohmann::json::exception&) {
        refuse(checkpoint, tensor, "has a slice without a position");
      } catch (const UsageError& error) {
        refuse(checkpoint, tensor, str_cat("is damaged (", error.what(), ")"));
      }
      auto& known =
          tensors_.try_emplace(tensor, Tensor{view.dtype, slice.shape, {}})
              .first->second;
      if (known.dtype != view.dtype || known.shape != slice.shape) {
        refuse(
            checkpoint,
            tensor,
            "has different shapes or dtypes on different ranks");
      }
      known.sources.push_back({std::move(slice.pieces), view});
    }
  }
}

std::int64_t SavedModel::Tensor::assemble(const Copy& copy) const {
  PieceAssembly assembly(
      shape, flat_range(shape, 0, elements_of(shape).value()));
  for (const auto& source : sources) {
    assembly.add(
        source.pieces,
        [&](std::int64_t in_tensor,
            std::int64_t in_source,
            std::int64_t count) { copy(in_tensor, source, in_source, count); });
  }
  return assembly.num_missing();
}

void SavedModel::check_whole(
    const CheckpointReader& checkpoint,
    const std::string& missing_ranks) const {
  for (const auto& [name, tensor] : tensors_) {
    const auto num_missing =
        tensor.assemble([](auto, const auto&, auto, auto) {});
    if (num_missing != 0) {
      refuse(
          checkpoint,
          name,
          str_cat(
              "is incomplete: ",
              num_missing,
              " of ",
              *elements_of(tensor.shape),
              " elements are missing",
              missing_ranks.empty()
                  ? ""
                  : str_cat(
                        " because the data of these ranks is missing: ",
                        missing_ranks)));
    }
  }
}

void SavedModel::write(const fs::path& target) const {
  std::vector<safetensors::TensorSpec> specs;
  for (const auto& [name, tensor] : tensors_) {
    specs.push_back({name, tensor.dtype, tensor.shape});
  }
  safetensors::StreamedFile file(target, specs, metadata_);
  for (const auto& [name, tensor] : tensors_) {
    const auto bits_each =
        static_cast<std::uint64_t>(safetensors::dtype_bits(tensor.dtype));
    tensor.assemble([&, &name = name](
                        std::int64_t in_tensor,
                        const Source& source,
                        std::int64_t in_source,
                        std::int64_t count) {
      const auto bytes = [&](std::int64_t number) {
        return static_cast<std::uint64_t>(number) * bits_each / 8;
      };
      file.write(
          name,
          bytes(in_tensor),
          source.view.data.subspan(bytes(in_source), bytes(count)));
    });
  }
  file.commit();
}

} // namespace accelerate
