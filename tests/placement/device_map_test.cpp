// SPDX-License-Identifier: Apache-2.0
// Small models, whose maps are worked out by hand.
// python/tests/test_device_maps.py compares random models with the original.
#include "core/placement/device_map.h"

#include <gmock/gmock.h>

#include "accelerate/error.h"

namespace accelerate::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr std::size_t kCpu = 0;
constexpr std::size_t kDisk = 1;

TreeModule leaf(std::int64_t identity, double num_elements) {
  return {
      .class_name = "Linear",
      .parameters = {
          {.name = "weight",
           .identity = identity,
           .num_elements = num_elements,
           .bytes_per_element = 4}}};
}

/// Two blocks of two layers and a head: 4 x 40 bytes and 80 bytes.
ModuleTree two_blocks() {
  return {
      {.class_name = "Model", .children = {{"a", 1}, {"b", 2}, {"head", 7}}},
      {.class_name = "Block", .children = {{"x", 3}, {"y", 4}}},
      {.class_name = "Block", .children = {{"x", 5}, {"y", 6}}},
      leaf(1, 10),
      leaf(2, 10),
      leaf(3, 10),
      leaf(4, 10),
      leaf(5, 20)};
}

std::vector<DeviceMemory> cpu(double num_bytes) {
  return {{.name = "cpu", .num_bytes = num_bytes, .runs_offloaded = true}};
}

std::vector<DeviceMemory> accelerators(std::vector<double> memory) {
  std::vector<DeviceMemory> devices;
  for (const double num_bytes : memory) {
    devices.push_back(
        {.name = std::to_string(devices.size()),
         .num_bytes = num_bytes,
         .runs_offloaded = devices.empty(),
         .is_accelerator = true});
  }
  return devices;
}

TEST(ModuleSizesTest, CountsModulesAndTensorsAndSharedTensorsOnce) {
  auto tree = two_blocks();
  tree[7].parameters[0] = {
      .name = "weight",
      .identity = 1,
      .num_elements = 10,
      .bytes_per_element = 4};
  tree[7].buffers = {
      {.name = "mask",
       .identity = 1,
       .num_elements = 16,
       .bytes_per_element = 1. / 8,
       .is_cast = false}};
  const auto sizes = module_sizes(tree, 0, {});
  EXPECT_EQ(sizes.of(""), 162);
  EXPECT_EQ(sizes.of("a"), 80);
  EXPECT_EQ(sizes.of("a.x.weight"), 40);
  EXPECT_EQ(sizes.of("head"), 2);
  EXPECT_EQ(sizes.of("elsewhere"), 0);
  EXPECT_EQ(module_sizes(tree, 7, {}, CountedTensors::kBuffers).of(""), 2);
}

TEST(ModuleSizesTest, CountsInTheDtypesOfTheOptions) {
  auto tree = two_blocks();
  tree[7].parameters[0].is_cast = false;
  const auto sizes = module_sizes(
      tree, 0, {.bytes_per_element = 2, .special = {{"a.x.weight", 8}}});
  EXPECT_EQ(sizes.of("a.x"), 80);
  EXPECT_EQ(sizes.of("a.y"), 20);
  EXPECT_EQ(sizes.of("head"), 80);
  EXPECT_EQ(module_sizes(tree, 0, {.bytes_per_element = 8}).of("a.y"), 40);
}

TEST(DeviceMapTest, FillsDevicesInOrderAndSplitsWhatDoesNotFit) {
  // 0 keeps 80 bytes free for the head, so only `a` fits; 1 takes a part of b.
  const auto map =
      plan_device_map(two_blocks(), {}, accelerators({170, 45}), {});
  EXPECT_THAT(
      map.devices,
      ElementsAre(
          Pair("a", 0), Pair("b.x", 1), Pair("b.y", 2), Pair("head", 2)));
}

TEST(DeviceMapTest, DoesNotSplitTheseClasses) {
  const auto map = plan_device_map(
      two_blocks(),
      {},
      accelerators({170, 45}),
      {.unsplit_classes = {"Block"}});
  EXPECT_THAT(
      map.devices, ElementsAre(Pair("a", 0), Pair("b", 2), Pair("head", 2)));
}

TEST(DeviceMapTest, PutsEverythingOnOneDeviceInOneEntry) {
  const auto map = plan_device_map(two_blocks(), {}, cpu(1000), {});
  EXPECT_THAT(map.devices, ElementsAre(Pair("", kCpu)));
  const auto all =
      plan_device_map(two_blocks(), {}, cpu(1000), {.simplify = false});
  EXPECT_THAT(
      all.devices,
      ElementsAre(Pair("a", kCpu), Pair("b", kCpu), Pair("head", kCpu)));
}

