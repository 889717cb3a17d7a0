// SPDX-License-Identifier: Apache-2.0
#include "core/observe/report.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <tuple>

#include "accelerate/error.h"
#include "core/base/printable.h"
#include "core/base/process_stat.h"
#include "core/base/str.h"
#include "core/observe/called_names.h"

namespace accelerate {
namespace {

std::string seconds_text(double seconds) {
  return str_cat(std::round(seconds * 10) / 10, " s");
}

std::string first_word(const std::string& text) {
  return text.substr(0, text.find(' '));
}

/// The frames from the user's innermost one to the outermost. Omits callers of
/// `main`, and how a library waits for other ranks. Returns all frames if none
/// is user code.
std::span<const Stack::Frame> frames_to_show(const Stack& stack) {
  constexpr std::ptrdiff_t kMostFrames = 16;
  const auto is_users = [](const Stack::Frame& frame) {
    return frame.is_users;
  };
  const auto& frames = stack.frames;
  auto first = std::find_if(frames.begin(), frames.end(), is_users);
  auto end = std::find_if(frames.rbegin(), frames.rend(), is_users).base();
  if (first == frames.end()) {
    first = frames.begin();
    end = frames.end();
  }
  return {first, first + std::min(end - first, kMostFrames)};
}

/// A string that is equal for ranks at the same position in user code.
std::string location_of(const Stack& stack) {
  auto frames = frames_to_show(stack);
  if (!frames.empty() && !frames[0].is_users) {
    // There is no user frame. Omit how a library got here.
    frames = frames.first(1);
  }
  std::string text;
  for (const auto& frame : frames) {
    text += str_cat(frame.text, '\n');
  }
  return text;
}

/// The user's frames, one per line. The first line also names the innermost
/// function.
std::string locations_of(const RankReport& report) {
  std::string text;
  for (const auto& frame : frames_to_show(report.stack)) {
    const auto& innermost = report.stack.frames[0];
    const bool is_first = text.empty();
    text += str_cat("\n      ", printable(frame.text));
    if (is_first && &frame != &innermost && !report.waits) {
      text += str_cat(" (inside: ", printable(innermost.text), ")");
    }
  }
  return text;
}

struct Expected {
  std::string operation;
  uint64_t number = 0;
  bool operator==(const Expected&) const = default;
};

/// The operation of most waiting ranks; that of the lowest rank on a tie.
Expected expected_of(const std::vector<RankReport>& reports) {
  Expected most;
  std::ptrdiff_t most_votes = 0;
  int lowest = 0;
  for (const auto& one : reports) {
    if (!one.waits) {
      continue;
    }
    const auto votes =
        std::count_if(reports.begin(), reports.end(), [&](const auto& other) {
          return other.waits && other.operation == one.operation &&
                 other.number == one.number;
        });
    if (votes > most_votes || (votes == most_votes && one.rank < lowest)) {
      most_votes = votes;
      lowest = one.rank;
      most = {one.operation, one.number};
    }
  }
  return most;
}

/// Whether ranks are at different positions.
bool differ(
    const std::vector<RankReport>& reports,
    const std::vector<SilentRank>& silent) {
  const auto expected = expected_of(reports);
  return !silent.empty() ||
         std::any_of(reports.begin(), reports.end(), [&](const auto& one) {
           return !one.waits || Expected{one.operation, one.number} != expected;
         });
}

bool is_there(const RankReport& report, const Expected& expected) {
  return Expected{report.operation, report.number} == expected;
}

// A rank in a backward on which other ranks wait is computing.
bool waits_for_others(const RankReport& report, const Expected& expected) {
  return report.waits &&
         (is_there(report, expected) || report.phase != StepPhase::kBackward);
}

bool is_slow(
    const RankReport& report,
    const Expected& expected,
    double threshold) {
  return !waits_for_others(report, expected) && report.seconds < threshold;
}

/// Describes a group of similar ranks. `report` belongs to the rank that has
/// waited for the shortest time; `longest` is the longest time.
std::string describe(
    const RankReport& report,
    double longest,
    const Expected& expected,
    double threshold) {
  // Ranks have waited since they arrived, one after the other.
  const std::string moved = longest - report.seconds < 1
                                ? seconds_text(longest)
                                : "up to " + seconds_text(longest);
  if (waits_for_others(report, expected)) {
    std::string what = str_cat(
        "in ",
        as_called(report.operation),
        ", collective ",
        report.number,
        ", for ");
    if (is_there(report, expected)) {
      return str_cat("waiting ", what, moved);
    }
    const bool is_shape =
        report.number == expected.number &&
        first_word(report.operation) == first_word(expected.operation);
    return str_cat(
        is_shape ? "with a different shape " : "elsewhere, waiting ",
        what,
        moved);
  }
  std::string doing = words_for(report.phase);
  if (!report.operation.empty()) {
    doing += str_cat(" (", as_called(report.operation), ")");
  }
  if (report.number > 0) {
    doing += str_cat("; collective ", report.number, " was its last");
  }
  return is_slow(report, expected, threshold)
             ? str_cat(
                   doing,
                   "; slow, not missing: it last made progress ",
                   moved,
                   " ago")
             : str_cat(doing, "; no progress for ", moved);
}

std::string describe(const SilentRank& rank) {
  if (rank.pid == 0) {
    return "has not reported anything since it connected";
  }
  char own_host[256] = {};
  gethostname(own_host, sizeof(own_host) - 1);
  const std::string why = rank.host == own_host ? why_silent(rank.pid) : "";
  return str_cat(
      "process ",
      rank.pid,
      " on ",
      printable(rank.host),
      " does not answer: ",
      why.empty()
          ? "it has exited or is stopped, or its machine cannot be reached"
          : why);
}

} // namespace

std::string encode(const RankReport& report) {
  nlohmann::json frames = nlohmann::json::array();
  for (const auto& frame : report.stack.frames) {
    frames.push_back({frame.text, frame.is_users});
  }
  const nlohmann::json json = {
      {"rank", report.rank},
      {"world_size", report.world_size},
      {"host", report.host},
      {"pid", report.pid},
      {"part", static_cast<int>(report.phase)},
      {"waits", report.waits},
      {"seconds", report.seconds},
      {"operation", report.operation},
      {"number", report.number},
      {"stack", frames}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

RankReport decode_report(const std::string& text) {
  try {
    const auto json = nlohmann::json::parse(text);
    RankReport report;
    report.rank = json.at("rank").get<int>();
    report.world_size = json.at("world_size").get<int>();
    report.host = json.at("host").get<std::string>();
    report.pid = json.at("pid").get<int>();
    const int phase = json.at("part").get<int>();
    if (phase < 0 || phase >= static_cast<int>(kNumPhases)) {
      throw DataError(str_cat(
          "[hang] A rank's report contains the unknown step phase ",
          phase,
          ". Use the same version on all ranks"));
    }
    report.phase = static_cast<StepPhase>(phase);
    report.waits = json.at("waits").get<bool>();
    report.seconds = json.at("seconds").get<double>();
    report.operation = printable(json.at("operation").get<std::string>());
    report.number = json.at("number").get<uint64_t>();
    for (const auto& frame : json.at("stack")) {
      report.stack.frames.push_back(
          {printable(frame.at(0).get<std::string>()), frame.at(1).get<bool>()});
    }
    return report;
  } catch (const nlohmann::json::exception& error) {
    throw DataError(str_cat(
        "[hang] The report of a rank is invalid: ",
        printable(error.what()),
        ". Use the same version on all ranks"));
  }
}

bool is_hang(
    const std::vector<RankReport>& reports,
    const std::vector<SilentRank>& silent,
    double threshold) {
  return std::any_of(reports.begin(), reports.end(), [&](const auto& one) {
    return one.waits && one.seconds >= threshold &&
           (one.phase != StepPhase::kBackward || differ(reports, silent));
  });
}

bool names_slow_rank(const std::vector<RankReport>& reports, double threshold) {
  const auto expected = expected_of(reports);
  return std::any_of(reports.begin(), reports.end(), [&](const auto& one) {
    return is_slow(one, expected, threshold);
  });
}

std::string describe_hang(
    const std::vector<RankReport>& reports,
    const std::vector<SilentRank>& silent,
    double threshold) {
  const auto expected = expected_of(reports);
  // Ranks by their description; times may differ slightly.
  std::map<
      std::tuple<bool, std::string, uint64_t, std::string, int, bool>,
      std::vector<const RankReport*>>
      alike;
  double longest = 0;
  std::vector<int> waiting;
  std::vector<int> missing;
  for (const auto& report : reports) {
    (report.waits && is_there(report, expected) ? waiting : missing)
        .push_back(report.rank);
    alike[{!(report.waits && is_there(report, expected)),
           report.operation,
           report.number,
           location_of(report.stack),
           static_cast<int>(report.phase),
           report.seconds < threshold}]
        .push_back(&report);
    longest = report.waits ? std::max(longest, report.seconds) : longest;
  }
  for (const auto& rank : silent) {
    missing.push_back(rank.rank);
  }
  std::string text = str_cat(
      "[hang] Possible hang: ",
      name_ranks(waiting),
      waiting.size() == 1 ? " has" : " have",
      " waited ",
      seconds_text(longest),
      " in ",
      as_called(expected.operation),
      missing.empty() ? "; all ranks have arrived, so the network or a device "
                        "does not respond, or a rank has skipped a step"
                      : str_cat(" for ", name_ranks(missing)),
      ':');
  for (const auto& [key, group] : alike) {
    std::vector<int> ranks;
    for (const auto* report : group) {
      ranks.push_back(report->rank);
    }
    const auto [shortest, longest] = std::minmax_element(
        group.begin(), group.end(), [](const auto* a, const auto* b) {
          return a->seconds < b->seconds;
        });
    text += str_cat(
        "\n  ",
        name_ranks(ranks),
        ": ",
        describe(**shortest, (*longest)->seconds, expected, threshold),
        locations_of(**shortest));
  }
  for (const auto& rank : silent) {
    text += str_cat("\n  rank ", rank.rank, ": ", describe(rank));
  }
  return text;
}

std::string describe_ranks(const std::vector<RankReport>& reports) {
  std::string text;
  for (const auto& report : reports) {
    std::string doing = words_for(report.phase);
    if (report.waits) {
      doing = str_cat(
          "waiting in ",
          as_called(report.operation),
          ", collective ",
          report.number,
          ",");
    } else if (!report.operation.empty()) {
      doing += str_cat(" (", as_called(report.operation), ")");
    }
    text += str_cat(
        "rank ",
        report.rank,
        " of ",
        report.world_size,
        " (process ",
        report.pid,
        "): ",
        doing,
        " for ",
        seconds_text(report.seconds),
        locations_of(report),
        '\n');
  }
  return text;
}

std::string why_silent(int pid) {
  const auto stat = read_process_stat(std::to_string(pid));
  switch (stat ? stat->state : 'X') {
    case 'T':
    case 't':
      return str_cat("it is stopped; continue it with kill -CONT ", pid);
    case 'Z':
    case 'X':
      return str_cat("process ", pid, " has exited; see its own messages");
    case 'D':
      return "it is waiting for a disk or a device";
    default:
      return {};
  }
}

} // namespace accelerate
