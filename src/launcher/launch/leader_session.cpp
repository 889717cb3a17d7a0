// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/leader_session.h"

#include <cstring>
#include <ctime>
#include <utility>

#include "accelerate/error.h"
#include "core/base/exit_codes.h"
#include "core/base/str.h"
#include "core/base/variables.h"
#include "core/hardware/network.h"
#include "core/hardware/ports.h"
#include "launcher/launch/machines/job_token.h"
#include "launcher/launch/machines/sockets.h"
#include "launcher/launch/supervise/error_report.h"

namespace accelerate {

namespace {

/// The id begins with the time, so that log folders, whose names contain it,
/// sort by time.
std::string make_run_id() {
  const time_t now = time(nullptr);
  tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  strftime(text, sizeof(text), "%Y%m%d-%H%M%S-", &utc);
  return text + random_token().substr(0, 8);
}

// How long an elastic job that could start waits for more machines.
constexpr std::chrono::seconds kGatherTime{5};

} // namespace

class LeaderSession::LocalMachine : public Machine {
 public:
  explicit LocalMachine(LeaderSession& session) : session_(session) {}
  void start(int attempt) override {
    session_.start_workers(session_.order_for(0, attempt));
  }
  void stop(const StopOrder& order) override { session_.stop_workers(order); }
  void end(const JobEnding& ending) override { session_.end(ending); }

 private:
  LeaderSession& session_;
};

class LeaderSession::RemoteMachine : public Machine {
 public:
  RemoteMachine(LeaderSession& session, size_t machine)
      : session_(session), machine_(machine) {}
  void start(int attempt) override {
    const StartOrder order = session_.order_for(machine_, attempt);
    session_.server_->send(
        machine_,
        StartMessage{order, session_.is_roll_new_ ? session_.roll_ : ""});
  }
  void stop(const StopOrder& order) override {
    session_.server_->send(machine_, StopMessage{order});
  }
  void end(const JobEnding& ending) override {
    session_.server_->send(machine_, EndMessage{ending});
  }

