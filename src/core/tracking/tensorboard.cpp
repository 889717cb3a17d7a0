// SPDX-License-Identifier: Apache-2.0
// TensorBoard event files in the run's folder. Field numbers are those of
// TensorBoard's event.proto, summary.proto, tensor.proto and its hparams
// plugin.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "core/tracking/builtin.h"
#include "core/tracking/event_file.h"

namespace accelerate {
namespace {

namespace value_field {
constexpr int kTag = 1;
constexpr int kNumber = 2;
constexpr int kImage = 4;
constexpr int kHistogram = 5;
constexpr int kTensor = 8;
constexpr int kMetadata = 9;
} // namespace value_field

constexpr int kSummaryValue = 1;
constexpr int kSessionStart = 1;
constexpr int kStringTensor = 7;

/// Says which plugin of TensorBoard shows a value.
ProtoMessage plugin_metadata(
    const char* plugin,
    const ProtoMessage& content = {}) {
  ProtoMessage data;
  data.text(1, plugin).message(2, content);
  return ProtoMessage().message(1, data);
}

ProtoMessage summary_value(const std::string& tag) {
  return ProtoMessage().text(value_field::kTag, tag);
}

/// A string as a tensor of one string, as the text plugin requires.
ProtoMessage text_value(const std::string& tag, const std::string& text) {
  const auto shape =
      ProtoMessage().message(2, ProtoMessage().integer(1, 1)); // one dimension
  const auto tensor =
      ProtoMessage().integer(1, kStringTensor).message(2, shape).text(8, text);
  return summary_value(tag)
      .message(value_field::kTensor, tensor)
      .message(value_field::kMetadata, plugin_metadata("text"));
}

ProtoMessage event_value(const std::string& tag, const TrackedValue& value) {
  if (const auto number = value.number()) {
    return summary_value(tag).float32(
        value_field::kNumber, static_cast<float>(*number));
  }
  return text_value(tag, value.text());
}

/// Upper limits of buckets, each 10 % larger than the previous one, as in
/// TensorFlow and torch.
const std::vector<double>& bucket_limits() {
  static const std::vector<double> limits = [] {
    std::vector<double> positive;
    for (double limit = 1e-12; limit < 1e20; limit *= 1.1) {
      positive.push_back(limit);
    }
    positive.push_back(std::numeric_limits<double>::max());
    std::vector<double> all;
    std::transform(
        positive.rbegin(),
        positive.rend(),
        std::back_inserter(all),
        std::negate<>());
    all.push_back(0);
    all.insert(all.end(), positive.begin(), positive.end());
    return all;
  }();
  return limits;
}

ProtoMessage histogram(std::span<const double> values) {
  const auto& limits = bucket_limits();
  std::vector<double> counts(limits.size(), 0);
  double smallest = std::numeric_limits<double>::max();
  double largest = std::numeric_limits<double>::lowest();
  double num = 0;
  double sum = 0;
  double sum_squares = 0;
  for (const double value : values) {
    if (!std::isfinite(value)) {
      continue; // no bucket contains it
    }
    const auto at = std::lower_bound(limits.begin(), limits.end(), value);
    ++counts[static_cast<size_t>(at - limits.begin())];
    smallest = std::min(smallest, value);
    largest = std::max(largest, value);
    ++num;
    sum += value;
    sum_squares += value * value;
  }
  const auto is_filled = [](double count) { return count > 0; };
  const auto first = std::find_if(counts.begin(), counts.end(), is_filled);
  const auto last =
      std::find_if(
          counts.rbegin(), std::make_reverse_iterator(first), is_filled)
          .base();
  const auto offset = first - counts.begin();
  // An empty bucket in front marks where the first non-empty one begins.
  const auto begin = offset > 0 && first != last ? offset - 1 : offset;
  const auto end = last - counts.begin();
  return ProtoMessage()
      .float64(1, num > 0 ? smallest : 0)
      .float64(2, num > 0 ? largest : 0)
      .float64(3, num)
      .float64(4, sum)
      .float64(5, sum_squares)
      .float64s(6, {limits.begin() + begin, limits.begin() + end})
      .float64s(7, {counts.begin() + begin, counts.begin() + end});
}

/// A parameter as google.protobuf.Value.
ProtoMessage parameter(const TrackedValue& value) {
  if (const auto* is_on = std::get_if<bool>(&value.get())) {
    return ProtoMessage().integer(4, *is_on ? 1 : 0);
  }
  if (const auto number = value.number()) {
    return ProtoMessage().float64(2, *number);
  }
  return ProtoMessage().text(3, value.text());
}

int parameter_type(const TrackedValue& value) {
  constexpr int kString = 1;
  constexpr int kBool = 2;
  constexpr int kFloat64 = 3;
  if (std::holds_alternative<bool>(value.get())) {
    return kBool;
  }
  return value.number() ? kFloat64 : kString;
}

class TensorBoardTracker : public Tracker {
 public:
  std::string name() const override { return "tensorboard"; }

