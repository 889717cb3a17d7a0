// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/numbered.h"

#include <map>
#include <optional>
#include <string>

#include "accelerate/error.h"
#include "base/str.h"
#include "checkpoint/checkpoint_folder.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kNumberedStart = "checkpoint_";
// Every checkpoint of Hugging Face's library has it.
constexpr const char* kOriginalsFile = "random_states_0.pkl";

/// N of "checkpoint_N"; nothing for other names, nor for N with zeros before.
std::optional<std::int64_t> number_of(const fs::path& folder) {
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

std::map<std::int64_t, fs::path> numbered_in(const fs::path& parent) {
  std::map<std::int64_t, fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(parent, error), end; !error && it != end;
       it.increment(error)) {
    if (const auto number = number_of(it->path())) {
      found[*number] = it->path();
    }
  }
  return found;
}

bool is_original(const fs::path& folder) {
  return fs::exists(folder / kOriginalsFile);
}

bool is_whole(const fs::path& folder) {
  try {
    const CheckpointReader reader(folder);
    return true;
  } catch (const Error&) {
    return false;
  }
}

} // namespace

fs::path numbered_checkpoint(const fs::path& parent, std::int64_t number) {
  return parent / str_cat(kNumberedStart, number);
}

std::int64_t next_checkpoint_number(const fs::path& parent) {
  const auto numbered = numbered_in(parent);
  return numbered.empty() ? 0 : numbered.rbegin()->first + 1;
}

void rotate_checkpoints(const fs::path& parent, std::int64_t limit) {
  const auto numbered = numbered_in(parent);
  std::int64_t num_kept = 0;
  for (auto it = numbered.rbegin(); it != numbered.rend(); ++it) {
    const auto& folder = it->second;
    const bool is_ours = is_checkpoint(folder);
    if (!is_ours && !is_original(folder)) {
      continue; // The user's, who may name files and folders so.
    }
    if (num_kept >= limit) {
      remove_checkpoint(folder);
    } else if (!is_ours || is_whole(folder)) {
      ++num_kept;
    }
  }
}

} // namespace accelerate
