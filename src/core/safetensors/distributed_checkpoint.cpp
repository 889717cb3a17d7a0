// SPDX-License-Identifier: Apache-2.0
#include "core/safetensors/distributed_checkpoint.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "accelerate/error.h"
#include "core/base/mapped_file.h"
#include "core/base/str.h"
#include "core/safetensors/pickle.h"
#include "core/safetensors/stored_zip.h"

namespace accelerate::safetensors {
namespace {

namespace fs = std::filesystem;
using Kind = PickleValue::Kind;
using Shape = std::vector<std::int64_t>;

constexpr const char* kMetadataName = ".metadata";
constexpr std::string_view kMetadata = "torch.distributed.checkpoint.metadata ";
// Objects of a pickle may be shared. Limiting the entries that are searched
// repeatedly bounds the time.
constexpr std::size_t kMaxFields = 64;

// Names of torch.dtype, and of the storages that tensors are saved with.
struct TorchDtype {
  std::string_view name;
  std::string_view storage;
  Dtype dtype;
};
constexpr TorchDtype kDtypes[] = {
    {"torch float32", "torch FloatStorage", Dtype::kF32},
    {"torch bfloat16", "torch BFloat16Storage", Dtype::kBF16},
    {"torch float16", "torch HalfStorage", Dtype::kF16},
    {"torch float64", "torch DoubleStorage", Dtype::kF64},
    {"torch int64", "torch LongStorage", Dtype::kI64},
    {"torch int32", "torch IntStorage", Dtype::kI32},
    {"torch int16", "torch ShortStorage", Dtype::kI16},
    {"torch int8", "torch CharStorage", Dtype::kI8},
    {"torch uint8", "torch ByteStorage", Dtype::kU8},
    {"torch bool", "torch BoolStorage", Dtype::kBool},
};

/// The elements of one part in memory, with any strides.
struct StoredPiece {
  std::span<const std::byte> data = {};
  Shape strides = {};
};

// The product of the lengths. Empty if one is negative or the product too large
// to address.
std::optional<std::int64_t> count_of(const Shape& shape) {
  std::int64_t count = 1;
  for (const auto size : shape) {
    if (size < 0 || (size > 0 && count > (std::int64_t{1} << 48) / size)) {
      return std::nullopt;
    }
    count *= size;
  }
  return count;
}

// Copies `piece` into `whole` at `begin`, row by row of the last dimension.
void copy_piece(
    std::byte* whole,
    const Shape& shape,
    const Shape& begin,
    const Shape& sizes,
    const StoredPiece& piece,
    std::int64_t element) {
  const std::size_t rank = shape.size();
  const std::int64_t row = rank == 0 ? 1 : sizes.back();
  Shape at(rank, 0);
  while (true) {
    std::int64_t to = 0;
    std::int64_t from = 0;
    for (std::size_t i = 0; i < rank; ++i) {
      to = to * shape[i] + begin[i] + at[i];
      from += at[i] * piece.strides[i];
    }
    const std::int64_t stride = rank == 0 ? 1 : piece.strides.back();
    if (stride == 1) {
      std::memcpy(
          whole + to * element,
          piece.data.data() + from * element,
          static_cast<std::size_t>(row * element));
    } else {
      for (std::int64_t i = 0; i < row; ++i) {
        std::memcpy(
            whole + (to + i) * element,
            piece.data.data() + (from + i * stride) * element,
            static_cast<std::size_t>(element));
      }
    }
    // Advance to the next row.
    std::size_t i = rank;
    while (i > 1 && ++at[i - 2] == sizes[i - 2]) {
      at[i - 2] = 0;
      --i;
    }
    if (i <= 1) {
      return;
    }
  }
}

} // namespace

class DistributedReader {
 public:
  DistributedReader(const fs::path& folder, DistributedCheckpoint& checkpoint)
      : folder_(folder),
        where_(str_cat("[merge-weights] '", folder.string(), "'")),
        checkpoint_(checkpoint) {}

