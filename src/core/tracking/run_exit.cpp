// SPDX-License-Identifier: Apache-2.0
#include "core/tracking/run_exit.h"

#include <nlohmann/json.hpp>

#include "core/tracking/append_file.h"
#include "core/tracking/run_folder.h"

namespace accelerate {

void record_exit(
    const std::filesystem::path& folder,
    const RunExitRecord& exit) {
  nlohmann::ordered_json line = {
      {"time", wall_seconds()},
      {"event", "exit"},
      {"exit_code", exit.exit_code}};
  if (exit.rank) {
    line["rank"] = *exit.rank;
    line["host"] = exit.host;
  }
  line["how"] = exit.how;
  if (!exit.error.empty()) {
    line["error"] = exit.error;
  }
  AppendFile(folder / kExitsFile, /*cut_line=*/true)
      .write(
          line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
          '\n');
}

} // namespace accelerate
