// SPDX-License-Identifier: Apache-2.0
// MLflow through its REST interface. A background thread sends the values, so
// that no step waits for a server. If the server is unavailable, the thread
// retries less and less often.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "accelerate/error.h"
#include "accelerate/observe/logger.h"
#include "accelerate/process.h"
#include "core/base/printable.h"
#include "core/base/str.h"
#include "core/base/variables.h"
#include "core/tracking/append_file.h"
#include "core/tracking/builtin.h"
#include "core/tracking/http.h"

namespace accelerate {
namespace {

using MlflowJson = nlohmann::json;
using std::chrono::seconds;

constexpr const char* kApi = "/api/2.0/mlflow/";
/// The limits of one request.
constexpr size_t kMetricsAtOnce = 1000;
constexpr size_t kParametersAtOnce = 100;
constexpr size_t kLongestParameter = 6000;
/// The maximum number of values that wait for a server that does not answer.
/// The oldest ones are dropped first.
constexpr size_t kMostWaiting = 100'000;
constexpr seconds kLongestPause{30};
/// How long the end of a run, or a checkpoint, waits for the server.
constexpr seconds kLongestWait{15};

std::string first_of(
    const std::string& given,
    const char* variable,
    const std::string& otherwise = {}) {
  return given.empty() ? system_env(variable).value_or(otherwise) : given;
}

int64_t milliseconds_now() {
  return static_cast<int64_t>(wall_seconds() * 1000);
}

/// A request that the server will never accept.
struct Refused : Error {
  using Error::Error;
};

class MlflowTracker : public Tracker {
 public:
  explicit MlflowTracker(MlflowOptions options)
      : options_(std::move(options)), client_(root(options_), login()) {
    options_.run_id = first_of(options_.run_id, variables::kMlflowRunId);
    run_id_ = options_.run_id;
  }
  ~MlflowTracker() override { stop(); }

  std::string name() const override { return "mlflow"; }

  void start(const TrackedRun& run) override {
    options_.experiment = first_of(
        options_.experiment, variables::kMlflowExperiment, run.project);
    sender_ = std::thread([this] { send_all(); });
  }

  void store_configuration(const TrackedValues& values) override {
    std::string too_long;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [name, value] : values) {
        auto text = value.text();
        if (text.size() > kLongestParameter) {
          too_long = name;
        } else {
          parameters_.push_back({{"key", name}, {"value", std::move(text)}});
        }
      }
    }
    if (!too_long.empty()) {
      say_once(str_cat(
          "The value of the parameter '",
          printable(too_long),
          "' is longer than MLflow's limit of ",
          kLongestParameter,
          " characters"));
    }
  }

