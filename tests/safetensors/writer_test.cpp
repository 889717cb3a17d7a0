// SPDX-License-Identifier: Apache-2.0
// The Python library's bytes, and atomic writing.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/safetensors/streamed_file.h"
#include "safetensors/reference.h"
#include "support/subprocess.h"

namespace accelerate::testing {
namespace {

using namespace safetensors;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

void expect_same_bytes(
    const std::string& reference,
    const PatternTensors& tensors,
    const Metadata& metadata = {}) {
  const std::string expected =
      read_file(reference_file(reference + ".safetensors"));
  ASSERT_FALSE(expected.empty()) << reference;
  EXPECT_EQ(text_of(serialize(tensors.views(), metadata)), expected);
  TempDir folder;
  const auto path = folder.path() / "x.safetensors";
  write_file(path, tensors.views(), {.metadata = metadata});
  EXPECT_EQ(read_file(path), expected);
}

TEST(SafetensorsWriter, WritesPythonsBytesForEveryDtypeThatPythonCanWrite) {
  PatternTensors tensors;
  const auto add = [&](const char* name, Dtype dtype, std::size_t element) {
    tensors.add(name, dtype, {2, 3}, 6 * element);
  };
  add("bool", Dtype::kBool, 1);
  // A torch shape of {2, 3} pairs is {2, 6} elements.
  tensors.add("float4_e2m1fn_x2", Dtype::kF4, {2, 6}, 6);
  add("uint8", Dtype::kU8, 1);
  add("int8", Dtype::kI8, 1);
  add("float8_e5m2", Dtype::kF8E5M2, 1);
  add("float8_e4m3fn", Dtype::kF8E4M3, 1);
  add("float8_e8m0fnu", Dtype::kF8E8M0, 1);
  add("float8_e4m3fnuz", Dtype::kF8E4M3Fnuz, 1);
  add("float8_e5m2fnuz", Dtype::kF8E5M2Fnuz, 1);
  add("int16", Dtype::kI16, 2);
  add("uint16", Dtype::kU16, 2);
  add("float16", Dtype::kF16, 2);
  add("bfloat16", Dtype::kBF16, 2);
  add("int32", Dtype::kI32, 4);
  add("uint32", Dtype::kU32, 4);
  add("float32", Dtype::kF32, 4);
  add("complex64", Dtype::kC64, 8);
  add("float64", Dtype::kF64, 8);
  add("int64", Dtype::kI64, 8);
  add("uint64", Dtype::kU64, 8);
  expect_same_bytes("dtypes", tensors);
}

TEST(SafetensorsWriter, WritesPythonsBytesForScalarsAndEmptyTensors) {
  expect_same_bytes("empty", {});
  PatternTensors tensors;
  tensors.add("scalar", Dtype::kF32, {}, 4)
      .add("none", Dtype::kF32, {0}, 0)
      .add("none.wide", Dtype::kI64, {3, 0, 5}, 0)
      .add("deep", Dtype::kU8, {1, 2, 1, 2, 1, 2}, 8);
  expect_same_bytes("shapes", tensors);
}

TEST(SafetensorsWriter, WritesPythonsBytesForNamesThatNeedEscapes) {
  PatternTensors tensors;
  for (const char* name :
       {"",
        "quote \" and \\ and /",
        "line\nend\ttab\b\f\r\x01\x1f\x7f",
        "Überprüfung",
        "重み",
        "🤗"}) {
    tensors.add(name, Dtype::kU8, {1}, 1);
  }
  expect_same_bytes("names", tensors, {{"Schlüssel", "a \"value\"\n"}});
}

TEST(SafetensorsWriter, WritesPythonsBytesForMetadata) {
  PatternTensors tensors;
  tensors.add("w", Dtype::kF32, {1}, 4);
  expect_same_bytes("metadata", tensors, {{"format", "pt"}});
}

TEST(SafetensorsWriter, ReadsBackTypesSmallerThanAByte) {
  PatternTensors tensors;
  tensors.add("a", Dtype::kF6E2M3, {4, 2}, 6).add("b", Dtype::kF6E3M2, {4}, 3);
  const auto bytes = serialize(tensors.views());
  const Contents contents = parse(bytes, "memory");
  ASSERT_EQ(contents.tensors.size(), 2u);
  EXPECT_EQ(contents.tensors[0].name, "b"); // The later type comes first.
  EXPECT_EQ(
      text_of(contents.tensors[1].data), text_of(tensors.views()[0].data));
  EXPECT_THAT(contents.tensors[1].shape, ElementsAre(4, 2));
}

TEST(SafetensorsWriter, GathersThousandsOfSmallTensors) {
  PatternTensors tensors;
  for (int i = 0; i < 3000; ++i) {
    tensors.add(
        "t" + std::to_string(i),
        Dtype::kU8,
        {i % 500},
        static_cast<std::size_t>(i % 500));
  }
  tensors.add("big", Dtype::kU8, {1 << 20}, 1 << 20);
  TempDir folder;
  const auto path = folder.path() / "x.safetensors";
  write_file(path, tensors.views(), {.sync = false});
  const File file(path);
  ASSERT_EQ(file.tensors().size(), 3001u);
  for (const auto& tensor : tensors.views()) {
    ASSERT_EQ(text_of(file.tensor(tensor.name).data), text_of(tensor.data));
  }
}

TEST(SafetensorsWriter, RefusesTensorsThatCannotBecomeAFile) {
  const std::string data(8, 'x');
  const auto one = [&](TensorView tensor) {
    tensor.data = bytes_of(data);
    return serialize({{tensor}});
  };
  EXPECT_NO_THROW(one({.name = "t", .shape = {2}}));
  EXPECT_THROW(one({.name = "t", .shape = {3}}), SizeMismatchError);
  EXPECT_THROW(one({.name = "t", .shape = {-2}}), UsageError);
  EXPECT_THROW(one({.name = "__metadata__", .shape = {2}}), UsageError);
  EXPECT_THROW(one({.name = "\xff", .shape = {2}}), InvalidUtf8Error);
  EXPECT_THROW(
      one({.name = "t", .shape = {1LL << 40, 1LL << 40}}), ShapeOverflowError);
  EXPECT_THROW(
      one({.name = "t", .dtype = Dtype::kF4, .shape = {15}}),
      MisalignedTensorError);
  const TensorView twice{.name = "t", .shape = {2}, .data = bytes_of(data)};
  EXPECT_THROW(serialize({{twice, twice}}), DuplicateNameError);
  EXPECT_THROW(serialize({{twice}}, {{"k", "\xff"}}), InvalidUtf8Error);
  const TensorView long_name{
      .name = std::string(kMaxHeaderBytes, 'n'), .shape = {0}};
  EXPECT_THROW(serialize({{long_name}}), HeaderTooLargeError);
}

TEST(SafetensorsWriter, LeavesTheMappingsOfAnOldFileAlone) {
  TempDir folder;
  const auto path = folder.path() / "x.safetensors";
  PatternTensors first;
  first.add("t", Dtype::kU8, {100'000}, 100'000);
  write_file(path, first.views());
  const File file(path);
  write_file(path, {}); // Much shorter.
  EXPECT_EQ(text_of(file.tensor("t").data), text_of(first.views()[0].data));
  // A file can be replaced by itself.
  write_file(path, file.tensors());
  EXPECT_EQ(
      text_of(File(path).tensor("t").data), text_of(first.views()[0].data));
  EXPECT_THAT(names_in(folder.path()), ElementsAre("x.safetensors"));
}

TEST(SafetensorsWriter, LetsTheUmaskDecideWhoMayRead) {
  TempDir folder;
  const auto old = umask(0027);
  write_file(folder.path() / "x", {});
  umask(old);
  struct stat status = {};
  ASSERT_EQ(stat((folder.path() / "x").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
}

TEST(SafetensorsWriter, WritesTheLongestNamesThatTheSystemAllows) {
  TempDir folder;
  const auto path = folder.path() / std::string(255, 'n');
  write_file(path, {});
  EXPECT_EQ(File(path).tensors().size(), 0u);
}

TEST(SafetensorsWriter, ReportsWhereItCannotWriteAndWhatToDo) {
  TempDir folder;
  const std::pair<std::filesystem::path, const char*> cases[] = {
      {folder.path() / "none" / "x.safetensors", "Create the folder first"},
      {folder.path(), "Pass the name of a file"},
      {folder.path() / "", "Pass the name of a file"},
      {"/proc/self/x.safetensors", "folder"},
  };
  for (const auto& [path, way_out] : cases) {
    try {
      write_file(path, {});
      FAIL() << path;
    } catch (const SystemError& error) {
      EXPECT_THAT(error.what(), HasSubstr("'" + path.string() + "': "));
      EXPECT_THAT(error.what(), HasSubstr(way_out));
    }
  }
}

// Runs `body` in a child that may write files of at most `limit` bytes, which
// simulates a full disk for one process. Returns its exit code.
int with_file_limit(rlim_t limit, const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit bound{limit, limit};
    setrlimit(RLIMIT_FSIZE, &bound);
    _exit(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(SafetensorsWriter, KeepsTheOldFileIfTheNewOneDoesNotFit) {
  TempDir folder;
  const auto path = folder.path() / "x.safetensors";
  PatternTensors small;
  PatternTensors large;
  small.add("t", Dtype::kU8, {1000}, 1000);
  large.add("t", Dtype::kU8, {1'000'000}, 1'000'000);
  write_file(path, small.views());
  const std::string before = read_file(path);
  const int code = with_file_limit(500'000, [&] {
    try {
      write_file(path, large.views());
      return 1;
    } catch (const SystemError&) {
      return 7;
    }
  });
  EXPECT_EQ(code, 7);
  EXPECT_EQ(read_file(path), before);
  EXPECT_THAT(names_in(folder.path()), ElementsAre("x.safetensors"));
}

TEST(SafetensorsWriter, ReportsAFullDiskAsSuch) {
  TempDir folder;
  const auto disk = folder.path() / "disk";
  std::filesystem::create_directory(disk);
  const auto mounted = run_process(
      {"mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk.string()});
  if (mounted.exit_code != 0) {
    GTEST_SKIP() << "no right to mount a small tmpfs: " << mounted.err;
  }
  PatternTensors large;
  large.add("t", Dtype::kU8, {1'000'000}, 1'000'000);
  std::string message;
  try {
    write_file(disk / "x.safetensors", large.views());
  } catch (const SystemError& error) {
    message = error.what();
  }
  EXPECT_THAT(message, HasSubstr("No space left on device. Free some space"));
  EXPECT_THAT(names_in(disk), ElementsAre());
  run_process({"umount", disk.string()});
}

TEST(SafetensorsWriter, ShowsOldOrNewWheneverTheWriterIsKilled) {
  TempDir folder;
  const auto path = folder.path() / "x.safetensors";
  PatternTensors a;
  PatternTensors b;
  a.add("a", Dtype::kU8, {3'000'000}, 3'000'000);
  b.add("b", Dtype::kU8, {4'000'000}, 4'000'000);
  write_file(path, a.views(), {.sync = false});
  const std::string first = text_of(serialize(a.views()));
  const std::string second = text_of(serialize(b.views()));
  for (int round = 0; round < 20; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      for (;;) {
        write_file(path, b.views(), {.sync = false});
        write_file(path, a.views(), {.sync = false});
      }
    }
    usleep(static_cast<useconds_t>(2'000 + 1'300 * round));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const std::string now = read_file(path);
    ASSERT_TRUE(now == first || now == second) << round;
  }
}

std::vector<TensorSpec> specs_of(const PatternTensors& tensors) {
  std::vector<TensorSpec> specs;
  for (const auto& view : tensors.views()) {
    specs.push_back({view.name, view.dtype, view.shape});
  }
  return specs;
}

TEST(StreamedFile, HasTheSameBytesInAnyWritingOrder) {
  TempDir folder;
  PatternTensors tensors;
  tensors.add("b", Dtype::kF32, {250'000}, 1'000'000);
  tensors.add("a", Dtype::kF32, {5}, 20);
  tensors.add("c", Dtype::kI64, {3}, 24);
  tensors.add("none", Dtype::kF32, {0, 3}, 0);
  const Metadata metadata = {{"format", "pt"}};
  const auto path = folder.path() / "x.safetensors";
  StreamedFile file(path, specs_of(tensors), metadata);
  for (const std::size_t place : {2, 0, 1}) {
    const auto& view = tensors.views()[place];
    const auto half = view.data.size() / 2;
    file.write(view.name, half, view.data.subspan(half));
    file.write(view.name, 0, view.data.first(half));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  file.commit();
  EXPECT_EQ(read_file(path), text_of(serialize(tensors.views(), metadata)));
}

TEST(StreamedFile, IsWrittenAtomically) {
  TempDir folder;
  PatternTensors tensors;
  tensors.add("a", Dtype::kU8, {10}, 10);
  const auto bytes = tensors.views()[0].data;
  {
    StreamedFile file(folder.path() / "x.safetensors", specs_of(tensors), {});
    file.write("a", 2, bytes.first(5));
    EXPECT_THROW(file.write("a", 8, bytes.first(3)), SizeMismatchError);
    EXPECT_THROW(file.write("a", 0, bytes.first(6)), SizeMismatchError);
    EXPECT_THROW(file.write("b", 0, bytes), TensorNotFoundError);
    EXPECT_THROW(file.commit(), SizeMismatchError);
  }
  EXPECT_THAT(names_in(folder.path()), ElementsAre());
}

} // namespace
} // namespace accelerate::testing
