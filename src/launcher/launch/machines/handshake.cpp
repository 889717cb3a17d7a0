// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/machines/handshake.h"

#include "core/base/str.h"
#include "core/base/variables.h"
#include "launcher/launch/machines/job_token.h"
#include "launcher/launch/machines/message_code.h"

namespace accelerate {
namespace {

constexpr const char* kOtherProtocol =
    "the two machines use different versions of the launch protocol; install "
    "the same version of accelerate on every machine";

std::string wrong_token() {
  return str_cat(
      "the job token is wrong; set the same ",
      variables::kJobToken,
      " on every machine");
}

} // namespace

std::string FrameSeal::code_of_next(std::string_view payload) {
  std::string text;
  for (int shift = 56; shift >= 0; shift -= 8) {
    text += static_cast<char>((count_ >> shift) & 0xFF);
  }
  ++count_;
  return message_code(key_, text.append(payload));
}

std::string FrameSeal::close(std::string_view payload) {
  return std::string(payload) + code_of_next(payload);
}

std::optional<std::string> FrameSeal::open(std::string_view sealed) {
  if (sealed.size() <= kCodeBytes) {
    return std::nullopt;
  }
  const auto payload = sealed.substr(0, sealed.size() - kCodeBytes);
  if (!is_same_code(code_of_next(payload), sealed.substr(payload.size()))) {
    return std::nullopt;
  }
  return std::string(payload);
}

Handshake::Handshake(Side side, std::string token)
    : side_(side), token_(std::move(token)), own_number_(random_token()) {}

Message Handshake::first_message() const {
  return ChallengeRequestMessage{.number = own_number_};
}

Handshake::Step Handshake::take(const Message& message) {
  if (const auto* refused = std::get_if<RefusedMessage>(&message)) {
    return {.refusal = refused->reason};
  }
  if (const auto* request = std::get_if<ChallengeRequestMessage>(&message);
      request != nullptr && side_ == Side::kLeader && other_number_.empty()) {
    return answer_request(*request);
  }
  if (const auto* challenge = std::get_if<ChallengeMessage>(&message);
      challenge != nullptr && side_ == Side::kMember && other_number_.empty()) {
    return answer_challenge(*challenge);
  }
  if (const auto* proof = std::get_if<ProofMessage>(&message);
      proof != nullptr && !other_number_.empty()) {
    return check_proof(*proof);
  }
  return {.refusal = kOtherProtocol};
}

Handshake::Step Handshake::answer_request(
    const ChallengeRequestMessage& request) {
  if (request.protocol != kProtocolVersion) {
    return {.refusal = kOtherProtocol};
  }
  other_number_ = request.number;
  return {.answer = ChallengeMessage{own_number_}};
}

Handshake::Step Handshake::answer_challenge(const ChallengeMessage& challenge) {
  other_number_ = challenge.number;
  return {.answer = ProofMessage{proof_of(Side::kMember)}};
}

Handshake::Step Handshake::check_proof(const ProofMessage& proof) {
  const Side other = side_ == Side::kMember ? Side::kLeader : Side::kMember;
  if (!is_same_code(proof.proof, proof_of(other))) {
    return {.refusal = wrong_token()};
  }
  Step step{.is_done = true};
  if (side_ == Side::kLeader) {
    step.answer = ProofMessage{proof_of(Side::kLeader)};
  }
  return step;
}

std::string Handshake::proof_of(Side side) const {
  return to_hexadecimal(code_for("proof", side));
}

FrameSeal Handshake::seal_of(Side side) const {
  return FrameSeal(code_for("frames", side));
}

// Both numbers have a fixed length, so that the strings of two purposes always
// differ.
std::string Handshake::code_for(std::string_view purpose, Side side) const {
  const bool is_member = side_ == Side::kMember;
  std::string text = "accelerate launch ";
  text.append(purpose);
  text += side == Side::kMember ? " of a member\n" : " of machine 0\n";
  text += is_member ? own_number_ : other_number_;
  text += is_member ? other_number_ : own_number_;
  return message_code(token_, text);
}

} // namespace accelerate
