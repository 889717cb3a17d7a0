// SPDX-License-Identifier: Apache-2.0
// Machine 0's side of the control connections.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/export.h"
#include "launch/machines/connection.h"
#include "launch/machines/handshake.h"
#include "launch/machines/protocol.h"
#include "launch/machines/pulse.h"
#include "launch/machines/roll_call.h"
#include "launch/supervise/event_loop.h"

namespace accelerate {

/// Takes the roll: one connection per machine. Who does not prove to know the
/// token learns nothing but that; who does is told why it is refused.
/// Strangers cost little: a peer has a few seconds and small frames to prove
/// itself, and only so many may try at a time.
class ACCELERATE_API ControlServer {
 public:
  struct Callbacks {
    /// A machine was taken into the roll.
    std::function<void(size_t machine)> came = {};
    std::function<void(size_t machine, Message)> received = {};
    /// It keeps its place in the roll until `await`.
    std::function<void(size_t machine, const std::string& why)> lost = {};
    std::function<void(const std::string& line)> say = {};
  };

  /// `own` is what machine 0 would say itself; the others must agree with it.
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
  /// What a machine that is here, or was, has said of itself.
  const HelloMessage& hello_of(size_t machine) const {
    return *roll_.entries()[machine];
  }
  /// Lets a machine that was lost come again.
  void await(size_t machine) { roll_.leave(machine); }
  /// Nothing happens where the machine is lost.
  void send(size_t machine, const Message& message);
  /// Calls `done` when all machines have hung up, after two seconds at most:
  /// what was sent last must not be cut off.
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
  using PeerPlace = std::list<Peer>::iterator;

  void listen();
  void accept_some();
  void add_peer(UniqueFile socket);
  void received(PeerPlace peer, Message message);
  void take_proof(PeerPlace peer, const Message& message);
  void drop_silent(const HelloMessage& hello);
  void take_hello(PeerPlace peer, HelloMessage hello);
  void refuse(PeerPlace peer, const std::string& reason);
  void closed(PeerPlace peer, const std::string& why);
  void remove_soon(PeerPlace peer);
  void erase_soon(PeerPlace peer);
  bool drop_oldest_stranger();
  bool is_everybody_gone() const;
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
  size_t num_strangers_ = 0;
  int num_refusals_ = 0;
  EventLoop::TimerId pause_ = 0;
  std::function<void()> done_;
};

} // namespace accelerate
