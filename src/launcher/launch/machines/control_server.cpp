// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/machines/control_server.h"

#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "core/base/str.h"
#include "launcher/launch/machines/sockets.h"

namespace accelerate {
namespace {

constexpr rlim_t kMaxStrangers = 64;
constexpr int kAcceptsAtATime = 16;
constexpr std::chrono::milliseconds kIntroductionLimit{5000};
constexpr std::chrono::milliseconds kFarewellLimit{2000};
// How long the server stops accepting connections if the system has no file
// descriptors left.
constexpr std::chrono::milliseconds kPause{200};
// A flood of connections must not flood the log.
constexpr int kMaxRefusalLines = 10;

// With a low descriptor limit, most are reserved for the workers' streams.
size_t max_unauthenticated() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<size_t>(
      std::clamp<rlim_t>(limit.rlim_cur / 4, 4, kMaxStrangers));
}

} // namespace

ControlServer::ControlServer(
    EventLoop& loop,
    UniqueFile listener,
    std::string token,
    HelloMessage own,
    int num_machines,
    bool is_elastic,
    Patience patience,
    Callbacks callbacks)
    : loop_(loop),
      listener_(std::move(listener)),
      token_(std::move(token)),
      roll_(std::move(own), num_machines, !token_.empty(), is_elastic),
      patience_(patience),
      callbacks_(std::move(callbacks)),
      machines_(static_cast<size_t>(num_machines)) {
  listen();
}

ControlServer::~ControlServer() {
  loop_.unwatch(listener_.get());
  loop_.cancel(pause_);
  for (auto& peer : peers_) {
    loop_.cancel(peer.deadline);
  }
}

void ControlServer::listen() {
  loop_.watch(listener_.get(), POLLIN, [this](short) { accept_some(); });
}