  void start(const TrackedRun& run) override { file_.emplace(run.folder); }

  void store_configuration(const TrackedValues& values) override {
    ProtoMessage experiment;
    ProtoMessage start;
    for (const auto& [name, value] : values) {
      experiment.message(
          4, ProtoMessage().text(1, name).integer(4, parameter_type(value)));
      start.message(
          1, ProtoMessage().text(1, name).message(2, parameter(value)));
    }
    start.float64(5, wall_seconds());
    write_parameters("_hparams_/experiment", 2, experiment);
    write_parameters("_hparams_/session_start_info", 3, start);
    has_parameters_ = true;
  }

  void log(const TrackedValues& values, int64_t step) override {
    ProtoMessage summary;
    for (const auto& [tag, value] : values) {
      summary.message(kSummaryValue, event_value(tag, value));
    }
    write(summary, step);
  }

  void log_images(
      const std::string& name,
      const std::vector<TrackedImage>& images,
      int64_t step) override {
    ProtoMessage summary;
    for (size_t i = 0; i < images.size(); ++i) {
      const auto& image = images[i];
      const auto tag =
          images.size() == 1 ? name : name + "/" + std::to_string(i);
      const auto picture = ProtoMessage()
                               .integer(1, image.height)
                               .integer(2, image.width)
                               .integer(3, 3)
                               .text(4, image.png);
      summary.message(
          kSummaryValue,
          summary_value(tag).message(value_field::kImage, picture));
    }
    write(summary, step);
  }

  void log_histogram(
      const std::string& name,
      std::span<const double> values,
      int64_t step) override {
    ProtoMessage summary;
    summary.message(
        kSummaryValue,
        summary_value(name).message(
            value_field::kHistogram, histogram(values)));
    write(summary, step);
  }

  /// Makes TensorBoard drop this and later steps of earlier events.
  void resume(int64_t step) override {
    if (file_) {
      file_->write(ProtoMessage()
                       .integer(event_field::kStep, step)
                       .message(
                           event_field::kSessionLog,
                           ProtoMessage().integer(1, kSessionStart)));
    }
  }

  void finish() override {
    if (has_parameters_) {
      constexpr int kSuccess = 1;
      write_parameters(
          "_hparams_/session_end_info",
          4,
          ProtoMessage().integer(1, kSuccess).float64(2, wall_seconds()));
    }
  }

 private:
  void write(const ProtoMessage& summary, int64_t step) {
    if (file_) {
      file_->write(ProtoMessage()
                       .integer(event_field::kStep, step)
                       .message(event_field::kSummary, summary));
    }
  }
  void
  write_parameters(const char* tag, int field, const ProtoMessage& content) {
    const auto data = ProtoMessage().integer(1, 0).message(field, content);
    // An empty tensor: the content is in the metadata.
    const auto tensor = ProtoMessage().integer(1, 1).message(
        2, ProtoMessage().message(2, ProtoMessage().integer(1, 0)));
    ProtoMessage summary;
    summary.message(
        kSummaryValue,
        summary_value(tag)
            .message(value_field::kTensor, tensor)
            .message(value_field::kMetadata, plugin_metadata("hparams", data)));
    write(summary, 0);
  }

  std::optional<EventFile> file_;
  bool has_parameters_ = false;
};

} // namespace

std::shared_ptr<Tracker> make_tensorboard_tracker(const TrackingOptions&) {
  return std::make_shared<TensorBoardTracker>();
}

} // namespace accelerate
