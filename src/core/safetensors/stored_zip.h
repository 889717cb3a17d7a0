// SPDX-License-Identifier: Apache-2.0
// Archives of torch.save: uncompressed zip files.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>

#include "core/base/internal.h"

namespace accelerate::safetensors {

class ACCELERATE_INTERNAL StoredZip {
 public:
  /// Throws a `DataError` whose message begins with `where`.
  StoredZip(std::span<const std::byte> bytes, std::string where);

  /// The bytes of an entry, by its name inside the folder that all entries
  /// share ("archive/").
  std::span<const std::byte> entry(const std::string& name) const;

 private:
  std::string where_;
  std::map<std::string, std::span<const std::byte>> entries_;
};

} // namespace accelerate::safetensors
