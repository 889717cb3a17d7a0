// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/saved_model.h"

#include <algorithm>
#include <optional>
#include <set>

#include "accelerate/error.h"
#include "base/str.h"
#include "safetensors/streamed_file.h"

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

/// Nothing for a shape that no tensor has.
std::optional<std::int64_t> num_numbers(
    const std::vector<std::int64_t>& shape) {
  std::int64_t product = 1;
  for (const auto dim : shape) {
    if (dim < 0 || __builtin_mul_overflow(product, dim, &product)) {
      return std::nullopt;
    }
  }
  return product;
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
      "; take another checkpoint"));
}

} // namespace

std::vector<std::string> SavedModel::names_in(
    const CheckpointReader& checkpoint) {
  const auto& manifest = checkpoint.manifest();
  std::set<std::pair<std::size_t, std::string>> names; // "_2" before "_10".
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
      tensors_[view.name] = {view.dtype, view.shape, {{0, view}}};
    }
  }
  std::string missing_ranks;
  for (int rank = 0; rank < manifest.world_size; ++rank) {
    if (const auto part = checkpoint.rank_part(rank)) {
      add_slices(checkpoint, *part);
    } else {
      missing_ranks += str_cat(missing_ranks.empty() ? "" : ", ", rank);
    }
  }
  order_pieces(checkpoint, missing_ranks);
  if (tensors_.empty()) {
    throw DataError(str_cat(
        "[checkpoint] '",
        checkpoint.folder().string(),
        "' has no tensors of '",
        name_,
        "'",
        missing_ranks.empty()
            ? ""
            : str_cat(", and no part of rank ", missing_ranks),
        "; take another checkpoint"));
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
    const Manifest& part) {
  const auto values = part.state.find(name_);
  if (values == part.state.end() || values->empty()) {
    return;
  }
  const auto prefix = str_cat(name_, '.');
  for (const auto& [file_name, record] : part.files) {
    const auto& file = open(checkpoint, file_name, record);
    for (const auto& view : file.tensors()) {
      if (!view.name.starts_with(prefix)) {
        continue;
      }
      const auto tensor = view.name.substr(prefix.size());
      std::vector<std::int64_t> shape;
      std::int64_t begin = 0;
      try {
        const auto& slice = values->at(tensor).at("slice");
        shape = slice.at("whole").get<std::vector<std::int64_t>>();
        begin = slice.at("begin").get<std::int64_t>();
      } catch (const nlohmann::json::exception&) {
        refuse(checkpoint, tensor, "has a part whose place is not written");
      }
      const auto [found, is_new] =
          tensors_.try_emplace(tensor, Tensor{view.dtype, shape, {}});
      auto& known = found->second;
      if (known.dtype != view.dtype || known.shape != shape) {
        refuse(checkpoint, tensor, "has another form on another rank");
      }
      const auto num_all = num_numbers(shape);
      if (!num_all || begin < 0 || begin > *num_all - view.num_elements()) {
        refuse(checkpoint, tensor, "has a part that reaches beyond it");
      }
      known.pieces.push_back({begin, view});
    }
  }
}

void SavedModel::order_pieces(
    const CheckpointReader& checkpoint,
    const std::string& missing_ranks) {
  for (auto& [name, tensor] : tensors_) {
    auto& pieces = tensor.pieces;
    std::sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) {
      return a.begin != b.begin ? a.begin < b.begin
                                : a.view.num_elements() > b.view.num_elements();
    });
    std::int64_t end = 0;
    std::int64_t num_missing = 0;
    // Named: clang 16 is the first that captures a structured binding by [&].
    std::erase_if(pieces, [&, &name = name](const Piece& piece) {
      const auto piece_end = piece.begin + piece.view.num_elements();
      if (piece_end <= end) {
        return true; // A replica's, or empty.
      }
      num_missing += std::max<std::int64_t>(0, piece.begin - end);
      if (piece.begin < end) {
        refuse(checkpoint, name, "has parts that overlap");
      }
      end = piece_end;
      return false;
    });
    const auto num_all = num_numbers(tensor.shape).value_or(end);
    num_missing += num_all - end;
    if (num_missing != 0) {
      refuse(
          checkpoint,
          name,
          str_cat(
              "lacks ",
              num_missing,
              " of ",
              num_all,
              " numbers",
              missing_ranks.empty()
                  ? ""
                  : str_cat(", as there is no part of rank ", missing_ranks)));
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
    const auto bytes_each =
        static_cast<std::uint64_t>(safetensors::dtype_bits(tensor.dtype)) / 8;
    for (const auto& [begin, view] : tensor.pieces) {
      file.write(
          name, static_cast<std::uint64_t>(begin) * bytes_each, view.data);
    }
  }
  file.commit();
}

} // namespace accelerate
