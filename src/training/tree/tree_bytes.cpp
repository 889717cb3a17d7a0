// SPDX-License-Identifier: Apache-2.0
#include "accelerate/detail/tree_bytes.h"

#include <ATen/ATen.h>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate::tree {
namespace {

// Enough for every dtype, and guaranteed by malloc.
constexpr int64_t kAlignment = 16;

int64_t aligned(int64_t position) {
  return (position + kAlignment - 1) / kAlignment * kAlignment;
}

int64_t num_bytes(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<int64_t>(tensor.element_size());
}

} // namespace

void ByteWriter::bytes(const void* data, size_t size) {
  small_.append(static_cast<const char*>(data), size);
}

void ByteWriter::count(size_t value) {
  const auto number = static_cast<uint64_t>(value);
  bytes(&number, sizeof(number));
}

void ByteWriter::tensor(const at::Tensor& value) {
  if (!value.defined()) {
    small_.push_back(0);
    return;
  }
  small_.push_back(1);
  small_.push_back(static_cast<char>(value.scalar_type()));
  count(static_cast<size_t>(value.dim()));
  for (const int64_t size : value.sizes()) {
    count(static_cast<size_t>(size));
  }
  tensors_.push_back(value.detach().cpu().contiguous());
}

int64_t ByteWriter::size() const {
  int64_t size = static_cast<int64_t>(sizeof(int64_t) + small_.size());
  for (const auto& tensor : tensors_) {
    size = aligned(size) + num_bytes(tensor);
  }
  return size;
}

void ByteWriter::write(char* output) const {
  auto position = static_cast<int64_t>(sizeof(int64_t) + small_.size());
  std::memcpy(output, &position, sizeof(position));
  std::memcpy(output + sizeof(position), small_.data(), small_.size());
  for (const auto& tensor : tensors_) {
    const int64_t begin = aligned(position);
    std::memset(output + position, 0, static_cast<size_t>(begin - position));
    std::memcpy(
        output + begin,
        tensor.const_data_ptr(),
        static_cast<size_t>(num_bytes(tensor)));
    position = begin + num_bytes(tensor);
  }
}

ByteReader::ByteReader(
    std::shared_ptr<const void> owner,
    char* data,
    int64_t size)
    : owner_(std::move(owner)), data_(data), size_(size) {
  small_end_ = size;
  int64_t end = 0;
  bytes(&end, sizeof(end));
  if (end < small_ || end > size) {
    throw CommError(str_cat(
        "[tree bytes] The message was not written by ByteWriter: its first "
        "part ends at byte ",
        end,
        " of ",
        size));
  }
  small_end_ = end;
  tensors_ = end;
}

void ByteReader::bytes(void* output, size_t size) {
  if (static_cast<int64_t>(size) > small_end_ - small_) {
    throw CommError(str_cat(
        "[tree bytes] The message has ",
        small_end_ - small_,
        " bytes left, but ",
        size,
        " are needed. Use the same type on both ranks"));
  }
  std::memcpy(output, data_ + small_, size);
  small_ += static_cast<int64_t>(size);
}

size_t ByteReader::count() {
  uint64_t number = 0;
  bytes(&number, sizeof(number));
  // Each counted item takes at least one byte, so larger counts are damaged.
  if (number > static_cast<uint64_t>(small_end_ - small_)) {
    throw CommError(str_cat(
        "[tree bytes] The message has ",
        small_end_ - small_,
        " bytes left, which is too few for ",
        number,
        " items. Use the same type on both ranks"));
  }
  return number;
}

at::Tensor ByteReader::tensor() {
  char is_defined = 0;
  bytes(&is_defined, 1);
  if (is_defined == 0) {
    return {};
  }
  char dtype = 0;
  bytes(&dtype, 1);
  std::vector<int64_t> shape(count());
  bytes(shape.data(), shape.size() * sizeof(int64_t));
  const auto options = at::dtype(static_cast<at::ScalarType>(dtype));
  const int64_t begin = aligned(tensors_);
  // Each tensor gets its own storage. Views of one storage would share a
  // version counter, and autograd would treat a change of one as a change of
  // all.
  auto tensor = at::from_blob(
      data_ + begin, shape, [owner = owner_](void*) {}, options);
  tensors_ = begin + num_bytes(tensor);
  if (tensors_ > size_) {
    throw CommError(str_cat(
        "[tree bytes] The message is truncated: a tensor ends at byte ",
        tensors_,
        " of ",
        size_));
  }
  return tensor;
}

std::string finish(const ByteWriter& writer) {
  std::string bytes(static_cast<size_t>(writer.size()), '\0');
  writer.write(bytes.data());
  return bytes;
}

ByteReader open_copy(const std::string& bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  auto copy = std::make_shared<at::Tensor>(at::empty({size}, at::kByte));
  auto* data = static_cast<char*>(copy->data_ptr());
  std::memcpy(data, bytes.data(), bytes.size());
  return ByteReader(copy, data, size);
}

} // namespace accelerate::tree
