// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/machines/handshake.h"

#include <gmock/gmock.h>

#include "launch/needs_codes.h"
#include "launcher/launch/machines/job_token.h"
#include "launcher/launch/machines/message_code.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;

using MessageCode = testing::NeedsCodes;
using HandshakeTest = testing::NeedsCodes;
using FrameSealTest = testing::NeedsCodes;

// RFC 4231, test cases 1, 2 and 6.
TEST_F(MessageCode, IsHmacSha256) {
  EXPECT_EQ(
      to_hexadecimal(message_code(std::string(20, '\x0b'), "Hi There")),
      "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(
      to_hexadecimal(message_code("Jefe", "what do ya want for nothing?")),
      "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(
      to_hexadecimal(message_code(
          std::string(131, '\xaa'),
          "Test Using Larger Than Block-Size Key - Hash Key First")),
      "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_TRUE(is_same_code("abc", "abc"));
  EXPECT_FALSE(is_same_code("abc", "abd"));
  EXPECT_FALSE(is_same_code("abc", "abcd"));
}

struct Pair {
  Pair(const std::string& one, const std::string& other)
      : member(Side::kMember, one), leader(Side::kLeader, other) {}
  /// Up to the member's proof.
  Message proof() {
    const auto challenge = leader.take(member.first_message()).answer.value();
    return member.take(challenge).answer.value();
  }
  Handshake member;
  Handshake leader;
};

TEST_F(HandshakeTest, SucceedsIfBothKnowTheToken) {
  for (const char* token : {"open sesame", ""}) {
    Pair pair(token, token);
    const auto last = pair.leader.take(pair.proof());
    EXPECT_TRUE(last.is_done);
    EXPECT_TRUE(pair.member.take(last.answer.value()).is_done);
    FrameSeal out = pair.member.seal_of(Side::kMember);
    FrameSeal in = pair.leader.seal_of(Side::kMember);
    EXPECT_EQ(in.open(out.close("hello")), "hello");
    EXPECT_EQ(in.open(out.close("again")), "again");
  }
}

TEST_F(HandshakeTest, RejectsAWrongTokenOnEitherSide) {
  Pair pair("a guess", "open sesame");
  const auto step = pair.leader.take(pair.proof());
  EXPECT_FALSE(step.is_done);
  EXPECT_FALSE(step.answer);
  EXPECT_THAT(step.refusal, HasSubstr("the job token is wrong"));
  // An impostor of machine 0 that does not know the token.
  Pair trap("open sesame", "a guess");
  trap.proof();
  const auto answer =
      trap.member.take(ProofMessage{std::string(kHandshakeDigits, '0')});
  EXPECT_FALSE(answer.is_done);
}

TEST_F(HandshakeTest, RejectsAReplayedProof) {
  Pair heard("open sesame", "open sesame");
  const Message proof = heard.proof();
  EXPECT_TRUE(heard.leader.take(proof).is_done);
  Handshake leader(Side::kLeader, "open sesame");
  leader.take(heard.member.first_message());
  EXPECT_FALSE(leader.take(proof).is_done);
  // The member's own proof, sent back to it.
  Pair mirror("open sesame", "open sesame");
  const Message own = mirror.proof();
  EXPECT_FALSE(mirror.member.take(own).is_done);
}

TEST_F(HandshakeTest, RejectsMessagesOutOfOrder) {
  const Message messages[] = {
      ChallengeMessage{random_token()},
      ProofMessage{random_token()},
      HelloMessage{},
      ChallengeRequestMessage{.protocol = 1, .number = random_token()}};
  for (const auto& message : messages) {
    Handshake leader(Side::kLeader, "");
    EXPECT_THAT(
        leader.take(message).refusal, HasSubstr("install the same version"));
  }
}

TEST_F(FrameSealTest, NoticesEveryChange) {
  const auto opened = [](auto change) {
    FrameSeal out("key");
    FrameSeal in("key");
    std::string frames[] = {out.close("first"), out.close("second")};
    change(frames);
    return in.open(frames[0]).has_value() && in.open(frames[1]).has_value();
  };
  EXPECT_TRUE(opened([](auto&) {}));
  EXPECT_FALSE(opened([](auto& frames) { frames[0][0] ^= 1; }));
  EXPECT_FALSE(opened([](auto& frames) { frames[0].back() ^= 1; }));
  EXPECT_FALSE(opened([](auto& frames) { frames[0].pop_back(); }));
  EXPECT_FALSE(opened([](auto& frames) { frames[0] = frames[1]; }));
  EXPECT_FALSE(opened([](auto& frames) { frames[1] = frames[0]; }));
  EXPECT_FALSE(opened([](auto& frames) { frames[0] = ""; }));
}

} // namespace
} // namespace accelerate
