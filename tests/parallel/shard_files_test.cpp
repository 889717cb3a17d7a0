// SPDX-License-Identifier: Apache-2.0
// Files of sharded models, compared with those of one process.
#include <gmock/gmock.h>

#include <sstream>

#include "accelerate/files/safetensors_index.h"
#include "accelerate/models.h"
#include "parallel/tower.h"
#include "support/program.h"
#include "support/subprocess.h"
#include "support/temp_dir.h"
#include "training/parallel/engine.h"

namespace accelerate::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;
using torch::Tensor;
namespace fs = std::filesystem;

constexpr int64_t kTowerWidth = 24;
constexpr int kTowerFloors = 4;

/// The values depend only on the seed and the steps; all ranks see the same
/// data, so that any power of two of them gives the same result.
class TowerRun {
 public:
  explicit TowerRun(const AcceleratorOptions& options, double scale = 1)
      : accelerator_(options), tower_(seeded_tower(scale)) {
    std::set<const void*> seen;
    std::vector<Tensor> parameters;
    for (const auto& p : tower_->parameters()) {
      if (seen.insert(p.unsafeGetTensorImpl()).second) {
        parameters.push_back(p);
      }
    }
    adamw_ = std::make_unique<optim::AdamW>(
        parameters, optim::AdamWOptions{.lr = 0.01});
    prepared_.emplace(accelerator_.prepare(tower_, *adamw_));
  }

  void train(int begin, int end) {
    auto& [net, opt] = *prepared_;
    for (int step = begin; step < end; ++step) {
      accelerator_.backward(tower_loss(net(tower_tokens(step)), step));
      opt.step();
      opt.zero_grad();
    }
  }
  void save_model(const fs::path& folder, safetensors::SaveOptions how = {}) {
    accelerator_.save_model(std::get<0>(*prepared_), folder, how);
  }
  Accelerator& accelerator() { return accelerator_; }
  Tower& tower() { return tower_; }

  /// The third floor is frozen.
  static Tower seeded_tower(double scale = 1) {
    Tower tower(kTowerWidth, kTowerFloors);
    const torch::NoGradGuard no_grad;
    for (auto& p : tower->floors[2]->parameters()) {
      p.set_requires_grad(false);
    }
    double shift = 0;
    for (auto& p : tower->parameters()) {
      p.copy_(
          0.3 * torch::linspace(-40, 40, p.numel()).view_as(p).sin() +
          (shift += 0.01));
      p.mul_(scale);
    }
    return tower;
  }

 private:
  Accelerator accelerator_;
  Tower tower_;
  std::unique_ptr<optim::AdamW> adamw_;
  std::optional<std::tuple<PreparedModel<TowerImpl>, PreparedOptimizer>>
      prepared_;
};

AcceleratorOptions alone() {
  AcceleratorOptions options;
  options.cpu = true;
  return options;
}

std::map<std::string, std::string> contents_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    files[entry.path().filename()] = read_file(entry.path());
  }
  return files;
}

TEST(ShardFiles, OfAWholeModelAreThoseOfOneProcess) {
  TempDir folder;
  for (const std::uint64_t most : {1'000'000'000, 20'000}) {
    const safetensors::SaveOptions how{.max_shard_bytes = most};
    const auto expected = folder.path() / "expected";
    TowerRun(alone()).save_model(expected, how);
    EXPECT_EQ(fs::exists(expected / safetensors::kIndexName), most < 1'000'000);
    for (const int n : {2, 3, 4}) {
      for (const auto stage :
           {ShardStage::kOptimizer, ShardStage::kParameters}) {
        const auto target = folder.path() / "sharded";
        run_ranks(n, [&](ProcessGroup group) {
          auto options = tower_options(group, stage);
          if (n == 3) {
            options.shard.ignored = {"floors.1"};
          }
          TowerRun(options).save_model(target, how);
        });
        EXPECT_EQ(contents_of(target), contents_of(expected))
            << n << " ranks, stage " << static_cast<int>(stage);
      }
    }
  }
}