  void read() {
    const MappedFile file(
        folder_ / kMetadataName, "[merge-weights]", "checkpoint's metadata");
    const Pickle pickle(file.bytes(), str_cat(where_, " has a .metadata that"));
    const PickleValue& root = object(pickle.root(), "Metadata");
    read_locations(field(root, "storage_data"));
    if (const auto* const paths = root.find("planner_data");
        paths != nullptr && paths->is(Kind::kDict)) {
      for_each(*paths, [&](const auto& key, const auto& value) {
        keys_[text(key)] = &value;
      });
    }
    num_pieces_left_ = file.bytes().size();
    for_each(
        field(root, "state_dict_metadata"),
        [&](const auto& key, const auto& value) {
          const std::string& name = text(key);
          if (value.is_call_of(str_cat(kMetadata, "BytesStorageMetadata"))) {
            checkpoint_.left_out_.push_back(name);
          } else {
            read_tensor(name, value);
          }
        });
    name_tensors();
    checkpoint_.num_files_ = files_.size();
  }

 private:
  struct Location {
    std::string file = {};
    std::uint64_t begin = 0;
    std::uint64_t size = 0;
  };

  [[noreturn]] void refuse(const std::string& what) const {
    throw DataError(str_cat(
        where_,
        " ",
        what,
        ", so it was not written by torch.distributed.checkpoint. Save it "
        "again"));
  }

  // --- forms of pickles ----------------------------------------------------

  const PickleValue& of(const PickleValue& value, Kind kind) const {
    if (!value.is(kind)) {
      refuse("has a value of an unexpected type in its metadata");
    }
    return value;
  }
  const std::string& text(const PickleValue& value) const {
    return of(value, Kind::kText).text;
  }
  std::int64_t number(const PickleValue& value) const {
    return of(value, Kind::kNumber).number;
  }

  /// The fields of an object of one of torch's metadata classes.
  const PickleValue& object(const PickleValue& value, std::string_view name)
      const {
    return object_of(value, str_cat(kMetadata, name));
  }
  const PickleValue& object_of(
      const PickleValue& value,
      const std::string& name) const {
    if (!value.is_call_of(name) || value.items.size() != 3 ||
        value.items[2]->items.size() > kMaxFields) {
      refuse(str_cat("has an unexpected object instead of ", name));
    }
    return *value.items[2];
  }

  const PickleValue& field(const PickleValue& fields, const char* name) const {
    const auto* const found = fields.find(name);
    if (found == nullptr) {
      refuse(str_cat("has no ", name, " in its metadata"));
    }
    return *found;
  }

  template <class Visit>
  void for_each(const PickleValue& dict, Visit visit) const {
    const auto& items = of(dict, Kind::kDict).items;
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      visit(*items[i], *items[i + 1]);
    }
  }

  Shape numbers(const PickleValue& tuple) const {
    Shape shape;
    if (tuple.items.size() > kMaxFields) {
      refuse("has a tensor with too many dimensions");
    }
    for (const auto* item : of(tuple, Kind::kTuple).items) {
      shape.push_back(number(*item));
    }
    return shape;
  }

  Shape size_of(const PickleValue& value) const {
    if (!value.is_call_of("torch Size") || value.items.size() != 2 ||
        value.items[1]->items.size() != 1) {
      refuse("has an unexpected object instead of a torch.Size");
    }
    return numbers(*value.items[1]->items[0]);
  }

  // --- the metadata --------------------------------------------------------

  void read_locations(const PickleValue& dict) {
    for_each(dict, [&](const PickleValue& key, const PickleValue& value) {
      const PickleValue& index = object(key, "MetadataIndex");
      const auto* const offset = index.find("offset");
      if (offset == nullptr || offset->is(Kind::kNone)) {
        return; // not a tensor
      }
      const PickleValue& info = object_of(
          value, "torch.distributed.checkpoint.filesystem _StorageInfo");
      const auto* const transforms = info.find("transform_descriptors");
      if (transforms != nullptr && !transforms->is(Kind::kNone)) {
        refuse("has compressed parts");
      }
      Location location{.file = text(field(info, "relative_path"))};
      const std::int64_t begin = number(field(info, "offset"));
      const std::int64_t size = number(field(info, "length"));
      if (location.file.empty() || begin < 0 || size < 0 ||
          location.file.find('/') != std::string::npos ||
          location.file[0] == '.') {
        refuse(str_cat("names the file '", location.file, "'"));
      }
      location.begin = static_cast<std::uint64_t>(begin);
      location.size = static_cast<std::uint64_t>(size);
      locations_[{text(field(index, "fqn")), size_of(*offset)}] =
          std::move(location);
    });
  }

