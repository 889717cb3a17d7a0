// SPDX-License-Identifier: Apache-2.0
#include "training/state/state_files.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "accelerate/error.h"
#include "core/base/checksum.h"
#include "support/temp_dir.h"
#include "training/state/sliced_state.h"

namespace accelerate::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using Shape = std::vector<int64_t>;

/// A checkpoint whose ranks have these slices of `whole`.
void save(
    const std::filesystem::path& folder,
    const at::Tensor& whole,
    const std::vector<TensorPieces>& layout) {
  CheckpointWriter writer(folder, 0);
  Manifest manifest;
  manifest.world_size = static_cast<int>(layout.size());
  for (size_t rank = 0; rank < layout.size(); ++rank) {
    StateDict state;
    state.set(
        "weight",
        TensorSlice{
            elements_at(whole, layout[rank]),
            whole.sizes().vec(),
            layout[rank]});
    const std::vector<SavedObject> objects = {{"model", state}};
    write_rank_shard(
        writer.folder(), objects, static_cast<int>(rank), manifest);
    if (rank == 0) {
      write_common(writer.folder(), objects, manifest);
    }
  }
  writer.commit(manifest);
}

/// What a rank loads that needs `pieces`; the whole if it is empty.
at::Tensor load(
    const std::filesystem::path& folder,
    const std::optional<TensorPieces>& pieces) {
  const CheckpointReader checkpoint(folder);
  StateReader reader(checkpoint);
  auto states = reader.read(checkpoint.manifest());
  std::vector<StatesByName> shards;
  for (int rank = 0; rank < checkpoint.manifest().world_size; ++rank) {
    shards.push_back(reader.read(*checkpoint.rank_shard(rank)));
  }
  const auto needs = [&](const std::string&, const StateDict&) {
    std::map<std::string, TensorPieces> needed;
    if (pieces) {
      needed["weight"] = *pieces;
    }
    return std::optional(needed);
  };
  reader.fit(shards, needs, states);
  reader.finish(states);
  const auto& state = states.at("model");
  return pieces ? state.get<TensorSlice>("weight").values.clone()
                : state.get<at::Tensor>("weight").clone();
}

TensorPieces box(Shape begin, Shape size) {
  const auto count = c10::multiply_integers(size);
  return {{{std::move(begin), std::move(size)}, 0, count}};
}

TensorPieces joined(std::vector<TensorPieces> lists) {
  TensorPieces all;
  for (auto& pieces : lists) {
    all.insert(all.end(), pieces.begin(), pieces.end());
  }
  return all;
}

/// Three layouts of a [12, 6] weight over ranks.
std::map<std::string, std::vector<TensorPieces>> layouts() {
  const Shape shape = {12, 6};
  // A tensor-parallel rank has rows of each of q, k and v.
  const auto heads = [](int64_t rank) {
    return joined(
        {box({2 * rank, 0}, {2, 6}),
         box({4 + 2 * rank, 0}, {2, 6}),
         box({8 + 2 * rank, 0}, {2, 6})});
  };
  const auto columns = [](int64_t begin, int64_t size) {
    return box({0, begin}, {12, size});
  };
  // ZeRO over columns: each half of the columns is split flat.
  const auto half_of = [&](int64_t rank, int64_t begin, int64_t count) {
    auto pieces = columns(3 * rank, 3);
    pieces.front().begin = begin;
    pieces.front().count = count;
    return pieces;
  };
  return {
      {"flat",
       {flat_range(shape, 0, 24),
        flat_range(shape, 24, 24),
        flat_range(shape, 48, 24)}},
      {"heads", {heads(0), heads(1)}},
      {"columns", {columns(0, 2), columns(2, 2), columns(4, 2)}},
      {"flat columns",
       {half_of(0, 0, 20),
        half_of(0, 20, 16),
        half_of(1, 0, 20),
        half_of(1, 20, 16)}},
      // The second replica has the same as the first; one rank has nothing.
      {"replicas", {columns(0, 6), columns(0, 6), {}}}};
}

TEST(StateFiles, LoadAnyLayoutIntoAnyOther) {
  const auto whole = at::arange(72, at::kFloat).view({12, 6});
  for (const auto& [from_name, from] : layouts()) {
    const TempDir folder;
    save(folder.path() / "state", whole, from);
    EXPECT_TRUE(at::equal(load(folder.path() / "state", {}), whole));
    for (const auto& [to_name, to] : layouts()) {
      for (const auto& pieces : to) {
        EXPECT_TRUE(at::equal(
            load(folder.path() / "state", pieces), elements_at(whole, pieces)))
            << from_name << " -> " << to_name;
      }
    }
  }
}

TEST(StateFiles, ReportMissingElementsOfATensor) {
  const TempDir folder;
  const auto whole = at::arange(72, at::kFloat).view({12, 6});
  save(folder.path() / "state", whole, {box({0, 0}, {12, 4})});
  EXPECT_TRUE(at::equal(
      load(folder.path() / "state", box({0, 1}, {12, 2})),
      elements_at(whole, box({0, 1}, {12, 2}))));
  EXPECT_THAT(
      [&] {
        load(folder.path() / "state", box({0, 3}, {12, 2}));
      },
      ThrowsMessage<DataError>(HasSubstr(
          "'weight' of 'model' is incomplete: 12 of 24 elements belong to "
          "ranks that did not save")));
}

TEST(StateFiles, VerifyOnlyTheChunksThatARankNeeds) {
  const TempDir folder;
  // Three chunks of rows.
  const auto rows = static_cast<int64_t>(kChecksumChunk / 4096);
  const auto whole = at::arange(3 * rows * 1024, at::kFloat).view({-1, 1024});
  const Shape shape = whole.sizes().vec();
  save(folder.path() / "state", whole, {flat_range(shape, 0, whole.numel())});
  // The last element of the file.
  const auto file = folder.path() / "state" / "rank_0-at-0.safetensors";
  auto bytes = read_file(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  folder.write("state/rank_0-at-0.safetensors", bytes);
  for (const auto& pieces :
       {box({0, 0}, {rows, 1024}), box({3, 5}, {2 * rows - 9, 7})}) {
    EXPECT_TRUE(at::equal(
        load(folder.path() / "state", pieces), elements_at(whole, pieces)));
  }
  for (const auto& pieces :
       {box({3 * rows - 1, 0}, {1, 1024}), box({0, 1023}, {3 * rows, 1})}) {
    EXPECT_THAT(
        [&] { load(folder.path() / "state", pieces); },
        ThrowsMessage<DataError>(HasSubstr("checksum does not match")));
  }
}

TEST(StateFiles, RefuseSlicesThatDoNotFitTheirTensor) {
  StateDict state;
  EXPECT_THAT(
      [&] {
        state.set(
            "x", TensorSlice{at::zeros({3}), {4, 2}, box({3, 0}, {2, 2})});
      },
      ThrowsMessage<UsageError>(
          HasSubstr("The slice of 'x' is invalid. A box of size [2, 2]")));
  EXPECT_THAT(
      [&] {
        state.set(
            "x", TensorSlice{at::zeros({3}), {4, 2}, box({2, 0}, {2, 2})});
      },
      ThrowsMessage<UsageError>(
          HasSubstr("has 3 values, but its pieces have 4 elements")));
}

} // namespace
} // namespace accelerate::testing
