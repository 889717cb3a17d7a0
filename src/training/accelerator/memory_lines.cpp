// SPDX-License-Identifier: Apache-2.0
#include "training/accelerator/memory_lines.h"

#include <c10/core/Device.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/error.h"
#include "core/base/plain_text.h"
#include "core/base/str.h"
#include "training/parallel/recorded_range.h"

namespace accelerate {
namespace {

using TraceJson = nlohmann::json;

constexpr const char* kMemoryEvent = "[memory]";
/// Categories of allocations: before the profile, outside of phases, or in one
/// of `kRecordedRanges`.
constexpr size_t kBefore = 0;
constexpr size_t kElsewhere = 1;
constexpr size_t kFirstRange = 2;
constexpr std::array<const char*, kFirstRange + kRecordedRanges.size()>
    kAllocators = {"before", "elsewhere", "forward", "backward", "optimizer"};

/// Times are in microseconds, as in the trace.
struct Allocation {
  double time = 0;
  uint64_t address = 0;
  /// Negative for a deallocation.
  int64_t size = 0;
  int64_t total = 0;
  std::string device = {};
};
struct RecordedRange {
  double begin = 0;
  double end = 0;
  size_t allocator = kElsewhere;
};
struct Recorded {
  std::vector<Allocation> allocations;
  std::vector<RecordedRange> ranges;
};

void take_event(const TraceJson& event, Recorded& recorded) {
  const auto name = event.value("name", std::string());
  if (name == kMemoryEvent) {
    const auto& memory = event.at("args");
    const auto index = memory.at("Device Id").get<int>();
    recorded.allocations.push_back(
        {event.at("ts").get<double>(),
         memory.at("Addr").get<uint64_t>(),
         memory.at("Bytes").get<int64_t>(),
         memory.at("Total Allocated").get<int64_t>(),
         c10::Device(
             static_cast<c10::DeviceType>(memory.at("Device Type").get<int>()),
             static_cast<c10::DeviceIndex>(index))
             .str()});
    return;
  }
  const auto range =
      std::find(kRecordedRanges.begin(), kRecordedRanges.end(), name);
  // Use only ranges on the host, because device ranges may have the same names.
  if (range != kRecordedRanges.end() &&
      event.value("cat", std::string()) == "user_annotation") {
    const auto begin = event.at("ts").get<double>();
    recorded.ranges.push_back(
        {begin,
         begin + event.at("dur").get<double>(),
         kFirstRange + static_cast<size_t>(range - kRecordedRanges.begin())});
  }
}

/// Keeps only the values that are needed, because the trace may be large.
Recorded read_trace(const std::filesystem::path& trace) {
  constexpr int kDepthOfEvents = 2;
  Recorded recorded;
  std::ifstream in(trace, std::ios::binary);
  const auto keep =
      [&](int depth, TraceJson::parse_event_t event, TraceJson& parsed) {
        if (depth != kDepthOfEvents ||
            event != TraceJson::parse_event_t::object_end) {
          return true;
        }
        take_event(parsed, recorded);
        return false;
      };
  [[maybe_unused]] const auto rest = TraceJson::parse(in, keep);
  return recorded;
}

/// The range that began last among those that contain `time`. `time` must
/// increase from call to call.
class RangesInOrder {
 public:
  explicit RangesInOrder(std::vector<RecordedRange> ranges)
      : ranges_(std::move(ranges)) {
    std::sort(ranges_.begin(), ranges_.end(), [](const auto& a, const auto& b) {
      return a.begin < b.begin;
    });
  }
  size_t at(double time) {
    for (; next_ < ranges_.size() && ranges_[next_].begin <= time; ++next_) {
      open_.push_back(ranges_[next_]);
    }
    while (!open_.empty() && open_.back().end < time) {
      open_.pop_back();
    }
    return open_.empty() ? kElsewhere : open_.back().allocator;
  }

 private:
  std::vector<RecordedRange> ranges_;
  std::vector<RecordedRange> open_;
  size_t next_ = 0;
};

/// The allocated bytes of one device.
struct DeviceBytes {
  std::array<int64_t, kAllocators.size()> bytes = {};
  std::map<uint64_t, std::pair<size_t, int64_t>> living;

  void take(const Allocation& allocation, size_t allocator) {
    if (allocation.size >= 0) {
      living[allocation.address] = {allocator, allocation.size};
      bytes[allocator] += allocation.size;
    } else if (const auto found = living.find(allocation.address);
               found != living.end()) {
      bytes[found->second.first] -= found->second.second;
      living.erase(found);
    } else {
      bytes[kBefore] = std::max<int64_t>(0, bytes[kBefore] + allocation.size);
    }
  }
};

/// The counters as JSON, each followed by a comma.
std::string counters_of(Recorded recorded) {
  std::stable_sort(
      recorded.allocations.begin(),
      recorded.allocations.end(),
      [](const auto& a, const auto& b) { return a.time < b.time; });
  RangesInOrder ranges(std::move(recorded.ranges));
  std::map<std::string, DeviceBytes> devices;
  std::string lines;
  for (const auto& allocation : recorded.allocations) {
    const auto [found, is_first] = devices.try_emplace(allocation.device);
    auto& device = found->second;
    if (is_first) {
      device.bytes[kBefore] =
          std::max<int64_t>(0, allocation.total - allocation.size);
    }
    device.take(allocation, ranges.at(allocation.time));
    lines += str_cat(
        "\n  {\"ph\": \"C\", \"cat\": \"memory\", \"name\": \"memory of ",
        allocation.device,
        "\", \"pid\": ",
        getpid(),
        ", \"ts\": ",
        fixed_point(allocation.time, 3),
        ", \"args\": {");
    for (size_t i = 0; i < kAllocators.size(); ++i) {
      lines += str_cat(
          i > 0 ? ", \"" : "\"", kAllocators[i], "\": ", device.bytes[i]);
    }
    lines += "}},";
  }
  return lines;
}

/// Writes `trace` with `lines` inserted before its events; false on failure.
bool insert_lines(
    const std::filesystem::path& trace,
    const std::string& lines) {
  constexpr std::string_view kEvents = "\"traceEvents\": [";
  std::ifstream in(trace, std::ios::binary);
  // The part of the file that precedes everything that grows with the profile.
  std::string head(size_t{1} << 20, '\0');
  in.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<size_t>(in.gcount()));
  const auto events = head.find(kEvents);
  if (events == std::string::npos) {
    return false;
  }
  head.insert(events + kEvents.size(), lines);
  const auto with_lines = trace.string() + ".lines";
  std::ofstream out(with_lines, std::ios::binary);
  out << head;
  in.clear();
  if (in.peek() != std::ifstream::traits_type::eof()) {
    out << in.rdbuf();
  }
  out.close();
  std::error_code error;
  if (out) {
    std::filesystem::rename(with_lines, trace, error);
  }
  if (!out || error) {
    std::filesystem::remove(with_lines, error);
    return false;
  }
  return true;
}

} // namespace

void add_memory_lines(const std::filesystem::path& trace) {
  std::string problem = "its format is unknown";
  try {
    if (insert_lines(trace, counters_of(read_trace(trace)))) {
      return;
    }
  } catch (const TraceJson::exception& error) {
    problem = error.what();
  }
  std::error_code ignored;
  std::filesystem::remove(trace, ignored);
  throw SystemError(str_cat(
      "[profile] Cannot add the memory curve to '",
      trace.string(),
      "': ",
      problem,
      ". Turn profile_memory off, or choose another output_trace_dir"));
}

} // namespace accelerate