 private:
  LeaderSession& session_;
  size_t machine_;
};

LeaderSession::LeaderSession(
    const LaunchPlan& plan,
    const SessionOptions& options)
    : LaunchSession(plan, options), run_id_(make_run_id()) {}

LeaderSession::~LeaderSession() = default;

void LeaderSession::begin() {
  const int machines = plan_.placement.num_machines;
  machines_.push_back(std::make_unique<LocalMachine>(*this));
  for (int machine = 1; machine < machines; ++machine) {
    machines_.push_back(
        std::make_unique<RemoteMachine>(*this, static_cast<size_t>(machine)));
  }
  if (machines > 1) {
    listen();
    start_remote_launchers();
  } else if (const auto problems = describe_problems({introduction()});
             !problems.empty()) {
    say_ending(problems);
    finish(kExitUsage);
  } else {
    begin_job();
  }
}

void LeaderSession::listen() {
  const Placement& placement = plan_.placement;
  server_ = std::make_unique<ControlServer>(
      loop_,
      listen_on(listening_address(placement), placement.rendezvous.port),
      options_.token,
      introduction(),
      placement.num_machines,
      placement.least_machines.has_value(),
      options_.patience,
      ControlServer::Callbacks{
          [this](size_t machine) { joined(machine); },
          [this](size_t machine, const Message& message) {
            received(machine, message);
          },
          [this](size_t machine, const std::string& why) {
            lost(machine, why);
          },
          [this](const std::string& line) { say(line); }});
  join_timer_ = loop_.after(options_.join_limit, [this] { join_time_over(); });
  begin_if_enough_joined();
}

void LeaderSession::start_remote_launchers() {
  for (size_t machine = 1; machine <= options_.remote_launchers.size();
       ++machine) {
    start_remote_launcher(machine);
  }
}

void LeaderSession::start_remote_launcher(size_t machine) {
  running_launchers_.insert(machine);
  supervisor_.spare(remotes_.start(
      options_.remote_launchers[machine - 1], [this, machine](int wait_status) {
        remote_launcher_ended(machine, wait_status);
      }));
}

void LeaderSession::remote_launcher_ended(size_t machine, int wait_status) {
  running_launchers_.erase(machine);
  const std::string& host = options_.remote_launchers[machine - 1].host;
  if (job_) {
    constexpr std::chrono::milliseconds kRetry{1000};
    loop_.after(kRetry, [this, machine] { call_back(machine); });
  } else if (!is_sent_away_) {
    send_away(
        str_cat(
            "[launch] the launcher on ",
            host,
            " ",
            describe_end(wait_status),
            " before the job started. Try `ssh ",
            host,
            " accelerate --version`"),
        1);
  }
}

void LeaderSession::begin_if_enough_joined() {
  const RollCall& roll = server_->roll();
  const auto& least = plan_.placement.least_machines;
  if (roll.is_complete()) {
    begin_with_joined_machines();
  } else if (!least || roll.num_here() < *least) {
    loop_.cancel(std::exchange(gather_timer_, 0));
  } else if (gather_timer_ == 0) {
    say(str_cat(
        "[launch] machines that have joined: ",
        roll.num_here(),
        " (of ",
        *least,
        " to ",
        plan_.placement.num_machines,
        "); starting in ",
        kGatherTime.count(),
        " s, or when all have joined"));
    gather_timer_ =
        loop_.after(kGatherTime, [this] { begin_with_joined_machines(); });
  }
}

void LeaderSession::begin_with_joined_machines() {
  loop_.cancel(std::exchange(join_timer_, 0));
  loop_.cancel(std::exchange(gather_timer_, 0));
  std::vector<HelloMessage> here;
  for (size_t i = 0; i < machines_.size(); ++i) {
    if (server_->roll().is_here(i)) {
      here.push_back(server_->hello_of(i));
    }
  }
  if (const auto problems = describe_problems(here); !problems.empty()) {
    send_away(problems, kExitUsage);
    return;
  }
  begin_job();
}

std::string LeaderSession::describe_problems(
    const std::vector<HelloMessage>& roll) const {
  std::string text;
  for (const auto& machine : roll) {
    for (const auto& problem : machine.problems) {
      text += str_cat(
          "[launch] machine ",
          machine.machine_rank,
          " (",
          machine.host,
          "): ",
          problem,
          '\n');
    }
  }
  return text.empty()
             ? text
             : text + "[launch] --check found problems, so nothing was started";
}

void LeaderSession::join_time_over() {
  join_timer_ = 0;
  if (gather_timer_ != 0) {
    begin_with_joined_machines();
    return;
  }
  std::string missing;
  std::string here;
  for (size_t i = 0; i < machines_.size(); ++i) {
    const bool is_here = server_->roll().is_here(i);
    std::string& list = is_here ? here : missing;
    list += str_cat(list.empty() ? "" : ", ", i);
    if (is_here) {
      list += " (" + server_->hello_of(i).host + ")";
    }
  }
  const std::string endpoint = str_cat(
      plan_.placement.rendezvous.address,
      " port ",
      plan_.placement.rendezvous.port);
  if (const auto& least = plan_.placement.least_machines) {
    send_away(
        str_cat(
            "[launch] fewer than ",
            *least,
            " machines joined within ",
            options_.join_limit.count(),
            " s (joined: ",
            here,
            "). Start `accelerate launch` on more machines, and check that "
            "they can reach ",
            endpoint),
        kExitFailure);
    return;
  }
  send_away(
      str_cat(
          "[launch] machine ",
          missing,
          " did not join within ",
          options_.join_limit.count(),
          " s (joined: ",
          here,
          "). Start `accelerate launch` there with that --machine_rank, and "
          "check that it can reach ",
          endpoint),
      kExitFailure);
}

void LeaderSession::received(size_t machine, const Message& message) {
  const std::string& host = server_->hello_of(machine).host;
  const bool is_elastic = plan_.placement.least_machines.has_value();
  if (const auto* m = std::get_if<SignalMessage>(&message)) {
    if (take_passed_on(m->signal)) {
      pass_on(m->signal);
    }
  } else if (!job_) {
    const auto* m = std::get_if<InterruptedMessage>(&message);
    if (m != nullptr && !(is_elastic && m->signal == SIGTERM)) {
      send_away(
          describe_interrupt(m->signal, host) + " before the start.",
          128 + m->signal);
    }
  } else if (const auto* failed = std::get_if<FailedMessage>(&message)) {
    record_failure(failed->report);
    job_->machine_failed(machine, failed->report);
  } else if (const auto* cannot = std::get_if<CannotStartMessage>(&message)) {
    job_->machine_cannot_start(
        machine, str_cat(cannot->reason, " (on ", host, ")"));
  } else if (std::holds_alternative<FinishedMessage>(message)) {
    job_->machine_finished(machine);
  } else if (const auto* stopped = std::get_if<StoppedMessage>(&message)) {
    job_->machine_stopped(machine, stopped->exit_summary);
  } else if (const auto* asked = std::get_if<InterruptedMessage>(&message)) {
    // A machine of an elastic job may be taken away, for example by a cloud
    // provider.
    if (is_elastic && asked->signal == SIGTERM) {
      job_->machine_leaves(machine, host, asked->signal);
    } else {
      job_->interrupt(asked->signal, host, num_processes());
    }
  }
}

void LeaderSession::lost(size_t machine, const std::string& why) {
  const std::string& host = server_->hello_of(machine).host;
  if (!job_) {
    // The machine may rejoin while others are still joining.
    say(str_cat(
        "[launch] machine ",
        machine,
        " (",
        host,
        ") left before the job started: the connection ",
        why));
    server_->await(machine);
    begin_if_enough_joined();
    return;
  }
  job_->machine_lost(machine, host, "was lost: the connection " + why);
  if (plan_.placement.least_machines || job_->is_waiting_for(machine)) {
    server_->await(machine);
    call_back(machine);
  }
}

void LeaderSession::joined(size_t machine) {
  if (is_sent_away_) {
    return;
  }
  if (!job_) {
    begin_if_enough_joined();
    return;
  }
  const HelloMessage& hello = server_->hello_of(machine);
  if (const auto problems = describe_problems({hello}); !problems.empty()) {
    say(problems);
    server_->send(machine, EndMessage{{kExitUsage, problems}});
    return;
  }
  if (!plan_.placement.least_machines) {
    say(str_cat(
        "[launch] machine ", machine, " (", hello.host, ") has rejoined"));
  }
  job_->machine_joined(machine, hello.host);
}

void LeaderSession::call_back(size_t machine) {
  // Without ssh, the user or scheduler that started the launcher must restart
  // it.
  if (!options_.remote_launchers.empty() && job_->is_waiting_for(machine) &&
      !server_->roll().is_here(machine) &&
      !running_launchers_.contains(machine)) {
    start_remote_launcher(machine);
  }
}

void LeaderSession::begin_job() {
  std::vector<Machine*> machines;
  std::vector<size_t> absent;
  for (size_t i = 0; i < machines_.size(); ++i) {
    machines.push_back(machines_[i].get());
    if (server_ && !server_->roll().is_here(i)) {
      absent.push_back(i);
    }
  }
  job_ = std::make_unique<Job>(
      loop_,
      std::move(machines),
      JobOptions{
          .max_restarts = plan_.max_restarts,
          .return_limit = options_.join_limit,
          .least_machines = plan_.placement.least_machines},
      [this](const std::string& line) { say(line); });
  begin_time_ = EventLoop::Clock::now();
  job_->start(absent);
  if (options_.is_watched) {
    watch_ = std::make_unique<WatchChild>(
        loop_,
        reaper_,
        output_,
        options_.opens_browser,
        WatchChild::Callbacks{
            [this] { return std::filesystem::path(run_report().folder); },
            [this](pid_t pid) { supervisor_.spare(pid); },
            [this](const std::string& line) { say(line); }});
  }
}

StartOrder LeaderSession::order_for(size_t machine, int attempt) {
  if (world_attempt_ != attempt) {
    world_attempt_ = attempt;
    form_world();
  }
  StartOrder order;
  order.attempt = attempt;
  order.max_restarts = plan_.max_restarts;
  order.run_id = run_id_;
  order.master_port = port_;
  if (server_) {
    order.master_address = plan_.placement.rendezvous.address;
  }
  order.world_size = num_processes();
  order.group_world_size = static_cast<int>(world_.size());
  for (const HelloMessage& member : world_) {
    if (static_cast<size_t>(member.machine_rank) < machine) {
      order.first_rank += member.num_local;
      ++order.group_rank;
    }
  }
  return order;
}

int LeaderSession::num_processes() const {
  int number = 0;
  for (const HelloMessage& member : world_) {
    number += member.num_local;
  }
  return number;
}

void LeaderSession::form_world() {
  world_.clear();
  if (!server_) {
    world_ = {introduction()};
  } else {
    for (size_t i = 0; i < machines_.size(); ++i) {
      if (job_->is_here(i)) {
        world_.push_back(server_->hello_of(i));
      }
    }
    const std::string old = std::exchange(roll_, format_roll(world_));
    is_roll_new_ = old != roll_;
    if (is_roll_new_) {
      say(roll_);
    }
  }
  choose_port();
}

// A new port for each attempt, because the old one may still be closing.
void LeaderSession::choose_port() {
  const auto wanted = server_ ? std::nullopt : plan_.main_process_port;
  const std::string problem = wanted ? port_problem(*wanted) : "";
  if (wanted && problem.empty()) {
    port_ = *wanted;
    return;
  }
  port_ = find_free_port(server_ ? "" : "127.0.0.1");
  if (wanted) {
    say(str_cat(
        "[launch] port ",
        *wanted,
        ' ',
        problem,
        "; using ",
        port_,
        " instead"));
  }
}

void LeaderSession::send_away(const std::string& reason, int exit_code) {
  is_sent_away_ = true;
  loop_.cancel(std::exchange(join_timer_, 0));
  loop_.cancel(std::exchange(gather_timer_, 0));
  say_ending(reason);
  for (size_t machine = 1; machine < machines_.size(); ++machine) {
    server_->send(machine, EndMessage{{exit_code, reason}});
  }
  leave(exit_code);
}

void LeaderSession::workers_failed(const FailureReport& report) {
  record_failure(report);
  job_->machine_failed(0, report);
}

void LeaderSession::workers_finished() {
  job_->machine_finished(0);
}

void LeaderSession::workers_stopped() {
  job_->machine_stopped(0, supervisor_.exit_summary());
}

void LeaderSession::workers_cannot_start(const std::string& reason) {
  job_->machine_cannot_start(0, reason);
}

void LeaderSession::interrupted(int signal) {
  if (job_) {
    job_->interrupt(signal, host_name(), num_processes());
  } else {
    send_away(
        describe_interrupt(signal, machines_.size() > 1 ? host_name() : "") +
            " before the start.",
        128 + signal);
  }
}

void LeaderSession::pass_on(int signal) {
  for (size_t machine = 1; machine < machines_.size(); ++machine) {
    server_->send(machine, SignalMessage{signal});
  }
}

void LeaderSession::end(const JobEnding& ending) {
  record_ending(ending);
  watch_.reset();
  if (!ending.summary.empty()) {
    say_ending(ending.summary);
    if (ending.exit_code == kExitUsage && !options_.usage_hint.empty()) {
      say(options_.usage_hint);
    }
  } else {
    std::error_code no_folder;
    const std::string line = describe_run(
        run_report(),
        EventLoop::Clock::now() - begin_time_,
        std::filesystem::current_path(no_folder));
    if (!line.empty()) {
      say(line);
    }
  }
  if (!server_) {
    finish(ending.exit_code);
    return;
  }
  // The other machines receive the ending in the same turn of the loop, so
  // leave in the next one.
  const int exit_code = ending.exit_code;
  loop_.after(
      std::chrono::milliseconds(0), [this, exit_code] { leave(exit_code); });
}

void LeaderSession::record_failure(const FailureReport& report) {
  if (report.exit_code == kExitPreempted) {
    return; // It was asked to leave, and starts again.
  }
  const bool has_words = !report.last_lines.empty() &&
                         find_error_report(report.last_lines[0]) == 0;
  record(
      {.exit_code = report.exit_code,
       .rank = report.rank,
       .host = report.host,
       .how = report.how,
       .error = has_words ? final_error(report.last_lines) : std::string()});
}

void LeaderSession::record_ending(const JobEnding& ending) {
  if (ending.exit_code == 0) {
    return;
  }
  constexpr std::string_view kPrefix = "[launch] ";
  auto how = ending.summary.substr(0, ending.summary.find('\n'));
  if (how.starts_with(kPrefix)) {
    how.erase(0, kPrefix.size());
  }
  record({.exit_code = ending.exit_code, .how = how});
}

void LeaderSession::record(const RunExitRecord& exit) {
  const std::filesystem::path folder = run_report().folder;
  if (folder.empty() || recorded_attempt_ == world_attempt_) {
    return;
  }
  recorded_attempt_ = world_attempt_;
  try {
    record_exit(folder, exit);
  } catch (const SystemError& error) {
    say(error.what());
  }
}

void LeaderSession::leave(int exit_code) {
  server_->finish([this, exit_code] {
    remotes_.finish([this, exit_code] { finish(exit_code); });
  });
}

} // namespace accelerate
