// SPDX-License-Identifier: Apache-2.0
// How two launchers prove to each other that they belong to one job, before
// exchanging anything else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/internal.h"
#include "launcher/launch/machines/protocol.h"

namespace accelerate {

enum class Side { kMember, kLeader };

/// Message authentication codes for the frames of one direction. Each depends
/// on the position of its frame, so a frame that was changed, repeated, omitted
/// or taken from another connection is rejected.
class ACCELERATE_INTERNAL FrameSeal {
 public:
  explicit FrameSeal(std::string key) : key_(std::move(key)) {}
  /// Seals a payload: appends its code.
  std::string close(std::string_view payload);
  /// Checks and removes the code of the next sealed frame. Empty if it is
  /// wrong.
  std::optional<std::string> open(std::string_view sealed);

 private:
  std::string code_of_next(std::string_view payload);

  std::string key_;
  uint64_t count_ = 0;
};

/// One side of the mutual challenge. The member first proves that it knows the
/// token, so that a program that merely connects receives nothing to guess
/// from. Both sides choose a random number, so recorded messages cannot be
/// replayed. An empty token proves nothing, because everybody knows it.
class ACCELERATE_INTERNAL Handshake {
 public:
  /// The reaction to a message.
  struct Step {
    std::optional<Message> answer = {};
    /// Whether the other side has proved that it knows the token. Every later
    /// frame is sealed.
    bool is_done = false;
    /// If not empty, the other side is rejected with this sentence, which
    /// contains no secret.
    std::string refusal = {};
  };

  Handshake(Side side, std::string token);

  /// The first message of a member.
  Message first_message() const;
  /// Handles the next message of the other side.
  Step take(const Message& message);
  /// The seal for the frames that `side` sends. Call it once the handshake is
  /// done.
  FrameSeal seal_of(Side side) const;

 private:
  Step answer_request(const ChallengeRequestMessage& request);
  Step answer_challenge(const ChallengeMessage& challenge);
  Step check_proof(const ProofMessage& proof);
  std::string proof_of(Side side) const;
  std::string code_for(std::string_view purpose, Side side) const;

  Side side_;
  std::string token_;
  std::string own_number_;
  std::string other_number_;
};

} // namespace accelerate
