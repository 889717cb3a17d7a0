// SPDX-License-Identifier: Apache-2.0
// If ranks do not take the same steps, the next synchronisation of gradients
// raises.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "support/state.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::Tensor;

std::vector<AcceleratorOptions> kinds_to_compare() {
  std::vector<AcceleratorOptions> kinds(3);
  kinds[1] = {.mixed_precision = Precision::kBf16, .master_weights = true};
  kinds[2].ddp.find_unused_parameters = true;
  for (const auto stage :
       {ShardStage::kOptimizer,
        ShardStage::kGradients,
        ShardStage::kParameters}) {
    kinds.push_back({.shard = {.stage = stage, .min_unit_numbers = 1}});
  }
  return kinds;
}

struct Trained {
  Trained(AcceleratorOptions options, ProcessGroup group, int64_t num_steps)
      : accelerator(with(std::move(options), group, num_steps)),
        rank(group.rank()),
        model(3, 1),
        sgd(model->parameters(), {.lr = 0.1}),
        net(accelerator.prepare(model)),
        opt(accelerator.prepare(sgd)) {}

  static AcceleratorOptions
  with(AcceleratorOptions options, ProcessGroup group, int64_t num_steps) {
    options.cpu = true;
    options.process_group = group;
    options.accumulation.num_steps = num_steps;
    return options;
  }
  void backward() {
    accelerator.backward(net(torch::full({2, 3}, rank + 1.0)).sum());
  }
  void micro_batch() {
    const auto window = accelerator.accumulate(net);
    backward();
    opt.step();
    opt.zero_grad();
  }

  Accelerator accelerator;
  int rank;
  torch::nn::Linear model;
  optim::SGD sgd;
  PreparedModel<torch::nn::LinearImpl> net;
  PreparedOptimizer opt;
};

TEST(StepsOfRanks, OneRankThatSkipsAnUpdateIsNamedOnAll) {
  for (const int64_t num_steps : {1, 2}) {
    run_ranks(3, [&](ProcessGroup group) {
      for (const auto& options : kinds_to_compare()) {
        const auto stage = options.shard.stage;
        Trained run(options, group, num_steps);
        const auto saved =
            testing::copy_of(run.accelerator.state().state_dict());
        for (int64_t i = 0; i < 2 * num_steps; ++i) {
          run.micro_batch();
        }
        const auto train_on = [&] {
          for (int64_t i = 0; i < 2 * num_steps; ++i) {
            const auto window = run.accelerator.accumulate(run.net);
            run.backward();
            if (i > num_steps || run.rank != 1) {
              run.opt.step();
            }
            run.opt.zero_grad();
          }
        };
        if (stage == ShardStage::kOptimizer ||
            stage == ShardStage::kGradients) {
          // The update itself is a collective.
          EXPECT_THROW(train_on(), MismatchError);
          continue;
        }
        const auto says_who = ThrowsMessage<MismatchError>(AllOf(
            HasSubstr("step() of the optimizer a different number of times"),
            HasSubstr(": 2 times on rank 1 but 3 times on ranks 0, 2, so")));
        EXPECT_THAT(train_on, says_who) << static_cast<int>(stage);
        // Weights stay different until state is loaded.
        EXPECT_THROW(
            {
              for (int64_t i = 0; i < num_steps; ++i) {
                run.micro_batch();
              }
            },
            MismatchError);
        run.accelerator.state().load_state_dict(saved);
        for (int64_t i = 0; i < 2 * num_steps; ++i) {
          run.micro_batch();
        }
      }
    });
  }
}

TEST(StepsOfRanks, OptimizersAreCountedOneByOne) {
  run_ranks(2, [](ProcessGroup group) {
    Accelerator accelerator({.cpu = true, .process_group = group});
    torch::nn::Linear a(1, 1), b(1, 1);
    optim::SGD sgd_a(a->parameters(), {.lr = 0.1});
    optim::SGD sgd_b(b->parameters(), {.lr = 0.1});
    auto [net_a, net_b, opt_a, opt_b] = accelerator.prepare(a, b, sgd_a, sgd_b);
    const auto backward = [&, &net_a = net_a, &net_b = net_b] {
      const auto x = torch::ones({1, 1});
      accelerator.backward((net_a(x) + net_b(x)).sum());
    };
    backward();
    group.rank() == 0 ? opt_a.step() : opt_b.step();
    EXPECT_THAT(
        backward,
        ThrowsMessage<MismatchError>(AllOf(
            HasSubstr("step() of optimizer 1"),
            HasSubstr("0 times on rank 1 but 1 time on rank 0"))));
  });
}

