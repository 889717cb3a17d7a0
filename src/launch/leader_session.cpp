// SPDX-License-Identifier: Apache-2.0
#include "launch/leader_session.h"

#include <cstring>
#include <ctime>

#include "accelerate/error.h"
#include "base/exit_codes.h"
#include "base/str.h"
#include "base/variables.h"
#include "hardware/network.h"
#include "hardware/ports.h"
#include "launch/machines/job_token.h"
#include "launch/machines/sockets.h"

namespace accelerate {

namespace {

/// Sorts by time: the folders of a run's logs carry it.
std::string make_run_id() {
  const time_t now = time(nullptr);
  tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  strftime(text, sizeof(text), "%Y%m%d-%H%M%S-", &parts);
  return text + random_token().substr(0, 8);
}

} // namespace

class LeaderSession::LocalMachine : public Machine {
 public:
  explicit LocalMachine(LeaderSession& session) : session_(session) {}
  void start(int attempt) override {
    session_.start_workers(session_.order_for(0, attempt));
  }
  void stop(int signal, bool is_to_restart) override {
    session_.stop_workers(signal, is_to_restart);
  }
  void end(const JobEnding& ending) override { session_.end(ending); }

 private:
  LeaderSession& session_;
};

class LeaderSession::RemoteMachine : public Machine {
 public:
  RemoteMachine(LeaderSession& session, size_t machine)
      : session_(session), machine_(machine) {}
  void start(int attempt) override {
    session_.server_->send(
        machine_,
        StartMessage{
            session_.order_for(machine_, attempt),
            attempt == 0 ? session_.roll_ : ""});
  }
  void stop(int signal, bool is_to_restart) override {
    session_.server_->send(machine_, StopMessage{signal, is_to_restart});
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
      listen_on(listening_address(placement), placement.meeting_point.port),
      options_.token,
      introduction(),
      placement.num_machines,
      options_.patience,
      ControlServer::Callbacks{
          [this] { roll_complete(); },
          [this](size_t machine, const Message& message) {
            received(machine, message);
          },
          [this](size_t machine, const std::string& why) {
            lost(machine, why);
          },
          [this](size_t machine) { returned(machine); },
          [this](const std::string& line) { say(line); }});
  join_timer_ = loop_.after(options_.join_limit, [this] { join_time_over(); });
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
            " ended with ",
            describe_end(wait_status),
            " before the start; try `ssh ",
            host,
            " accelerate --version`"),
        1);
  }
}

void LeaderSession::roll_complete() {
  loop_.cancel(join_timer_);
  std::vector<HelloMessage> roll;
  for (const auto& machine : server_->roll()) {
    roll.push_back(*machine);
  }
  if (const auto problems = describe_problems(roll); !problems.empty()) {
    send_away(problems, kExitUsage);
    return;
  }
  roll_ = format_roll(roll);
  say(roll_);
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
  return text.empty() ? text : text + "[launch] --check: nothing was started";
}

void LeaderSession::join_time_over() {
  std::string missing;
  std::string here;
  for (size_t i = 0; i < server_->roll().size(); ++i) {
    const auto& machine = server_->roll()[i];
    std::string& list = machine ? here : missing;
    list += str_cat(list.empty() ? "" : ", ", i);
    if (machine) {
      list += " (" + machine->host + ")";
    }
  }
  send_away(
      str_cat(
          "[launch] machine ",
          missing,
          " did not come within ",
          options_.join_limit.count(),
          " s; here: ",
          here,
          ". Start `accelerate launch` with that --machine_rank there, and "
          "check that it can reach ",
          plan_.placement.meeting_point.address,
          " port ",
          plan_.placement.meeting_point.port),
      1);
}

void LeaderSession::received(size_t machine, const Message& message) {
  const std::string& host = server_->roll()[machine]->host;
  if (!job_) {
    if (const auto* m = std::get_if<InterruptedMessage>(&message)) {
      send_away(
          str_cat("[launch] ", host, " got ", strsignal(m->signal)),
          128 + m->signal);
    }
  } else if (const auto* failed = std::get_if<FailedMessage>(&message)) {
    job_->machine_failed(machine, failed->report);
  } else if (const auto* cannot = std::get_if<CannotStartMessage>(&message)) {
    job_->machine_cannot_start(
        machine, str_cat(cannot->reason, " (on ", host, ")"));
  } else if (std::holds_alternative<FinishedMessage>(message)) {
    job_->machine_finished(machine);
  } else if (std::holds_alternative<StoppedMessage>(message)) {
    job_->machine_stopped(machine);
  } else if (const auto* m = std::get_if<InterruptedMessage>(&message)) {
    job_->interrupt(m->signal, host);
  }
}

