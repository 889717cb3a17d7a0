// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "accelerate/data/images.h"
#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate {
namespace {

double draw_between(double low, double high, at::Generator& generator) {
  return low +
         (high - low) *
             at::rand({1}, generator, at::dtype(at::kDouble)).item<double>();
}

int64_t draw_below(int64_t limit, at::Generator& generator) {
  return at::randint(limit, {1}, generator, at::dtype(at::kLong))
      .item<int64_t>();
}

void check_positive(const char* where, int64_t size) {
  if (size < 1) {
    throw UsageError(
        str_cat("[", where, "] size is ", size, ", expected at least 1"));
  }
}

at::Tensor resized(const at::Tensor& image, int64_t height, int64_t width) {
  if (image.size(1) == height && image.size(2) == width) {
    return image;
  }
  const auto scaled = at::_upsample_bilinear2d_aa(
                          image.to(at::kFloat).unsqueeze(0),
                          {height, width},
                          /*align_corners=*/false)
                          .squeeze(0);
  return image.scalar_type() == at::kByte
             ? scaled.round_().clamp_(0, 255).to(at::kByte)
             : scaled;
}

at::Tensor cut(
    const at::Tensor& image,
    int64_t top,
    int64_t left,
    int64_t height,
    int64_t width) {
  return image.narrow(1, top, height).narrow(2, left, width);
}

} // namespace

ImageTransform resize(int64_t size) {
  check_positive("resize", size);
  return [size](const at::Tensor& image, at::Generator&) {
    const double scale =
        static_cast<double>(size) /
        static_cast<double>(std::min(image.size(1), image.size(2)));
    const auto scaled = [&](int64_t side) {
      return std::max<int64_t>(
          size, static_cast<int64_t>(static_cast<double>(side) * scale));
    };
    return resized(image, scaled(image.size(1)), scaled(image.size(2)));
  };
}

ImageTransform resize(int64_t height, int64_t width) {
  check_positive("resize", std::min(height, width));
  return [height, width](const at::Tensor& image, at::Generator&) {
    return resized(image, height, width);
  };
}

ImageTransform center_crop(int64_t size) {
  check_positive("center_crop", size);
  return [size](const at::Tensor& image, at::Generator&) {
    const int64_t below = std::max<int64_t>(0, size - image.size(1));
    const int64_t beside = std::max<int64_t>(0, size - image.size(2));
    const auto framed = at::constant_pad_nd(
        image, {beside / 2, beside - beside / 2, below / 2, below - below / 2});
    return cut(
        framed,
        (framed.size(1) - size) / 2,
        (framed.size(2) - size) / 2,
        size,
        size);
  };
}

ImageTransform random_crop(int64_t size, int64_t padding) {
  check_positive("random_crop", size);
  if (padding < 0) {
    throw UsageError(
        str_cat("[random_crop] padding is ", padding, ", expected at least 0"));
  }
  return [size, padding](const at::Tensor& image, at::Generator& generator) {
    const auto framed =
        at::constant_pad_nd(image, {padding, padding, padding, padding});
    if (framed.size(1) < size || framed.size(2) < size) {
      throw UsageError(str_cat(
          "[random_crop] The image has ",
          image.size(1),
          " x ",
          image.size(2),
          " pixels, but the crop needs ",
          size,
          " pixels in both directions. Resize or pad the image first"));
    }
    const int64_t top = draw_below(framed.size(1) - size + 1, generator);
    const int64_t left = draw_below(framed.size(2) - size + 1, generator);
    return cut(framed, top, left, size, size);
  };
}

ImageTransform random_resized_crop(int64_t size, double min_scale) {
  check_positive("random_resized_crop", size);
  if (!(min_scale > 0 && min_scale <= 1)) {
    throw UsageError(str_cat(
        "[random_resized_crop] min_scale is ",
        min_scale,
        ". Pass a value greater than 0 and at most 1"));
  }
  return [size, min_scale](const at::Tensor& image, at::Generator& generator) {
    const auto height = static_cast<double>(image.size(1));
    const auto width = static_cast<double>(image.size(2));
    const double widest = std::log(4.0 / 3.0);
    for (int attempt = 0; attempt < 10; ++attempt) {
      const double area =
          height * width * draw_between(min_scale, 1, generator);
      const double ratio = std::exp(draw_between(-widest, widest, generator));
      const auto cut_width =
          static_cast<int64_t>(std::round(std::sqrt(area * ratio)));
      const auto cut_height =
          static_cast<int64_t>(std::round(std::sqrt(area / ratio)));
      if (cut_width < 1 || cut_height < 1 || cut_width > image.size(2) ||
          cut_height > image.size(1)) {
        continue;
      }
      const int64_t top = draw_below(image.size(1) - cut_height + 1, generator);
      const int64_t left = draw_below(image.size(2) - cut_width + 1, generator);
      return resized(cut(image, top, left, cut_height, cut_width), size, size);
    }
    // No such crop fits, so use the centre.
    const int64_t side = std::min(image.size(1), image.size(2));
    return resized(
        cut(image,
            (image.size(1) - side) / 2,
            (image.size(2) - side) / 2,
            side,
            side),
        size,
        size);
  };
}

ImageTransform random_horizontal_flip(double probability) {
  if (!(probability >= 0 && probability <= 1)) {
    throw UsageError(str_cat(
        "[random_horizontal_flip] probability is ",
        probability,
        ", expected 0 to 1"));
  }
  return [probability](const at::Tensor& image, at::Generator& generator) {
    return draw_between(0, 1, generator) < probability ? image.flip({2})
                                                       : image;
  };
}

ImageTransform normalize(
    std::vector<double> mean,
    std::vector<double> deviation) {
  const auto as_channels = [](const std::vector<double>& numbers) {
    return at::tensor(numbers, at::kFloat).view({-1, 1, 1});
  };
  if (mean.empty() || deviation.empty() ||
      std::any_of(deviation.begin(), deviation.end(), [](double number) {
        return !(number > 0);
      })) {
    throw UsageError(
        "[normalize] A mean or deviation is missing, or a deviation is not "
        "positive. Pass "
        "one mean and one positive deviation per channel, or one of each for "
        "all channels");
  }
  const auto num_values =
      static_cast<int64_t>(std::max(mean.size(), deviation.size()));
  if (std::min(mean.size(), deviation.size()) != 1 &&
      mean.size() != deviation.size()) {
    throw UsageError(str_cat(
        "[normalize] Got ",
        mean.size(),
        " means and ",
        deviation.size(),
        " deviations. Pass one mean and one deviation per channel, or one of "
        "each for all channels"));
  }
  return
      [shift = as_channels(mean), scale = as_channels(deviation), num_values](
          const at::Tensor& image, at::Generator&) {
        const auto numbers = image.scalar_type() == at::kByte
                                 ? image.to(at::kFloat).div_(255)
                                 : image.to(at::kFloat);
        if (num_values != 1 && num_values != image.size(0)) {
          throw UsageError(str_cat(
              "[normalize] The image has ",
              image.size(0),
              " channels, but there are ",
              num_values,
              " means and deviations. Pass one mean and one deviation per "
              "channel"));
        }
        return numbers.sub(shift).div_(scale);
      };
}

} // namespace accelerate
