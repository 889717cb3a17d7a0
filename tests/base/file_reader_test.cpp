// SPDX-License-Identifier: Apache-2.0
#include "core/base/file_reader.h"

#include <gmock/gmock.h>

#include <fstream>
#include <vector>

#include "accelerate/error.h"
#include "support/temp_dir.h"

namespace accelerate::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Property;

// Larger than what one thread reads at once.
constexpr std::size_t kLarge = (std::size_t{33} << 20) + 5;

std::vector<std::byte> numbered(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  }
  return bytes;
}

class FileReaderTest : public ::testing::Test {
 protected:
  void write(const std::vector<std::byte>& bytes) const {
    std::ofstream out(path_, std::ios::binary);
    out.write(
        reinterpret_cast<const char*>(bytes.data()),
        static_cast<std::streamsize>(bytes.size()));
  }

  TempDir folder_;
  std::filesystem::path path_ = folder_.path() / "weights";
};

TEST_F(FileReaderTest, ReadsPartsOfAnySize) {
  const auto bytes = numbered(kLarge);
  write(bytes);
  const FileReader reader(path_, "[offload]");
  EXPECT_EQ(reader.size(), kLarge);
  std::vector<std::byte> part(kLarge - 3);
  reader.read(3, part);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), bytes.begin() + 3));
  reader.read(kLarge, std::span(part).first(0));
}

TEST_F(FileReaderTest, NoticesThatTheFileShrank) {
  write(numbered(100));
  const FileReader reader(path_, "[offload]");
  std::filesystem::resize_file(path_, 60);
  std::vector<std::byte> part(50);
  reader.read(10, part);
  EXPECT_THAT(
      [&] { reader.read(20, part); },
      ::testing::Throws<DataError>(Property(
          &DataError::what,
          HasSubstr("weights' ends at byte 60, but its data should continue to "
                    "byte 70"))));
}

TEST_F(FileReaderTest, KeepsTheContentOfAReplacedFile) {
  write(numbered(10));
  const FileReader reader(path_, "[offload]");
  std::filesystem::remove(path_);
  std::vector<std::byte> part(10);
  reader.read(0, part);
  EXPECT_EQ(part, numbered(10));
}

TEST_F(FileReaderTest, RefusesFolders) {
  EXPECT_THAT(
      [&] { FileReader(path_, "[offload]"); },
      ::testing::Throws<SystemError>(Property(
          &SystemError::what, HasSubstr("No such file or directory"))));
  EXPECT_THAT(
      [&] { FileReader(folder_.path(), "[offload]"); },
      ::testing::Throws<SystemError>(
          Property(&SystemError::what, HasSubstr("it is a folder"))));
}

} // namespace
} // namespace accelerate::testing