TEST(ShardFiles, AreWrittenUnitByUnit) {
  constexpr int64_t kWide = 256;
  constexpr int kMany = 16;
  TempDir folder;
  const HostBytes bytes;
  run_ranks(2, [&](ProcessGroup group) {
    Tower tower(kWide, kMany);
    int64_t num_bytes = 0;
    for (const auto& p : tower->parameters()) {
      num_bytes += static_cast<int64_t>(p.nbytes());
    }
    Accelerator accelerator(tower_options(group, ShardStage::kParameters));
    auto net = accelerator.prepare(tower);
    const auto& count = HostBytes::restart();
    const auto before = count.now.load();
    accelerator.save_model(net, folder.path() / "model");
    // One gathered unit, and one being written.
    EXPECT_GT(num_bytes, 16'000'000);
    EXPECT_LT(count.peak - before, 3 * num_bytes / kMany);
  });
  const safetensors::File file(folder.path() / "model" / "model.safetensors");
  EXPECT_EQ(file.tensors().size(), 6u * kMany + 3u);
}

TEST(ShardFiles, FailedWritesLeaveNoRankWaiting) {
  TempDir folder;
  folder.write("file", "in the way");
  run_ranks(2, [&](ProcessGroup group) {
    TowerRun run(tower_options(group, ShardStage::kParameters));
    const auto save = [&] { run.save_model(folder.path() / "file" / "sub"); };
    if (group.rank() == 0) {
      EXPECT_THAT(save, ThrowsMessage<SystemError>(HasSubstr("sub")));
    } else {
      EXPECT_NO_THROW(save());
    }
    run.train(0, 1);
  });
}

std::shared_ptr<models::CausalLanguageModel> small_gpt2() {
  torch::manual_seed(3);
  return models::AutoModelForCausalLM::from_config(models::ModelConfig::parse(
      R"({"model_type": "gpt2", "vocab_size": 40, "n_embd": 16, "n_head": 2,
          "n_layer": 2, "n_positions": 24})"));
}

