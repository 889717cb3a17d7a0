// SPDX-License-Identifier: Apache-2.0
// metrics.jsonl in the run's folder: docs/guide_observe.md has its schema.
#include <unistd.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/tracking/append_file.h"
#include "core/tracking/builtin.h"
#include "core/tracking/run_folder.h"

namespace accelerate {
namespace {

using OrderedJson = nlohmann::ordered_json;

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
    file_.emplace(run.folder / kMetricsFile, /*cut_line=*/true);
    write(
        {{"event", "start"},
         {"schema", kRunFolderSchema},
         {"run", run.project},
         {"num_processes", run.num_processes},
         {"attempt", run.attempt},
         {"host", this_host()},
         {"pid", getpid()}});
  }
  void store_configuration(const TrackedValues& values) override {
    write({{"event", "configuration"}, {"values", json_of(values)}});
  }
  void log(const TrackedValues& values, int64_t step) override {
    write({{"step", step}, {"values", json_of(values)}});
  }
  void mark(const std::string& event, int64_t step) override {
    write({{"step", step}, {"event", event}});
  }
  void resume(int64_t step) override { mark("resume", step); }
  void finish() override { write({{"event", "finish"}}); }

 private:
  void write(const OrderedJson& fields) {
    if (!file_) {
      return; // opening it has failed and was reported
    }
    OrderedJson line = {{"time", wall_seconds()}};
    line.update(fields);
    // Bytes that are not UTF-8 must not make the line unreadable.
    file_->write(
        line.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) +
        '\n');
  }

  std::optional<AppendFile> file_;
};

} // namespace

std::shared_ptr<Tracker> make_json_lines_tracker(const TrackingOptions&) {
  return std::make_shared<JsonLinesTracker>();
}

} // namespace accelerate