void LeaderSession::lost(size_t machine, const std::string& why) {
  if (job_) {
    job_->machine_lost(
        machine,
        server_->roll()[machine]->host,
        "was lost: the connection " + why);
    if (job_->is_waiting_for(machine)) {
      server_->await(machine);
      call_back(machine);
    }
  }
}

void LeaderSession::returned(size_t machine) {
  say(str_cat(
      "[launch] machine ",
      machine,
      " (",
      server_->roll()[machine]->host,
      ") is back"));
  job_->machine_returned(machine);
}

void LeaderSession::call_back(size_t machine) {
  // Without ssh, whoever started it there starts it again.
  if (!options_.remote_launchers.empty() && job_->is_waiting_for(machine) &&
      !server_->is_here(machine) && !running_launchers_.contains(machine)) {
    start_remote_launcher(machine);
  }
}

void LeaderSession::begin_job() {
  std::vector<Machine*> machines;
  for (const auto& machine : machines_) {
    machines.push_back(machine.get());
  }
  job_ = std::make_unique<Job>(
      loop_,
      std::move(machines),
      plan_.max_restarts,
      options_.join_limit,
      [this](const std::string& line) { say(line); });
  job_->start();
}

StartOrder LeaderSession::order_for(size_t machine, int attempt) {
  const Placement& placement = plan_.placement;
  if (port_attempt_ != attempt) {
    // A new port for each attempt: the old one may still be closing.
    port_attempt_ = attempt;
    const bool is_alone = placement.num_machines == 1;
    const auto wanted = is_alone ? plan_.main_process_port : std::nullopt;
    const std::string problem = wanted ? port_problem(*wanted) : "";
    if (wanted && problem.empty()) {
      port_ = *wanted;
    } else {
      port_ = find_free_port(is_alone ? "127.0.0.1" : "");
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
  }
  StartOrder order;
  order.attempt = attempt;
  order.max_restarts = plan_.max_restarts;
  order.run_id = run_id_;
  order.master_port = port_;
  order.world_size = plan_.num_local;
  if (server_) {
    order.master_address = placement.meeting_point.address;
    order.world_size = 0;
    for (size_t i = 0; i < server_->roll().size(); ++i) {
      const int here = server_->roll()[i]->num_local;
      order.world_size += here;
      order.first_rank += i < machine ? here : 0;
    }
  }
  return order;
}

void LeaderSession::send_away(const std::string& reason, int exit_code) {
  is_sent_away_ = true;
  say_ending(reason);
  for (size_t machine = 1; machine < machines_.size(); ++machine) {
    server_->send(machine, EndMessage{{exit_code, reason}});
  }
  leave(exit_code);
}

void LeaderSession::workers_failed(const FailureReport& report) {
  job_->machine_failed(0, report);
}

void LeaderSession::workers_finished() {
  job_->machine_finished(0);
}

void LeaderSession::workers_stopped() {
  job_->machine_stopped(0);
}

void LeaderSession::workers_cannot_start(const std::string& reason) {
  job_->machine_cannot_start(0, reason);
}

void LeaderSession::interrupted(int signal) {
  if (job_) {
    job_->interrupt(signal, host_name());
  } else {
    send_away(
        str_cat("[launch] ", host_name(), " got ", strsignal(signal)),
        128 + signal);
  }
}

void LeaderSession::end(const JobEnding& ending) {
  if (!ending.summary.empty()) {
    say_ending(ending.summary);
  }
  if (!server_) {
    finish(ending.exit_code);
    return;
  }
  // The others are told in this same turn of the loop, after this machine.
  const int exit_code = ending.exit_code;
  loop_.after(
      std::chrono::milliseconds(0), [this, exit_code] { leave(exit_code); });
}

void LeaderSession::leave(int exit_code) {
  server_->finish([this, exit_code] {
    remotes_.finish([this, exit_code] { finish(exit_code); });
  });
}

} // namespace accelerate