// Expected: the same model, unprepared.
TEST(ShardFiles, OfPretrainedModelsAreThoseOfOneProcess) {
  TempDir folder;
  const auto expected = folder.path() / "expected";
  for (const std::uint64_t most : {1'000'000, 4'000}) {
    small_gpt2()->save_pretrained(expected, {.max_shard_bytes = most});
    const auto config = read_file(expected / "config.json");
    for (const int n : {1, 2, 4}) {
      const auto model = small_gpt2(); // ranks are threads with one seed
      std::vector<std::shared_ptr<models::CausalLanguageModel>> models;
      for (int rank = 0; rank < n; ++rank) {
        models.push_back(small_gpt2());
      }
      const auto pretrained = folder.path() / "pretrained";
      const auto saved = folder.path() / "saved";
      run_ranks(n, [&](ProcessGroup group) {
        auto options = tower_options(group, ShardStage::kParameters);
        options.parallelism.replicate = n == 4 ? 2 : 1;
        Accelerator accelerator(options);
        auto net = accelerator.prepare(models.at(size_t(group.rank())));
        net->save_pretrained(pretrained, {.max_shard_bytes = most});
        accelerator.save_model(net, saved);
        // The model still trains.
        accelerator.backward(
            net(models::ModelInputs{
                    .input_ids = torch::ones({1, 3}, at::kLong),
                    .labels = torch::ones({1, 3}, at::kLong)})
                .loss);
      });
      EXPECT_EQ(contents_of(pretrained), contents_of(expected)) << n;
      EXPECT_EQ(read_file(saved / "config.json"), config) << n;
      const auto read = models::AutoModelForCausalLM::from_pretrained(saved);
      EXPECT_EQ(read->load_report().summary(), "");
      const auto wanted = model->named_parameters();
      for (const auto& item : read->named_parameters()) {
        EXPECT_TRUE(torch::equal(item.value(), wanted[item.key()])) << n;
      }
    }
  }
}

TEST(ShardFiles, OfMasterWeightsHaveTheirConfiguration) {
  TempDir folder;
  for (const auto stage : {ShardStage::kOptimizer, ShardStage::kParameters}) {
    const std::vector models{small_gpt2(), small_gpt2()};
    run_ranks(2, [&](ProcessGroup group) {
      auto options = tower_options(group, stage);
      options.master_weights = true;
      options.mixed_precision = Precision::kBf16;
      Accelerator accelerator(options);
      auto net = accelerator.prepare(models.at(size_t(group.rank())));
      accelerator.save_model(net, folder.path());
    });
    const auto read =
        models::AutoModelForCausalLM::from_pretrained(folder.path());
    const auto wanted = small_gpt2()->named_parameters();
    for (const auto& item : read->named_parameters()) {
      EXPECT_TRUE(torch::equal(item.value(), wanted[item.key()]));
    }
  }
}

TEST(ShardFiles, OfAPretrainedModelAreWrittenAtomically) {
  TempDir folder;
  folder.write("file", "in the way");
  const std::vector models{small_gpt2(), small_gpt2()};
  run_ranks(2, [&](ProcessGroup group) {
    Accelerator accelerator(tower_options(group, ShardStage::kParameters));
    auto net = accelerator.prepare(models.at(size_t(group.rank())));
    const auto save = [&] { net->save_pretrained(folder.path() / "file/sub"); };
    if (group.rank() == 0) {
      EXPECT_THAT(save, ThrowsMessage<SystemError>(HasSubstr("sub")));
    } else {
      EXPECT_NO_THROW(save());
    }
    if (group.rank() == 0) {
      EXPECT_THAT(
          [&] { net->save_pretrained(folder.path() / "alone"); },
          ThrowsMessage<MismatchError>(HasSubstr("save_pretrained")));
      EXPECT_FALSE(fs::exists(folder.path() / "alone"));
    } else {
      EXPECT_THROW(accelerator.wait_for_everyone(), MismatchError);
    }
    net->save_pretrained(folder.path() / "next");
  });
  EXPECT_TRUE(fs::exists(folder.path() / "next" / "config.json"));
  EXPECT_THAT(
      [&] { models[0]->save_pretrained(folder.path() / "late"); },
      ThrowsMessage<UsageError>(
          HasSubstr("their Accelerator no longer exists")));
  EXPECT_FALSE(fs::exists(folder.path() / "late"));
}

ProcessResult merge(const fs::path& source, const fs::path& target) {
  return run_process({kProgram, "merge-weights", source, target});
}

TEST(MergeWeights, JoinsTheStateOfAnyNumberOfRanks) {
  for (const int n : {1, 2, 4}) {
    TempDir folder;
    const auto state = folder.path() / "state";
    const auto expected = folder.path() / "expected";
    run_ranks(n, [&](ProcessGroup group) {
      auto options = tower_options(group, ShardStage::kParameters);
      options.parallelism.replicate = n == 4 ? 2 : 1;
      if (n == 2) {
        options.shard.ignored = {"floors.1"};
      }
      TowerRun run(options);
      run.train(0, 2);
      run.accelerator().save_state(state);
      run.save_model(expected);
    });
    for (const char* name : {"folder", "x.safetensors"}) {
      const auto target = folder.path() / name;
      const auto result = merge(state, target);
      ASSERT_EQ(result.exit_code, 0) << result.err;
      EXPECT_THAT(result.out, IsEmpty());
      EXPECT_THAT(result.err, HasSubstr(" with 27 tensors merged into '"));
      EXPECT_EQ(
          read_file(
              target.extension().empty() ? target / "model.safetensors"
                                         : target),
          read_file(expected / "model.safetensors"))
          << n;
    }
  }
}

TEST(MergeWeights, RefusesStatesThatAreDamagedInOneLine) {
  TempDir folder;
  const auto state = folder.path() / "state";
  run_ranks(2, [&](ProcessGroup group) {
    TowerRun run(tower_options(group, ShardStage::kParameters));
    run.accelerator().save_state(state);
  });
  const auto part = state / "rank_1-at-0.safetensors";
  const auto place = state / "rank_1-at-0.json";
  const auto target = folder.path() / "merged";
  const auto expect_refusal = [&](const char* what) {
    const auto result = merge(state, target);
    EXPECT_NE(result.exit_code, 0) << what;
    EXPECT_THAT(result.err, HasSubstr(what));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1);
    EXPECT_FALSE(fs::exists(target));
  };
  const auto bytes = read_file(part);
  auto changed = bytes;
  changed.back() = static_cast<char>(changed.back() ^ 1);
  folder.write("state/rank_1-at-0.safetensors", changed);
  expect_refusal("is damaged: its checksum does not match");
  folder.write("state/rank_1-at-0.safetensors", bytes.substr(0, 1000));
  expect_refusal("has 1000 bytes instead of ");
  fs::remove(part);
  expect_refusal("'rank_1-at-0.safetensors' is missing");
  folder.write("state/rank_1-at-0.safetensors", bytes);
  const auto text = read_file(place);
  folder.write("state/rank_1-at-0.json", text.substr(0, text.size() / 2));
  expect_refusal("is truncated");
  fs::remove(place);
  expect_refusal("because the data of these ranks is missing: 1");
  folder.write("state/rank_1-at-0.json", text);
  // The checkpoint's own model.safetensors contains the common tensors.
  const auto own = read_file(state / "model.safetensors");
  EXPECT_THAT(
      merge(state, state).err,
      HasSubstr("would be inside the checkpoint itself"));
  EXPECT_EQ(read_file(state / "model.safetensors"), own);
  EXPECT_EQ(merge(state, target).exit_code, 0);
}