  void log(const TrackedValues& values, int64_t step) override {
    const auto time = milliseconds_now();
    std::string no_number;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [name, value] : values) {
        if (const auto number = value.number()) {
          add_metric(name, *number, time, step);
        } else {
          no_number = name;
        }
      }
      is_begun_ = true;
    }
    wake_.notify_all();
    if (!no_number.empty()) {
      say_once(str_cat(
          "'",
          printable(no_number),
          "' is a string, but MLflow metrics must be numbers"));
    }
    say_what_went_wrong();
  }

  void resume(int64_t step) override {
    const std::lock_guard lock(mutex_);
    tags_.push_back(
        {{"key", "accelerate.resumed_at_step"},
         {"value", std::to_string(step)}});
  }

  std::string state() const override {
    std::unique_lock lock(mutex_);
    // Wait for the server, because a run that resumes from this checkpoint does
    // not send earlier values again.
    changed_.wait_for(lock, kLongestWait, [&] {
      return !is_begun_ || !trouble_.empty() || (!has_work() && !is_sending_);
    });
    return run_id_;
  }
  void load_state(const std::string& state) override {
    const std::lock_guard lock(mutex_);
    if (!is_begun_ && options_.run_id.empty()) {
      run_id_ = state;
    }
  }

  void finish() override {
    stop();
    say_what_went_wrong();
  }

 private:
  static std::string root(const MlflowOptions& options) {
    const auto uri = first_of(options.tracking_uri, variables::kMlflowUri);
    if (!uri.starts_with("http://") && !uri.starts_with("https://")) {
      throw UsageError(str_cat(
          "[init_trackers] The tracker 'mlflow' cannot use the server '",
          printable(uri),
          "'. Set MlflowOptions::tracking_uri or ",
          variables::kMlflowUri,
          " to http://HOST:PORT"));
    }
    return uri;
  }
  static HttpLogin login() {
    return {
        .token = first_of({}, variables::kMlflowToken),
        .user = first_of({}, variables::kMlflowUser),
        .password = first_of({}, variables::kMlflowPassword)};
  }

  void add_metric(
      const std::string& name,
      double value,
      int64_t time,
      int64_t step) {
    MlflowJson number = value;
    if (!std::isfinite(value)) {
      number = std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
    }
    metrics_.push_back(
        {{"key", name},
         {"value", number},
         {"timestamp", time},
         {"step", step}});
    if (metrics_.size() > kMostWaiting) {
      metrics_.pop_front();
      ++num_lost_;
    }
  }

  /// Reports the first value that cannot be logged. This is not an error.
  void say_once(const std::string& what) {
    if (!std::exchange(has_left_out_, true)) {
      print_line(
          std::cerr, str_cat("[tracker mlflow] ", what, ". It is not logged"));
    }
  }

  /// Rethrows the sender's error, once.
  void say_what_went_wrong() {
    const std::lock_guard lock(mutex_);
    if (num_lost_ > 0) {
      trouble_ += str_cat(
          trouble_.empty() ? "" : "; ",
          num_lost_,
          " values were not sent in time and are lost");
      num_lost_ = 0;
    }
    const auto& what = refused_.empty() ? trouble_ : refused_;
    if (!what.empty() && what != said_) {
      said_ = what;
      throw SystemError(what);
    }
  }

  void stop() {
    if (!sender_.joinable()) {
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      deadline_ = std::chrono::steady_clock::now() + kLongestWait;
      is_stopping_ = true;
    }
    wake_.notify_all();
    sender_.join();
  }

  void send_all() {
    seconds pause{1};
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(
          lock, [&] { return is_stopping_ || (is_begun_ && has_work()); });
      if (!is_begun_) {
        return; // nothing was logged, so no run is created
      }
      const bool is_last = is_stopping_ && !has_work();
      is_sending_ = true;
      const auto failure = attempt(lock, is_last);
      is_sending_ = false;
      trouble_ = failure;
      changed_.notify_all();
      if (failure.empty()) {
        pause = seconds{1};
        if (is_last) {
          return;
        }
        continue;
      }
      if (is_stopping_ &&
          std::chrono::steady_clock::now() + pause > deadline_) {
        num_lost_ += metrics_.size();
        return;
      }
      wake_.wait_for(lock, pause, [&] { return is_stopping_; });
      if (is_stopping_) {
        wake_.wait_for(lock, seconds{1}, [] { return false; });
      }
      pause = std::min(pause * 2, kLongestPause);
    }
  }

  bool has_work() const {
    return !is_open_ || !metrics_.empty() || !parameters_.empty() ||
           !tags_.empty();
  }

  /// Sends one or a few requests while the lock is released. Returns the error,
  /// or an empty string.
  std::string attempt(std::unique_lock<std::mutex>& lock, bool is_last) {
    try {
      if (!is_open_) {
        const auto run_id = run_id_;
        lock.unlock();
        auto opened = open(run_id);
        lock.lock();
        run_id_ = std::move(opened);
        is_open_ = true;
      } else if (is_last) {
        lock.unlock();
        call(
            "runs/update",
            {{"run_id", run_id_},
             {"status", "FINISHED"},
             {"end_time", milliseconds_now()}});
        lock.lock();
      } else {
        send_some(lock);
      }
      return {};
    } catch (const std::exception& error) {
      if (!lock.owns_lock()) {
        lock.lock();
      }
      return error.what();
    }
  }

  void send_some(std::unique_lock<std::mutex>& lock) {
    auto& waiting = !parameters_.empty() ? parameters_
                    : !tags_.empty()     ? tags_
                                         : metrics_;
    const char* kind = !parameters_.empty() ? "params"
                       : !tags_.empty()     ? "tags"
                                            : "metrics";
    const auto most =
        &waiting == &metrics_ ? kMetricsAtOnce : kParametersAtOnce;
    const auto end = waiting.begin() + static_cast<std::ptrdiff_t>(
                                           std::min(most, waiting.size()));
    const std::vector<MlflowJson> sent(waiting.begin(), end);
    waiting.erase(waiting.begin(), end);
    lock.unlock();
    try {
      call("runs/log-batch", {{"run_id", run_id_}, {kind, sent}});
      lock.lock();
    } catch (const Refused& error) {
      lock.lock();
      refused_ = error.what(); // it would be rejected again
    } catch (const std::exception&) {
      lock.lock();
      waiting.insert(waiting.begin(), sent.begin(), sent.end());
      throw;
    }
  }

  /// Creates a run, or continues one.
  std::string open(const std::string& run_id) {
    if (!run_id.empty()) {
      call("runs/update", {{"run_id", run_id}, {"status", "RUNNING"}});
      return run_id;
    }
    MlflowJson asked = {
        {"experiment_id", experiment_id()}, {"start_time", milliseconds_now()}};
    if (!options_.run_name.empty()) {
      asked["run_name"] = options_.run_name;
    }
    return call("runs/create", asked).at("run").at("info").at("run_id");
  }

  std::string experiment_id() {
    // A search by name requires the name to be quoted. Instead, try to create
    // the experiment. If it exists, look it up in the list of all experiments.
    const auto made =
        post("experiments/create", {{"name", options_.experiment}});
    if (made.status == 200) {
      return MlflowJson::parse(made.body).at("experiment_id");
    }
    std::string page;
    do {
      MlflowJson asked = {{"max_results", 1000}, {"view_type", "ACTIVE_ONLY"}};
      if (!page.empty()) {
        asked["page_token"] = page;
      }
      const auto found = call("experiments/search", asked);
      for (const auto& one : found.value("experiments", MlflowJson::array())) {
        if (one.at("name") == options_.experiment) {
          return one.at("experiment_id");
        }
      }
      page = found.value("next_page_token", "");
    } while (!page.empty());
    check("experiments/create", made);
    return {};
  }

  HttpAnswer post(const std::string& method, const MlflowJson& body) {
    return client_.post(
        kApi + method,
        body.dump(-1, ' ', false, MlflowJson::error_handler_t::replace));
  }
  static void check(const std::string& method, const HttpAnswer& answer) {
    constexpr size_t kShown = 300;
    if (answer.status != 200) {
      const auto what = str_cat(
          "the server answered ",
          answer.status,
          " to ",
          method,
          ": ",
          answer.body.substr(0, kShown));
      if (answer.status >= 400 && answer.status < 500) {
        throw Refused(what);
      }
      throw SystemError(what);
    }
  }
  MlflowJson call(const std::string& method, const MlflowJson& body) {
    const auto answer = post(method, body);
    check(method, answer);
    return answer.body.empty() ? MlflowJson::object()
                               : MlflowJson::parse(answer.body);
  }

  MlflowOptions options_;
  HttpClient client_; // only used by the sender
  std::thread sender_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  mutable std::condition_variable changed_;
  std::deque<MlflowJson> parameters_;
  std::deque<MlflowJson> tags_;
  std::deque<MlflowJson> metrics_;
  std::string run_id_;
  std::string trouble_;
  std::string refused_;
  std::string said_;
  size_t num_lost_ = 0;
  bool has_left_out_ = false;
  bool is_begun_ = false;
  bool is_open_ = false;
  bool is_sending_ = false;
  bool is_stopping_ = false;
  std::chrono::steady_clock::time_point deadline_;
};

} // namespace

std::shared_ptr<Tracker> make_mlflow_tracker(const TrackingOptions& options) {
  return std::make_shared<MlflowTracker>(options.mlflow);
}

} // namespace accelerate