  void read_tensor(const std::string& name, const PickleValue& value) {
    const PickleValue& fields = object(value, "TensorStorageMetadata");
    const PickleValue& properties =
        object(field(fields, "properties"), "TensorProperties");
    TensorView tensor{.name = name, .shape = size_of(field(fields, "size"))};
    if (of(properties, Kind::kTuple).items.empty()) {
      refuse(str_cat("has no dtype for '", name, "'"));
    }
    const TorchDtype& dtype = dtype_of(name, *properties.items[0]);
    tensor.dtype = dtype.dtype;
    const auto element = safetensors::dtype_bits(tensor.dtype) / 8;
    const auto count = count_of(tensor.shape);
    const auto& chunks = of(field(fields, "chunks"), Kind::kList).items;
    // Do not allocate memory for data that no file contains.
    if (!count || !is_backed(*count * element)) {
      refuse(
          str_cat("has a size for '", name, "' that does not match its files"));
    }
    auto& data = checkpoint_.data_.emplace_back(
        static_cast<std::size_t>(*count * element));
    std::int64_t num_found = 0;
    std::set<Shape> begins;
    if (chunks.size() > num_pieces_left_) {
      refuse(str_cat("has too many parts of '", name, "'"));
    }
    num_pieces_left_ -= chunks.size();
    for (const auto* piece : chunks) {
      num_found += read_piece(tensor, dtype, *piece, data, begins);
    }
    if (num_found != *count) {
      refuse(str_cat(
          "has ", num_found, " of the ", *count, " elements of '", name, "'"));
    }
    tensor.data = data;
    checkpoint_.tensors_.push_back(std::move(tensor));
    paths_.push_back(path_of(name));
  }

  const TorchDtype& dtype_of(const std::string& name, const PickleValue& value)
      const {
    for (const TorchDtype& row : kDtypes) {
      if (value.is(Kind::kGlobal) && value.text == row.name) {
        return row;
      }
    }
    refuse(str_cat(
        "has '",
        name,
        "' in ",
        value.text,
        ", which this version cannot read"));
  }

  std::int64_t read_piece(
      const TensorView& tensor,
      const TorchDtype& dtype,
      const PickleValue& value,
      std::vector<std::byte>& data,
      std::set<Shape>& begins) {
    const PickleValue& fields = object(value, "ChunkStorageMetadata");
    const Shape begin = size_of(field(fields, "offsets"));
    const Shape sizes = size_of(field(fields, "sizes"));
    bool is_inside =
        begin.size() == tensor.shape.size() && sizes.size() == begin.size();
    for (std::size_t i = 0; is_inside && i < sizes.size(); ++i) {
      is_inside = begin[i] >= 0 && sizes[i] >= 0 &&
                  sizes[i] <= tensor.shape[i] &&
                  begin[i] <= tensor.shape[i] - sizes[i];
    }
    if (!is_inside || !begins.insert(begin).second) {
      refuse(str_cat("has an invalid part of '", tensor.name, "'"));
    }
    const std::int64_t count = *count_of(sizes);
    if (count == 0) {
      return 0;
    }
    const auto location = locations_.find({tensor.name, begin});
    if (location == locations_.end()) {
      refuse(str_cat("does not say where a part of '", tensor.name, "' is"));
    }
    const auto element = safetensors::dtype_bits(tensor.dtype) / 8;
    const StoredPiece piece =
        open_piece(tensor.name, dtype, location->second, sizes);
    copy_piece(data.data(), tensor.shape, begin, sizes, piece, element);
    return count;
  }

  // --- the files -----------------------------------------------------------

  bool is_backed(std::int64_t num_bytes) {
    if (num_left_ < 0) {
      std::error_code ignored;
      num_left_ = 0;
      for (const auto& entry : fs::directory_iterator(folder_, ignored)) {
        if (entry.is_regular_file(ignored)) {
          num_left_ += static_cast<std::int64_t>(entry.file_size(ignored));
        }
      }
    }
    num_left_ -= std::min(num_bytes, num_left_ + 1);
    return num_left_ >= 0;
  }

  std::span<const std::byte> bytes_of(
      const std::string& name,
      const Location& location) {
    auto& file = files_[location.file];
    if (file == nullptr) {
      file = std::make_unique<MappedFile>(
          folder_ / location.file, "[merge-weights]", "part of a checkpoint");
    }
    const auto bytes = file->bytes();
    if (location.begin > bytes.size() ||
        location.size > bytes.size() - location.begin) {
      refuse(str_cat(
          "has a file '",
          location.file,
          "' that ends before '",
          name,
          "' does"));
    }
    return bytes.subspan(location.begin, location.size);
  }