void ControlServer::accept_some() {
  for (int i = 0; i < kAcceptsAtATime; ++i) {
    pollfd waited{listener_.get(), POLLIN, 0};
    if (poll(&waited, 1, 0) <= 0) {
      return;
    }
    if (num_unauthenticated_ >= max_unauthenticated()) {
      drop_oldest_unauthenticated();
    }
    UniqueFile socket(accept4(
        listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) {
      add_peer(std::move(socket));
    } else if (
        (errno == EMFILE || errno == ENFILE) &&
        !drop_oldest_unauthenticated()) {
      // There is no peer to disconnect. Pause, because an immediate retry would
      // only use the CPU.
      loop_.unwatch(listener_.get());
      pause_ = loop_.after(kPause, [this] { listen(); });
      return;
    }
  }
}

// Disconnects the oldest unauthenticated peer, which had the most time to
// introduce itself.
bool ControlServer::drop_oldest_unauthenticated() {
  const auto oldest =
      std::find_if(peers_.begin(), peers_.end(), [](const Peer& peer) {
        return !peer.machine && peer.connection->is_open();
      });
  if (oldest == peers_.end()) {
    return false;
  }
  remove_soon(oldest);
  return true;
}

void ControlServer::add_peer(UniqueFile socket) {
  const PeerIterator peer = peers_.emplace(peers_.end(), token_);
  peer->address = peer_address(socket.get());
  peer->connection = std::make_unique<Connection>(
      loop_,
      pulse_,
      std::move(socket),
      patience_,
      Connection::Callbacks{
          [this, peer](Message message) { received(peer, std::move(message)); },
          [this, peer](const std::string& why) { closed(peer, why); },
          [this, peer](const std::string& how) {
            if (peer->machine) {
              callbacks_.say(
                  silence_message(name_of(*peer->machine), patience_, how));
            }
          },
          [this, peer](std::chrono::seconds silence) {
            if (peer->machine) {
              callbacks_.say(return_message(name_of(*peer->machine), silence));
            }
          }});
  peer->deadline =
      loop_.after(kIntroductionLimit, [this, peer] { remove_soon(peer); });
  ++num_unauthenticated_;
}

void ControlServer::received(PeerIterator peer, Message message) {
  if (peer->machine) {
    callbacks_.received(*peer->machine, std::move(message));
  } else if (peer->is_refused) {
    return;
  } else if (!peer->is_known) {
    take_proof(peer, message);
  } else if (const auto* hello = std::get_if<HelloMessage>(&message)) {
    take_hello(peer, *hello);
  } else {
    refuse(peer, "it did not introduce itself");
  }
}

void ControlServer::take_proof(PeerIterator peer, const Message& message) {
  const Handshake::Step step = peer->handshake.take(message);
  if (!step.refusal.empty()) {
    refuse(peer, step.refusal);
    return;
  }
  if (step.answer) {
    peer->connection->send(*step.answer);
  }
  if (step.is_done) {
    peer->is_known = true;
    peer->connection->seal(
        peer->handshake.seal_of(Side::kLeader),
        peer->handshake.seal_of(Side::kMember));
  }
}

// Drops the silent connection of a machine that introduces itself again. Its
// restarted launcher may connect before the old connection has timed out.
void ControlServer::drop_silent(const HelloMessage& hello) {
  const auto is_old_self = [&](size_t machine) {
    return hello.machine_rank == kAnyMachine
               ? hello_of(machine).host == hello.host
               : machine == static_cast<size_t>(hello.machine_rank);
  };
  const auto old =
      std::find_if(peers_.begin(), peers_.end(), [&](const Peer& peer) {
        return peer.machine && is_old_self(*peer.machine) &&
               peer.connection->is_open() && peer.connection->is_silent();
      });
  if (old != peers_.end()) {
    old->connection->close();
    closed(old, "went silent, and a new launcher connected from that machine");
  }
}

void ControlServer::take_hello(PeerIterator peer, HelloMessage hello) {
  drop_silent(hello);
  if (hello.machine_rank == kAnyMachine) {
    hello.machine_rank = roll_.index_for(hello.host);
  }
  const std::string reason = roll_.take(hello);
  if (!reason.empty()) {
    refuse(peer, reason);
    return;
  }
  const auto machine = static_cast<size_t>(hello.machine_rank);
  machines_[machine] = peer->connection.get();
  peer->machine = machine;
  loop_.cancel(std::exchange(peer->deadline, 0));
  --num_unauthenticated_;
  peer->connection->send(AcceptedMessage{});
  callbacks_.joined(machine);
}

void ControlServer::refuse(PeerIterator peer, const std::string& reason) {
  peer->is_refused = true;
  peer->connection->send(RefusedMessage{reason});
  // The peer disconnects itself, or its time limit ends soon.
  if (++num_refusals_ <= kMaxRefusalLines) {
    callbacks_.say(str_cat(
        "[launch] rejected a machine at ", peer->address, ": ", reason));
  }
}

void ControlServer::closed(PeerIterator peer, const std::string& why) {
  if (peer->machine) {
    const size_t machine = *peer->machine;
    machines_[machine] = nullptr;
    erase_soon(peer);
    if (done_) {
      if (have_all_disconnected()) {
        std::exchange(done_, nullptr)();
      }
    } else {
      callbacks_.lost(machine, why);
    }
    return;
  }
  if (!peer->is_refused && ++num_refusals_ <= kMaxRefusalLines) {
    callbacks_.say(str_cat(
        "[launch] dropped an unknown program at ",
        peer->address,
        ": the connection ",
        why));
  }
  remove_soon(peer);
}

void ControlServer::remove_soon(PeerIterator peer) {
  peer->connection->close();
  loop_.cancel(std::exchange(peer->deadline, 0));
  --num_unauthenticated_;
  erase_soon(peer);
}

void ControlServer::erase_soon(PeerIterator peer) {
  // Destroy it later, because the caller may be a callback of this connection.
  loop_.after(
      std::chrono::milliseconds(0), [this, peer] { peers_.erase(peer); });
}

void ControlServer::send(size_t machine, const Message& message) {
  if (machines_[machine] != nullptr) {
    machines_[machine]->send(message);
  }
}

void ControlServer::finish(std::function<void()> done) {
  if (have_all_disconnected()) {
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

bool ControlServer::have_all_disconnected() const {
  return std::all_of(machines_.begin(), machines_.end(), [](const auto* link) {
    return link == nullptr;
  });
}

std::string ControlServer::name_of(size_t machine) const {
  return str_cat("machine ", machine, " (", hello_of(machine).host, ")");
}

} // namespace accelerate
