// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/plan/nearest_file.h"

#include "core/config/nearest.h"

namespace accelerate {

namespace fs = std::filesystem;

std::string nearest_file(
    const fs::path& path,
    const std::vector<std::string>& endings) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const std::string name = path.filename();
  std::error_code error;
  for (const std::string& ending : endings) {
    const fs::path longer = folder / (name + ending);
    if (!ending.empty() && fs::is_regular_file(longer, error)) {
      return (path.parent_path() / longer.filename()).string();
    }
  }
  std::vector<std::string> names;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    const std::string ending = entry->path().extension();
    for (const std::string& wanted : endings) {
      if (ending == wanted && entry->is_regular_file(ignored)) {
        names.push_back(entry->path().filename());
      }
    }
  }
  const std::string found = nearest_name(name, names);
  return found.empty() ? found : (path.parent_path() / found).string();
}

} // namespace accelerate
