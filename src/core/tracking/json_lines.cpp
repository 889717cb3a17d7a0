// SPDX-License-Identifier: Apache-2.0
#include "core/tracking/json_lines.h"

#include <unistd.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/tracking/builtin.h"
#include "core/tracking/run_folder.h"

namespace accelerate {

using OrderedJson = nlohmann::ordered_json;

MetricsFile::MetricsFile(const std::filesystem::path& path)
    : file_(path, /*cut_line=*/true) {}

void MetricsFile::start(const TrackedRun& run) {
  write(
      {{"event", "start"},
       {"schema", kRunFolderSchema},
       {"run", run.project},
       {"num_processes", run.num_processes},
       {"attempt", run.attempt},
       {"host", this_host()},
       {"pid", getpid()}});
}

void MetricsFile::store_configuration(const OrderedJson& values) {
  write({{"event", "configuration"}, {"values", values}});
}

void MetricsFile::log(const OrderedJson& values, int64_t step) {
  write({{"step", step}, {"values", values}});
}

void MetricsFile::mark(const std::string& event, int64_t step) {
  write({{"step", step}, {"event", event}});
}

void MetricsFile::finish() {
  write({{"event", "finish"}});
}

void MetricsFile::write(const OrderedJson& fields) {
  OrderedJson line = {{"time", wall_seconds()}};
  line.update(fields);
  // Bytes that are not UTF-8 must not make the line unreadable.
  file_.write(
      line.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + '\n');
}

namespace {

/// JSON has no NaN or infinity: they become strings, as in other programs.
OrderedJson json_of(const TrackedValue& value) {
  return std::visit(
      [](const auto& held) -> OrderedJson {
        if constexpr (std::is_same_v<std::decay_t<decltype(held)>, double>) {
          if (std::isnan(held)) {
            return "NaN";
          }
          if (std::isinf(held)) {
            return held > 0 ? "Infinity" : "-Infinity";
          }
        }
        return held;
      },
      value.get());
}

OrderedJson json_of(const TrackedValues& values) {
  OrderedJson object = OrderedJson::object();
  for (const auto& [name, value] : values) {
    object[name] = json_of(value);
  }
  return object;
}

class JsonLinesTracker : public Tracker {
 public:
  std::string name() const override { return kJsonLinesTracker; }

  void start(const TrackedRun& run) override {
    file_.emplace(run.folder / kMetricsFile);
    file_->start(run);
  }
  void store_configuration(const TrackedValues& values) override {
    if (file_) {
      file_->store_configuration(json_of(values));
    }
  }
  void log(const TrackedValues& values, int64_t step) override {
    if (file_) {
      file_->log(json_of(values), step);
    }
  }
  void mark(const std::string& event, int64_t step) override {
    if (file_) {
      file_->mark(event, step);
    }
  }
  void resume(int64_t step) override { mark("resume", step); }
  void finish() override {
    if (file_) {
      file_->finish();
    }
  }

 private:
  /// Empty if opening has failed, which was reported.
  std::optional<MetricsFile> file_;
};

} // namespace

std::shared_ptr<Tracker> make_json_lines_tracker(const TrackingOptions&) {
  return std::make_shared<JsonLinesTracker>();
}

} // namespace accelerate