TEST(StepsOfRanks, OneRankThatClipsAloneIsNamed) {
  run_ranks(2, [](ProcessGroup group) {
    Trained run({}, group, 1);
    const auto parameters = run.model->parameters();
    const auto step = [&](double max_norm) {
      run.backward();
      if (group.rank() == 1) {
        run.accelerator.clip_grad_norm_(parameters, max_norm);
      }
      run.opt.step();
      run.opt.zero_grad();
    };
    // Who only asks for the norm changes nothing.
    step(INFINITY);
    step(0.1);
    EXPECT_THAT(
        [&] { step(0.1); },
        ThrowsMessage<MismatchError>(AllOf(
            HasSubstr("Ranks clipped gradients a different number of times"),
            HasSubstr("0 times on rank 0 but 1 time on rank 1"))));
  });
}

// The next micro-batches would add to the gradients that it did not send.
TEST(StepsOfRanks, OneRankThatLeavesOutTheEndOfAnAccumulationIsNamed) {
  for (const bool has_masters : {false, true}) {
    run_ranks(3, [&](ProcessGroup group) {
      AcceleratorOptions options;
      if (has_masters) {
        options = {.mixed_precision = Precision::kBf16, .master_weights = true};
      }
      Trained run(options, group, 2);
      const auto saved = testing::copy_of(run.accelerator.state().state_dict());
      const auto train = [&](int failing_at) {
        for (int i = 0; i < 8; ++i) {
          const auto micro_batch = run.accelerator.accumulate(run.net);
          const auto loss = run.net(torch::full({2, 3}, run.rank + 1.0)).sum();
          if (i == failing_at && run.rank == 1) {
            continue; // as a program that catches the error of a bad sample
          }
          run.accelerator.backward(loss);
          run.opt.step();
          run.opt.zero_grad();
        }
      };
      EXPECT_THAT(
          [&] { train(3); },
          ThrowsMessage<MismatchError>(AllOf(
              HasSubstr("skipped backward() at the end of gradient "
                        "accumulation a different number of times"),
              HasSubstr(": 1 time on rank 1 but 0 times on ranks 0, 2, so"))));
      run.accelerator.state().load_state_dict(saved);
      train(-1);
    });
  }
}

// All gradients of such a rank are in the same update as those of the others.
TEST(StepsOfRanks, OneRankMayLeaveOutAnotherMicroBatch) {
  run_ranks(2, [](ProcessGroup group) {
    Trained run({}, group, 2);
    for (int i = 0; i < 8; ++i) {
      const auto micro_batch = run.accelerator.accumulate(run.net);
      if (i == 4 && run.rank == 1) {
        continue;
      }
      run.backward();
      run.opt.step();
      run.opt.zero_grad();
    }
  });
}

TEST(StepsOfRanks, RanksMayLeaveOutTheSameMicroBatches) {
  run_ranks(2, [](ProcessGroup group) {
    Trained run({}, group, 2);
    for (int i = 0; i < 8; ++i) {
      const auto micro_batch = run.accelerator.accumulate(run.net);
      if (i == 3) {
        continue;
      }
      run.backward();
      run.opt.step();
      run.opt.zero_grad();
    }
  });
}

TEST(StepsOfRanks, DifferentLearningRatesAreNamedBeforeTheyAreUsed) {
  run_ranks(2, [](ProcessGroup group) {
    Trained run({}, group, 1);
    // Each rank passes a metric of its own: that of rank 1 does not improve.
    Scheduler scheduler(run.opt, ReduceLROnPlateau{.patience = 0});
    const auto train = [&] {
      for (int i = 0; i < 4; ++i) {
        run.micro_batch();
        scheduler.step(group.rank() == 0 ? -i : i);
      }
    };
    EXPECT_THAT(
        train,
        ThrowsMessage<MismatchError>(AllOf(
            HasSubstr("The learning rates of the optimizer differ between "
                      "ranks: 0.01 on rank 1 but 0.1 on rank 0"),
            HasSubstr("with the same metric"))));
    const auto weights = group.all_gather(run.model->weight.detach());
    EXPECT_TRUE(weights[0].equal(weights[1]));
  });
}