void expect_equal(Tower& found, Tower& expected, const std::string& what) {
  const auto wanted = expected->named_parameters();
  for (const auto& item : found->named_parameters()) {
    EXPECT_TRUE(torch::equal(
        item.value(), wanted[item.key()].to(item.value().scalar_type())))
        << what << ", " << item.key();
  }
}

// Whichever stage saved it, and however a program reads them before its first
// step, weights are those of a formula.
TEST(ShardFiles, AreUsedByTheModelRightAfterLoading) {
  struct Change {
    ShardStage from, to;
    int num_from = 2, num_to = 2;
    bool has_masters = false;
    int replicas = 1;
  };
  constexpr auto kFirst = ShardStage::kOptimizer;
  constexpr auto kSecond = ShardStage::kGradients;
  constexpr auto kThird = ShardStage::kParameters;
  TempDir folder;
  TowerRun(alone()).save_model(folder.path() / "expected");
  const auto expected_files = contents_of(folder.path() / "expected");
  for (const auto& change :
       {Change{kThird, kSecond},
        Change{kThird, kFirst},
        Change{kSecond, kFirst},
        Change{kFirst, kSecond},
        Change{kFirst, kThird},
        Change{kSecond, kThird},
        Change{kThird, kThird},
        Change{kThird, kSecond, 3, 3},
        Change{kThird, kSecond, 4, 2},
        Change{kThird, kFirst, 2, 3},
        Change{kThird, kFirst, 1, 2},
        Change{kFirst, kThird, 3, 2},
        Change{kThird, kSecond, 4, 4, false, 2},
        Change{kThird, kSecond, 2, 2, true},
        Change{kSecond, kFirst, 2, 2, true},
        Change{kFirst, kThird, 2, 2, true}}) {
    const auto options_of = [&](const ProcessGroup& group, ShardStage stage) {
      auto options = tower_options(group, stage);
      options.parallelism.replicate = change.replicas;
      options.master_weights = change.has_masters;
      if (change.has_masters) {
        options.mixed_precision = Precision::kBf16;
      }
      return options;
    };
    const auto what = std::to_string(static_cast<int>(change.from)) + " of " +
                      std::to_string(change.num_from) + " to " +
                      std::to_string(static_cast<int>(change.to)) + " of " +
                      std::to_string(change.num_to);
    const auto saved = folder.path() / "saved";
    const auto loaded = folder.path() / "loaded";
    run_ranks(change.num_from, [&](ProcessGroup group) {
      TowerRun(options_of(group, change.from)).accelerator().save_state(saved);
    });
    run_ranks(change.num_to, [&](ProcessGroup group) {
      TowerRun run(options_of(group, change.to), /*scale=*/0.5);
      run.accelerator().load_state(saved);
      if (change.to != kThird) {
        auto expected = TowerRun::seeded_tower();
        expect_equal(run.tower(), expected, what);
        if (!change.has_masters) {
          EXPECT_TRUE(torch::equal(
              run.tower()->forward(tower_tokens(0)),
              expected->forward(tower_tokens(0))))
              << what;
          std::stringstream stream;
          torch::save(run.tower(), stream);
          Tower read(kTowerWidth, kTowerFloors);
          torch::load(read, stream);
          expect_equal(read, expected, what + " by torch::save");
          const auto state = run.accelerator().state().state_dict();
          EXPECT_TRUE(torch::equal(
              state.get<Tensor>("model.floors.2.up.weight"),
              expected->floors[2]->as<FloorImpl>()->up->weight))
              << what;
        }
      }
      run.save_model(loaded);
    });
    EXPECT_EQ(contents_of(loaded), expected_files) << what;
    fs::remove_all(saved);
  }
}

