// SPDX-License-Identifier: Apache-2.0
#include "core/safetensors/folder.h"

#include <algorithm>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate::safetensors {

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end;
       !error && at != end;
       at.increment(error)) {
    names.push_back(at->path().filename());
  }
  if (error) {
    throw SystemError(str_cat(
        "[safetensors] cannot read the folder '",
        folder.string(),
        "': ",
        error.message(),
        "; check its permissions"));
  }
  std::sort(names.begin(), names.end());
  return names;
}

} // namespace accelerate::safetensors
