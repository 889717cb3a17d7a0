// SPDX-License-Identifier: Apache-2.0
// This machine, compared with the operating system's own tools.
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/sysinfo.h>
#include <unistd.h>
#include <fstream>

#include <sstream>

#include "accelerate/error.h"
#include "core/hardware/cores.h"
#include "core/hardware/gpu_kinds.h"
#include "core/hardware/gpu_use.h"
#include "core/hardware/memory.h"
#include "core/hardware/network.h"
#include "core/hardware/ports.h"
#include "support/subprocess.h"

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

TEST(Cores, AreAsManyAsNprocSays) {
  const auto result = testing::run_process({"nproc"});
  // OMP_NUM_THREADS changes what nproc says.
  const auto plain =
      testing::run_process({"env", "-u", "OMP_NUM_THREADS", "nproc"});
  EXPECT_EQ(std::to_string(allowed_cores().size()) + "\n", plain.out)
      << result.out;
}

TEST(Cores, ListsAreReadAsTheKernelWritesThem) {
  EXPECT_THAT(parse_core_list("0-2,5,7-8"), ElementsAre(0, 1, 2, 5, 7, 8));
  EXPECT_THAT(parse_core_list("3"), ElementsAre(3));
  EXPECT_THAT(parse_core_list(""), IsEmpty());
  EXPECT_THAT(parse_core_list("x-1"), IsEmpty());
}

TEST(Cores, EachBelongsToOneNumaNode) {
  size_t total = 0;
  for (const auto& node : numa_nodes()) {
    total += node.cores.size();
  }
  EXPECT_EQ(total, allowed_cores().size());
}

TEST(Cores, OfNumaNodesKeepTheNumbersOfTheirNodes) {
  const testing::TempDir folder;
  const int core = allowed_cores()[0];
  for (const char* node : {"node0", "node2", "node8"}) {
    std::filesystem::create_directory(folder.path() / node);
  }
  folder.write("online", "0,2,8\n");
  folder.write("node0/cpulist", "\n"); // memory without cores
  folder.write("node2/cpulist", "1000-1003\n");
  folder.write("node8/cpulist", std::to_string(core) + "\n");
  const auto nodes = numa_nodes(folder.path());
  ASSERT_EQ(nodes.size(), 1U);
  EXPECT_EQ(nodes[0].number, 8);
  EXPECT_THAT(nodes[0].cores, ElementsAre(core));
}

std::vector<Gpu> three_gpus() {
  std::vector<Gpu> gpus(3);
  for (int i = 0; i < 3; ++i) {
    gpus[static_cast<size_t>(i)].index = i;
    gpus[static_cast<size_t>(i)].name = "H200";
    gpus[static_cast<size_t>(i)].uuid = "GPU-" + std::to_string(i) + "abc";
  }
  return gpus;
}

std::vector<int> indices(const std::string& ids) {
  std::vector<int> result;
  for (const auto& gpu : nvidia_gpus().choose(three_gpus(), ids)) {
    result.push_back(gpu.index);
  }
  return result;
}

TEST(Gpus, AreChosenAsCudaReadsItsVariable) {
  EXPECT_EQ(nvidia_gpus().visibility_variable, "CUDA_VISIBLE_DEVICES");
  EXPECT_THAT(indices("2,0"), ElementsAre(2, 0));
  EXPECT_THAT(indices("GPU-1a"), ElementsAre(1));
  EXPECT_THAT(indices(""), IsEmpty());
  EXPECT_THAT(indices("0,7,1"), ElementsAre(0)); // stops at the unknown one
  EXPECT_THAT(indices("-1"), IsEmpty());
  EXPECT_EQ(describe_gpus(three_gpus()), "3 x H200");
  EXPECT_EQ(describe_gpus({}), "CPU");
}

GpuInventory three_listed() {
  return {.gpus = three_gpus(), .driver = "1.2"};
}

GpuInventory none_listed() {
  return {.problem = "no driver of another maker"};
}

/// Rows of a machine with GPUs of the second kind only.
std::vector<GpuKind> two_kinds() {
  auto first = nvidia_gpus();
  first.list = none_listed;
  auto second = nvidia_gpus();
  second.list = three_listed;
  second.visibility_variable = "OTHER_VISIBLE_DEVICES";
  return {first, second};
}

TEST(Gpus, OfTheFirstKindThatIsThereAreUsed) {
  const auto kinds = two_kinds();
  const auto env = [](const std::string& name) -> std::optional<std::string> {
    if (name == "CUDA_VISIBLE_DEVICES") {
      return ""; // of a missing kind
    }
    return name == "OTHER_VISIBLE_DEVICES" ? std::optional("2,1")
                                           : std::nullopt;
  };
  const auto nothing = [](const std::string&) { return std::nullopt; };
  EXPECT_THAT(usable_gpus(kinds, nothing).gpus, SizeIs(3));
  EXPECT_EQ(usable_gpus(kinds, nothing).kind, &kinds[1]);
  EXPECT_THAT(usable_gpus(kinds, env).gpus, SizeIs(2));
  EXPECT_EQ(usable_gpus(kinds, env).gpus[0].index, 2);
  // The user's choice overrides the variable.
  EXPECT_EQ(usable_gpus(kinds, env, {"0"}).gpus[0].index, 0);
  EXPECT_EQ(
      usable_gpus(kinds, env, {"7"}).problem,
      "the selection '7' matches no GPU");
  EXPECT_EQ(
      usable_gpus({kinds[0], kinds[0]}, env).problem,
      "no driver of another maker; no driver of another maker");
}

