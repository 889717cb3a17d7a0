// SPDX-License-Identifier: Apache-2.0
#include "core/process/run_report.h"

#include <fcntl.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "core/base/variables.h"

namespace accelerate {
namespace {

constexpr std::chrono::seconds kPeriod{1};
constexpr size_t kMostBytes = 1 << 14;

nlohmann::json read_json(int file) {
  std::string text(kMostBytes, '\0');
  const auto size = pread(file, text.data(), text.size(), 0);
  text.resize(size > 0 ? static_cast<size_t>(size) : 0);
  return nlohmann::json::parse(text.substr(0, text.find('\n')), nullptr, false);
}

} // namespace

RunReporter::RunReporter(const EnvLookup& env) {
  if (const auto path = env(variables::kRunReport)) {
    file_ = UniqueFile(open(path->c_str(), O_RDWR | O_CLOEXEC));
  }
  if (file_) {
    // Programs started by the run inherit the variable.
    const auto before = read_json(file_.get());
    if (before.is_object() && before.value("pid", 0) != getpid()) {
      file_.reset();
    }
  }
}

RunReporter& RunReporter::of_this_process() {
  static RunReporter reporter;
  return reporter;
}

void RunReporter::set_folder(const std::filesystem::path& folder) {
  const std::lock_guard lock(mutex_);
  report_.folder = folder;
  write();
}

void RunReporter::set_checkpoint(const std::filesystem::path& checkpoint) {
  const std::lock_guard lock(mutex_);
  report_.checkpoint = checkpoint;
  write();
}

bool RunReporter::is_due(Clock::time_point now) const {
  if (!file_) {
    return false;
  }
  const std::lock_guard lock(mutex_);
  return now >= next_;
}

void RunReporter::set_steps(int64_t num_steps, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  next_ = now + kPeriod;
  report_.num_steps = num_steps;
  write();
}

void RunReporter::write() {
  if (!file_) {
    return;
  }
  const nlohmann::json content = {
      {"pid", getpid()},
      {"folder", report_.folder},
      {"steps", report_.num_steps},
      {"checkpoint", report_.checkpoint}};
  const std::string text =
      content.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
      '\n';
  [[maybe_unused]] const auto written =
      pwrite(file_.get(), text.data(), text.size(), 0);
}

RunReport read_run_report(int file) {
  const auto content = read_json(file);
  RunReport report;
  if (content.is_object()) {
    const auto text = [&](const char* name) {
      const auto found = content.find(name);
      return found != content.end() && found->is_string()
                 ? found->get<std::string>()
                 : std::string();
    };
    report.folder = text("folder");
    report.checkpoint = text("checkpoint");
    const auto steps = content.find("steps");
    if (steps != content.end() && steps->is_number_integer()) {
      report.num_steps = steps->get<int64_t>();
    }
  }
  return report;
}

} // namespace accelerate
