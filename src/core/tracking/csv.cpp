// SPDX-License-Identifier: Apache-2.0
// metrics.csv in the run's folder, with one row per value, so that the set of
// values may vary between steps.
#include <optional>

#include "core/base/plain_text.h"
#include "core/base/str.h"
#include "core/tracking/append_file.h"
#include "core/tracking/builtin.h"

namespace accelerate {
namespace {

/// Quotes a value as in RFC 4180, except that line breaks become spaces, so
/// that each row is a line.
std::string csv_cell(std::string text) {
  bool is_quoted = false;
  std::string cell;
  for (char& c : text) {
    is_quoted |= c == ',' || c == '"' || c == '\n' || c == '\r';
    cell += c == '\n' || c == '\r' ? ' ' : c;
    if (c == '"') {
      cell += '"';
    }
  }
  return is_quoted ? '"' + cell + '"' : cell;
}

class CsvTracker : public Tracker {
 public:
  std::string name() const override { return "csv"; }

  void start(const TrackedRun& run) override {
    file_.emplace(run.folder / "metrics.csv", /*cut_line=*/true);
    if (file_->was_empty()) {
      file_->write("time,step,name,value\n");
    }
  }
  void log(const TrackedValues& values, int64_t step) override {
    const auto when = str_cat(fixed_point(wall_seconds(), 6), ',', step, ',');
    std::string rows;
    for (const auto& [name, value] : values) {
      rows += str_cat(when, csv_cell(name), ',', csv_cell(value.text()), '\n');
    }
    if (file_) {
      file_->write(rows);
    }
  }
  void resume(int64_t step) override { log({{"resume", step}}, step); }

 private:
  std::optional<AppendFile> file_;
};

} // namespace

std::shared_ptr<Tracker> make_csv_tracker(const TrackingOptions&) {
  return std::make_shared<CsvTracker>();
}

} // namespace accelerate
