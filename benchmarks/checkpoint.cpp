// SPDX-License-Identifier: Apache-2.0
// The C++ side of checkpoint.py: saves and loads a BERT-base-sized model with
// AdamW's moments, and writes as many bytes as bare files can be written.
// Reads lines "save FOLDER", "beside FOLDER" (asynchronously), "load FOLDER",
// "read FOLDER" (without verifying), "raw FILE", "copy -"; answers with
// seconds.
#include <accelerate/accelerate.h>
#include <fcntl.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>

namespace {

struct BertSized : torch::nn::Module {
  BertSized() {
    add({30522, 768}), add({512, 768}), add({2, 768}), add({768}), add({768});
    for (int layer = 0; layer < 12; ++layer) {
      for (int i = 0; i < 4; ++i) {
        add({768, 768}), add({768});
      }
      add({768}), add({768}), add({3072, 768}), add({3072}), add({768, 3072});
      add({768}), add({768}), add({768});
    }
    add({768, 768}), add({768});
  }
  void add(at::IntArrayRef shape) {
    register_parameter(
        "p" + std::to_string(parameters().size()), torch::rand(shape));
  }
};

double seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double> time =
      std::chrono::steady_clock::now() - start;
  return time.count();
}

/// Loading without a look at checksums.
void read_files(
    const std::string& folder,
    const accelerate::StateDict& states) {
  for (const std::string object : {"model", "optimizer"}) {
    const accelerate::safetensors::File file(
        folder + "/" + object + ".safetensors");
    const auto own = states.section(object);
    for (const auto& view : file.tensors()) {
      auto tensor = own.get<at::Tensor>(view.name);
      tensor.copy_(at::from_blob(
          const_cast<std::byte*>(view.data.data()),
          view.shape,
          tensor.options().device(at::kCPU)));
    }
  }
}

void write_raw(const std::string& path, const std::vector<at::Tensor>& all) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  for (const auto& tensor : all) {
    const auto* data = static_cast<const char*>(tensor.const_data_ptr());
    for (size_t done = 0; done < tensor.nbytes();) {
      const auto count = write(file, data + done, tensor.nbytes() - done);
      if (count <= 0) {
        std::perror("write");
        std::exit(1);
      }
      done += static_cast<size_t>(count);
    }
  }
  fdatasync(file);
  close(file);
}

} // namespace

int main() {
  accelerate::Accelerator accelerator;
  const auto model = std::make_shared<BertSized>();
  accelerate::optim::AdamW optimizer(model->parameters(), {.lr = 1e-3});
  auto [net, opt] = accelerator.prepare(model, optimizer);
  for (auto& parameter : model->parameters()) {
    parameter.mutable_grad() = torch::rand_like(parameter);
  }
  opt.step();
  opt.zero_grad();
  const auto states = accelerator.state().state_dict();
  std::vector<at::Tensor> all;
  std::vector<at::Tensor> copies;
  for (const auto& [name, value] : states) {
    if (const auto* tensor = std::get_if<at::Tensor>(&value)) {
      all.push_back(tensor->detach());
      copies.push_back(at::empty(
          tensor->sizes(),
          at::TensorOptions(tensor->scalar_type())
              .pinned_memory(!tensor->is_cpu())));
    }
  }
  const auto copy = [&] {
    for (size_t i = 0; i < all.size(); ++i) {
      copies[i].copy_(all[i], /*non_blocking=*/true);
    }
  };
  copy();
  std::string what;
  std::string path;
  while (std::cin >> what >> path) {
    std::cout << seconds([&] {
      if (what == "save") {
        accelerator.save_state(path);
      } else if (what == "beside") {
        accelerator.save_state(path, {.asynchronous = true});
      } else if (what == "load") {
        accelerator.load_state(path);
      } else if (what == "read") {
        read_files(path, states);
      } else if (what == "copy") {
        copy();
      } else {
        write_raw(path, copies);
      }
      if (!accelerator.device().is_cpu()) {
        torch::cuda::synchronize();
      }
    }) << std::endl;
    accelerator.wait_for_save();
  }
}
