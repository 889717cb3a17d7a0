// SPDX-License-Identifier: Apache-2.0
// Under a real Open MPI, on one machine and through `--mpirun_hostfile`.
// Debian's, whatever other mpirun is on the PATH.
#include <gmock/gmock.h>

#include <filesystem>

#include "support/program.h"
#include "support/subprocess.h"

namespace accelerate::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kMpirun = "/usr/bin/mpirun.openmpi";

class Mpi : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kMpirun)) {
      GTEST_SKIP() << "Debian's Open MPI (openmpi-bin) is not installed";
    }
    // For our launcher, which starts the mpirun of the PATH.
    std::filesystem::create_symlink(kMpirun, folder_.path() / "mpirun");
  }

  ProcessResult run(const std::vector<std::string>& command) const {
    return run_process(
        command,
        {{"PATH", folder_.path().string() + ":/usr/bin:/bin"},
         {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
         {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
         {"OMPI_MCA_rmaps_base_oversubscribe", "1"}});
  }

  TempDir folder_;
};

TEST_F(Mpi, OneTaskPerRankRunsTheProgramInPlace) {
  const auto result = run(
      {kMpirun,
       "-n",
       "2",
       kProgram,
       "launch",
       "--mixed_precision",
       "bf16",
       "sh",
       "-c",
       "echo rank $RANK/$WORLD_SIZE local $LOCAL_RANK/$LOCAL_WORLD_SIZE at "
       "$MASTER_ADDR $ACCELERATE_MIXED_PRECISION; "
       "grep -q accelerate /proc/$PPID/comm && echo has a launcher above it"});
  EXPECT_EQ(result.exit_code, 1) << result.err; // the last grep fails
  EXPECT_THAT(
      result.out,
      AllOf(
          HasSubstr("rank 0/2 local 0/2 at 127.0.0.1 bf16"),
          HasSubstr("rank 1/2 local 1/2 at 127.0.0.1 bf16"),
          ::testing::Not(HasSubstr("launcher above"))));
}

TEST_F(Mpi, OneTaskOnOneMachineStartsTheLocalWorkers) {
  const auto result = run(
      {kMpirun,
       "-n",
       "1",
       kProgram,
       "launch",
       "--num_processes",
       "3",
       "sh",
       "-c",
       "echo rank $RANK/$WORLD_SIZE"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("rank 0/3"), HasSubstr("rank 2/3")));
}

TEST_F(Mpi, IsStartedOnRequest) {
  const auto file = folder_.write("hosts", "localhost slots=2\n");
  const auto result = run(
      {kProgram,
       "launch",
       "--cpu",
       "--mpirun_hostfile",
       file,
       "--num_processes",
       "2",
       "sh",
       "-c",
       "echo mpi rank $OMPI_COMM_WORLD_RANK at $MASTER_ADDR:$MASTER_PORT cpu "
       "$ACCELERATE_USE_CPU, no rank of ours: $RANK."});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      result.out,
      AllOf(
          HasSubstr("mpi rank 0 at localhost:"),
          HasSubstr("mpi rank 1 at localhost:"),
          HasSubstr("cpu True, no rank of ours: .")));
}

TEST_F(Mpi, TrainsWithAndWithoutOurLauncherAndWithoutFlags) {
  if (!std::filesystem::exists(kTraining)) {
    GTEST_SKIP() << "this build has no training library";
  }
  const std::vector<std::string> commands[] = {
      {kMpirun, "-n", "2", kTraining},
      {kMpirun, "-n", "2", kProgram, "launch", kTraining}};
  for (const auto& command : commands) {
    const auto result = run(command);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("training on 2 process(es)"));
  }
}

} // namespace
} // namespace accelerate::testing
