// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::Tensor;

struct Output {
  Tensor loss;
  Tensor logits;
};
auto tensor_fields(Output& o) {
  return std::tie(o.loss, o.logits);
}

struct ClassifierImpl : torch::nn::Module {
  ClassifierImpl() : linear(3, 2) { register_module("linear", linear); }
  Output forward(const std::map<std::string, Tensor>& batch, double scale = 1) {
    auto logits = linear(batch.at("x")) * scale;
    return {logits.pow(2).mean(), logits};
  }
  torch::nn::Linear linear;
};
TORCH_MODULE(Classifier);

DataLoader<TensorDataset> small_loader() {
  return DataLoader(
      TensorDataset({torch::arange(10)}), {.batch_size = 2, .shuffle = true});
}

TEST(Prepare, ReturnsObjectsInOrder) {
  Accelerator accelerator;
  Classifier model;
  auto second_model = std::make_shared<torch::nn::LinearImpl>(2, 2);
  torch::optim::AdamW adam(model->parameters());
  auto dataloader = small_loader();
  int bystander = 3;
  auto [optimizer, net, loader, number, other] =
      accelerator.prepare(adam, model, dataloader, bystander, second_model);
  static_assert(std::is_same_v<decltype(optimizer), PreparedOptimizer>);
  static_assert(std::is_same_v<decltype(net), PreparedModel<ClassifierImpl>>);
  static_assert(std::is_same_v<decltype(loader), DataLoader<TensorDataset>>);
  static_assert(
      std::is_same_v<decltype(other), PreparedModel<torch::nn::LinearImpl>>);
  number = 4;
  EXPECT_EQ(bystander, 4) << "what plays no part is handed through";
  EXPECT_EQ(accelerator.unwrap_model(net), model.ptr());
  EXPECT_EQ(accelerator.unwrap_model(other), second_model);
}

TEST(Prepare, KeepsDefaultsAndResultOfTheModelsForward) {
  Accelerator accelerator;
  auto net = accelerator.prepare(Classifier());
  const std::map<std::string, Tensor> batch = {{"x", torch::ones({4, 3})}};
  Output output = net(batch);
  EXPECT_EQ(output.logits.sizes(), (torch::IntArrayRef{4, 2}));
  EXPECT_TRUE(net(batch, 2.0).logits.allclose(output.logits * 2));
  net->eval();
  EXPECT_FALSE(net->is_training());
  accelerator.backward(output.loss);
  EXPECT_TRUE(net->linear->weight.grad().defined());
}

TEST(Prepare, TwiceHasNoEffect) {
  run_ranks(2, [](ProcessGroup group) {
    Accelerator accelerator({.process_group = group});
    Classifier model;
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto [net, optimizer, loader] =
        accelerator.prepare(model, sgd, small_loader());
    auto [net2, optimizer2, loader2] =
        accelerator.prepare(net, optimizer, loader);
    auto net3 = accelerator.prepare(model);
    EXPECT_EQ(&net.engine(), &net2.engine());
    EXPECT_EQ(&net.engine(), &net3.engine());
    EXPECT_EQ(loader2.size(), loader.size());
    EXPECT_EQ(loader2.size(), 3);
    EXPECT_EQ(&optimizer2.optimizer(), &sgd);
  });
}

TEST(Prepare, GivesLoadersTheSameOrderOnAllRanks) {
  run_ranks(3, [](ProcessGroup group) {
    Accelerator accelerator({.process_group = group});
    // Each rank draws another seed: rank 0's must be used.
    auto loader = accelerator.prepare(small_loader());
    std::vector<Tensor> own;
    for (auto& batch : loader) {
      own.push_back(batch[0]);
    }
    const auto all =
        std::get<0>(at::_unique(accelerator.gather(torch::cat(own))));
    EXPECT_EQ(all.numel(), 10) << "every sample is somewhere";
    const auto seeds = accelerator.gather(
        torch::tensor({static_cast<int64_t>(loader.seed())}));
    EXPECT_TRUE(seeds.eq(seeds[0]).all().item<bool>());
  });
}

TEST(Prepare, RejectsANullModulePointer) {
  Accelerator accelerator;
  std::shared_ptr<torch::nn::LinearImpl> nothing;
  EXPECT_THAT(
      [&] { accelerator.prepare(nothing); },
      ThrowsMessage<UsageError>(HasSubstr("The module is a null pointer")));
  torch::nn::Linear empty{nullptr};
  EXPECT_THAT(
      [&] { accelerator.prepare(empty); },
      ThrowsMessage<UsageError>(HasSubstr("The module is a null pointer")));
}

TEST(PreparedOptimizer, DrivesTorchsSchedulers) {
  Accelerator accelerator;
  torch::nn::Linear model(1, 1);
  torch::optim::SGD sgd(model->parameters(), 0.4);
  auto optimizer = accelerator.prepare(sgd);
  torch::optim::StepLR scheduler(optimizer, 1, 0.5);
  scheduler.step();
  scheduler.step();
  EXPECT_DOUBLE_EQ(
      optimizer.optimizer().param_groups()[0].options().get_lr(), 0.2);
}

TEST(PreparedOptimizer, ReportsMissingGradients) {
  Accelerator accelerator;
  torch::nn::Linear model(1, 1);
  torch::optim::SGD sgd(model->parameters(), 0.4);
  auto optimizer = accelerator.prepare(sgd);
  EXPECT_THAT(
      [&] { optimizer.step(); },
      ThrowsMessage<UsageError>(HasSubstr("accelerator.backward(loss)")));
}

TEST(Backward, ReportsAnInvalidLoss) {
  Accelerator accelerator;
  const std::pair<Tensor, const char*> cases[] = {
      {Tensor(), "undefined"},
      {torch::ones({2}, torch::requires_grad()), "shape [2]"},
      {torch::ones({}), "does not require gradients"},
  };
  for (const auto& [bad_loss, text] : cases) {
    const Tensor loss = bad_loss;
    EXPECT_THAT(
        [&] { accelerator.backward(loss); },
        ThrowsMessage<UsageError>(HasSubstr(text)));
  }
}

} // namespace
} // namespace accelerate