// Processors may round a cosine differently in its last bit.
TEST(StepsOfRanks, LearningRatesMayDifferByRounding) {
  run_ranks(2, [](ProcessGroup group) {
    Trained run({}, group, 1);
    if (group.rank() == 1) {
      run.sgd.options().lr = std::nextafter(0.1, 1.0);
    }
    run.micro_batch();
    run.micro_batch();
  });
}

TEST(StepsOfRanks, OneRankThatClearsGradientsAloneIsNamed) {
  run_ranks(2, [](ProcessGroup group) {
    Trained keeps({}, group, 1);
    const auto leave_out = [&] {
      for (int i = 0; i < 3; ++i) {
        keeps.backward();
        keeps.opt.step();
        if (i != 1 || group.rank() == 0) {
          keeps.opt.zero_grad();
        }
      }
    };
    EXPECT_THAT(
        leave_out,
        ThrowsMessage<MismatchError>(HasSubstr(
            "zero_grad() of the optimizer was called between the last two "
            "backward passes on some ranks only: called on rank 0 but not on "
            "rank 1")));
    Trained clears({}, group, 1);
    const auto clear_early = [&] {
      for (int i = 0; i < 3; ++i) {
        clears.backward();
        if (i == 1 && group.rank() == 1) {
          clears.opt.zero_grad(/*set_to_none=*/false);
        }
        clears.opt.step();
        clears.opt.zero_grad();
      }
    };
    EXPECT_THAT(
        clear_early,
        ThrowsMessage<MismatchError>(AllOf(
            HasSubstr("step() after zero_grad()"),
            HasSubstr(": 0 times on rank 0 but 1 time on rank 1, so"))));
  });
}

// A rank that trains by itself for a while may take other steps.
TEST(StepsOfRanks, StepsWithoutSynchronisedGradientsDoNotCount) {
  run_ranks(2, [](ProcessGroup group) {
    Trained run({}, group, 1);
    {
      LocalSGD local_sgd(run.accelerator, run.net, 8);
      for (int i = 0; i <= group.rank(); ++i) {
        run.micro_batch();
      }
    }
    run.micro_batch();
    run.micro_batch();
  });
}

// The end of a loader ends an update, also of different numbers of batches.
TEST(StepsOfRanks, LoadersMayEndAtDifferentMicroBatches) {
  run_ranks(2, [](ProcessGroup group) {
    Trained run({}, group, 2);
    auto loader = run.accelerator.prepare(DataLoader(
        TensorDataset({torch::ones({7, 3})}),
        {.batch_size = 1, .even_batches = false}));
    for (int epoch = 0; epoch < 2; ++epoch) {
      int64_t num_batches = 0;
      for (auto& batch : loader) {
        num_batches += batch[0].size(0);
        run.micro_batch();
      }
      EXPECT_EQ(num_batches, group.rank() == 0 ? 4 : 3);
    }
  });
}

TEST(StepsOfRanks, AreComparedInsideJoinUnevenInputs) {
  run_ranks(2, [](ProcessGroup group) {
    Trained run({}, group, 1);
    {
      const auto join = run.accelerator.join_uneven_inputs(run.net);
      for (int i = 0; i <= group.rank(); ++i) {
        run.micro_batch();
      }
    }
    // Both have the weights of rank 1, which has taken another step.
    run.micro_batch();
    const auto train_on = [&] {
      const auto join = run.accelerator.join_uneven_inputs(run.net);
      run.backward();
      if (group.rank() == 1) {
        run.opt.step();
      }
      run.backward();
    };
    EXPECT_THAT(
        train_on,
        ThrowsMessage<MismatchError>(
            HasSubstr("optimizer.step() a different number of times")));
  });
}

} // namespace
} // namespace accelerate
