// SPDX-License-Identifier: Apache-2.0
// Any bytes as the files of a run: the page receives JSON of a bounded size,
// the same whether a file is read as a whole or as it grows.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "launcher/watch/run_reader.h"
#include "launcher/watch/snapshot.h"
#include "require.h"

namespace {

namespace fs = std::filesystem;

struct Folder {
  fs::path path = fs::temp_directory_path() /
                  ("run_folder_fuzz_" + std::to_string(getpid()));
  Folder() { fs::create_directories(path / "ranks"); }
  ~Folder() { fs::remove_all(path); }
};

void append(const fs::path& folder, std::string_view bytes, bool is_new) {
  for (const char* name :
       {"metrics.jsonl", "ranks/rank_0.jsonl", "ranks/rank_1.jsonl"}) {
    std::ofstream(
        folder / name,
        is_new ? std::ios::binary : std::ios::binary | std::ios::app)
        << bytes;
  }
}

std::string shown(const accelerate::RunReader& run) {
  return accelerate::snapshot(run, 2000).dump(
      -1, ' ', false, nlohmann::json::error_handler_t::replace);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Folder folder;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  append(folder.path, bytes.substr(0, size / 2), true);
  accelerate::RunReader growing(folder.path);
  growing.refresh();
  append(folder.path, bytes.substr(size / 2), false);
  growing.refresh();
  accelerate::RunReader whole(folder.path);
  whole.refresh();
  const auto text = shown(whole);
  require(text.size() < 1'000'000 + 20 * size, "a bounded answer");
  // Lines of several files count in the order in which they were read.
  require(growing.content().metrics.size() == whole.content().metrics.size());
  require(!shown(growing).empty());
  return 0;
}