// Without files there is no common point at which all have loaded: the next
// collective call updates whole weights.
TEST(ShardFiles, OfAReturnedStateAreCopies) {
  TempDir folder;
  TowerRun(alone()).save_model(folder.path() / "expected");
  run_ranks(2, [&](ProcessGroup group) {
    TowerRun from(tower_options(group, ShardStage::kParameters));
    TowerRun to(tower_options(group, ShardStage::kGradients), /*scale=*/0.5);
    to.accelerator().state().load_state_dict(
        from.accelerator().state().state_dict());
    to.save_model(folder.path() / "handed_over");
  });
  EXPECT_EQ(
      contents_of(folder.path() / "handed_over"),
      contents_of(folder.path() / "expected"));
}

TEST(ShardFiles, UnreadableOnOneRankAreReadByNone) {
  TempDir folder;
  const auto state = folder.path() / "state";
  run_ranks(2, [&](ProcessGroup group) {
    TowerRun run(tower_options(group, ShardStage::kParameters));
    run.accelerator().save_state(state);
  });
  auto bytes = read_file(state / "rank_1-at-0.safetensors");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  folder.write("state/rank_1-at-0.safetensors", bytes);
  for (const auto stage : {ShardStage::kGradients, ShardStage::kParameters}) {
    run_ranks(2, [&](ProcessGroup group) {
      TowerRun run(tower_options(group, stage));
      const auto load = [&] { run.accelerator().load_state(state); };
      EXPECT_THAT(
          load,
          ThrowsMessage<DataError>(AllOf(
              HasSubstr("[load_state] rank 1 failed"),
              HasSubstr("is damaged"))));
      // The run is unchanged.
      run.train(0, 1);
    });
  }
}

// The result of resuming on M ranks does not depend on how many had saved: it
// equals that of M ranks that load the state of one process.
TEST(ShardFiles, ResumeOnAnyNumberOfRanksBitForBit) {
  for (int n = 1; n <= 4; ++n) {
    TempDir folder;
    const auto saved = folder.path() / "saved";
    const auto whole = folder.path() / "whole";
    const auto run_on = [&](int num_ranks, const auto& work) {
      run_ranks(num_ranks, [&](ProcessGroup group) {
        TowerRun run(tower_options(group, ShardStage::kParameters));
        work(run);
      });
    };
    run_on(n, [&](TowerRun& run) {
      run.train(0, 3);
      run.accelerator().save_state(saved);
      run.save_model(folder.path() / "weights");
    });
    TowerRun one(alone());
    one.accelerator().load_state(saved);
    one.accelerator().save_state(whole);
    one.save_model(folder.path() / "weights_of_one");
    EXPECT_EQ(
        contents_of(folder.path() / "weights_of_one"),
        contents_of(folder.path() / "weights"));
    for (int m = 1; m <= 4; ++m) {
      const auto weights_after = [&](const fs::path& state) {
        const auto target = folder.path() / "after";
        run_on(m, [&](TowerRun& run) {
          run.accelerator().load_state(state);
          run.save_model(folder.path() / "loaded");
          run.train(3, 6);
          run.save_model(target);
        });
        EXPECT_EQ(
            contents_of(folder.path() / "loaded"),
            contents_of(folder.path() / "weights"))
            << n << " to " << m;
        return contents_of(target);
      };
      EXPECT_EQ(weights_after(saved), weights_after(whole)) << n << " to " << m;
    }
  }
}

} // namespace
} // namespace accelerate::testing