TEST(DeviceMapTest, WhatFitsNowhereGoesToTheDisk) {
  const auto map = plan_device_map(two_blocks(), {}, cpu(0), {});
  EXPECT_THAT(map.devices, ElementsAre(Pair("", kDisk)));
  EXPECT_THAT(
      plan_device_map(two_blocks(), {}, {}, {}).devices,
      ElementsAre(Pair("", 0)));
}

TEST(DeviceMapTest, TiedModulesGetTheSameDevice) {
  auto tree = two_blocks();
  tree[7].parameters[0].identity = 1;
  tree[7].parameters[0].num_elements = 10;
  const auto map = plan_device_map(
      tree,
      {{"a.x.weight", "head.weight"}},
      accelerators({125, 1000}),
      {.unsplit_classes = {"Block"}, .simplify = false});
  EXPECT_THAT(
      map.devices, ElementsAre(Pair("a", 1), Pair("head", 1), Pair("b", 1)));
}

TEST(DeviceMapTest, AFallbackFillsADeviceThatWouldStayEmpty) {
  const ModuleTree tree = {
      {.class_name = "Model",
       .children = {{"large", 1}, {"other", 2}, {"small", 3}}},
      leaf(1, 100),
      leaf(2, 75),
      leaf(3, 10)};
  // 0 keeps 300 bytes free for `other`, then 400 for `large`, which fits on 1.
  const auto devices = accelerators({450, 1000});
  EXPECT_THAT(
      plan_device_map(tree, {}, devices, {}).devices, ElementsAre(Pair("", 1)));
  EXPECT_THAT(
      plan_device_map(tree, {}, devices, {.use_fallback = true}).devices,
      ElementsAre(Pair("small", 0), Pair("large", 1), Pair("other", 1)));
}

TEST(DeviceMapTest, ReportsBuffersThatFitOnNoAccelerator) {
  auto tree = two_blocks();
  tree[7].buffers = {
      {.name = "table",
       .identity = 9,
       .num_elements = 100,
       .bytes_per_element = 4}};
  EXPECT_EQ(
      plan_device_map(tree, {}, accelerators({200}), {}).unplaced_buffer_bytes,
      400);
  EXPECT_EQ(
      plan_device_map(tree, {}, accelerators({200}), {.offload_buffers = true})
          .unplaced_buffer_bytes,
      0);
  EXPECT_EQ(plan_device_map(tree, {}, cpu(200), {}).unplaced_buffer_bytes, 0);
}

TEST(DeviceMapTest, SaysWhatItDecided) {
  const auto map = plan_device_map(two_blocks(), {}, cpu(170), {});
  EXPECT_THAT(
      map.decisions, ::testing::Contains(HasSubstr("a: 80 bytes on cpu")));
}

TEST(DeviceMapTest, RefusesATreeWithoutModules) {
  EXPECT_THROW(plan_device_map({}, {}, cpu(1), {}), UsageError);
  EXPECT_THROW(
      plan_device_map({{.children = {{"a", 1}}}}, {}, cpu(1), {}), UsageError);
  EXPECT_THROW(
      plan_device_map({{.children = {{"a", 0}}}}, {}, cpu(1), {}), UsageError);
}

TEST(SimplifyDeviceMapTest, MergesNeighboursOfTheSameParent) {
  EXPECT_THAT(
      simplify_device_map({{"a.x", 0}, {"a.y", 0}, {"b.x", 0}, {"b.y", 1}}),
      ElementsAre(Pair("a", 0), Pair("b.x", 0), Pair("b.y", 1)));
  EXPECT_THAT(
      simplify_device_map({{"a.x", 0}, {"b", 1}, {"a.y", 0}}),
      ElementsAre(Pair("a", 0), Pair("b", 1)));
  EXPECT_THAT(
      simplify_device_map({{"a.x", 0}, {"b.x", 1}, {"b.y", 1}}, "b"),
      ElementsAre(Pair("a.x", 0), Pair("b", 1)));
  EXPECT_THAT(simplify_device_map({}), IsEmpty());
}

TEST(BalanceMemoryTest, LeavesTheLastDeviceItsMemory) {
  // Half of 240 bytes and 1.25 times the mean of the five layers, 48 bytes.
  EXPECT_THAT(
      balance_memory(two_blocks(), {1000, 1000}, {}, {}, false),
      ElementsAre(180, 1000));
  // 1.25 times a block of 80 bytes.
  EXPECT_THAT(
      balance_memory(two_blocks(), {1000, 1000}, {"Block"}, {}, false),
      ElementsAre(220, 1000));
  EXPECT_THAT(
      balance_memory(two_blocks(), {1000, 1000, 200}, {}, {}, true),
      ElementsAre(0, 180, 200));
  EXPECT_THAT(
      balance_memory(two_blocks(), {1000, 1000, 10}, {}, {}, true),
      ElementsAre(50, 180, 10));
  EXPECT_THAT(balance_memory(two_blocks(), {}, {}, {}, false), IsEmpty());
}

} // namespace
} // namespace accelerate::testing
