// SPDX-License-Identifier: Apache-2.0
// Images: two files of a drawn gradient (red 10 x, green 15 y, blue 128), one
// from a Debian package, and the results of transforms.
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <filesystem>

#include "accelerate/accelerate.h"
#include "support/temp_dir.h"

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const std::filesystem::path kImages = TEST_REFERENCE_DIR "/images";

torch::Tensor gradient() {
  const auto x = (10 * torch::arange(24)).expand({16, 24});
  const auto y = (15 * torch::arange(16)).unsqueeze(1).expand({16, 24});
  return torch::stack({x, y, torch::full({16, 24}, 128)}).to(torch::kByte);
}

torch::Tensor transformed(
    const ImageTransform& transform,
    const torch::Tensor& image) {
  auto generator = at::detail::createCPUGenerator(1);
  return transform(image, generator);
}

TEST(ReadImage, GivesThePixelsOfBothFormats) {
  EXPECT_TRUE(read_image(kImages / "gradient.png").equal(gradient()));
  const auto lossy = read_image(kImages / "gradient.jpg");
  ASSERT_EQ(lossy.sizes(), gradient().sizes());
  const auto error = (lossy.to(torch::kInt) - gradient().to(torch::kInt)).abs();
  // Quality 98 without fewer colours: rounding of the format.
  EXPECT_LE(error.max().item<int>(), 6);
  const std::filesystem::path logo = "/usr/share/pixmaps/debian-logo.png";
  if (std::filesystem::exists(logo)) {
    const auto image = read_image(logo);
    EXPECT_EQ(image.size(0), 3);
    EXPECT_GT(image.to(torch::kFloat).std().item<float>(), 1);
  }
}

// Expected values from Pillow 13's convert("RGB").
TEST(ReadImage, LeavesThePixelsOfUnusualFilesAsTheyAre) {
  const auto pixel = [](const char* name, int64_t x) {
    const auto image = read_image(kImages / name).to(torch::kInt);
    std::vector<int> colours;
    for (int64_t channel = 0; channel < 3; ++channel) {
      colours.push_back(image[channel][0][x].item<int>());
    }
    return colours;
  };
  EXPECT_THAT(pixel("sixteen_bits.png", 0), ElementsAre(128, 64, 1));
  EXPECT_THAT(pixel("gamma.png", 0), ElementsAre(128, 64, 10));
  EXPECT_THAT(pixel("alpha.png", 0), ElementsAre(255, 128, 10));
  EXPECT_THAT(pixel("grey_alpha.png", 0), ElementsAre(128, 128, 128));
  EXPECT_THAT(pixel("palette.png", 0), ElementsAre(7, 8, 9));
  EXPECT_THAT(pixel("palette.png", 1), ElementsAre(200, 100, 50));
  EXPECT_THAT(pixel("ink.jpg", 5), ElementsAre(190, 137, 49));
}

TEST(ReadImage, NamesWhatIsWrongWithAFile) {
  const testing::TempDir folder;
  for (const char* name : {"gradient.png", "gradient.jpg"}) {
    const auto whole = testing::read_file(kImages / name);
    const auto half = folder.write(name, whole.substr(0, whole.size() / 2));
    EXPECT_THAT(
        [&] { read_image(half); },
        ThrowsMessage<DataError>(HasSubstr(half.string())));
  }
  EXPECT_THAT(
      [&] { read_image(folder.write("text.png", "no picture")); },
      ThrowsMessage<DataError>(
          HasSubstr("is not a JPEG or PNG file. Convert it")));
  EXPECT_THAT(
      [&] { read_image(kImages / "huge.png"); },
      ThrowsMessage<DataError>(HasSubstr("100000 x 100000")));
  EXPECT_THROW(read_image(folder.path() / "none.png"), SystemError);
}

