// SPDX-License-Identifier: Apache-2.0
#include "core/checkpoint/manifest.h"

#include <algorithm>
#include <set>
#include <vector>

#include "accelerate/error.h"
#include "accelerate/version.h"
#include "core/base/checksum.h"
#include "core/base/str.h"

namespace accelerate {
namespace {

using nlohmann::json;

constexpr int kFormatVersion = 2;
// Our values are flat inside their objects, so deeper nesting is rejected.
constexpr int kMaxDepth = 10;
// Limits the memory for the checksums of a file's chunks.
constexpr std::uint64_t kSmallestChunk = 4096;
// The end of the text, before the checksum of everything that precedes it.
constexpr std::string_view kBeforeChecksum = ",\n  \"checksum\": \"";
constexpr std::string_view kAfterChecksum = "\"\n}\n";
constexpr std::size_t kEndBytes =
    kBeforeChecksum.size() + kChecksumDigits + kAfterChecksum.size();

[[noreturn]] void refuse(const std::string& source, const std::string& what) {
  throw DataError(str_cat(
      "[load_state] '", source, "' ", what, ". Load another checkpoint"));
}

/// The text before its checksum, which is verified.
std::string_view checked(std::string_view text, const std::string& source) {
  if (text.size() < kEndBytes) {
    refuse(source, "is truncated");
  }
  const auto content = text.substr(0, text.size() - kEndBytes);
  const auto end = text.substr(content.size());
  const auto digits = end.substr(kBeforeChecksum.size(), kChecksumDigits);
  if (!end.starts_with(kBeforeChecksum) || !end.ends_with(kAfterChecksum)) {
    refuse(source, "does not end with its checksum, so it is truncated");
  }
  if (digits != checksum_of(content)) {
    refuse(source, "is damaged: its checksum does not match");
  }
  return content;
}

json parse_json(std::string_view text, const std::string& source) {
  std::vector<std::set<std::string>> keys;
  const auto look = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > kMaxDepth) {
      refuse(
          source, str_cat("is nested more than ", kMaxDepth, " levels deep"));
    }
    if (event == json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (
        event == json::parse_event_t::key &&
        !keys.back().insert(value.get<std::string>()).second) {
      refuse(
          source, str_cat("contains '", value.get<std::string>(), "' twice"));
    }
    return true;
  };
  try {
    return json::parse(text, look);
  } catch (const json::exception& error) {
    refuse(source, str_cat("is not valid JSON (", error.what(), ")"));
  }
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name[0] != '.' && name.size() < 256 &&
         name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

} // namespace

std::string rank_shard_name(int rank, std::int64_t moment) {
  return str_cat("rank_", rank, "-at-", moment);
}

std::string mark_name(int rank, std::int64_t moment, const std::string& job) {
  return str_cat(
      rank_shard_name(rank, moment), ".begun", job.empty() ? "" : "-", job);
}

std::string format_manifest(const Manifest& manifest) {
  json files = json::object();
  for (const auto& [name, record] : manifest.files) {
    files[name] = {{"bytes", record.num_bytes}, {"checksum", record.checksum}};
    if (record.chunk != 0) {
      files[name]["chunk"] = record.chunk;
    }
  }
  json content = {
      {"format", kFormatVersion},
      {"version", ACCELERATE_VERSION},
      {"moment", manifest.moment},
      {"world_size", manifest.world_size},
      {"saved_at", manifest.saved_at},
      {"is_of_all", manifest.is_of_all},
      {"staged", manifest.staged},
      {"files", files},
      {"state", manifest.state}};
  if (!manifest.job.empty()) {
    content["job"] = manifest.job;
  }
  if (manifest.is_of_machine) {
    content["is_of_machine"] = true;
  }
  if (!manifest.replaced.empty()) {
    content["replaced"] = manifest.replaced;
  }
  std::string text;
  try {
    text = content.dump(2);
  } catch (const json::exception& error) {
    throw UsageError(str_cat(
        "[save_state] A string in the state is not valid UTF-8 (",
        error.what(),
        "). Store bytes as a uint8 tensor"));
  }
  text.resize(text.size() - std::string_view("\n}").size());
  const std::string checksum = checksum_of(text);
  return str_cat(text, kBeforeChecksum, checksum, kAfterChecksum);
}

Manifest parse_manifest(std::string_view text, const std::string& source) {
  const json content =
      parse_json(str_cat(checked(text, source), "\n}"), source);
  Manifest manifest;
  try {
    // Compared as JSON, because a number that overflows int is also higher.
    if (content.at("format") > json(kFormatVersion)) {
      refuse(
          source,
          str_cat(
              "was written by version ",
              content.at("version").get<std::string>(),
              " of this library and cannot be read by this version (",
              ACCELERATE_VERSION,
              ")"));
    }
    content.at("version").get_to(manifest.version);
    content.at("moment").get_to(manifest.moment);
    content.at("world_size").get_to(manifest.world_size);
    content.at("saved_at").get_to(manifest.saved_at);
    content.at("is_of_all").get_to(manifest.is_of_all);
    content.at("staged").get_to(manifest.staged);
    manifest.job = content.value("job", "");
    manifest.is_of_machine = content.value("is_of_machine", false);
    if (content.contains("replaced")) {
      content.at("replaced").get_to(manifest.replaced);
    }
    for (const auto& [name, record] : content.at("files").items()) {
      manifest.files[name] = {
          record.at("bytes").get<std::uint64_t>(),
          record.at("checksum").get<std::string>(),
          record.value("chunk", std::uint64_t{0})};
      const auto& read = manifest.files[name];
      if (read.chunk != 0 && read.chunk < kSmallestChunk) {
        refuse(
            source,
            str_cat("has checksums for chunks of only ", read.chunk, " bytes"));
      }
      const auto num_checksums = read.checksum.size() / kChecksumDigits;
      if (num_checksums != read.num_chunks() ||
          read.checksum.size() % kChecksumDigits != 0) {
        refuse(
            source,
            str_cat(
                "has ",
                num_checksums,
                " checksums for the ",
                read.num_chunks(),
                " chunks of '",
                name,
                "'"));
      }
    }
    manifest.state = content.at("state");
  } catch (const json::exception& error) {
    refuse(source, str_cat("is incomplete (", error.what(), ")"));
  }
  const bool is_object = manifest.state.is_object() &&
                         std::all_of(
                             manifest.state.begin(),
                             manifest.state.end(),
                             [](const json& part) { return part.is_object(); });
  if (!is_object || manifest.world_size < 1) {
    refuse(source, "contains an invalid state");
  }
  const auto check_name = [&](const std::string& name) {
    if (!is_plain_name(name)) {
      refuse(source, "names a file outside the checkpoint");
    }
  };
  for (const auto& [name, record] : manifest.files) {
    check_name(name);
  }
  for (const auto& name : manifest.replaced) {
    check_name(name);
  }
  if (!manifest.staged.empty() && (!manifest.staged.starts_with(".staged-") ||
                                   !is_plain_name(manifest.staged.substr(1)))) {
    refuse(source, "names a folder outside the checkpoint");
  }
  return manifest;
}

} // namespace accelerate
