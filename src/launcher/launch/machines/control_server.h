// SPDX-License-Identifier: Apache-2.0
// Machine 0's side of the control connections.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/launch/machines/connection.h"
#include "launcher/launch/machines/handshake.h"
#include "launcher/launch/machines/protocol.h"
#include "launcher/launch/machines/pulse.h"
#include "launcher/launch/machines/roll_call.h"
#include "launcher/launch/supervise/event_loop.h"

namespace accelerate {

/// Accepts one connection per machine. A peer that cannot prove that it knows
/// the token learns nothing else. A peer that can prove this learns why it is
/// rejected. Unauthenticated peers are cheap: their number is limited, and each
/// has a few seconds and small frames to authenticate.
class ControlServer {
 public:
  struct Callbacks {
    /// Called when a machine has joined.
    std::function<void(size_t machine)> joined = {};
    std::function<void(size_t machine, Message)> received = {};
    /// Called when a machine is lost. Its index stays reserved until `await`.
    std::function<void(size_t machine, const std::string& why)> lost = {};
    std::function<void(const std::string& line)> say = {};
  };

  /// `own` is machine 0's own introduction, which the others must match.
  ControlServer(
      EventLoop& loop,
      UniqueFile listener,
      std::string token,
      HelloMessage own,
      int num_machines,
      bool is_elastic,
      Patience patience,
      Callbacks callbacks);
  ~ControlServer();

  const RollCall& roll() const { return roll_; }
  /// The introduction of a machine that has joined, even if it has been lost
  /// since.
  const HelloMessage& hello_of(size_t machine) const {
    return *roll_.entries()[machine];
  }
  /// Lets a lost machine join again.
  void await(size_t machine) { roll_.leave(machine); }
  /// Sends a message. No effect if the machine is lost.
  void send(size_t machine, const Message& message);
  /// Calls `done` when all machines have disconnected, after at most two
  /// seconds, so that the last messages are not cut off.
  void finish(std::function<void()> done);

 private:
  struct Peer {
    explicit Peer(const std::string& token) : handshake(Side::kLeader, token) {}
    Handshake handshake;
    std::unique_ptr<Connection> connection = {};
    std::string address = {};
    std::optional<size_t> machine = {};
    EventLoop::TimerId deadline = 0;
    bool is_known = false;
    bool is_refused = false;
  };
  using PeerIterator = std::list<Peer>::iterator;

  void listen();
  void accept_some();
  void add_peer(UniqueFile socket);
  void received(PeerIterator peer, Message message);
  void take_proof(PeerIterator peer, const Message& message);
  void drop_silent(const HelloMessage& hello);
  void take_hello(PeerIterator peer, HelloMessage hello);
  void refuse(PeerIterator peer, const std::string& reason);
  void closed(PeerIterator peer, const std::string& why);
  void remove_soon(PeerIterator peer);
  void erase_soon(PeerIterator peer);
  bool drop_oldest_unauthenticated();
  bool have_all_disconnected() const;
  std::string name_of(size_t machine) const;

  EventLoop& loop_;
  UniqueFile listener_;
  std::string token_;
  RollCall roll_;
  Patience patience_;
  Callbacks callbacks_;
  Pulse pulse_;
  std::vector<Connection*> machines_;
  std::list<Peer> peers_;
  size_t num_unauthenticated_ = 0;
  int num_refusals_ = 0;
  EventLoop::TimerId pause_ = 0;
  std::function<void()> done_;
};

} // namespace accelerate