  /// A part as written by torch.save.
  StoredPiece open_piece(
      const std::string& name,
      const TorchDtype& dtype,
      const Location& location,
      const Shape& sizes) {
    const std::string where = str_cat(where_, " has '", name, "', which");
    const StoredZip zip(bytes_of(name, location), where);
    const Pickle pickle(zip.entry("data.pkl"), where);
    const PickleValue& root = pickle.root();
    const auto byte_order = zip.entry("byteorder");
    if (std::string_view(
            reinterpret_cast<const char*>(byte_order.data()),
            byte_order.size()) != "little") {
      refuse(
          str_cat("has '", name, "' in a byte order other than little-endian"));
    }
    if (!root.is_call_of("torch._utils _rebuild_tensor_v2") ||
        root.items[1]->items.size() < 4 ||
        !root.items[1]->items[0]->is(Kind::kReference)) {
      refuse(str_cat(
          "has an unexpected object instead of the tensor '", name, "'"));
    }
    const auto& arguments = root.items[1]->items;
    const auto& storage = of(*arguments[0]->items[0], Kind::kTuple).items;
    if (storage.size() != 5 || text(*storage[0]) != "storage" ||
        of(*storage[1], Kind::kGlobal).text != dtype.storage) {
      refuse(str_cat(
          "has '", name, "' in a dtype that differs from its metadata"));
    }
    const auto data = zip.entry("data/" + text(*storage[2]));
    const std::int64_t element = safetensors::dtype_bits(dtype.dtype) / 8;
    const std::int64_t first = number(*arguments[1]);
    StoredPiece piece{.strides = numbers(*arguments[3])};
    const auto available = static_cast<std::int64_t>(data.size()) / element;
    bool fits = numbers(*arguments[2]) == sizes &&
                piece.strides.size() == sizes.size() && first >= 0 &&
                first < available;
    std::int64_t last = first;
    for (std::size_t i = 0; fits && i < sizes.size(); ++i) {
      const std::int64_t steps = sizes[i] - 1;
      const std::int64_t stride = piece.strides[i];
      fits = stride >= 0 &&
             (steps == 0 || stride <= (available - 1 - last) / steps);
      last += fits ? steps * stride : 0;
    }
    if (!fits) {
      refuse(str_cat("has a part of '", name, "' with a different shape"));
    }
    piece.data = data.subspan(static_cast<std::size_t>(first * element));
    return piece;
  }

  // --- names ---------------------------------------------------------------

  std::vector<std::string> path_of(const std::string& name) const {
    const auto path = keys_.find(name);
    if (path == keys_.end()) {
      return {name};
    }
    std::vector<std::string> names;
    const auto& items = of(*path->second, Kind::kTuple).items;
    if (items.size() > kMaxFields) {
      refuse(str_cat("has a path for '", name, "' that is too long"));
    }
    for (const auto* key : items) {
      names.push_back(
          key->is(Kind::kNumber) ? std::to_string(key->number) : text(*key));
    }
    return names;
  }

  /// Names tensors as the original does, without the key under which a whole
  /// model was saved.
  void name_tensors() {
    const bool has_key =
        !paths_.empty() &&
        std::all_of(paths_.begin(), paths_.end(), [&](const auto& path) {
          return path.size() > 1 && path[0] == paths_[0][0];
        });
    for (std::size_t i = 0; i < paths_.size(); ++i) {
      std::string name;
      for (std::size_t level = has_key ? 1 : 0; level < paths_[i].size();
           ++level) {
        name += (name.empty() ? "" : ".") + paths_[i][level];
      }
      checkpoint_.tensors_[i].name = name;
    }
  }

  const fs::path& folder_;
  std::string where_;
  DistributedCheckpoint& checkpoint_;
  std::map<std::pair<std::string, Shape>, Location> locations_;
  std::map<std::string, std::unique_ptr<MappedFile>> files_;
  std::map<std::string, const PickleValue*> keys_;
  std::vector<std::vector<std::string>> paths_;
  std::size_t num_pieces_left_ = 0;
  /// The number of bytes in files not yet assigned to a tensor; -1 until
  /// counted.
  std::int64_t num_left_ = -1;
};

bool is_distributed_checkpoint(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / kMetadataName, ignored);
}

DistributedCheckpoint::DistributedCheckpoint(const fs::path& folder) {
  DistributedReader(folder, *this).read();
}

DistributedCheckpoint::~DistributedCheckpoint() = default;

} // namespace accelerate::safetensors
