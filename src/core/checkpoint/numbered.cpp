// SPDX-License-Identifier: Apache-2.0
#include "core/checkpoint/numbered.h"

#include <algorithm>

#include "accelerate/error.h"
#include "core/base/parse.h"
#include "core/base/str.h"
#include "core/checkpoint/checkpoint_folder.h"
#include "core/checkpoint/staging.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kNumberedStart = "checkpoint_";
// Every checkpoint of Hugging Face's library contains it.
constexpr const char* kOriginalsFile = "random_states_0.pkl";

bool is_whole(const fs::path& folder) {
  try {
    CheckpointReader(folder).check_shards();
    return true;
  } catch (const Error&) {
    return false;
  }
}

} // namespace

std::optional<std::int64_t> checkpoint_number(const fs::path& folder) {
  const auto name = folder.filename().string();
  const auto digits = name.starts_with(kNumberedStart)
                          ? name.substr(kNumberedStart.size())
                          : "";
  const bool is_padded = digits.starts_with('0') && digits != "0";
  if (digits.empty() || is_padded || digits.size() > 18 ||
      digits.find_first_not_of("0123456789") != std::string::npos) {
    return std::nullopt;
  }
  return std::stoll(digits);
}

std::map<std::int64_t, fs::path> numbered_checkpoints(const fs::path& parent) {
  std::map<std::int64_t, fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(parent, error), end; !error && it != end;
       it.increment(error)) {
    if (const auto number = checkpoint_number(it->path())) {
      found[*number] = it->path();
    }
  }
  return found;
}

std::map<std::int64_t, std::int64_t> moments_of_job(
    const fs::path& parent,
    const std::string& job,
    std::int64_t first) {
  std::map<std::int64_t, std::int64_t> moments;
  // Saves being written first: one may be committed in the meantime.
  for (const auto& entry : entries_of(parent)) {
    const auto stage = parse_stage_name(entry);
    const auto number =
        stage && !stage->rank ? checkpoint_number(stage->target) : std::nullopt;
    if (!number) {
      continue;
    }
    const auto moment = parse_number<std::int64_t>(
        stage->save.substr(0, stage->save.find('-')));
    if (moment && stage->save == save_name(*moment, job)) {
      moments[*number] = *moment;
    }
  }
  for (const auto& [number, folder] : numbered_checkpoints(parent)) {
    if (number < first || !is_checkpoint(folder)) {
      continue;
    }
    try {
      const CheckpointReader reader(folder);
      if (reader.manifest().job == job) {
        moments[number] = reader.manifest().moment;
      }
    } catch (const Error&) {
      continue; // a save to this folder reports it
    }
  }
  return moments;
}

bool is_original_checkpoint(const fs::path& folder) {
  std::error_code ignored;
  return fs::is_regular_file(folder / kOriginalsFile, ignored);
}

std::vector<fs::path> complete_checkpoints(
    const fs::path& parent,
    const std::function<void(const std::string& what)>& complain) {
  const auto say = [&](const std::string& what) {
    if (complain) {
      complain(what);
    }
  };
  std::vector<std::pair<std::int64_t, fs::path>> found;
  for (const auto& entry : entries_of(parent)) {
    if (entry.filename().string().starts_with('.')) {
      continue;
    }
    if (!is_checkpoint(entry)) {
      if (checkpoint_number(entry) && !is_original_checkpoint(entry)) {
        say(str_cat(
            "[load_state] Skipping '",
            entry.string(),
            "': it has no ",
            kManifestName,
            ", so it is not a complete checkpoint"));
      }
      continue;
    }
    try {
      const CheckpointReader checkpoint(entry);
      checkpoint.check_shards();
      found.emplace_back(checkpoint.manifest().saved_at, entry);
    } catch (const Error& error) {
      say(error.what());
    }
  }
  std::sort(found.begin(), found.end());
  std::vector<fs::path> folders;
  for (auto& [time, folder] : found) {
    folders.push_back(std::move(folder));
  }
  return folders;
}

void drop_damaged(
    std::vector<fs::path>& checkpoints,
    const std::function<void(const std::string& what)>& complain) {
  while (!checkpoints.empty()) {
    try {
      read_checkpoint(
          checkpoints.back(),
          [](const CheckpointReader& checkpoint) { checkpoint.verify(); });
      return;
    } catch (const Error& error) {
      if (complain) {
        complain(error.what());
      }
      checkpoints.pop_back();
    }
  }
}

std::optional<fs::path> latest_intact_checkpoint(
    const fs::path& parent,
    const std::function<void(const std::string& what)>& complain) {
  auto found = complete_checkpoints(parent, complain);
  drop_damaged(found, complain);
  return found.empty() ? std::nullopt : std::optional(found.back());
}

fs::path numbered_checkpoint(const fs::path& parent, std::int64_t number) {
  return parent / str_cat(kNumberedStart, number);
}

std::int64_t next_checkpoint_number(const fs::path& parent) {
  const auto numbered = numbered_checkpoints(parent);
  return numbered.empty() ? 0 : numbered.rbegin()->first + 1;
}

void rotate_checkpoints(const fs::path& parent, std::int64_t limit) {
  const auto numbered = numbered_checkpoints(parent);
  std::int64_t num_kept = 0;
  for (auto it = numbered.rbegin(); it != numbered.rend(); ++it) {
    const auto& folder = it->second;
    const bool is_ours = is_checkpoint(folder);
    if (!is_ours && !is_original_checkpoint(folder)) {
      continue; // the user may use such names, too
    }
    if (num_kept >= limit) {
      remove_checkpoint(folder);
    } else if (!is_ours || is_whole(folder)) {
      ++num_kept;
    }
  }
}

} // namespace accelerate
