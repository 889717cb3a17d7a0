// SPDX-License-Identifier: Apache-2.0
// Any bytes as a configuration file: an accepted file must be unchanged after
// it is written again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "accelerate/error.h"
#include "core/config/config_file.h"
#include "core/config/yaml_tree.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace accelerate;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  ConfigFile file;
  try {
    file = parse_config(text, "f");
  } catch (const ConfigError&) {
    return 0;
  }
  const nlohmann::json document = complete_document(file, 0);
  const ConfigFile again = parse_config(to_yaml(document), "f");
  if (complete_document(again, 0) != document) {
    std::abort();
  }
  return 0;
}
