// SPDX-License-Identifier: Apache-2.0
// Our side of loss_curve.py: trains a GPT-2 of a Hugging Face folder on the
// bytes of a file, with bf16 weights and fp32 master weights, captured. Prints
// the loss of each step.
//
//     loss_curve FOLDER FILE STEPS BATCH TOKENS
#include <accelerate/accelerate.h>
#include <accelerate/models.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fputs("usage: loss_curve FOLDER FILE STEPS BATCH TOKENS\n", stderr);
    return 2;
  }
  const int64_t num_steps = std::atoll(argv[3]);
  const int64_t batch = std::atoll(argv[4]);
  const int64_t tokens = std::atoll(argv[5]);
  std::ifstream in(argv[2], std::ios::binary);
  const std::string bytes(
      (std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const auto text = torch::from_blob(
                        const_cast<char*>(bytes.data()),
                        {static_cast<int64_t>(bytes.size())},
                        torch::kByte)
                        .to(torch::kLong);
  const auto rows =
      text.narrow(0, 0, text.size(0) / tokens * tokens).view({-1, tokens});

  accelerate::Accelerator accelerator(
      {.mixed_precision = accelerate::Precision::kBf16,
       .master_weights = true,
       .outputs_to_fp32 = false});
  auto model =
      accelerate::models::AutoModelForCausalLM::from_pretrained(argv[1]);
  model->train();
  accelerate::optim::AdamW adam(
      model->parameters(),
      {.lr = 6e-4, .betas = {0.9, 0.95}, .weight_decay = 0.1});
  auto [net, optimizer] = accelerator.prepare(model, adam);
  auto scheduler = accelerate::get_scheduler(
      "constant_with_warmup", optimizer, {.num_warmup_steps = 50});
  auto step = accelerator.capture([&, &net = net, &optimizer = optimizer](
                                      const at::Tensor& ids) {
    const auto loss =
        net(accelerate::models::ModelInputs{.input_ids = ids, .labels = ids})
            .loss;
    accelerator.backward(loss);
    accelerator.clip_grad_norm_(model->parameters(), 1.0);
    optimizer.step();
    optimizer.zero_grad();
    return loss;
  });
  std::vector<at::Tensor> losses;
  for (int64_t i = 0; i < num_steps; ++i) {
    const auto places =
        torch::arange(i * batch, (i + 1) * batch) % rows.size(0);
    losses.push_back(
        step(rows.index_select(0, places).to(accelerator.device())));
    scheduler.step();
  }
  for (const auto& loss : losses) {
    std::printf("%.6f\n", loss.item<double>());
  }
  std::fprintf(stderr, "%zu replays\n", step.num_replays());
}
