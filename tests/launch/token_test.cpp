// SPDX-License-Identifier: Apache-2.0
// Where a launcher's token comes from.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include "accelerate/error.h"
#include "launcher/launch/machines/job_token.h"
#include "support/temp_dir.h"

namespace accelerate::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;
using namespace std::chrono_literals;

class Token : public ::testing::Test {
 protected:
  EnvLookup env() const {
    return [this](const std::string& name) -> std::optional<std::string> {
      if (name == "HOME") {
        return home_.path().string();
      }
      return std::nullopt;
    };
  }

  static Placement machines(const std::string& address, int rank = 0) {
    Placement placement;
    placement.num_machines = 2;
    placement.machine_rank = rank;
    placement.rendezvous = {address, 29500};
    return placement;
  }

  TempDir home_;
};

TEST_F(Token, IsRequiredIfOthersCouldJoin) {
  for (const char* address : {"10.0.0.1", "0.0.0.0", "no-such-name.invalid"}) {
    EXPECT_THAT(
        [&] { JobToken(machines(address), env(), 1s); },
        ThrowsMessage<ConfigError>(HasSubstr("without a job token")))
        << address;
  }
  auto everywhere = machines("127.0.0.1");
  everywhere.listens_everywhere = true;
  EXPECT_THROW(JobToken(everywhere, env(), 1s), ConfigError);
  for (const char* address :
       {"127.0.0.1", "localhost", "::1", "::ffff:127.0.0.1", "ip6-localhost"}) {
    EXPECT_THAT(JobToken(machines(address), env(), 1s).text(), IsEmpty());
  }
}

TEST_F(Token, OfAClusterIsMadeByMachine0AndFoundByTheOthers) {
  auto first = machines("10.0.0.1", 0);
  auto second = machines("10.0.0.1", 1);
  first.environment.job = second.environment.job = "slurm-7.0.0";
  const auto path = token_file_of("slurm-7.0.0", env());
  {
    const JobToken made(first, env(), 1s);
    EXPECT_THAT(made.text(), SizeIs(64));
    EXPECT_EQ(JobToken(second, env(), 1s).text(), made.text());
    struct stat facts {};
    ASSERT_EQ(stat(path.c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 0777U, 0600U);
    ASSERT_EQ(stat(path.parent_path().c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 0777U, 0700U);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_THAT(
      [&] { JobToken(second, env(), 0s); },
      ThrowsMessage<ConfigError>(HasSubstr("did not write a token to")));
}

TEST_F(Token, OfAnotherUserIsNotTaken) {
  auto second = machines("10.0.0.1", 1);
  second.environment.job = "slurm-7.0.0";
  const auto path = token_file_of("slurm-7.0.0", env());
  std::filesystem::create_directories(path.parent_path());
  const auto planted = home_.write("planted", std::string(64, 'a'));
  std::filesystem::create_symlink(planted, path);
  EXPECT_THROW(JobToken(second, env(), 1s), ConfigError);
  std::filesystem::remove(path);
  std::filesystem::rename(planted, path);
  std::filesystem::permissions(path, std::filesystem::perms(0666));
  EXPECT_THROW(JobToken(second, env(), 1s), ConfigError);
  // A folder that others can write to.
  auto first = machines("10.0.0.1", 0);
  first.environment.job = "slurm-7.0.0";
  std::filesystem::permissions(
      path.parent_path(), std::filesystem::perms(0777));
  EXPECT_THROW(JobToken(first, env(), 1s), ConfigError);
}

} // namespace
} // namespace accelerate::testing
