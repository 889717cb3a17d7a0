// SPDX-License-Identifier: Apache-2.0
#include "launch/machines/control_server.h"

#include <sys/socket.h>

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "base/str.h"
#include "launch/machines/sockets.h"

namespace accelerate {
namespace {

constexpr size_t kMaxStrangers = 64;
constexpr int kAcceptsAtATime = 16;
constexpr std::chrono::milliseconds kIntroductionLimit{5000};
constexpr std::chrono::milliseconds kFarewellLimit{2000};
// A flood must not flood the log too.
constexpr int kMaxRefusalLines = 10;

// Takes the same time wherever the texts differ.
bool is_same_secret(const std::string& a, const std::string& b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < b.size(); ++i) {
    difference |= static_cast<unsigned>(
        static_cast<unsigned char>(a.empty() ? 0 : a[i % a.size()]) ^
        static_cast<unsigned char>(b[i]));
  }
  return difference == 0;
}

} // namespace

std::string reason_to_refuse(
    const HelloMessage& own,
    const HelloMessage& hello,
    int num_machines) {
  if (!is_same_secret(own.token, hello.token)) {
    return str_cat(
        "the job token is wrong; set the same ACCELERATE_JOB_TOKEN on every "
        "machine");
  }
  if (hello.protocol != own.protocol || hello.version != own.version) {
    return str_cat(
        "it runs accelerate ",
        hello.version,
        " (protocol ",
        hello.protocol,
        "), machine 0 runs ",
        own.version,
        " (protocol ",
        own.protocol,
        "); install the same version on every machine");
  }
  for (const auto& [name, value] : own.agreement) {
    const auto found = hello.agreement.find(name);
    if (found == hello.agreement.end() || found->second != value) {
      return str_cat(
          "it has ",
          name,
          "=",
          found == hello.agreement.end() ? "nothing" : found->second,
          ", machine 0 has ",
          name,
          "=",
          value,
          "; use the same configuration on every machine");
    }
  }
  if (hello.machine_rank >= num_machines || hello.machine_rank == 0) {
    return str_cat(
        "its --machine_rank is ",
        hello.machine_rank,
        ", but the others than machine 0 are 1 to ",
        num_machines - 1);
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

ControlServer::ControlServer(
    EventLoop& loop,
    UniqueFile listener,
    HelloMessage own,
    int num_machines,
    Callbacks callbacks)
    : loop_(loop),
      listener_(std::move(listener)),
      own_(std::move(own)),
      callbacks_(std::move(callbacks)),
      roll_(static_cast<size_t>(num_machines)),
      machines_(static_cast<size_t>(num_machines)) {
  roll_[0] = own_;
  loop_.watch(listener_.get(), POLLIN, [this](short) { accept_some(); });
}

ControlServer::~ControlServer() {
  loop_.unwatch(listener_.get());
  for (auto& peer : peers_) {
    loop_.cancel(peer.deadline);
  }
}

void ControlServer::accept_some() {
  for (int i = 0; i < kAcceptsAtATime; ++i) {
    pollfd waited{listener_.get(), POLLIN, 0};
    if (poll(&waited, 1, 0) <= 0) {
      return;
    }
    make_room();
    UniqueFile socket(accept4(
        listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      return;
    }
    add_peer(std::move(socket));
  }
}

void ControlServer::make_room() {
  if (num_strangers_ < kMaxStrangers) {
    return;
  }
  // The oldest stranger had the most time to introduce itself.
  const auto oldest =
      std::find_if(peers_.begin(), peers_.end(), [](const Peer& peer) {
        return !peer.machine && peer.connection->is_open();
      });
  if (oldest != peers_.end()) {
    remove_soon(oldest);
  }
}

void ControlServer::add_peer(UniqueFile socket) {
  const PeerPlace peer = peers_.emplace(peers_.end());
  peer->address = peer_address(socket.get());
  peer->connection = std::make_unique<Connection>(
      loop_,
      std::move(socket),
      Connection::Callbacks{
          [this, peer](Message message) { received(peer, std::move(message)); },
          [this, peer](const std::string& why) { closed(peer, why); }});
  peer->connection->set_limit(kMaxHelloBytes);
  peer->deadline =
      loop_.after(kIntroductionLimit, [this, peer] { remove_soon(peer); });
  ++num_strangers_;
}

void ControlServer::received(PeerPlace peer, Message message) {
  if (peer->machine) {
    callbacks_.received(*peer->machine, std::move(message));
  } else if (peer->is_refused) {
    return;
  } else if (const auto* hello = std::get_if<HelloMessage>(&message)) {
    take_hello(peer, *hello);
  } else {
    refuse(peer, "it did not introduce itself");
  }
}

void ControlServer::take_hello(PeerPlace peer, const HelloMessage& hello) {
  std::string reason =
      reason_to_refuse(own_, hello, static_cast<int>(roll_.size()));
  const auto machine = static_cast<size_t>(hello.machine_rank);
  const bool is_return =
      is_complete_ && reason.empty() && machines_[machine] == nullptr;
  if (is_return && roll_[machine]->num_local != hello.num_local) {
    reason = str_cat(
        "it comes back with ",
        hello.num_local,
        " processes, but had ",
        roll_[machine]->num_local,
        "; give it as many as before");
  } else if (reason.empty() && roll_[machine] && !is_return) {
    reason = str_cat(
        "machine_rank ",
        hello.machine_rank,
        " is taken by ",
        roll_[machine]->host,
        "; give each machine its own --machine_rank");
  }
  if (!reason.empty()) {
    refuse(peer, reason);
    return;
  }
  roll_[machine] = hello;
  machines_[machine] = peer->connection.get();
  peer->machine = machine;
  peer->connection->set_limit(kMaxFrameBytes);
  loop_.cancel(std::exchange(peer->deadline, 0));
  --num_strangers_;
  peer->connection->send(AcceptedMessage{});
  if (is_return) {
    callbacks_.returned(machine);
    return;
  }
  is_complete_ = std::all_of(roll_.begin(), roll_.end(), [](const auto& entry) {
    return entry.has_value();
  });
  if (is_complete_) {
    callbacks_.complete();
  }
}

void ControlServer::refuse(PeerPlace peer, const std::string& reason) {
  peer->is_refused = true;
  peer->connection->send(RefusedMessage{reason});
  // It hangs up itself, or its time to introduce itself is over soon.
  if (++num_refusals_ <= kMaxRefusalLines) {
    callbacks_.say(
        str_cat("[launch] refused a machine at ", peer->address, ": ", reason));
  }
}

void ControlServer::closed(PeerPlace peer, const std::string& why) {
  if (peer->machine) {
    const size_t machine = *peer->machine;
    machines_[machine] = nullptr;
    erase_soon(peer);
    if (done_) {
      if (is_everybody_gone()) {
        std::exchange(done_, nullptr)();
      }
    } else if (!is_complete_) {
      // It may come again while the roll is still being taken.
      callbacks_.say(str_cat(
          "[launch] machine ",
          machine,
          " (",
          roll_[machine]->host,
          ") left before the start: the connection ",
          why));
      roll_[machine].reset();
    } else {
      callbacks_.lost(machine, why);
    }
    return;
  }
  if (!peer->is_refused && ++num_refusals_ <= kMaxRefusalLines) {
    callbacks_.say(str_cat(
        "[launch] a stranger at ", peer->address, " was sent away: it ", why));
  }
  remove_soon(peer);
}

void ControlServer::remove_soon(PeerPlace peer) {
  peer->connection->close();
  loop_.cancel(std::exchange(peer->deadline, 0));
  --num_strangers_;
  erase_soon(peer);
}

void ControlServer::erase_soon(PeerPlace peer) {
  // Not now: the caller may be a callback of this very connection.
  loop_.after(
      std::chrono::milliseconds(0), [this, peer] { peers_.erase(peer); });
}

void ControlServer::send(size_t machine, const Message& message) {
  if (machines_[machine] != nullptr) {
    machines_[machine]->send(message);
  }
}

void ControlServer::finish(std::function<void()> done) {
  if (is_everybody_gone()) {
    done();
    return;
  }
  done_ = std::move(done);
  loop_.after(kFarewellLimit, [this] {
    if (done_) {
      std::exchange(done_, nullptr)();
    }
  });
}

bool ControlServer::is_everybody_gone() const {
  return std::all_of(machines_.begin(), machines_.end(), [](const auto* link) {
    return link == nullptr;
  });
}

} // namespace accelerate