TEST(ImageFolder, NumbersClassesByName) {
  const testing::TempDir folder;
  for (const char* name : {"rose/deep", "lily"}) {
    std::filesystem::create_directories(folder.path() / name);
    std::filesystem::copy(kImages / "gradient.png", folder.path() / name);
  }
  folder.write("lily/notes.txt", "not a picture");
  const ImageFolder images(folder.path(), {resize(8), center_crop(8)});
  EXPECT_THAT(images.classes(), ElementsAre("lily", "rose"));
  EXPECT_EQ(images.size(), 2U);
  DataLoader loader(images, {.batch_size = 2, .num_workers = 1});
  for (auto& [pictures, labels] : loader) {
    EXPECT_EQ(pictures.sizes(), (std::vector<int64_t>{2, 3, 8, 8}));
    EXPECT_LE(pictures.max().item<float>(), 1.0F);
    EXPECT_TRUE(labels.equal(torch::tensor({0, 1})));
  }
  // Links are followed, including those to parent folders; a dangling one is a
  // sample that cannot be read.
  std::filesystem::create_directory_symlink(
      folder.path() / "rose/deep", folder.path() / "lily/linked");
  std::filesystem::create_directory_symlink(
      folder.path() / "lily", folder.path() / "lily/round");
  std::filesystem::create_symlink(
      folder.path() / "gone", folder.path() / "rose/dead.jpg");
  const ImageFolder linked(folder.path());
  ASSERT_EQ(linked.size(), 4U);
  EXPECT_EQ(linked.file(1), folder.path() / "lily/linked/gradient.png");
  EXPECT_THROW(read_image(linked.file(2)), SystemError);
  std::filesystem::create_directories(folder.path() / "empty");
  EXPECT_THAT(
      [&] { ImageFolder(folder.path()); },
      ThrowsMessage<DataError>(HasSubstr("empty")));
}

TEST(ImageTransforms, DoWhatTheirNamesSay) {
  const auto image = gradient();
  EXPECT_EQ(transformed(resize(8), image).size(2), 12);
  const auto half = transformed(resize(8, 12), image).to(torch::kInt);
  // The middle of four pixels is their mean, away from the border.
  EXPECT_NEAR(half[0][4][6].item<int>(), 125, 1);
  EXPECT_NEAR(half[1][4][6].item<int>(), 127, 1);
  EXPECT_TRUE(transformed(center_crop(4), image)
                  .equal(image.slice(1, 6, 10).slice(2, 10, 14)));
  const auto framed = transformed(center_crop(26), image);
  EXPECT_EQ(framed.size(1), 26);
  EXPECT_EQ(framed[2][0][13].item<int>(), 0);
  EXPECT_TRUE(
      transformed(random_horizontal_flip(1), image).equal(image.flip({2})));
  EXPECT_TRUE(transformed(random_horizontal_flip(0), image).equal(image));
  const auto part = transformed(random_crop(5), image);
  const int64_t top = part[1][0][0].item<int>() / 15;
  const int64_t left = part[0][0][0].item<int>() / 10;
  EXPECT_TRUE(
      part.equal(image.slice(1, top, top + 5).slice(2, left, left + 5)));
  EXPECT_EQ(transformed(random_resized_crop(7), image).size(1), 7);
  const auto scaled = transformed(normalize({0.5}, {0.25}), image);
  EXPECT_NEAR(scaled[2][0][0].item<double>(), (128.0 / 255 - 0.5) / 0.25, 1e-6);
  EXPECT_THROW(transformed(random_crop(17), image), UsageError);
  EXPECT_THROW(random_crop(4, -1), UsageError);
  EXPECT_THROW(normalize({0.5, 0.5}, {0.5, 0.5, 0.5}), UsageError);
  EXPECT_THROW(transformed(normalize({0.5, 0.5}, {0.5}), image), UsageError);
  EXPECT_THROW(
      transformed(normalize({0.5, 0.5, 0.5}, {0.5}), image.slice(0, 0, 1)),
      UsageError);
  EXPECT_THROW(resize(0), UsageError);
}

} // namespace
} // namespace accelerate
