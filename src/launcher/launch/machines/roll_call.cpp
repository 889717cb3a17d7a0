// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/machines/roll_call.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "core/base/str.h"

namespace accelerate {

RollCall::RollCall(
    HelloMessage own,
    int num_machines,
    bool shows_values,
    bool is_elastic)
    : entries_(static_cast<size_t>(num_machines)),
      here_(static_cast<size_t>(num_machines)),
      shows_values_(shows_values),
      is_elastic_(is_elastic) {
  entries_[0] = std::move(own);
  here_[0] = true;
}

int RollCall::index_for(const std::string& host) const {
  int first_free = kAnyMachine;
  for (size_t i = entries_.size() - 1; is_elastic_ && i > 0; --i) {
    if (!here_[i]) {
      first_free = static_cast<int>(i);
      if (entries_[i] && entries_[i]->host == host) {
        return first_free;
      }
    }
  }
  return first_free;
}

std::string RollCall::take(const HelloMessage& hello) {
  std::string reason = reason_to_refuse(hello);
  if (reason.empty()) {
    const auto machine = static_cast<size_t>(hello.machine_rank);
    entries_[machine] = hello;
    here_[machine] = true;
  }
  return reason;
}

void RollCall::leave(size_t machine) {
  here_[machine] = false;
}

int RollCall::num_here() const {
  return static_cast<int>(std::count(here_.begin(), here_.end(), true));
}

bool RollCall::is_complete() const {
  return num_here() == static_cast<int>(here_.size());
}

std::string RollCall::reason_to_refuse(const HelloMessage& hello) const {
  const HelloMessage& own = *entries_[0];
  if (hello.version != own.version) {
    return str_cat(
        "it runs accelerate ",
        hello.version,
        ", but machine 0 runs ",
        shows_values_ ? own.version : "a different version",
        "; install the same version on every machine");
  }
  if (std::string difference = first_difference(hello); !difference.empty()) {
    return difference;
  }
  if (is_elastic_ && hello.machine_rank == kAnyMachine) {
    return str_cat(
        "all ",
        entries_.size(),
        " machines that --num_machines allows have already joined");
  }
  const auto machine = static_cast<size_t>(hello.machine_rank);
  if (machine >= entries_.size() || machine == 0) {
    return str_cat(
        "its --machine_rank is ",
        hello.machine_rank,
        ", but machines other than machine 0 have ranks 1 to ",
        entries_.size() - 1);
  }
  const auto& known = entries_[machine];
  if (here_[machine]) {
    return str_cat(
        "machine_rank ",
        machine,
        " is taken by ",
        shows_values_ ? known->host : "another machine",
        "; give each machine its own --machine_rank");
  }
  if (!is_elastic_ && known && known->num_local != hello.num_local) {
    return str_cat(
        "it has ",
        hello.num_local,
        " processes, but machine ",
        machine,
        " had ",
        known->num_local,
        " before; a job must restart with the same number of processes");
  }
  return {};
}

std::string RollCall::first_difference(const HelloMessage& hello) const {
  for (const auto& [name, value] : entries_[0]->agreement) {
    const auto found = hello.agreement.find(name);
    if (found == hello.agreement.end() || found->second != value) {
      return str_cat(
          "it has ",
          name,
          "=",
          found == hello.agreement.end() ? "nothing" : found->second,
          ", but machine 0 has ",
          shows_values_ ? name + "=" + value : "a different value",
          "; use the same configuration on every machine");
    }
  }
  return {};
}

std::string format_roll(const std::vector<HelloMessage>& roll) {
  size_t widest = 4;
  for (const auto& machine : roll) {
    widest = std::max(widest, machine.host.size());
  }
  std::ostringstream out;
  const auto width = static_cast<int>(widest);
  out << "[launch] machine  " << std::left << std::setw(width) << "host"
      << "  ranks      devices";
  int first = 0;
  for (const auto& machine : roll) {
    const int last = first + machine.num_local - 1;
    const std::string ranks =
        first == last ? str_cat(first) : str_cat(first, '-', last);
    out << "\n[launch] " << std::right << std::setw(7) << machine.machine_rank
        << "  " << std::left << std::setw(width) << machine.host << "  "
        << std::setw(9) << ranks << "  " << machine.devices;
    first = last + 1;
  }
  return out.str();
}

} // namespace accelerate
