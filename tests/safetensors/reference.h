// SPDX-License-Identifier: Apache-2.0
// Tensors with the same bytes as in tools/make_safetensors_reference.py.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "accelerate/safetensors.h"
#include "support/temp_dir.h"

namespace accelerate::testing {

inline std::filesystem::path reference_file(const std::string& name) {
  return std::filesystem::path(TEST_REFERENCE_DIR) / "safetensors" / name;
}

inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename());
  }
  return names;
}

inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// A file made by hand: the length, the header, the data.
inline std::string file_text(
    const std::string& header,
    const std::string& data = "") {
  std::string out;
  for (int i = 0; i < 8; ++i) {
    out += static_cast<char>(header.size() >> (8 * i) & 0xFF);
  }
  return out + header + data;
}

/// Tensors with the bytes (seed * 31 + i * 7) mod 256, where the seed counts
/// the tensors.
class PatternTensors {
 public:
  PatternTensors& add(
      std::string name,
      safetensors::Dtype dtype,
      std::vector<std::int64_t> shape,
      std::size_t num_bytes) {
    std::vector<std::byte>& bytes = buffers_.emplace_back(num_bytes);
    for (std::size_t i = 0; i < num_bytes; ++i) {
      bytes[i] = static_cast<std::byte>((tensors_.size() * 31 + i * 7) % 256);
    }
    tensors_.push_back(
        {.name = std::move(name),
         .dtype = dtype,
         .shape = std::move(shape),
         .data = bytes});
    return *this;
  }

  const std::vector<safetensors::TensorView>& views() const { return tensors_; }

 private:
  std::deque<std::vector<std::byte>> buffers_;
  std::vector<safetensors::TensorView> tensors_;
};

} // namespace accelerate::testing
