// SPDX-License-Identifier: Apache-2.0
// Names in a run's folder, for its writers and readers: docs/guide_observe.md
// has the schema.
#pragma once

#include <array>
#include <string>

#include "core/base/internal.h"

namespace accelerate {

inline constexpr int kRunFolderSchema = 1;
inline constexpr const char* kMetricsFile = "metrics.jsonl";
/// The launcher writes this file.
inline constexpr const char* kExitsFile = "exits.jsonl";
inline constexpr const char* kRanksFolder = "ranks";
inline constexpr const char* kRankFilePrefix = "rank_";
inline constexpr const char* kLinesSuffix = ".jsonl";

/// The phases of a step in a rank's file, in the order of `StepTimes::Phases`.
inline constexpr std::array<const char*, 8> kPhaseNames = {
    "data",
    "forward",
    "backward",
    "communication",
    "optimizer",
    "checkpoint",
    "captured",
    "other"};
inline constexpr size_t kCommunicationPhase = 3;

inline constexpr const char* kStepsValue = "steps";
inline constexpr const char* kMemoryValue = "memory";
inline constexpr const char* kDeviceMemoryValue = "device_memory";
inline constexpr const char* kDeviceBusyValue = "device_busy";
inline constexpr const char* kCpuValue = "cpu";

/// The tracker whose files `accelerate watch` reads.
inline constexpr const char* kJsonLinesTracker = "jsonl";

/// Throws `UsageError` unless `project` is a plain folder name.
ACCELERATE_INTERNAL void check_project(const std::string& project);

inline std::string rank_file_name(int rank) {
  return kRankFilePrefix + std::to_string(rank) + kLinesSuffix;
}

} // namespace accelerate