TEST(GpuUse, AddsUpWhatTheDriverSays) {
  GpuKind silent = nvidia_gpus();
  silent.open_use = [](const EnvLookup&, int) {
    return std::function<std::optional<double>()>();
  };
  GpuKind busy = silent;
  busy.open_use = [](const EnvLookup& env, int place) {
    EXPECT_EQ(env("A"), "b");
    EXPECT_EQ(place, 1);
    return std::function<std::optional<double>()>([] { return 0.5; });
  };
  const EnvLookup env = [](const std::string&) { return "b"; };
  const GpuUse use({silent, busy}, env, 1);
  ASSERT_TRUE(testing::eventually(
      [&] { return use.busy_seconds().has_value(); }, std::chrono::minutes(1)));
  EXPECT_GE(*use.busy_seconds(), 0.5); // Half of the time, each second.
  const GpuUse none({silent}, env, 1);
  EXPECT_FALSE(none.busy_seconds());
}

// On any machine, with a driver or without one.
TEST(GpuUse, OfAGpuThatIsNotThereIsUnknown) {
  const EnvLookup env = [](const std::string&) { return std::nullopt; };
  EXPECT_FALSE(nvidia_gpus().open_use(env, 4096));
}

/// "Model: \t\t NVIDIA H200" is the line of "Model".
std::string line_of(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(name + ":")) {
      return line.substr(line.find_last_of('\t') + 2);
    }
  }
  return {};
}

TEST(Gpus, AreThoseOfTheKernelsDriverOrTheReasonIsGiven) {
  const auto inventory = list_gpus(gpu_kinds());
  if (inventory.gpus.empty()) {
    EXPECT_THAT(inventory.problem, HasSubstr("NVIDIA driver"));
    return;
  }
  for (const auto& gpu : inventory.gpus) {
    const auto told = testing::read_file(
        "/proc/driver/nvidia/gpus/" + gpu.pci_address + "/information");
    EXPECT_EQ(line_of(told, "Model"), gpu.name) << told;
    EXPECT_EQ(line_of(told, "GPU UUID"), gpu.uuid) << told;
  }
}

TEST(Memory, IsWhatTheKernelSays) {
  struct sysinfo facts {};
  sysinfo(&facts);
  const auto total = static_cast<int64_t>(facts.totalram) * facts.mem_unit;
  EXPECT_EQ(read_memory().total_bytes, total);
}

TEST(FileLimits, AreTheShells) {
  const auto result = testing::run_process({"sh", "-c", "ulimit -n"});
  const auto soft = read_file_limits().soft;
  EXPECT_EQ(result.out, soft < 0 ? "unlimited\n" : std::to_string(soft) + "\n");
}

TEST(Network, KnowsItsOwnAddressesAndNames) {
  EXPECT_THAT(resolve_host("127.0.0.1"), ElementsAre("127.0.0.1"));
  EXPECT_TRUE(is_this_machine("localhost"));
  EXPECT_FALSE(is_this_machine("192.0.2.1")); // Reserved for documentation.
  EXPECT_EQ(interface_towards("127.0.0.1"), "lo");
  EXPECT_THAT(
      [] { resolve_host("no.such.host.invalid"); },
      ThrowsMessage<CommError>(HasSubstr("'no.such.host.invalid'")));
}

TEST(Ports, AreNotThoseThatTheKernelLendsToConnectingPrograms) {
  int first_ephemeral = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first_ephemeral;
  for (int i = 0; i < 20; ++i) {
    EXPECT_LT(find_free_port(), first_ephemeral);
  }
}

TEST(Ports, AreFreeUntilSomebodyListens) {
  const int port = find_free_port();
  EXPECT_EQ(port_problem(port), "");
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_port = htons(static_cast<uint16_t>(port));
  ASSERT_EQ(
      bind(listener, reinterpret_cast<sockaddr*>(&place), sizeof(place)), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  const std::string owner = "is taken by pid " + std::to_string(getpid());
  EXPECT_EQ(port_problem(port), owner + " (hardware_test)");
  // Any user can give a program such a name.
  prctl(PR_SET_NAME, "a\x1b[31m\nb");
  EXPECT_EQ(port_problem(port), owner + " (a\\x1b[31m)");
  prctl(PR_SET_NAME, "hardware_test");
  close(listener);
}

} // namespace
} // namespace accelerate
