// SPDX-License-Identifier: Apache-2.0
#include "accelerate/distributed/tensor_pieces.h"

#include <gmock/gmock.h>

#include <numeric>
#include <random>

#include "accelerate/error.h"
#include "core/layout/piece_assembly.h"
#include "core/layout/tensor_shape.h"

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

using Numbers = std::vector<std::int64_t>;

/// Where each element of the pieces lies in the tensor, one index at a time.
Numbers places_of(const Numbers& shape, const TensorPieces& pieces) {
  Numbers places;
  for (const auto& [box, begin, count] : pieces) {
    for (std::int64_t at = begin; at < begin + count; ++at) {
      Numbers index(shape.size());
      auto rest = at;
      for (std::size_t i = shape.size(); i-- > 0;) {
        index[i] = box.begin[i] + rest % box.size[i];
        rest /= box.size[i];
      }
      std::int64_t place = 0;
      for (std::size_t i = 0; i < shape.size(); ++i) {
        place = place * shape[i] + index[i];
      }
      places.push_back(place);
    }
  }
  return places;
}

/// What `to` has after all elements that `from` has were copied; -1 for others.
Numbers copied(
    const Numbers& shape,
    const std::vector<TensorPieces>& from,
    const TensorPieces& to,
    std::int64_t* num_missing = nullptr) {
  Numbers values(static_cast<std::size_t>(num_elements(to)), -1);
  PieceAssembly assembly(shape, to);
  for (const auto& pieces : from) {
    const auto source = places_of(shape, pieces);
    assembly.add(
        pieces,
        [&](std::int64_t target, std::int64_t begin, std::int64_t count) {
          for (std::int64_t i = 0; i < count; ++i) {
            auto& value = values.at(static_cast<std::size_t>(target + i));
            EXPECT_EQ(value, -1) << "copied twice";
            value = source.at(static_cast<std::size_t>(begin + i));
          }
        });
  }
  if (num_missing != nullptr) {
    *num_missing = assembly.num_missing();
  }
  return values;
}

TEST(TensorPieces, CutColumnsOutOfRows) {
  const Numbers shape = {3, 4};
  const TensorPieces columns = {{{{0, 1}, {3, 2}}, 0, 6}};
  EXPECT_THAT(
      copied(
          shape, {flat_range(shape, 0, 5), flat_range(shape, 5, 7)}, columns),
      ElementsAre(1, 2, 5, 6, 9, 10));
}

TEST(TensorPieces, OfAnEmptyRankAreEmpty) {
  EXPECT_THAT(flat_range({3, 4}, 5, 0), IsEmpty());
  std::int64_t num_missing = -1;
  EXPECT_THAT(
      copied({3, 4}, {flat_range({3, 4}, 0, 12)}, {}, &num_missing), IsEmpty());
  EXPECT_EQ(num_missing, 0);
}

TEST(TensorPieces, OfATensorWithoutDimensions) {
  EXPECT_THAT(
      copied({}, {flat_range({}, 0, 1)}, flat_range({}, 0, 1)), ElementsAre(0));
}

TEST(TensorPieces, CountMissingElements) {
  const Numbers shape = {4, 4};
  std::int64_t num_missing = 0;
  const TensorPieces left = {{{{0, 0}, {4, 2}}, 0, 8}};
  // The same columns of two replicas, and one more element.
  copied(
      shape,
      {left, left, flat_range(shape, 3, 1)},
      flat_range(shape, 0, 16),
      &num_missing);
  EXPECT_EQ(num_missing, 7);
}

TEST(TensorPieces, OfAnyLayoutBecomeThoseOfAnyOther) {
  std::mt19937 random(7);
  const auto draw = [&](std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(0, most)(random);
  };
  // One cut per dimension gives boxes; each is cut into flat ranges.
  const auto layout_of = [&](const Numbers& shape) {
    std::vector<TensorBox> boxes = {{Numbers(shape.size(), 0), shape}};
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      std::vector<TensorBox> cut;
      for (const auto& box : boxes) {
        const auto at = draw(box.size[dim]);
        auto first = box;
        auto second = box;
        first.size[dim] = at;
        second.begin[dim] += at;
        second.size[dim] -= at;
        cut.push_back(first);
        cut.push_back(second);
      }
      boxes = cut;
    }
    std::vector<TensorPieces> ranks(3);
    for (const auto& box : boxes) {
      const auto num = *elements_of(box.size);
      const auto at = draw(num);
      ranks[static_cast<std::size_t>(draw(2))].push_back({box, 0, at});
      ranks[static_cast<std::size_t>(draw(2))].push_back({box, at, num - at});
    }
    return ranks;
  };
  for (int round = 0; round < 2000; ++round) {
    Numbers shape(static_cast<std::size_t>(draw(4)));
    for (auto& length : shape) {
      length = draw(5);
    }
    const auto from = layout_of(shape);
    for (const auto& to : layout_of(shape)) {
      ASSERT_NO_THROW(check_pieces(shape, to));
      std::int64_t num_missing = -1;
      ASSERT_EQ(copied(shape, from, to, &num_missing), places_of(shape, to));
      ASSERT_EQ(num_missing, 0);
    }
  }
}

TEST(TensorPieces, OutsideTheTensorAreRejected) {
  const auto refuses =
      [](const Numbers& shape, const TensorPieces& pieces, const char* text) {
        EXPECT_THAT(
            [&] { check_pieces(shape, pieces); },
            ThrowsMessage<UsageError>(HasSubstr(text)));
      };
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  refuses({3, 4}, flat_range({3, 4}, 5, 8), "8 elements from position 5 are");
  refuses({3, 4}, flat_range({3, 4}, -1, 2), "2 elements from position -1 are");
  refuses({3, 4}, flat_range({3, 4}, kMost, kMost), "are outside a box of 12");
  refuses(
      {3, 4},
      {{{{0, 3}, {3, 2}}, 0, 6}},
      "A box of size [3, 2] at [0, 3] is outside a tensor of shape [3, 4]");
  refuses({3, 4}, {{{{0, kMost}, {3, kMost}}, 0, 6}}, "is outside a tensor");
  refuses({3, 4}, {{{{0}, {3}}, 0, 3}}, "is outside a tensor");
  refuses({3, -4}, {}, "The shape [3, -4] has a negative dimension");
  refuses({kMost, 4}, {}, "or too many elements");
}

} // namespace
} // namespace accelerate
