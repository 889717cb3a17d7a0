// SPDX-License-Identifier: Apache-2.0
// How two launchers show each other that they belong to one job, before either
// tells anything.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "accelerate/export.h"
#include "launch/machines/protocol.h"

namespace accelerate {

enum class Side { kMember, kLeader };

/// Codes for the frames of one direction: each is for its place in the order,
/// so that a frame that was changed, repeated, left out or taken from another
/// connection has a wrong one.
class ACCELERATE_API FrameSeal {
 public:
  explicit FrameSeal(std::string key) : key_(std::move(key)) {}
  /// The next payload with its code behind it.
  std::string close(std::string_view payload);
  /// The payload of the next sealed one; nothing where the code is wrong.
  std::optional<std::string> open(std::string_view sealed);

 private:
  std::string code_of_next(std::string_view payload);

  std::string key_;
  uint64_t count_ = 0;
};

/// One side of the mutual challenge. The member proves that it knows the token
/// first, so that nobody who merely connects gets something to guess from; both
/// choose a random number, so that nothing that was recorded serves again. An
/// empty token is one that everybody knows.
class ACCELERATE_API Handshake {
 public:
  /// What this side does next.
  struct Step {
    std::optional<Message> answer = {};
    /// The other side knows the token: every later frame is sealed.
    bool is_done = false;
    /// Not empty: the other side has to go. A sentence without a secret.
    std::string refusal = {};
  };

  Handshake(Side side, std::string token);

  /// What a member says first.
  Message knock() const;
  /// Takes the other side's next message.
  Step take(const Message& message);
  /// For the frames of one side; once done.
  FrameSeal seal_of(Side side) const;

 private:
  Step answer_knock(const KnockMessage& knock);
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
